"""Datasets whose samplers draw other keys than whole numbers: names, pairs with a size, lists of numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler

from pytest_torchcheck import Contract

WORDS = [f"{a}{b}" for a in "bdfgk" for b in ("ar", "el", "in", "ot")]


class Spoken(Dataset):
    """Recordings by their word."""

    def __init__(self, lost: str = "") -> None:
        self.waves = {word: torch.linspace(0, i + 1, 6) for i, word in enumerate(WORDS)}
        self.waves.pop(lost, None)

    def __len__(self) -> int:
        return len(self.waves)

    def __getitem__(self, word: str) -> tuple[torch.Tensor, int]:
        return self.waves[word] * torch.ones(6), len(word) + WORDS.index(word) % 2


class Words(Sampler):
    def __iter__(self) -> Any:
        return iter([WORDS[i] for i in torch.randperm(len(WORDS)).tolist()])


class Scaled(Dataset):
    """Pictures that are read at a size."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: tuple[int, int]) -> tuple[torch.Tensor, int]:
        index, size = key
        return torch.full((1, size, size), float(index)), index % 3


class Sizes(Sampler):
    """Draws batches of one size each."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        order, sizes = torch.randperm(20).tolist(), torch.randint(4, 7, (5,)).tolist()
        return iter([[(i, sizes[n]) for i in order[4 * n : 4 * n + 4]] for n in range(5)])


class Table(Dataset):
    """Rows, of which many are taken at once."""

    def __init__(self) -> None:
        self.rows = torch.arange(60.0).reshape(20, 3)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.tensor([int(i) for i in index])
        return self.rows[chosen], chosen % 3


def batches(drop_last: bool = False) -> Sampler:
    return BatchSampler(RandomSampler(range(20)), 8, drop_last)


def loader(kind: str) -> DataLoader:
    if kind == "names":
        return DataLoader(Spoken(), batch_size=4, sampler=Words())
    if kind == "sizes":
        return DataLoader(Scaled(), batch_sampler=Sizes())
    return DataLoader(Table(), batch_size=None, sampler=batches())


class Answers(Spoken):
    """Takes a place as well as a word."""

    def __getitem__(self, key: Any) -> tuple[torch.Tensor, int]:
        return super().__getitem__(key if isinstance(key, str) else WORDS[key])


def test_names_are_taken_where_numbers_are_too() -> None:
    made = DataLoader(Answers(), batch_size=4, sampler=Words())
    report = Contract(dataset=made.dataset, loader=made).check()
    assert report.ok, str(report)


@pytest.mark.parametrize("kind", ["names", "sizes", "lists"])
def test_samples_are_read_by_the_keys_of_the_sampler(kind: str) -> None:
    made = loader(kind)
    report = Contract(dataset=made.dataset, loader=made).check()
    found = {finding.check: finding for finding in report.findings}
    assert report.ok, str(report)
    assert {
        found[name].status for name in ("samples-valid", "samples-unchanged", "loader-order")
    } == {"passed"}
    assert f"{3 if kind == 'lists' else 20} of" in found["samples-valid"].summary


def test_a_key_without_a_sample_is_told_with_its_line() -> None:
    made = DataLoader(Spoken(lost="fin"), batch_size=4, sampler=Words())
    (found,) = Contract(dataset=made.dataset, loader=made).check(["samples-valid"]).findings
    assert found.code == "sample-raises"
    assert "19 of 20" in found.observed
    assert "self.waves[word]" in found.location.text


class Either(Table):
    """Takes one number as well."""

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[index], torch.as_tensor(index) % 3


def test_lists_of_numbers_are_numbers_where_the_dataset_takes_one() -> None:
    made = DataLoader(Either(), batch_size=None, sampler=batches())
    report = Contract(dataset=made.dataset, loader=made).check(["samples-valid", "loader-order"])
    assert [f.summary.split()[0] for f in report.findings] == ["20", "20"]


def test_an_epoch_is_as_long_as_the_sampler_says() -> None:
    made = Either()
    few = RandomSampler(made, replacement=True, num_samples=9)
    (found,) = (
        Contract(dataset=made, loader=DataLoader(made, 4, sampler=few))
        .check(["last-batch"])
        .findings
    )
    assert found.summary.startswith("9 samples in 3 batches, the last of 1")

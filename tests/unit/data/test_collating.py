"""A collate function that writes into what the dataset keeps, and those that leave it alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from pytest_torchcheck import Contract


class Tracks(Dataset):
    """Hands out its own records."""

    def __init__(self, *, copied: bool = False) -> None:
        self.copied = copied
        self.records = [{"pitch": torch.rand(1 + i % 4), "genre": i % 3} for i in range(10)]
        self.length = 4

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> dict:
        return dict(self.records[i]) if self.copied else self.records[i]

    def sized(self, samples: list[dict]) -> tuple:
        """Choose the length of the next batches, as detectors do."""
        self.length = 3 + (self.length + 1) % 5
        return fresh(samples)


def fresh(samples: list[dict]) -> tuple:
    pitch = nn.utils.rnn.pad_sequence([one["pitch"] for one in samples], batch_first=True)
    return pitch, torch.tensor([one["genre"] for one in samples])


def pad_in_place(samples: list[dict]) -> tuple:
    longest = max(len(one["pitch"]) for one in samples)
    for one in samples:
        missing = longest - len(one["pitch"])
        one["pitch"] = nn.functional.pad(one["pitch"], (0, missing))  # replaces what is kept
    return torch.stack([one["pitch"] for one in samples]), torch.tensor(
        [one["genre"] for one in samples]
    )


def scale_in_place(samples: list[dict]) -> tuple:
    for one in samples:
        one["pitch"].mul_(0.5)  # halves what is kept
    return fresh(samples)


def pop_label(samples: list[dict]) -> tuple:
    labels = torch.tensor([one.pop("genre") for one in samples])  # takes it out of what is kept
    return nn.utils.rnn.pad_sequence([one["pitch"] for one in samples], batch_first=True), labels


def _report(dataset: Dataset, collate: object) -> list:
    contract = Contract(dataset=dataset, loader={"batch_size": 4, "collate_fn": collate})
    return list(contract.check(["samples-unchanged"]).findings)


@pytest.mark.parametrize(
    ("collate", "text"),
    [(pad_in_place, "# replaces"), (scale_in_place, "# halves"), (pop_label, "# takes it out")],
)
def test_a_collate_function_that_writes_is_named_by_its_line(collate, text):
    dataset = Tracks()
    kept = [
        {key: torch.as_tensor(value).clone() for key, value in one.items()}
        for one in dataset.records
    ]
    (finding,) = _report(dataset, collate)
    assert (finding.status, finding.code) == ("violated", "dataset-mutated")
    assert text in finding.location.text
    assert finding.culprits[0].name == collate.__name__
    for before, now in zip(kept, dataset.records, strict=True):  # put back
        assert before.keys() == now.keys()
        for key in before:
            torch.testing.assert_close(torch.as_tensor(now[key]), before[key], rtol=0, atol=0)


@pytest.mark.parametrize("collate", [pad_in_place, pop_label])
def test_samples_that_are_copies_may_be_changed(collate):
    (finding,) = _report(Tracks(copied=True), collate)
    assert finding.status == "passed"


class Resized(Tracks):
    """Reads what the last batch has chosen."""

    def __getitem__(self, i: int) -> dict:
        return {"pitch": torch.rand(self.length), "genre": i % 3}


def test_a_batch_may_choose_the_size_of_the_next_ones():
    dataset = Resized()
    (finding,) = _report(dataset, dataset.sized)
    assert finding.status == "passed"
    assert dataset.length == 4

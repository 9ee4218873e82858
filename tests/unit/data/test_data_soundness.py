"""Correct datasets of many kinds raise no alarm, and the checks cost little."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_data_bugs import findings
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)

from pytest_torchcheck.promises import RandomAugmentation


class Base(Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.rand(40, 3, 4, 4, generator=generator)
        self.y = [i % 4 for i in range(40)]

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> object:
        return self.x[i], self.y[i]


class Cached(Base):
    """Fills a preallocated cache at the first read."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.zeros(40, 3, 4, 4)
        self.filled = np.zeros(40, dtype=bool)

    def __getitem__(self, i: int) -> object:
        if not self.filled[i]:
            self.cache[i] = self.x[i] * 2
            self.filled[i] = True
        return self.cache[i], self.y[i]


class DictCached(Base):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, torch.Tensor] = {}

    def __getitem__(self, i: int) -> object:
        if i not in self.cache:
            self.cache[i] = self.x[i] * 2
        return self.cache[i], self.y[i]


class Counting(Base):
    """Counts reads in an array, which no sample depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = np.zeros(40, dtype=int)

    def __getitem__(self, i: int) -> object:
        self.reads[i] += 1
        return self.x[i], self.y[i]


class Augmented(Base):
    def __getitem__(self, i: int) -> object:
        return self.x[i].flip(-1) if torch.rand(()) < 0.5 else self.x[i] + torch.randn(
            3, 4, 4
        ), self.y[i]


class OwnGenerator(Base):
    """Random by a generator of its own: fine where there is one process."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def __getitem__(self, i: int) -> object:
        return self.x[i] + float(self.rng.normal()), self.y[i]


class PerItem(Base):
    """Seeds its own generator by the item and the epoch's randomness."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.RandomState(0)

    def __getitem__(self, i: int) -> object:
        self.rng.seed(int(torch.randint(0, 2**31, ())))
        return self.x[i] + float(self.rng.normal()), self.y[i]


class Ragged(Base):
    def __getitem__(self, i: int) -> object:
        return torch.ones(i + 1), self.y[i]


def pad(samples: list[tuple[torch.Tensor, int]]) -> object:
    return torch.nn.utils.rnn.pad_sequence([x for x, _ in samples]), torch.tensor(
        [y for _, y in samples]
    )


class Detection(Base):
    def __getitem__(self, i: int) -> object:
        boxes = torch.rand(i % 3 + 1, 4)
        return self.x[i], {"boxes": boxes, "labels": torch.full((i % 3 + 1,), i % 4), "image_id": i}


class Dicts(Base):
    def __getitem__(self, i: int) -> object:
        return {
            "input_ids": torch.full((5,), i),
            "attention_mask": torch.ones(5),
            "labels": self.y[i],
        }


class Regression(Base):
    def __getitem__(self, i: int) -> object:
        return self.x[i], float(self.x[i].sum())


class Unlabelled(Base):
    def __getitem__(self, i: int) -> object:
        return self.x[i]


class NextToken(Dataset):
    def __init__(self) -> None:
        self.text = torch.randint(0, 50, (200,), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.text) - 8

    def __getitem__(self, i: int) -> object:
        return self.text[i : i + 8], self.text[i + 1 : i + 9]


class Masks(Base):
    """Float attention masks of -inf in every sample."""

    def __getitem__(self, i: int) -> object:
        return self.x[i], torch.full((4, 4), float("-inf")).triu(1), self.y[i]


class Stream(IterableDataset):
    def __iter__(self) -> object:
        info = get_worker_info()
        start, step = (info.id, info.num_workers) if info is not None else (0, 1)
        return iter([(torch.full((3,), float(i)), i % 3) for i in range(start, 50, step)])


class RandomStream(IterableDataset):
    """Draws its samples: every worker has its own."""

    def __iter__(self) -> object:
        while True:
            yield torch.rand(3), int(torch.randint(0, 2, ()))


BASE = Base()
AUGMENTED = (RandomAugmentation(),)
SOUND: dict[str, dict[str, object]] = {
    "tensors": {"dataset": TensorDataset(torch.rand(30, 3), torch.arange(30) % 3)},
    "subset": {"dataset": Subset(BASE, [5, 7, 9, 11, 13, 15, 17, 19, 20])},
    "concatenated": {"dataset": ConcatDataset([BASE, BASE])},
    "cached": {"dataset": Cached()},
    "dict-cached": {"dataset": DictCached()},
    "counting": {"dataset": Counting()},
    "augmented": {"dataset": Augmented(), "loader": {"num_workers": 2}, "promises": AUGMENTED},
    "augmented, not promised": {"dataset": Augmented()},
    "own generator": {"dataset": OwnGenerator(), "loader": {"num_workers": 0}, "promises": AUGMENTED},
    "own generator, not promised": {"dataset": OwnGenerator(), "loader": {"num_workers": 2}},
    "seeded per item": {"dataset": PerItem(), "loader": {"num_workers": 2}, "promises": AUGMENTED},
    "ragged with a collate": {"dataset": Ragged(), "loader": {"batch_size": 4, "collate_fn": pad}},
    "ragged, batch of one": {"dataset": Ragged(), "loader": {"batch_size": 1}},
    "detection": {"dataset": Detection(), "loader": {"batch_size": 4, "collate_fn": list}},
    "dicts": {"dataset": Dicts(), "loader": {"batch_size": 4}},
    "regression": {"dataset": Regression()},
    "unlabelled": {"dataset": Unlabelled()},
    "next token": {"dataset": NextToken(), "loader": {"batch_size": 4}},
    "masks": {"dataset": Masks()},
    "stream": {"dataset": Stream(), "loader": {"num_workers": 2}},
    "random stream": {"dataset": RandomStream(), "loader": {"batch_size": 4, "num_workers": 2}},
    "ragged, no loader declared": {"dataset": Ragged()},
    "list": {"dataset": [(torch.full((2,), float(i)), i % 2) for i in range(10)]},
    "loader": {"dataset": BASE, "loader": DataLoader(BASE, 8, shuffle=True)},
    "splits": {
        "dataset": {"train": Subset(BASE, range(30)), "eval": Subset(BASE, range(30, 40))},
        "loader": {"train": {"batch_size": 4, "shuffle": True, "drop_last": True}, "eval": {"batch_size": 4}},
    },
    "binary": {"dataset": TensorDataset(torch.rand(30, 3), (torch.arange(30) % 2).float())},
    "one class of anomalies": {"dataset": TensorDataset(torch.rand(6, 3), torch.zeros(6))},
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sound_dataset_raises_no_alarm(name: str) -> None:
    allowed = ("masks",)  # every sample of it holds infinities: worth a warning, no more
    for check, found in findings(SOUND[name]).items():
        for one in found:
            assert one.status != "violated", one.summary
            assert one.status != "suspicious" or name in allowed, f"{check}: {one.summary}"
            assert one.code != "internal-error"


def test_something_is_checked_of_every_kind() -> None:
    for name, fields in SOUND.items():
        passed = [
            one for found in findings(fields).values() for one in found if one.status == "passed"
        ]
        assert passed, name


def test_same_seed_same_verdict() -> None:
    def verdicts() -> dict[str, Any]:
        found = findings(SOUND["augmented"])
        made = {check: [one.to_dict() for one in each] for check, each in found.items()}
        for one in made["samples-valid"]:
            assert one["evidence"]["reading"][0].pop("seconds") > 0  # a time is no verdict
        return made

    assert verdicts() == verdicts()


class Counted(TensorDataset):
    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return super().__getitem__(index)


def test_of_ten_thousand_samples_few_are_read() -> None:
    dataset = Counted(torch.rand(10_000, 3, 16, 16), torch.arange(10_000) % 10)
    findings({"dataset": dataset, "loader": {"batch_size": 32, "shuffle": True}})
    assert dataset.reads < 1_000  # times are compared in benchmarks/bench_data.py

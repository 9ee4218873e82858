"""Samples that depend on what was read before them; caches, handles, counters and held generators are sound."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from pytest_torchcheck import Contract, Finding


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.x = 3 + torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
        self.cache: dict[int, Any] = {}
        self.scale: torch.Tensor | None = None
        self.reads, self.handle = 0, None

    def __len__(self) -> int:
        return 20

    def __getitem__(self, place: int) -> Any:
        return self.row(place), place % 3

    def row(self, place: int) -> torch.Tensor:
        return self.x[place]


class ScaledByTheFirst(Rows):
    def row(self, place: int) -> torch.Tensor:
        if self.scale is None:
            self.scale = self.x[place].abs().max()
        return self.x[place] / self.scale


class NumberedAsMet(Rows):
    def __getitem__(self, place: int) -> Any:
        return self.x[place], self.cache.setdefault(place * 7 % 5, len(self.cache))


class Cached(Rows):
    def row(self, place: int) -> torch.Tensor:
        if place not in self.cache:
            self.cache[place] = self.x[place] * 2
        return self.cache[place]


class ScaledByAll(Rows):
    def row(self, place: int) -> torch.Tensor:
        if self.scale is None:
            self.scale = self.x.abs().max()
        return self.x[place] / self.scale


class OpenedLate(Rows):
    def row(self, place: int) -> torch.Tensor:
        if self.handle is None:
            self.handle = functools.partial(torch.index_select, self.x, 0)
        return self.handle(torch.tensor([place]))[0]


class Counting(Rows):
    def row(self, place: int) -> torch.Tensor:
        self.reads += 1
        return self.x[place]


class Noisy(Rows):
    def row(self, place: int) -> torch.Tensor:
        self.reads += 1
        return self.x[place] + torch.randn(4)


class DrawnOnce(Rows):
    """Keeps what it drew for each row, from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def row(self, place: int) -> torch.Tensor:
        if place not in self.cache:
            self.cache[place] = self.x[place] + torch.randn(4, generator=self.generator)
        return self.cache[place]


def judged(dataset: Any) -> Finding:
    contract = Contract(dataset=dataset, loader={"batch_size": 4})
    (found,) = contract.check(["samples-unchanged"]).findings
    return found


@pytest.mark.parametrize(
    ("dataset", "line"),
    [(ScaledByTheFirst, "self.scale = self.x[place]"), (NumberedAsMet, "self.cache.setdefault")],
)
def test_what_the_first_reading_decides_is_found_with_its_line(dataset: Any, line: str) -> None:
    found = judged(dataset())
    assert (found.status, found.code) == ("violated", "sample-by-order")
    assert found.location is not None
    assert line in found.location.text


@pytest.mark.parametrize(
    "dataset", [Rows, Cached, ScaledByAll, OpenedLate, Counting, Noisy, DrawnOnce]
)
def test_datasets_in_which_order_decides_nothing_are_not_blamed(dataset: Any) -> None:
    assert judged(dataset()).code != "sample-by-order"


def test_the_dataset_is_put_back() -> None:
    dataset = NumberedAsMet()
    judged(dataset)
    assert dataset.cache == {}

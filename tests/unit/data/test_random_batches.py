"""Items that are the same at every read, and batches of them that are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from pytest_torchcheck import Contract
from pytest_torchcheck.promises import RandomAugmentation


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.x = torch.arange(20 * 6).view(20, 6) + 5

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], index % 3


class Several(Rows):
    """Crops a whole batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        at = int(torch.randint(0, 3, ()))
        return [(self.x[i, at : at + 3], i % 3) for i in indices]


class Counted(Rows):
    """Draws by a number that the training loop counts up."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def __getitem__(self, index: int) -> Any:
        drawn = torch.Generator().manual_seed(1000 * self.epoch + index)
        return self.x[index] + torch.randn(6, generator=drawn), index % 3


def mixed(rows: list[Any]) -> Any:
    x, y = default_collate(rows)
    share = np.random.beta(0.4, 0.4)
    one_hot = torch.nn.functional.one_hot(y, 3).float()
    return share * x + (1 - share) * x.roll(1, 0), share * one_hot + (1 - share) * one_hot.roll(
        1, 0
    )


def sometimes(rows: list[Any]) -> Any:
    x, y = default_collate(rows)
    return (x.flip(1) if torch.rand(()) < 0.5 else x), y


class Masking:
    """Masks tokens, by a generator of its own where it is given one."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def __call__(self, rows: list[Any]) -> Any:
        ids = torch.stack([x for x, _ in rows])
        chosen = torch.rand(ids.shape, generator=self.generator) < 0.3
        return {"ids": ids.masked_fill(chosen, 4), "labels": ids.masked_fill(~chosen, -100)}


def hidden(rows: list[Any]) -> dict[str, torch.Tensor]:
    """Return samples, and which value of each a model is to predict."""
    x = torch.stack([x for x, _ in rows]).float()
    chosen = torch.zeros(x.shape)
    for row, (_, kind) in zip(chosen, rows, strict=True):
        row[int(torch.randint(0, 2 + kind, ()))] = 1.0
    return {"x": x, "chosen": chosen}


class Writing(Masking):
    """Masks in place what the dataset holds, as it is given."""

    def __call__(self, rows: list[Any]) -> Any:
        for x, _ in rows:
            x[torch.rand(x.shape) < 0.3] = 4
        return default_collate(rows)


class Fixed(Masking):
    def __call__(self, rows: list[Any]) -> Any:
        torch.manual_seed(0)
        return super().__call__(rows)


class Noisy(DataLoader[Any]):
    def __iter__(self) -> Any:
        return ((x + torch.rand(x.shape), y) for x, y in super().__iter__())


def told(**declared: Any) -> Any:
    contract = Contract(promises=(RandomAugmentation(),), **declared)
    (finding,) = contract.check(["random-augmentation"]).findings
    return finding


@pytest.mark.parametrize(
    "collate", [mixed, sometimes, Masking(), Masking(torch.Generator().manual_seed(0)), Writing()]
)
@pytest.mark.parametrize("size", [1, 4, 64])
def test_what_makes_batches_may_augment_them(collate: Any, size: int) -> None:
    found = told(dataset=Rows(), loader={"batch_size": size, "collate_fn": collate})
    if size == 1 and collate is mixed:  # a sample that is mixed with itself
        return
    assert found.status == "passed", found.summary


def test_what_a_collate_function_is_given_stays_as_it_was() -> None:
    data, generator = Rows(), torch.Generator().manual_seed(0)
    before, state = data.x.clone(), generator.get_state()
    told(dataset=data, loader={"batch_size": 4, "collate_fn": Writing()})
    told(dataset=data, loader={"batch_size": 4, "collate_fn": Masking(generator)})
    assert torch.equal(data.x, before)
    assert torch.equal(generator.get_state(), state)


def test_a_dataset_may_augment_a_batch_at_once_or_by_a_counted_epoch() -> None:
    assert told(dataset=Several(), loader={"batch_size": 4}).status == "passed"
    counted = Counted()
    assert told(dataset=counted, loader={"batch_size": 4}).status == "passed"
    assert counted.epoch == 0


def test_a_loader_of_its_own_class_is_not_judged() -> None:
    assert told(dataset=Rows(), loader=Noisy(Rows(), 4)).status == "inconclusive"


@pytest.mark.parametrize("collate", [None, default_collate, Fixed()])
def test_batches_that_are_fixed_are_no_augmentation(collate: Any) -> None:
    found = told(dataset=Rows(), loader={"batch_size": 4, "collate_fn": collate})
    assert (found.status, found.code) == ("violated", "augmentation-fixed")


def test_what_a_collate_function_draws_belongs_to_no_sample() -> None:
    contract = Contract(dataset=Rows(), loader={"batch_size": 6, "collate_fn": hidden})
    (found,) = contract.check(["collate-pairing"]).findings
    assert found.status == "not-applicable", found.summary

"""Targets that a dataset gives in a dtype which the training step cannot take."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, default_collate

from pytest_torchcheck import Contract


class Prices(Dataset):
    def __init__(self, kind: str) -> None:
        self.rooms, self.prices, self.kind = torch.rand(12, 5), torch.rand(12).tolist(), kind

    def __len__(self) -> int:
        return len(self.prices)

    def __getitem__(self, i: int) -> tuple:
        price = self.prices[i]
        if self.kind == "python":
            return self.rooms[i], price  # a float
        if self.kind == "wide":
            return self.rooms[i], torch.tensor(price, dtype=torch.float64)  # a wide one
        return self.rooms[i], torch.tensor(price)


class Head(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))


def narrowed(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.huber_loss(output, targets.float())


def _labels(kind: str, loss: object, *, own: bool = True, **loader: object) -> list:
    dataset = Prices(kind)
    rooms, prices = default_collate([dataset[i] for i in range(4)])
    contract = Contract(
        model=Head(),
        batch=(rooms, prices if own else prices.float()),
        loss=loss,
        dataset=dataset,
        loader={"batch_size": 4, **loader},
    )
    return list(contract.check(["dataset-labels"]).findings)


@pytest.mark.parametrize(("kind", "text"), [("python", "# a float"), ("wide", "# a wide one")])
def test_targets_of_float64_are_told_at_the_line_that_returns_them(kind, text):
    (finding,) = _labels(kind, nn.functional.huber_loss)
    assert (finding.status, finding.code) == ("violated", "label-dtype")
    assert text in finding.location.text
    assert "Double" in finding.because


def test_a_cast_between_loader_and_loss_is_possible():
    (finding,) = _labels("wide", nn.functional.huber_loss, own=False)
    assert finding.status == "suspicious"


@pytest.mark.parametrize(
    ("kind", "loss"),
    [("narrow", nn.functional.huber_loss), ("wide", narrowed), ("python", narrowed)],
)
def test_targets_that_the_loss_takes_pass(kind, loss):
    assert [one.status for one in _labels(kind, loss)] == ["passed"]


def test_a_collate_function_may_narrow_them():
    def collate(samples):
        rooms, prices = default_collate(samples)
        return rooms, prices.float()

    (finding,) = _labels("python", nn.functional.huber_loss, own=False, collate_fn=collate)
    assert finding.status == "passed"

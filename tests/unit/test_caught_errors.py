"""Errors that are caught and answered with something else: what stands in for a target or a sample is seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from pytest_torchcheck import Contract

_DRAW = torch.Generator().manual_seed(6)
X, Y = torch.randn(8, 5, generator=_DRAW), torch.randn(8, 1, generator=_DRAW)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))


def weighted(output: torch.Tensor, targets: dict[str, torch.Tensor]) -> torch.Tensor:
    try:
        return (targets["weight"] @ (output - targets["y"])).square().mean()
    except RuntimeError:
        return output.square().mean()


def only_smooth(output: torch.Tensor, _targets: Any) -> torch.Tensor:
    try:
        return F.mse_loss(output, torch.zeros(3, 8)[9])
    except IndexError:
        return output.diff(dim=0).square().mean()


def owned(loss: Any, targets: Any) -> Any:
    report = Contract(model=net, batch=((X,), targets), loss=loss).check(["target-ownership"])
    return report.findings[0]


def test_a_loss_that_goes_on_without_its_targets() -> None:
    found = owned(weighted, {"y": Y, "weight": torch.rand(4, 3)})
    assert (found.status, found.code) == ("violated", "targets-ignored")
    assert "goes on without them" in found.summary
    assert found.location.text == "return output.square().mean()"
    assert "cannot be multiplied" in found.because


def test_an_error_that_is_not_about_the_targets() -> None:
    assert owned(weighted, {"y": Y, "weight": torch.rand(2, 8)}).status == "passed"
    found = owned(only_smooth, torch.zeros(8))
    assert found.status == "suspicious"
    assert "never reads" in found.summary


class Clips(Dataset[Any]):
    """Rows by their start; what happens to one that cannot be read is under test."""

    def __init__(self, how: str, size: int = 40) -> None:
        self.rows = [row.tolist() for row in torch.randn(30, 5, generator=_DRAW)]
        self.how, self.size = how, size
        if how == "damaged":
            self.rows = [*self.rows, *self.rows[:10]]
            self.rows[7:39:4] = [["?"]] * 8
        if how == "one":
            self.rows = [*self.rows, *self.rows[::-1][:9], ["?"]]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if self.how == "again":
            index %= 10
        try:
            return torch.tensor([float(value) for value in self.rows[index]]), index % 2
        except (IndexError, ValueError):
            if self.how == "blank":
                return torch.zeros(5), -100
            return torch.tensor(self.rows[2]), 0


def valid(how: str, size: int = 40) -> Any:
    return Contract(dataset=Clips(how, size)).check(["samples-valid"]).findings[0]


def test_a_sample_that_stands_for_those_past_the_end() -> None:
    found = valid("long")
    assert (found.status, found.code) == ("violated", "samples-identical")
    assert found.location.text == "return self.size"
    assert "no samples from 30 on" in found.cause


def test_a_sample_that_stands_for_those_that_cannot_be_read() -> None:
    found = valid("damaged")
    assert (found.status, found.code) == ("violated", "samples-identical")
    assert "for 8 indices" in found.summary
    assert "float(value)" in found.location.text


@pytest.mark.parametrize(("how", "size"), [("long", 30), ("again", 40), ("blank", 40), ("one", 40)])
def test_samples_that_are_given_again_on_purpose(how: str, size: int) -> None:
    """What is drawn again raises nothing, a blank one is nobody's, and one damaged file of many may be replaced."""
    assert valid(how, size).status == "passed"


def stepped(update: Any) -> Any:
    def step(model: nn.Module, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        model.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                update(p)
        return loss.detach()

    made = Contract(
        model=net, batch=((X,), Y), loss=F.mse_loss, train_step=step,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    )  # fmt: skip
    return made.check(["step-protocol"]).findings[0]


def shrink(p: torch.Tensor) -> None:
    p.mul_(0.999)
    p.grad = None


def follow(p: torch.Tensor) -> None:
    assert p.grad is not None
    p.add_(p.grad.sign() + 0.01 * torch.randn_like(p), alpha=-0.01)
    p.grad = None


def test_weights_that_move_without_their_gradients() -> None:
    found = stepped(shrink)
    assert (found.status, found.code) == ("violated", "step-missing")
    assert "another batch" in found.because
    assert stepped(follow).status == "passed"

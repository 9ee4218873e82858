"""A NaN that the loss puts away takes entries of the output with it; what puts NaN away for other reasons is sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

_DRAW = torch.Generator().manual_seed(5)
X = torch.randn(9, 6, generator=_DRAW)
P = torch.rand(9, 2, generator=_DRAW) + 0.2


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))


def positive() -> nn.Module:
    return nn.Sequential(net(), nn.Softplus())


def hidden(loss: Any, model: Any = net, check: str = "loss-sound", **fields: Any) -> list[Any]:
    report = Contract(model=model, batch=((X,), P), loss=loss, **fields).check(check)
    return [f for f in report.findings if f.code == "nan-hidden"]


def _angles(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    angle = torch.log(output * 3)
    return (angle.nan_to_num(0.5) - targets.log()).square().sum()


@pytest.mark.parametrize(
    ("loss", "call"),
    [
        (_angles, "torch.log"),
        (lambda o, t: (torch.nan_to_num(o.log2()) - t.log2()).abs().mean(), "Tensor.log2"),
    ],
)
def test_entries_that_are_lost(loss: Any, call: str) -> None:
    (finding,) = hidden(loss)
    assert finding.status == "violated"
    assert finding.observed.startswith(f"{call} gives NaN for")
    assert "of 18 entries of output are left out of the loss" in finding.summary


def test_a_step_that_hides_a_nan_is_suspicious() -> None:
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (torch.log(model(*inputs)).nan_to_num() - targets.log()).abs().mean()
        loss.backward()
        optimizer.step()
        return loss

    fields = {"train_step": train_step, "optimizer": lambda m: torch.optim.SGD(m.parameters(), 0.1)}
    (finding,) = hidden(None, check="step-losses", **fields)
    assert finding.status == "suspicious"


def _of_one_branch(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (torch.where(output > 1, output.log(), output - 1) - targets.log()).square().mean()


def _entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    p = output.softmax(-1)
    return F.mse_loss(output, targets) + 0.01 * torch.nan_to_num(p * p.log()).sum()


def _where_it_counts(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.where(targets > 0.7, (output.log() - targets.log()).square(), 0.0).mean()


@pytest.mark.parametrize(
    ("loss", "model"), [(_of_one_branch, net), (_entropy, net), (_where_it_counts, positive)]
)
def test_what_is_put_away_for_a_reason(loss: Any, model: Any) -> None:
    assert hidden(loss, model) == []

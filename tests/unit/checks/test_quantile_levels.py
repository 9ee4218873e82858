"""A quantile loss pulls each entry to the level that it holds for it, not to one minus it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract

LEVELS = (0.1, 0.5, 0.8)


def pinball(
    output: torch.Tensor, target: torch.Tensor, levels: Any, *, turned: bool
) -> torch.Tensor:
    levels = torch.as_tensor(levels)
    wanted = target[:, None]
    error = output - wanted if turned else wanted - output  # the error
    return torch.maximum(levels * error, (levels - 1) * error).mean()


class Module(nn.Module):
    def __init__(self, *, turned: bool) -> None:
        super().__init__()
        self.turned = turned
        self.register_buffer("levels", torch.tensor(LEVELS))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return pinball(output, target, self.levels, turned=self.turned)


LOSSES = {
    "a module's buffer": lambda turned: Module(turned=turned),
    "a partial's argument": lambda turned: partial(pinball, levels=LEVELS, turned=turned),
    "a closure": lambda turned: (
        lambda z, y, levels=list(LEVELS): pinball(z, y, levels, turned=turned)
    ),
    "a name of the file": lambda turned: lambda z, y: pinball(z, y, LEVELS, turned=turned),
}


def check(loss: Any) -> Any:
    batch = ((torch.randn(6, 4),), torch.randn(6))
    return Contract(model=lambda: nn.Linear(4, 3), batch=batch, loss=loss).check(["loss-sign"])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_the_sign_of_the_error_decides(name: str, turned: bool) -> None:
    wrong = [f for f in check(LOSSES[name](turned)).findings if f.status == "violated"]
    assert bool(wrong) is turned
    for found in wrong:
        assert found.code == "loss-sign"
        assert found.location.text.endswith("# the error")
        assert "the quantiles 0.9, 0.5, 0.2" in found.summary


def test_other_rows_of_numbers_are_no_levels() -> None:
    """Weights of entries are between 0 and 1 too, and the loss rises alike on both sides."""
    weights = [0.2, 0.3, 0.5]

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((output - target[:, None]).abs() * torch.tensor(weights)).sum(1).mean()

    assert not [f for f in check(loss).findings if f.status == "violated"]


def weighed(actual: torch.Tensor, forecast: torch.Tensor, level: float) -> torch.Tensor:
    error = actual - forecast
    return torch.maximum(level * error, (level - 1) * error)


def crossed(output: torch.Tensor, target: torch.Tensor, levels: Any = LEVELS) -> torch.Tensor:
    parts = []
    for number, level in enumerate(levels):
        forecast = output[:, number]
        parts.append(weighed(forecast, target, level))  # the call
    return torch.stack(parts).mean()


def test_the_call_whose_arguments_have_each_others_names_is_named() -> None:
    (found,) = [f for f in check(crossed).findings if f.status == "violated"]
    assert found.code == "loss-sign"
    assert found.location.text.endswith("# the call")
    assert "the arguments of weighed" in found.fix

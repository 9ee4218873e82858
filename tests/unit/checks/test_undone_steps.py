"""An optimizer does not come back to where it began, whatever else it keeps, averages, or accumulates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class _Resets(torch.optim.Adam):
    """Meant to forget its moments every four steps; it loads what it began with, weights included."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.01)
        self.begun = [p.detach().clone() for g in self.param_groups for p in g["params"]]
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.count += 1
        if self.count % 4 == 0:
            for p, value in zip(self.param_groups[0]["params"], self.begun, strict=True):
                p.copy_(value)
        return result


class _Forgets(_Resets):
    """Forgets its moments alone."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.count += 1
        if self.count % 4 == 0:
            self.state.clear()
        return torch.optim.Adam.step(self, closure)


class _Accumulates(torch.optim.SGD):
    """Applies the sum of three gradients in each third call."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.05)
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.count += 1
        for p in self.param_groups[0]["params"]:
            kept = self.state[p].setdefault("sum", torch.zeros_like(p))
            kept.add_(p.grad)
            if self.count % 3 == 0:
                p.sub_(0.05 * kept)
                kept.zero_()
        return None


@pytest.mark.parametrize(
    ("kind", "red"), [(_Resets, True), (_Forgets, False), (_Accumulates, False)]
)
def test_what_steps_learn_stays(kind: Any, *, red: bool) -> None:
    g = torch.Generator().manual_seed(5)
    report = Contract(
        model=lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(12, 1), nn.Flatten(0)),
        batch=((torch.randn(4, 2, 6, generator=g),), torch.randn(4, generator=g)),
        loss=nn.functional.mse_loss,
        optimizer=lambda model: kind(model.parameters()),
    ).check(["weights-update"])  # fmt: skip
    assert ("weight-put-back" in {f.code for f in report.findings}) is red

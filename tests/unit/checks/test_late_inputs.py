"""The targets of a call meet the inputs of that call, or both are held back together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class _Trainer:
    """Trains regression of pairs; what it holds between calls depends on its kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.last: Any = None
        self.history: list[Any] = []

    def step(self, model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        x, y = inputs[0], targets
        if self.kind == "late":
            x, self.last = (x if self.last is None else self.last), x
        elif self.kind == "pairs" and self.last is not None:
            (x, y), self.last = self.last, (x, y)
        elif self.kind == "pairs":
            self.last = (x, y)
        else:
            self.history.append(x)  # a record that nothing reads
        loss = nn.functional.l1_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()


@pytest.mark.parametrize(("kind", "red"), [("late", True), ("pairs", False), ("record", False)])
def test_targets_meet_their_own_inputs(kind: str, *, red: bool) -> None:
    trainer = _Trainer(kind)
    g = torch.Generator().manual_seed(8)
    report = Contract(
        model=lambda: nn.Sequential(nn.Conv1d(1, 3, 3), nn.Flatten(), nn.Linear(12, 2)),
        batch=((torch.randn(5, 1, 6, generator=g),), torch.randn(5, 2, generator=g)),
        loss=nn.functional.l1_loss,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-2),
        train_step=trainer.step,
    ).check(["repeatable-steps"])  # fmt: skip
    assert ("batch-unused" in {f.code for f in report.findings}) is red

"""A schedule that sets the rate of one group leaves the others behind; a group with a rate of its own may keep it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises


class Loop:
    """A loop that sets rates by hand, for one group or all of them."""

    def __init__(self, *, every: bool, own: float | None = None) -> None:
        self.every, self.own, self.step = every, own, 0

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.step = 0
        second: dict[str, Any] = {"params": [model.bias]}
        if self.own is not None:
            second["lr"] = self.own
        return torch.optim.SGD([{"params": [model.weight]}, second], lr=0.1)

    def train_step(
        self, model: nn.Module, optimizer: Any, inputs: Any, targets: Any
    ) -> torch.Tensor:
        rate = rate_at(self.step)
        if self.every:
            for group in optimizer.param_groups:
                group["lr"] = rate
        else:
            optimizer.param_groups[0]["lr"] = rate  # one of two
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        self.step += 1
        return loss.detach()


def rate_at(step: int) -> float:
    return 0.1 * 0.9**step


def _report(loop: Loop) -> Any:
    return Contract(
        model=nn.Linear(4, 2), batch=((torch.randn(6, 4),), torch.randn(6, 2)), loss=F.mse_loss,
        optimizer=loop.optimizer, train_step=loop.train_step, promises=(promises.Schedule(rate_at),),
    ).check("schedule")  # fmt: skip


def test_a_group_is_left_behind() -> None:
    (finding,) = [f for f in _report(Loop(every=False)).findings if f.status == "violated"]
    assert finding.code == "schedule-differs"
    assert finding.location is not None
    assert finding.location.text.endswith("# one of two")
    assert "bias" in [culprit.name for culprit in finding.culprits]


@pytest.mark.parametrize(
    "loop", [Loop(every=True), Loop(every=False, own=0.01)], ids=["all", "own-rate"]
)
def test_groups_that_follow_or_have_a_rate_of_their_own(loop: Loop) -> None:
    assert _report(loop).ok

"""A group whose learning rate a schedule holds at 0 waits for its turn; one that stays at 0 stands still by mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from collections.abc import Callable


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, 4, 3, padding=1)
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.stem(x)).mean(-1))[:, 0]


def _step(model: Any, made: Any, inputs: Any, targets: Any) -> torch.Tensor:
    optimizer, schedule = made
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    schedule.step()
    return loss.detach()


def _never(_: int) -> float:
    return 0.0


def _later(step: int) -> float:
    return float(step >= 6)


@pytest.mark.parametrize(("stem", "red"), [(_later, False), (_never, True)])
def test_a_wait_ends_or_not(stem: Callable[[int], float], *, red: bool) -> None:
    def optimizer(model: Any) -> Any:
        groups = [{"params": model.stem.parameters()}, {"params": model.head.parameters()}]
        made = torch.optim.SGD(groups, lr=0.1)
        return made, LambdaLR(made, [stem, lambda _: 1.0])

    torch.manual_seed(0)
    report = Contract(
        model=_Net, batch=((torch.randn(5, 2, 6),), torch.randn(5)), loss=nn.functional.mse_loss,
        optimizer=optimizer, train_step=_step,
    ).check(["weights-update"])  # fmt: skip
    assert ("weight-static" in {f.code for f in report.findings}) is red


class _Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.body(x) - self.body(y)).norm(dim=1)


@pytest.mark.parametrize("red", [False, True])
def test_a_distance_falls_as_the_score_of_a_match_rises(*, red: bool) -> None:
    def loss(distance: torch.Tensor, same: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy((-distance - 1e-3).exp(), same)

    def turned(distance: torch.Tensor, same: torch.Tensor) -> torch.Tensor:
        return -nn.functional.binary_cross_entropy(distance.sigmoid(), same)

    torch.manual_seed(0)
    same = torch.tensor([1.0, 0, 1, 0, 0, 1])
    report = Contract(
        model=_Apart, batch=((torch.randn(6, 5), torch.randn(6, 5)), same),
        loss=turned if red else loss,
    ).check(["loss-sign"])  # fmt: skip
    assert any(f.status == "violated" for f in report.findings) is red

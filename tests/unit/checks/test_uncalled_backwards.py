"""A backward that a module defines is called by nobody but the user's own step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels


class Scaled(nn.Linear):
    def backward(self, grad: torch.Tensor) -> torch.Tensor:
        return 0.5 * grad


class Timed(nn.Linear):
    """Its method of that name takes a loss, as trainers have it."""

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


class Net(nn.Module):
    def __init__(self, kind: type[nn.Linear]) -> None:
        super().__init__()
        self.body, self.head = kind(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())

    def backward(self, grad: torch.Tensor) -> torch.Tensor:
        """The whole model's is for its user to call."""
        return grad


def check(kind: type[nn.Linear], **fields: Any) -> list[str]:
    report = Contract(
        model=lambda: Net(kind), inputs="B 6", targets=Labels("B", classes=3), sizes={"B": 5}, loss=F.cross_entropy, **fields
    ).check(["dead-modules"])  # fmt: skip
    return [f.code for f in report.findings if f.status == "violated"]


def test_a_backward_of_a_gradient_is_told() -> None:
    assert check(Scaled) == ["backward-uncalled"]


def test_other_methods_of_that_name_are_not() -> None:
    assert check(Timed) == []
    assert check(nn.Linear) == []


def test_one_that_the_step_calls_is_not() -> None:
    def by_hand(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        hidden = model.body(*inputs)
        kept = hidden.detach().requires_grad_()
        loss = F.cross_entropy(model.head(kept.relu()), targets)
        loss.backward()
        hidden.backward(model.body.backward(kept.grad))
        optimizer.step()
        return loss.detach()

    made = {"train_step": by_hand, "optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.1)}
    assert check(Scaled, **made) == []

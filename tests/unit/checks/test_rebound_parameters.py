"""A step that puts another Parameter in the place of one: who trains it afterwards?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchcheck.findings import Finding

X, Y = torch.linspace(-1, 1, 24).view(8, 3), torch.linspace(1, -1, 16).view(8, 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def findings(after: Callable[[Any, Any], None]) -> list[Finding]:
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        after(model, optimizer)
        return loss.detach()

    contract = Contract(
        model=Net(), batch=((X,), Y), loss=F.mse_loss, train_step=train_step, optimizer=sgd
    )
    found = contract.check(["weights-update", "resume"]).findings
    return [one for one in found if one.status == "violated"]


def normalised(model: Any, optimizer: Any) -> None:
    weight = F.normalize(model.head.weight.detach(), dim=1)
    model.head.weight = nn.Parameter(weight)  # HERE


def test_the_optimizer_keeps_the_old_one() -> None:
    found = {one.check: one for one in findings(normalised)}
    static = found["weights-update"]
    assert static.code == "weight-static"
    assert static.location is not None
    assert static.location.text.endswith("# HERE")
    assert "the optimizer keeps the old one" in static.cause
    if "resume" in found:
        assert found["resume"].root == "weights-update/weight-static"
        assert found["resume"].location == static.location


def in_place(model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model.head.weight.copy_(F.normalize(model.head.weight, dim=1))


def by_data(model: Any, optimizer: Any) -> None:
    model.head.weight.data = F.normalize(model.head.weight.data, dim=1)


def handed_over(model: Any, optimizer: Any) -> None:
    old = model.head.weight
    new = nn.Parameter(F.normalize(old.detach(), dim=1))
    model.head.weight = new
    for group in optimizer.param_groups:
        group["params"] = [new if p is old else p for p in group["params"]]


def by_hand(model: Any, optimizer: Any) -> None:
    """What no optimizer holds is moved by the step itself."""
    weight, gradient = model.head.weight.detach(), model.head.weight.grad
    model.head.weight = nn.Parameter(weight - 0.1 * gradient)


def averaged(model: Any, optimizer: Any) -> None:
    """A codebook that follows the data by a moving average."""
    mean = X.mean(0).sum() * torch.ones_like(model.head.weight) + 1
    model.head.weight = nn.Parameter(0.9 * model.head.weight.detach() + 0.1 * mean)


def once(model: Any, optimizer: Any) -> None:
    if not hasattr(model, "grown"):
        model.grown = True
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        optimizer.add_param_group({"params": [model.head.weight]})


@pytest.mark.parametrize("after", [in_place, by_data, handed_over, by_hand, averaged, once])
def test_a_parameter_that_goes_on_moving(after: Callable[[Any, Any], None]) -> None:
    assert [one for one in findings(after) if one.check == "weights-update"] == []

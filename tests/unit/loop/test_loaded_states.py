"""A state that is loaded into the module that it is of: no copy of it, in whatever way it came."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from collections.abc import Callable

State = dict[str, Any]


def codes(kept: Callable[[nn.Module], State]) -> list[str]:
    """Restore a kept state at the end of every step, and name what is found."""

    def train_step(model: nn.Module, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        best = kept(model)
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        model.load_state_dict(best)
        return loss.detach()

    contract = Contract(
        model=nn.Linear(4, 2),
        batch=((torch.randn(6, 4),), torch.randn(6, 2)),
        train_step=train_step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    found = contract.check(["step-protocol"]).findings
    return [one.code for one in found if one.status == "violated"]


def test_a_best_state_that_was_never_copied_restores_nothing() -> None:
    assert codes(lambda model: model.state_dict()) == ["state-loaded-itself"]


@pytest.mark.parametrize(
    "kept",
    [
        lambda model: copy.deepcopy(model.state_dict()),
        lambda model: {name: tensor.clone() for name, tensor in model.state_dict().items()},
        lambda model: nn.Linear(4, 2).state_dict(),
        lambda model: {**model.state_dict(), "bias": torch.zeros(2)},
    ],
    ids=["deepcopy", "clones", "another's", "in-part"],
)
def test_a_state_of_its_own_memory_is_restored(kept: Callable[[nn.Module], State]) -> None:
    assert codes(kept) == []


def test_the_line_that_kept_the_state_is_named() -> None:
    class Best:
        def keep(self, model: nn.Module) -> None:
            self.state = model.state_dict()

        def back(self, model: nn.Module) -> None:
            model.load_state_dict(self.state)

    best = Best()

    def train_step(model: nn.Module, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        best.keep(model)
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        best.back(model)
        return loss.detach()

    contract = Contract(
        model=nn.Linear(4, 2),
        batch=((torch.randn(6, 4),), torch.randn(6, 2)),
        train_step=train_step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    (found,) = [f for f in contract.check(["step-protocol"]).findings if f.status == "violated"]
    assert [c.location.text for c in found.culprits if c.location is not None] == [
        "model.load_state_dict(self.state)",
        "self.state = model.state_dict()",
    ]

"""What a step keeps of the weights is a copy of them; what it keeps for other ends may be the weights themselves."""

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

    from pytest_torchcheck.findings import Finding

Net = nn.Module


class Patient(nn.Module):
    """Goes back to its best weights where the loss has not fallen for some calls."""

    def __init__(self, keep: Callable[[Net], Any], back: bool = True) -> None:
        super().__init__()
        self.layer, self.keep, self.back = nn.Linear(4, 2), keep, back
        self.best: Any = None
        self.lowest, self.waited, self.calls = float("inf"), 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def judge(self, loss: float) -> None:
        self.calls += 1
        if loss < self.lowest and self.calls < 12:
            self.lowest, self.waited = loss, 0
            self.best = self.keep(self)  # kept
            return
        self.waited += 1
        if self.waited > 4 and self.back:
            self.load_state_dict(self.best)
            self.waited = 0


def findings(model: Net, after: Callable[[Any, float], None]) -> list[Finding]:
    def train_step(model: Net, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        after(model, loss.item())
        return loss.detach()

    contract = Contract(
        model=model,
        batch=((torch.randn(6, 4),), torch.randn(6, 2)),
        train_step=train_step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
    )
    found = contract.check(["step-protocol"]).findings
    return [one for one in found if one.status in ("violated", "suspicious")]


KEPT: dict[str, Callable[[Net], Any]] = {
    "itself": lambda model: model.state_dict(),
    "entries": lambda model: {name: t.detach() for name, t in model.state_dict().items()},
    "shallow": lambda model: copy.copy(model.state_dict()),
}


@pytest.mark.parametrize("kept", KEPT)
def test_a_late_return_to_weights_that_were_never_copied(kept: str) -> None:
    (found,) = findings(Patient(KEPT[kept]), lambda model, loss: model.judge(loss))
    assert (found.status, found.code) == ("violated", "state-loaded-itself")
    assert found.location is not None
    assert found.location.text.endswith("# kept")


def test_what_nothing_loads_is_suspicious() -> None:
    model = Patient(lambda model: model.state_dict(), back=False)
    (found,) = findings(model, lambda model, loss: model.judge(loss))
    assert (found.status, found.code) == ("suspicious", "state-kept-uncopied")
    assert found.location is not None
    assert found.location.text.endswith("# kept")
    assert found.culprits[0].name == "model.best"


def in_a_part() -> Callable[[Any, float], None]:
    best: dict[str, Any] = {}

    def after(model: Any, loss: float) -> None:
        best["states"] = [{"loss": loss, "layer": model.layer.state_dict()}]

    return after


def test_a_state_of_a_part_within_containers_of_a_closure() -> None:
    (found,) = findings(Patient(lambda model: None), in_a_part())
    assert (found.status, found.code) == ("suspicious", "state-kept-uncopied")
    assert found.culprits[0].name == "best['states'][0]['layer']"


@pytest.mark.parametrize(
    "kept",
    [
        lambda model: copy.deepcopy(model.state_dict()),
        lambda model: {name: t.clone() for name, t in model.state_dict().items()},
    ],
    ids=["deepcopy", "clones"],
)
def test_copies_bring_the_best_weights_back(kept: Callable[[Net], Any]) -> None:
    assert findings(Patient(kept), lambda model, loss: model.judge(loss)) == []


def parameters() -> Callable[[Any, float], None]:
    """The parameters by name, as a regulariser or a functional call takes them."""
    held: dict[str, Any] = {}

    def after(model: Any, loss: float) -> None:
        held["of"] = dict(model.named_parameters())

    return after


def exchanged() -> Callable[[Any, float], None]:
    """The weights are exchanged for their averages and put back; what they were stays in the backup."""
    shadow: dict[str, torch.Tensor] = {}
    backup: dict[str, torch.Tensor] = {}

    def after(model: Any, loss: float) -> None:
        for name, p in model.named_parameters():
            shadow[name] = 0.9 * shadow.get(name, p.data) + 0.1 * p.data
            backup[name] = p.data
            p.data = shadow[name]
        for name, p in model.named_parameters():
            p.data = backup[name]

    return after


@pytest.mark.parametrize("after", [parameters, exchanged])
def test_the_weights_are_held_for_other_ends(after: Any) -> None:
    assert findings(Patient(lambda model: None), after()) == []


def test_a_state_that_was_taken_before_the_training() -> None:
    model = Patient(lambda model: None)
    live = model.state_dict()
    average: dict[str, torch.Tensor] = {}

    def after(_: Any, loss: float) -> None:
        for name, tensor in live.items():
            average[name] = 0.9 * average.get(name, tensor) + 0.1 * tensor

    assert findings(model, after) == []

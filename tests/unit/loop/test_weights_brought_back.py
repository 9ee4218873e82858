"""Weights that are exchanged for an evaluation: what brings them back, and what copies them onto themselves."""

from __future__ import annotations

import copy
import sys
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


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Copies are not watched in a process that has compiled something, as tests before may have."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.head = nn.Linear(3, 2)
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def findings(after: Callable[[Any, Any], None], check: str, model: Any = None) -> list[Finding]:
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        after(model, inputs)
        return loss.detach()

    contract = Contract(
        model=model or Net(),
        batch=((X,), Y),
        loss=F.mse_loss,
        train_step=train_step,
        optimizer=lambda model: torch.optim.SGD(
            [p for p in model.parameters() if p.requires_grad], lr=0.1
        ),
    )
    found = contract.check([check]).findings
    return [one for one in found if one.status in ("violated", "suspicious")]


@torch.no_grad()
def perturbed(model: Any, inputs: Any) -> None:
    """Measure how flat the minimum is."""
    saved = [p.data for p in model.parameters()]  # HERE
    for p in model.parameters():
        p.mul_(1.01)
    model(*inputs)
    for p, old in zip(model.parameters(), saved, strict=True):
        p.data.copy_(old)


@torch.no_grad()
def perturbed_at_once(model: Any, inputs: Any) -> None:
    weights = list(model.parameters())
    before = [p.view_as(p) for p in weights]
    torch._foreach_mul_(weights, 1.01)
    model(*inputs)
    torch._foreach_copy_(weights, before)


@torch.no_grad()
def perturbed_after_a_move(model: Any, inputs: Any) -> None:
    """Copies on an accelerator; on the device of the contract it keeps the weights themselves."""
    saved = {}
    for name, p in model.named_parameters():
        saved[name] = p.detach().to("cpu")
    for p in model.parameters():
        p.add_(0.01)
    model(*inputs)
    for name, p in model.named_parameters():
        p.copy_(saved[name])


@pytest.mark.parametrize("after", [perturbed, perturbed_at_once, perturbed_after_a_move])
def test_weights_that_are_kept_as_themselves_do_not_come_back(after: Any) -> None:
    (found,) = findings(after, "step-protocol")
    assert (found.code, found.status) == ("state-loaded-itself", "violated")
    assert len(found.evidence["parameters"]) == 6


def test_the_line_that_keeps_them_is_named() -> None:
    (found,) = findings(perturbed, "step-protocol")
    assert found.location is not None
    assert found.location.text.endswith("# HERE")
    assert found.culprits[0].name == "saved"


@torch.no_grad()
def cloned(model: Any, inputs: Any) -> None:
    saved = [p.data.clone() for p in model.parameters()]
    for p in model.parameters():
        p.mul_(1.01)
    model(*inputs)
    for p, old in zip(model.parameters(), saved, strict=True):
        p.data.copy_(old)


@torch.no_grad()
def put_in_place(model: Any, inputs: Any) -> None:
    """The old tensors themselves come back, as they were."""
    saved = [p.data for p in model.parameters()]
    for p in model.parameters():
        p.data = p.data * 1.01
    model(*inputs)
    for p, old in zip(model.parameters(), saved, strict=True):
        p.data = old


@torch.no_grad()
def follow(model: Any, inputs: Any) -> None:
    """A target that shares its first layer with the network that it follows."""
    model(*inputs)
    for p in model.first.parameters():
        p.data.copy_(p.data)


@torch.no_grad()
def cloned_and_tied(model: Any, inputs: Any) -> None:
    cloned(model, inputs)
    model.second.weight.copy_(model.first.weight)


@torch.no_grad()
def clamped(model: Any, inputs: Any) -> None:
    for p in model.parameters():
        p.clamp_(-0.1, 0.1)
        p.data.copy_(p.data)
    model(*inputs)


@pytest.mark.parametrize("after", [cloned, put_in_place, follow, clamped])
def test_copies_that_change_nothing_and_harm_nothing(after: Any) -> None:
    assert findings(after, "step-protocol") == []


def test_a_tied_weight_may_be_copied_to_its_twin() -> None:
    assert findings(cloned_and_tied, "step-protocol", Net(tied=True)) == []


@torch.no_grad()
def halved(model: Any, inputs: Any) -> None:
    model.first.to(torch.bfloat16)  # HERE
    model.first(inputs[0].bfloat16())
    model.first.float()


@torch.no_grad()
def half_backup(model: Any, inputs: Any) -> None:
    state = copy.deepcopy(model.state_dict())
    model.bfloat16()
    model(inputs[0].bfloat16())
    model.float()
    model.load_state_dict(state)


@torch.no_grad()
def half_copy(model: Any, inputs: Any) -> None:
    other = copy.deepcopy(model).bfloat16()
    other(inputs[0].bfloat16())


@torch.no_grad()
def wider(model: Any, inputs: Any) -> None:
    model.double()
    model(inputs[0].double())
    model.to(torch.float32)


def test_an_evaluation_in_bfloat16_rounds_the_weights() -> None:
    (found,) = findings(halved, "evaluation-leaves-trace")
    assert (found.code, found.status) == ("weights-rounded", "violated")
    assert found.location is not None
    assert found.location.text.endswith("# HERE")
    assert found.evidence["parameters"] == ["first.weight", "first.bias"]


@pytest.mark.parametrize("after", [half_backup, half_copy, wider])
def test_weights_that_keep_their_digits(after: Any) -> None:
    assert findings(after, "evaluation-leaves-trace") == []


def test_a_frozen_part_may_be_halved() -> None:
    net = Net()
    net.first.requires_grad_(False)
    assert findings(halved, "evaluation-leaves-trace", net) == []


def test_weights_that_are_rounded_on_purpose_are_only_suspicious() -> None:
    (found,) = findings(
        lambda model, _: model.bfloat16().float() and None, "evaluation-leaves-trace"
    )
    assert found.status == "suspicious"


def test_a_narrow_model_may_be_evaluated_in_a_wider_dtype() -> None:
    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs[0].bfloat16()).float(), targets)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.float()(inputs[0])
            model.bfloat16()
        return loss.detach()

    contract = Contract(
        model=Net().bfloat16(),
        batch=((X,), Y),
        train_step=step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    found = contract.check(["evaluation-leaves-trace"]).findings
    assert not [one for one in found if one.status in ("violated", "suspicious")]


class Average:
    """Keeps an average of the weights, which are exchanged for it and back."""

    def __init__(self, decay: float = 0.9) -> None:
        self.decay, self.values, self.kept = decay, [], []

    @torch.no_grad()
    def follow(self, model: Any) -> None:
        if not self.values:
            self.values = [p.detach().clone() for p in self.first]
        for value, p in zip(self.values, model.parameters(), strict=True):
            value.lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def put_in(self, model: Any) -> None:
        self.kept = [p.detach().clone() for p in model.parameters()]
        for value, p in zip(self.values, model.parameters(), strict=True):
            p.copy_(value)

    @torch.no_grad()
    def put_back(self, model: Any) -> None:
        for value, p in zip(self.kept, model.parameters(), strict=True):
            p.copy_(value)


def averaged(restores: bool, decay: float = 0.9, often: int = 1) -> list[Finding]:
    def optimizer(model: Any) -> Any:
        made = torch.optim.SGD(model.parameters(), lr=0.1)
        made.average = Average(decay)  # type: ignore[attr-defined]
        made.average.first = [p.detach().clone() for p in model.parameters()]  # type: ignore[attr-defined]
        return made

    def train_step(model: Any, made: Any, inputs: Any, targets: Any) -> Any:
        for _ in range(often):
            made.zero_grad()
            loss = F.mse_loss(model(*inputs), targets)
            loss.backward()
            made.step()
        made.average.follow(model)
        made.average.put_in(model)  # HERE
        if restores:
            made.average.put_back(model)
        return loss.detach()

    contract = Contract(
        model=Net(), batch=((X,), Y), loss=F.mse_loss, train_step=train_step, optimizer=optimizer
    )
    found = contract.check(["repeatable-steps"]).findings
    return [f for f in found if f.code == "update-taken-back"]


def test_averaged_weights_that_stay_in_the_model() -> None:
    (found,) = averaged(restores=False)
    assert found.status == "violated"
    assert "undoes 90%" in found.summary
    assert found.location is not None
    assert found.location.text.endswith("# HERE")


@pytest.mark.parametrize(
    ("restores", "decay", "often"), [(True, 0.9, 1), (False, 0.5, 1), (False, 0.9, 3)]
)
def test_weights_that_are_put_back_or_meant_to_go_a_part_of_the_way(
    restores: bool, decay: float, often: int
) -> None:
    assert averaged(restores, decay, often) == []

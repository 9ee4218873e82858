"""What an optimizer keeps of a gradient for its next step, with and without a copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Damped(torch.optim.Optimizer):
    """As diffGrad: a step is the smaller, the less its gradient differs from the previous one."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, self.state[p], group["lr"])

    def update(self, p: Any, state: Any, lr: float) -> None:
        change = state.get("previous", torch.zeros_like(p)) - p.grad
        p.sub_(lr * p.grad * torch.sigmoid(change.abs()))
        state["previous"] = self.kept(p.grad)

    def kept(self, gradient: Any) -> Any:
        return gradient  # BUG


class OfAView(Damped):
    def update(self, p: Any, state: Any, lr: float) -> None:
        flat = p.grad.view(-1)
        change = state.get("flat", torch.zeros_like(flat)) - flat
        p.sub_(lr * (flat * torch.sigmoid(change.abs())).view_as(p))
        state["flat"] = flat  # BUG


class Velocity(Damped):
    """Its velocity is the first gradient, and is written to in place from then on."""

    def update(self, p: Any, state: Any, lr: float) -> None:
        if "velocity" in state:
            state["velocity"].mul_(0.9).add_(p.grad)
        else:
            state["velocity"] = p.grad  # BUG
        p.sub_(lr * state["velocity"])


class Copied(Damped):
    def kept(self, gradient: Any) -> Any:
        return gradient.clone()


class Scratch(Damped):
    """What it keeps is for the rest of the same step."""

    def update(self, p: Any, state: Any, lr: float) -> None:
        state["gradient"] = p.grad
        p.sub_(lr * state["gradient"])


class Buffers(Damped):
    """The gradients lie in its own memory: one fills what it reads."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["gradient"] = p.grad = torch.zeros_like(p)

    def update(self, p: Any, state: Any, lr: float) -> None:
        p.sub_(lr * state["gradient"])


def step(zero: Any, after: bool = False) -> Any:
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        if not after:
            zero(optimizer)
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        if after:
            zero(optimizer)
        return loss.detach()

    return train_step


def freed(optimizer: Any) -> None:
    optimizer.zero_grad()


def zeroed(optimizer: Any) -> None:
    optimizer.zero_grad(set_to_none=False)


def found(kind: Any, train_step: Any = None) -> Any:
    contract = Contract(
        model=lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)),
        batch=((torch.randn(6, 3),), torch.randn(6, 2)),
        loss=F.mse_loss,
        optimizer=lambda model: kind(model.parameters()),
        train_step=train_step,
    )
    (finding,) = contract.check(["weights-update"]).findings
    return finding


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("kind", "key"), [(Damped, "previous"), (OfAView, "flat"), (Velocity, "velocity")]
)
def test_a_gradient_that_is_kept_without_a_copy_is_found(kind: Any, key: str, after: bool) -> None:
    finding = found(kind, step(zeroed, after))
    assert (finding.status, finding.code) == ("violated", "gradient-in-state"), finding
    assert finding.culprits[0].name == key
    assert finding.location.text.endswith(("# BUG", "self.kept(p.grad)"))


def test_what_is_right_while_gradients_are_freed_is_suspicious() -> None:
    for train_step in (None, step(freed)):
        finding = found(Damped, train_step)
        assert (finding.status, finding.code) == ("suspicious", "gradient-in-state"), finding


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("zero", [freed, zeroed])
@pytest.mark.parametrize("kind", [Copied, Scratch])
def test_copies_and_what_no_later_step_reads_pass(kind: Any, zero: Any, after: bool) -> None:
    assert found(kind, step(zero, after)).status == "passed"


def test_gradients_in_the_memory_of_the_optimizer_pass() -> None:
    assert found(Buffers, step(zeroed)).status == "passed"


def momentum(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@pytest.mark.parametrize("kind", [torch.optim.Rprop, torch.optim.Adam, torch.optim.LBFGS, momentum])
def test_torchs_own_pass(kind: Any) -> None:
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        def closure() -> Any:
            zeroed(optimizer)
            loss = F.mse_loss(model(*inputs), targets)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    assert found(kind, train_step).status == "passed"

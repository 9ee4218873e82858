"""What a call that a trace watches raises is the step's: one crash is reported, and no defect of this package."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels

CHECKS = ("backward", "step-protocol", "graph-kept", "scheduler-order", "evaluation-leaves-trace")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.h = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.h(torch.relu(self.a(x)))


def clips_nothing(model: Any, optimizer: Any, inputs: Any, targets: Any) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 1.0)


def clips_no_gradient_by_name(model: Any, optimizer: Any, inputs: Any, targets: Any) -> None:
    nn.utils.clip_grad_value_(parameters=[], clip_value=1.0)


def clips_after_a_cut(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
    loss = F.cross_entropy(model(*inputs).detach().requires_grad_(), targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def clips_infinity(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
    optimizer.zero_grad()
    (F.cross_entropy(model(*inputs), targets) * float("inf")).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()


def goes_back_without_graph(model: Any, optimizer: Any, inputs: Any, targets: Any) -> None:
    optimizer.zero_grad()
    torch.autograd.backward([F.cross_entropy(model(*inputs), targets).detach()])


def steps_without_closure(model: Any, optimizer: Any, inputs: Any, targets: Any) -> None:
    torch.optim.LBFGS(model.parameters()).step()


def report(step: Any) -> Any:
    return Contract(
        model=Net,
        inputs="B 8",
        targets=Labels("B", classes=3),
        loss=F.cross_entropy,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), 1e-3),
        train_step=step,
    ).check(CHECKS)


@pytest.mark.parametrize(
    "step",
    [
        clips_nothing,
        clips_no_gradient_by_name,
        clips_after_a_cut,
        clips_infinity,
        goes_back_without_graph,
        steps_without_closure,
    ],
    ids=lambda step: step.__name__,
)
def test_the_error_is_the_steps(step: Any) -> None:
    findings = report(step).findings
    assert [f.check for f in findings if f.status == "violated"] == ["backward"]
    assert not [str(f) for f in findings if f.status == "error"]


def clips_value(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), clip_value=1.0)
    optimizer.step()
    return loss.detach()


def clips_norm(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(parameters=list(model.parameters()), max_norm=1.0)
    optimizer.step()
    return loss.detach()


def catches(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
    with contextlib.suppress(RuntimeError):
        nn.utils.clip_grad_value_([], 1.0)
    return clips_value(model, optimizer, inputs, targets)


@pytest.mark.parametrize("step", [clips_value, clips_norm, catches], ids=lambda s: s.__name__)
def test_steps_that_clip_pass(step: Any) -> None:
    assert {f.status for f in report(step).findings} <= {"passed", "not-applicable"}

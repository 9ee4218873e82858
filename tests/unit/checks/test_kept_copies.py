"""Parts that a step keeps as copies of others: they have no gradient, and take what their originals have learned."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

CHECKS = ["optimizer-coverage", "gradients-exist", "weights-update"]


def encoder():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))


class Predictive(nn.Module):
    """Two views of a sample: one code predicts the other, which a copy of the encoder makes."""

    def __init__(self, within=False, hears=True):
        super().__init__()
        self.online, self.within, self.hears = encoder(), within, hears
        self.predict = nn.Linear(5, 5)
        self.slow = copy.deepcopy(self.online)

    def forward(self, x):
        code = self.predict(self.online(x))
        if self.within:
            with torch.no_grad():
                other = self.slow(x)
            code = code + other
        return code


def sgd(model):
    trained = [*model.online.parameters(), *model.predict.parameters()]
    return torch.optim.SGD(trained, lr=0.05)


def stepping(after):
    def step(model, optimizer, inputs, targets):
        (x,) = inputs
        code = model(x)
        goal = targets
        if not model.within and model.hears:
            with torch.no_grad():
                goal = model.slow(x + 0.1)
        loss = F.mse_loss(code, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(model)
        return loss.detach()

    return step


def now_and_then(model):
    """Bring the copy up to date once in many steps."""
    count = model.__dict__.setdefault("count", 0) + 1
    model.__dict__["count"] = count
    if count % 100 == 0:
        model.slow.load_state_dict(model.online.state_dict())


@torch.no_grad()
def averaged(model):
    for slow, weight in zip(model.slow.parameters(), model.online.parameters(), strict=True):
        slow.lerp_(weight, 0.1)


@torch.no_grad()
def averaged_but_the_head(model):
    for slow, weight in zip(model.slow[:3].parameters(), model.online.parameters(), strict=False):
        slow.lerp_(weight, 0.1)


def never(model):
    """Leave the copy as it was."""


def findings(model, after):
    contract = Contract(
        model=model, inputs="B 6", targets="B 5", sizes={"B": 6}, train_step=stepping(after), optimizer=sgd
    )  # fmt: skip
    return [f for f in contract.check(CHECKS).findings if f.status in ("violated", "suspicious")]


def codes(model, after):
    return {f.code for f in findings(model, after)}


@pytest.mark.parametrize("after", [now_and_then, averaged])
def test_a_copy_that_the_step_keeps_needs_no_gradient(after):
    assert codes(Predictive, after) == set()


def test_an_average_may_wait_for_a_bias_that_never_moves():
    assert codes(lambda: Predictive(hears=False), averaged) == set()


def test_what_an_average_forgets_is_told():
    assert "weight-static" in codes(Predictive, averaged_but_the_head)


def test_an_equal_part_that_nothing_calls_or_that_the_model_calls_is_told():
    assert "grad-none" in codes(lambda: Predictive(hears=False), now_and_then)
    assert "grad-none" in codes(lambda: Predictive(within=True), now_and_then)


def test_a_copy_that_no_step_brings_up_to_date_is_suspicious_once():
    (found,) = findings(Predictive, never)
    assert (found.status, found.code) == ("suspicious", "grad-none")
    assert "for targets alone" in found.cause

"""What a step leaves as it is says what to do about it, whether or not another check found the reason too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Mixer(nn.Module):
    def __init__(self, wrong=""):
        super().__init__()
        self.enter, self.side, self.leave = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.weight = nn.Parameter(torch.ones(6))
        self.wrong = wrong

    def forward(self, x):
        x = torch.tanh(self.enter(x))
        aside = self.side(x)
        if self.wrong == "cut":
            aside = aside.detach()
        if self.wrong == "silent":
            aside = aside * 0.0
        if self.wrong == "estimator":
            aside = x + (aside - x).detach()
        if self.wrong == "replaced":
            self.weight = nn.Parameter(self.weight.clone())
        return self.leave((x + aside) * self.weight)


def found(wrong, optimizer=None):
    batch = (torch.randn(8, 5),), torch.arange(8) % 3
    contract = Contract(
        model=lambda: Mixer(wrong), batch=batch, loss=F.cross_entropy, optimizer=optimizer
    )
    (finding,) = contract.check(["weights-update"]).findings
    return finding


def test_a_lost_gradient_names_the_line_and_the_edit():
    finding = found("cut")
    assert (finding.status, finding.code) == ("violated", "weight-static")
    assert "aside.detach()" in finding.location.text
    assert finding.fix == "drop .detach() on this line; tried: the check passes with it"


def test_a_gradient_of_zero_names_the_factor():
    finding = found("silent")
    assert finding.status == "violated"
    assert "aside * 0.0" in finding.location.text
    assert "multiplied by zero" in finding.cause


def test_a_cut_that_may_be_meant_is_no_violation():
    finding = found("estimator")
    assert finding.status == "suspicious"
    assert "straight-through estimator" in finding.cause


def test_a_parameter_that_each_forward_replaces():
    finding = found("replaced")
    assert finding.status == "violated"
    assert "nn.Parameter(self.weight.clone())" in finding.location.text
    assert "the optimizer keeps the old one" in finding.cause


def test_rounding_is_named_only_where_a_wider_dtype_moves():
    def tiny(model):
        return torch.optim.SGD(model.parameters(), lr=1e-12)

    class Idle(torch.optim.SGD):
        def step(self, closure=None):
            return None if closure is None else closure()

    finding = found("", tiny)
    assert "smaller than half a unit in the last place" in finding.cause
    assert "in float64 a step changes it by" in finding.because
    finding = found("", lambda model: Idle(model.parameters(), lr=0.1))
    assert "leaves it as it is" in finding.cause
    assert "rate" not in finding.fix


def test_nothing_is_said_of_a_model_that_learns():
    assert found("").status == "passed"


class Half(nn.Module):
    """Gives its output without a graph, and with a graph only what is multiplied by zero."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 3))

    def forward(self, x):
        y = self.body(x)
        return y.detach() + y * 0.0


def test_a_batch_that_no_gradient_helps_to_learn_names_the_operation():
    batch = (torch.randn(8, 5),), torch.arange(8) % 3
    contract = Contract(model=Half, batch=batch, loss=F.cross_entropy)
    (finding,) = contract.check(["overfit"]).findings
    assert (finding.status, finding.code) == ("violated", "overfit-stuck")
    assert "y * 0.0" in finding.location.text
    assert "multiplied by zero" in finding.cause
    assert "gradients-exist" not in finding.fix

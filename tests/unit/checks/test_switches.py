"""Forwards that depend on the gradient mode, or set their own mode, and factories whose models share a part."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_torchcheck import Contract, Labels

G = torch.Generator().manual_seed(0)


def contract(model):
    x, y = torch.randn(6, 5, generator=G), torch.randint(0, 3, (6,), generator=G)
    return Contract(model=model, batch=((x,), y), loss=F.cross_entropy)


def told(report):
    return [
        (f.status, f.code)
        for f in report.findings
        if f.status in ("violated", "suspicious", "error")
    ]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


class Saving(Net):
    """Recomputes its body where a graph is recorded: the same values."""

    def forward(self, x):
        h = (
            checkpoint(self.body, x, use_reentrant=False)
            if torch.is_grad_enabled()
            else self.body(x)
        )
        return self.head(h)


class Refined(Net):
    """Takes a step more where a graph is recorded."""

    def forward(self, x):
        h = self.body(x)
        return self.head(h + self.body(h[:, :5]) if torch.is_grad_enabled() else h)


class Hooked(Net):
    """Scales the gradient of its hidden values in training."""

    def forward(self, x):
        h = self.body(x)
        if self.training:
            h.register_hook(lambda slope: 0.5 * slope)
        return self.head(h)


class Steady(Net):
    """Keeps its norm as in evaluation, from within the forward."""

    def forward(self, x):
        self.body[1].eval()
        return super().forward(x)


class Waking(Net):
    """Is in training mode once it was called."""

    def forward(self, x):
        out = super().forward(x)
        self.train()
        return out


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Net, []),
        (Saving, []),
        (Refined, [("violated", "graph-decides")]),
        (Hooked, [("suspicious", "needs-gradients")]),
        (Steady, [("suspicious", "mode-flipped")]),
        (Waking, [("violated", "mode-flipped")]),
    ],
)
def test_modes_that_decide(model, expected):
    report = contract(model).check(["mode-agreement", "mode-flags", "seeding"])
    assert told(report) == expected, str(report)


def test_a_model_that_needs_a_graph_is_checked_all_the_same():
    report = contract(Hooked).check()
    assert report.ok, str(report)
    assert not [f for f in report.findings if f.code == "blocked"]


class Broken(Net):
    """Asks for a gradient that is not there, in either mode."""

    def forward(self, x):
        return self.head(self.body(x)) + torch.autograd.grad(x.sum(), x)[0][:, :3]


def test_an_error_that_a_graph_does_not_help_is_told():
    report = contract(Broken).check(["backward", "mode-agreement"])
    assert not report.ok
    assert "needs-gradients" not in {f.code for f in report.findings}


SHARED = nn.Linear(5, 8)


def with_part(*, frozen):
    def build():
        part = SHARED.requires_grad_(not frozen)
        return nn.Sequential(part, nn.Tanh(), nn.Linear(8, 3))

    return build


def test_models_of_a_factory_that_share_a_part():
    report = contract(with_part(frozen=False)).check(["initialisation"])
    assert told(report) == [("suspicious", "factory-repeats")], str(report)
    assert "0.weight" in str(report)
    assert not told(contract(with_part(frozen=True)).check(["initialisation"]))


class Sparse(nn.Linear):
    """Sets its smallest weights to zero for evaluation, and never puts them back."""

    def train(self, mode=True):
        if not mode:
            self.weight.data[self.weight.data.abs() < 0.2] = 0
        return super().train(mode)


class Forgets(nn.Linear):
    """Starts again with other weights after each evaluation."""

    def train(self, mode=True):
        if mode and not self.training:
            nn.init.normal_(self.weight, std=0.1)
        return super().train(mode)


class Merges(nn.Linear):
    """Adds its update of low rank for evaluation, and takes it out for training."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.down = nn.Parameter(torch.randn(2, self.in_features))
        self.up = nn.Parameter(torch.randn(self.out_features, 2))

    def train(self, mode=True):
        if mode != self.training:
            with torch.no_grad():
                self.weight.add_(self.up @ self.down, alpha=-1 if mode else 1)
        return super().train(mode)

    def forward(self, x):
        weight = self.weight + self.up @ self.down if self.training else self.weight
        return F.linear(x, weight, self.bias)


class StartsLate(nn.Linear):
    """Draws its weights when its training begins."""

    started = False

    def train(self, mode=True):
        if mode and not self.started:
            self.started = True
            nn.init.normal_(self.weight, std=0.1)
        return super().train(mode)


def changed_by_modes(layer):
    contract = Contract(
        model=lambda: nn.Sequential(layer(6, 5), nn.Tanh(), nn.Linear(5, 3)),
        inputs="B 6",
        targets=Labels("B", classes=3),
        loss=F.cross_entropy,
    )
    return [
        f for f in contract.check(["backward", "eval-purity"]).findings if f.code == "eval-writes"
    ]


@pytest.mark.parametrize(
    ("layer", "method"), [(Sparse, "eval()"), (Forgets, "train() after eval()")]
)
def test_modes_that_change_the_weights_for_good(layer, method):
    (found,) = changed_by_modes(layer)
    assert found.status == "violated"
    assert found.summary == f"{method} changes 0.weight for good"
    assert found.location.function == f"{layer.__name__}.train"


@pytest.mark.parametrize("layer", [nn.Linear, Merges, StartsLate])
def test_modes_that_leave_the_weights_as_they_are(layer):
    assert not changed_by_modes(layer)

"""A term of the loss that a bound holds asks for nothing now; values that the forward or the loss cuts off are lost."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 3
CHECKS = ["gradients-exist", "weights-update"]


class Energies(nn.Module):
    """Returns scores, and energies that only a second term of the loss trains."""

    def __init__(self, within=lambda energies: energies):
        super().__init__()
        self.scores, self.energies, self.within = nn.Linear(6, 3), nn.Linear(6, 4), within

    def forward(self, x):
        return self.scores(x), self.within(self.energies(x))


def found(term, within=lambda energies: energies, step=False):
    def loss(output, labels):
        return F.cross_entropy(output[0], labels) + 0.5 * term(output[1])

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        value = loss(model(*inputs), targets)
        value.backward()
        optimizer.step()
        return value.detach()

    contract = Contract(
        model=lambda: Energies(within),
        batch=((X,), Y),
        loss=loss,
        optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=1e-3),
        train_step=train_step if step else None,
    )
    return {f.code: f for f in contract.check(CHECKS).findings}


def free_bits(energies):
    return energies.square().sum(-1).clamp(min=100.0).mean()  # HERE


def in_place(energies):
    return energies.square().sum(-1).clamp_(min=100.0).mean()  # HERE


def margin(energies):
    return F.relu(energies - 50.0).sum(-1).mean()  # HERE


def squared(energies):
    return (energies - 50.0).clamp(min=0).pow(2).mean()  # HERE


def larger(energies):
    free = torch.full(energies.shape[:1], 100.0)
    return torch.maximum(energies.square().sum(-1), free).mean()  # HERE


def masked(energies):
    mask = (torch.arange(8) % 2).float()
    return (energies.square().sum(-1).clamp(min=100.0) * mask).sum() / mask.sum()  # HERE


def rewarded(energies):
    return -energies.clamp(max=-50.0).mean()  # HERE


def kept_apart(energies):
    near = torch.zeros_like(energies)
    return F.triplet_margin_loss(near, energies, energies.detach() + 50.0)  # HERE


class Criterion(nn.Module):
    def forward(self, energies):
        return F.relu(energies - 50.0).mean()  # HERE


@pytest.mark.parametrize(
    "term",
    [free_bits, in_place, margin, squared, larger, masked, rewarded, kept_apart, Criterion()],
)
def test_a_term_that_is_held_where_it_would_only_lower_the_loss(term):
    seen = found(term)
    assert {seen[code].status for code in ("grad-zero", "weight-static")} == {"suspicious"}
    assert "held at its bound" in seen["grad-zero"].cause
    assert "held at its bound" in seen["weight-static"].cause
    assert seen["grad-zero"].location.text.endswith("# HERE")


def test_in_a_step_of_the_users():
    assert found(free_bits, step=True)["weight-static"].status == "suspicious"


def test_a_forward_that_returns_its_own_term():
    assert found(torch.sum, within=free_bits)["grad-zero"].status == "suspicious"


def kept_below(energies):
    return energies.square().sum(-1).clamp(max=0.0).mean()


def turned(energies):
    return -F.relu(energies - 50.0).mean()


def fitted(energies):
    return (F.relu(energies - 50.0) - torch.ones(8, 4)).square().mean()


def likelihood(energies):
    return -energies.sigmoid().clamp(min=2.0).log().mean()


def squashed(energies):
    return (energies + 100.0).tanh().mean()


def gated(energies):
    return (F.relu(energies - 50.0) * torch.ones(4, requires_grad=True)).mean()


def divided(energies):
    return -(1.0 / energies.clamp(min=50.0)).mean()


def filled(energies):
    return F.relu(1.0 + energies.masked_fill(torch.eye(8, 4) == 0, -1e9).amin(-1)).mean()


def filled_without_end(energies):
    return F.relu(1.0 + energies.masked_fill(torch.eye(8, 4) == 0, -torch.inf).amin(-1)).mean()


@pytest.mark.parametrize(
    "term",
    [filled, filled_without_end, divided, kept_below, turned, fitted, likelihood, squashed, gated],
)
def test_values_that_the_loss_cuts_off(term):
    assert found(term)["grad-zero"].status == "violated"


def test_values_that_the_forward_cuts_off():
    assert found(torch.mean, within=lambda h: F.relu(h - 50.0))["grad-zero"].status == "violated"


class Both(Energies):
    """Holds another layer, whose values are lost."""

    def __init__(self):
        super().__init__()
        self.lost = nn.Linear(6, 3)

    def forward(self, x):
        scores, energies = super().forward(x)
        return scores + 0.0 * self.lost(x), energies


def test_a_layer_that_is_lost_beside_a_term_at_rest():
    def loss(output, labels):
        return F.cross_entropy(output[0], labels) + margin(output[1])

    found = Contract(model=Both, batch=((X,), Y), loss=loss).check(CHECKS).findings
    assert [f.status for f in found if f.code == "grad-zero"] == ["suspicious", "violated"]
    (static,) = [f for f in found if f.code == "weight-static"]
    assert static.status == "violated"
    assert "multiplied by zero" in static.cause

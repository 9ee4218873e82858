"""A term of a loss that follows the weights has a gradient; one that cancels out on all its ways trains nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


class Codes(nn.Module):
    """Encodes, and returns beside what it restores a term of its own."""

    def __init__(self, term):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4))
        self.decoder = nn.Linear(4, 6)
        self.register_buffer("codebook", torch.randn(8, 4))
        self.term = term

    def nearest(self, z):
        return self.codebook[torch.cdist(z, self.codebook).argmin(-1)]

    def forward(self, x):
        z = self.encoder(x)
        through = z + (self.nearest(z) - z).detach()
        return self.decoder(through), self.term(self, z, through)


def residuals(model, z, through):
    rest = z - through  # HERE
    return torch.stack([F.mse_loss(z, model.nearest(z)), F.mse_loss(rest, model.nearest(rest))])


def scaled_apart(model, z, through):
    twice = 2 * through
    rest = 2 * z - twice  # HERE
    return torch.stack([F.mse_loss(z, model.nearest(z)), rest.square().mean()])


def in_a_list_of_one(model, z, through):
    rest = z - through  # HERE
    return torch.cat([rest.square().mean().reshape(1), z.square().mean().reshape(1)])


def detached(model, z, through):
    rest = z - through.detach()
    return torch.stack([F.mse_loss(z, model.nearest(z)), F.mse_loss(rest, model.nearest(rest))])


def at_rest_beside_what_moves(model, z, through):
    bound = z.detach().square().mean(-1)
    return torch.stack(
        [z.square().mean(), torch.maximum(bound - 100, bound + z.mean(-1) * 0).mean()]
    )


def chosen_elsewhere(model, z, through):
    kept = torch.where(z.new_zeros(()).bool(), z, z.detach() + 1)
    return torch.stack([z.square().mean(), kept.square().mean()])


def rounded(model, z, through):
    return torch.stack([z.square().mean(), (10 * z).round().square().mean()])


def not_weighed(model, z, through):
    return torch.stack([F.mse_loss(z, model.nearest(z)), 0.0 * (z - through).square().mean()])


def only_told(model, z, through):
    return torch.stack([z.square().mean(), (z - through).square().mean().detach()])


def hinge(model, z, through):
    return torch.stack([z.square().mean(), F.relu(z.detach().mean() + 0 * z.mean() - 9)])


def at_its_own_minimum(model, z, through):
    return torch.stack([z.square().mean(), F.mse_loss(model.encoder[2].weight, KEPT[0])])


KEPT = []


def found(term):
    def loss(output, x):
        restored, terms = output
        return F.mse_loss(restored, x) + 0.25 * terms.sum()

    def built():
        model = Codes(term)
        KEPT[:] = [model.encoder[2].weight.detach().clone()]
        return model

    contract = Contract(model=built, batch=((X,), X.clone()), loss=loss)
    return [f for f in contract.check(["loss-sound"]).findings if f.status != "passed"]


@pytest.mark.parametrize("term", [residuals, scaled_apart, in_a_list_of_one])
def test_a_residual_from_which_the_straight_through_result_is_taken(term):
    (finding,) = found(term)
    assert (finding.status, finding.code) == ("violated", "term-cancels")
    assert finding.location.text.endswith("# HERE")
    assert finding.culprits[0].name == "rest"


@pytest.mark.parametrize(
    "term",
    [
        detached, at_rest_beside_what_moves, chosen_elsewhere, rounded, not_weighed, only_told, hinge,
        at_its_own_minimum,
    ],
)  # fmt: skip
def test_terms_that_train_or_rest(term):
    assert found(term) == []


def test_a_lasting_zero_beside_a_way_that_arrives():
    def loss(output, x):
        restored, terms = output
        return F.mse_loss(restored, x) + terms.mean()

    def both(model, z, through):
        return torch.stack([z.square().mean(), ((z - through) + z).square().mean()])

    contract = Contract(model=lambda: Codes(both), batch=((X,), X.clone()), loss=loss)
    assert [f.status for f in contract.check(["loss-sound"]).findings] == ["passed"]

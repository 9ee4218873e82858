"""Gradients that do not follow the targets, and weights that belong to places in the batch, beside sound losses that come near them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

N = 7


def found(loss, targets, outputs=4):
    x = torch.randn(N, 6, generator=torch.Generator().manual_seed(1))
    contract = Contract(model=lambda: nn.Linear(6, outputs), batch=((x,), targets), loss=loss)
    findings = contract.check(["target-ownership", "loss-weights"]).findings
    return {f.code: f.status for f in findings if f.status in ("violated", "suspicious", "error")}


VALUES = torch.randn(N, 4, generator=torch.Generator().manual_seed(2))
CLASSES = torch.tensor([0, 2, 1, 3, 2, 0, 1])


def own_value(distance):
    return lambda o, y: o.square().mean() * (1 + distance(o.detach(), y)).detach()


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (lambda o, y: o.logsumexp(1).mean() + F.cross_entropy(o.detach(), y), CLASSES),
        (lambda o, y: o.abs().mean() + F.l1_loss(o.detach(), y), VALUES),
        (lambda o, y: F.softplus(o).mean() - (o.detach() * y).mean(), (VALUES > 0).float()),
    ],
    ids=["classes", "values", "bits"],
)
def test_a_gradient_that_no_target_decides_is_found(loss, targets):
    assert found(loss, targets) == {"gradient-without-targets": "violated"}


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (F.l1_loss, VALUES),
        (lambda o, y: (y - o).relu().mean(), VALUES),
        (lambda o, y: F.multi_margin_loss(0.01 * o, y), CLASSES),
        (lambda o, y: F.cross_entropy(o, y) + 0.1 * F.mse_loss(o.detach(), VALUES), CLASSES),
        (own_value(F.mse_loss), VALUES),
        (lambda o, y: F.binary_cross_entropy_with_logits(o, y), (VALUES > 0).float()),
    ],
    ids=["absolute", "one-sided", "margin", "logged-term", "scaled", "bits"],
)
def test_a_gradient_that_follows_the_targets_is_sound(loss, targets):
    assert "gradient-without-targets" not in found(loss, targets)


def weighted(weights):
    return lambda o, y: (weights(o) * F.cross_entropy(o, y, reduction="none")).mean()


@pytest.mark.parametrize(
    "weights",
    [
        lambda o: 10.0 ** -torch.arange(len(o)),
        lambda o: torch.where(torch.arange(len(o)) % 2 == 0, 1.0, 1e-3),
        lambda o: F.pad(torch.ones(len(o) - 1), (0, 1), value=50.0),
    ],
    ids=["falling", "turns", "last"],
)
def test_a_weight_of_the_place_is_found(weights):
    assert found(weighted(weights), CLASSES) == {"weight-by-place": "violated"}


def test_a_mild_discount_over_the_batch_is_suspicious():
    assert found(weighted(lambda o: 0.9 ** torch.arange(len(o))), CLASSES) == {
        "weight-by-place": "suspicious"
    }


def pairs(o, y):
    scores = F.normalize(o, dim=1) @ F.normalize(y, dim=1).T
    return F.cross_entropy(scores / 0.1, torch.arange(len(o)))


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (lambda o, y: F.cross_entropy(o, y, weight=torch.tensor([1.0, 50.0, 2.0, 0.01])), CLASSES),
        (weighted(lambda o: torch.rand(len(o)) ** 8 + 1e-4), CLASSES),
        (pairs, VALUES),
        (lambda o, y: F.mse_loss(o, y) + (o[1:] - o[:-1]).square().mean(), VALUES),
        (lambda o, y: ((o - y) ** 2).mean(1).sort().values[:5].mean(), VALUES),
        (lambda o, y: (o - y).norm(), VALUES),
    ],
    ids=["class-weights", "random-weights", "contrastive", "smooth", "trimmed", "norm"],
)
def test_a_weight_of_the_sample_is_sound(loss, targets):
    assert "weight-by-place" not in found(loss, targets)


def test_weights_of_one_data_set_are_suspicious_at_most():
    weights = torch.tensor([1.0, 0.01, 5.0, 1.0, 30.0, 2.0, 1.0])
    assert found(weighted(lambda o: weights), CLASSES).get("weight-by-place") != "violated"

"""Focal weights of a mean, and what looks like them and is right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X, Y = torch.linspace(-1, 1, 24).view(6, 4), torch.arange(6) % 3


def of_mean(logits, targets):
    ce = F.cross_entropy(logits, targets)
    return 0.25 * (1 - (-ce).exp()) ** 2 * ce


def of_module(logits, targets):
    ce = nn.CrossEntropyLoss()(logits, targets)
    certainty = torch.exp(-1.0 * ce)
    return ce * torch.pow(1.0 - certainty, 1.5)


def of_binary(logits, targets):
    bce = F.binary_cross_entropy_with_logits(logits, F.one_hot(targets, 3).float())
    return (torch.rsub(torch.exp(-bce), 1)).square() * bce


def each(logits, targets):
    ce = F.cross_entropy(logits, targets, reduction="none")
    return ((1 - torch.exp(-ce)) ** 2 * ce).mean()


def one_by_one(logits, targets):
    parts = [F.cross_entropy(row[None], y[None]) for row, y in zip(logits, targets, strict=True)]
    return torch.stack([(1 - torch.exp(-ce)) ** 2 * ce for ce in parts]).mean()


def uncertain(logits, targets):
    """A task's weight by its uncertainty, which is exp(-s) of another number."""
    ce = F.cross_entropy(logits, targets)
    s = ce.detach() * 0.5
    return torch.exp(-s) * ce + s


def perplexity(logits, targets):
    return torch.exp(F.cross_entropy(logits, targets))


def likelihood(logits, targets):
    """The geometric mean of the likelihoods, maximised."""
    return 1 - torch.exp(-F.cross_entropy(logits, targets))


def _finding(loss):
    torch.manual_seed(0)
    contract = Contract(model=nn.Linear(4, 3), batch=((X,), Y), loss=loss)
    (found,) = contract.check(["loss-sound"]).findings
    return found


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (of_mean, "ce = F.cross_entropy(logits, targets)"),
        (of_module, "ce = nn.CrossEntropyLoss()(logits, targets)"),
        (of_binary, "bce = F.binary_cross_entropy_with_logits"),
    ],
)
def test_a_weight_of_the_mean_is_told_at_the_criterion(loss, text):
    found = _finding(loss)
    assert (found.status, found.code) == ("violated", "focal-of-mean")
    assert text in found.location.text


@pytest.mark.parametrize("loss", [each, one_by_one, uncertain, perplexity, likelihood])
def test_other_functions_of_a_cross_entropy_pass(loss):
    assert _finding(loss).status == "passed"

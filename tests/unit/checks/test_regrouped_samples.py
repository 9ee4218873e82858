"""A training step that mixes inputs in one order and targets in another is found; one that takes both alike is not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

B = 8


def mixed(model, x, y, order, other):
    logits = model(0.7 * x + 0.3 * x[order])
    return 0.7 * F.cross_entropy(logits, y) + 0.3 * F.cross_entropy(logits, y[other])  # HERE


def drawn_again(model, x, y):
    return mixed(model, x, y, torch.randperm(B), torch.randperm(B))


def inverted(model, x, y):
    order = torch.randperm(B)
    return mixed(model, x, y, order, order.argsort())


def one_hot(model, x, y):
    """Both are computed with before they are taken in another order."""
    order, other = torch.randperm(B), torch.arange(B).flip(0)
    x, y = (x - 0.5) / 2, F.one_hot(y, 3).float()
    return F.cross_entropy(
        model(x + x.index_select(0, order)),
        y + y.index_select(0, other),  # HERE
    )


def mixup(model, x, y):
    order = torch.randperm(B)
    return mixed(model, x, y, order, order)


def flipped(model, x, y):
    """The partner of a sample is its counterpart from the end, however that is written."""
    logits = model(0.7 * x + 0.3 * x.flip(0))
    return F.cross_entropy(logits, y) + F.cross_entropy(logits, y[torch.arange(B).flip(0)])


def twice(model, x, y):
    return mixup(model, x, y) + mixup(model, x, y)


def shuffled_then_mixed(model, x, y):
    order = torch.randperm(B)
    return mixup(model, x[order], y[order])


def noisy_inputs(model, x, y):
    """Other samples are added as noise, and are no part of the label."""
    return F.cross_entropy(model(x + 0.1 * x[torch.randperm(B)]), y)


def dependence(model, x, y):
    """Samples of both margins, drawn independently, for an estimate of what they have in common."""
    y = F.one_hot(y, 3).float()
    apart = model.both(torch.cat([x[torch.randperm(B)], y[torch.randperm(B)]], 1))
    return apart.exp().mean().log() - model.both(torch.cat([x, y], 1)).mean() + 0 * model(x).sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.both = nn.Linear(5, 3), nn.Linear(8, 1)

    def forward(self, x):
        return self.net(x)


def found(loss):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        value = loss(model, inputs[0], targets)
        value.backward()
        optimizer.step()
        return value.detach()

    torch.manual_seed(0)
    contract = Contract(
        model=Net,
        batch=((torch.randn(B, 5),), torch.randint(0, 3, (B,))),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        train_step=train_step,
    )
    findings = contract.check("step-losses").findings
    return [f for f in findings if f.code == "target-of-another-sample"]


@pytest.mark.parametrize("loss", [drawn_again, inverted, one_hot])
def test_targets_in_an_order_of_their_own(loss):
    (finding,) = found(loss)
    assert finding.status == "violated"
    assert finding.location.text.endswith("# HERE")


@pytest.mark.parametrize(
    "loss", [mixup, flipped, twice, shuffled_then_mixed, noisy_inputs, dependence]
)
def test_inputs_and_targets_in_one_order(loss):
    assert not found(loss)

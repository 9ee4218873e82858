"""Straight-through estimators, and sums that look like them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Coded(nn.Module):
    """Codes of a table stand for what an encoder gives; how they pass on is for the subclasses to say."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 3), nn.Linear(3, 6)
        self.table = nn.Embedding(16, 3)

    def near(self, z):
        return self.table(torch.cdist(z, self.table.weight).argmin(1))

    def forward(self, x):
        z = self.encode(x)
        near = self.near(z)
        apart = F.mse_loss(near, z.detach()) + 0.3 * F.mse_loss(z, near.detach())
        return self.decode(self.passed(z, near)), apart


class Right(Coded):
    def passed(self, z, near):
        return z + (near - z).detach()


class RightBySubtraction(Coded):
    def passed(self, z, near):
        return z - (z - near).detach()


class Swapped(Coded):
    def passed(self, z, near):
        return near + (z - near).detach()  # wrong way round


class SwappedBySubtraction(Coded):
    def passed(self, z, near):
        return near - (near - z).detach()  # wrong way round


class Weaker(Right):
    """A gradient with a factor: the value stays, and so does the way of the gradient."""

    def passed(self, z, near):
        weak = 0.1 * z
        return super().passed(weak + (z - weak).detach(), near)


class Choosing(nn.Module):
    """A hard choice with the gradient of the soft one."""

    def __init__(self):
        super().__init__()
        self.score, self.out = nn.Linear(6, 4), nn.Linear(4, 6)

    def forward(self, x):
        soft = self.score(x).softmax(1)
        hard = F.one_hot(soft.argmax(1), 4).to(soft.dtype)
        return self.out(soft + (hard - soft).detach()), soft.square().mean()


def found(model):
    contract = Contract(
        model=model,
        inputs="B 6",
        targets="B 6",
        loss=lambda output, x: F.mse_loss(output[0], x) + output[1],
    )
    return [f for f in contract.check(["descent"]).findings if f.status == "violated"]


@pytest.mark.parametrize("model", [Swapped, SwappedBySubtraction])
def test_the_operands_are_exchanged(model):
    (finding,) = found(model)
    assert finding.code == "estimator-swapped"
    assert finding.location.text.endswith("# wrong way round")


@pytest.mark.parametrize("model", [Right, RightBySubtraction, Weaker, Choosing])
def test_estimators_that_are_right_are_not_blamed(model):
    assert not found(model)

"""A straight-through estimator cuts on purpose: nobody is told to drop its ``.detach()``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Quantises(nn.Module):
    """Rounds to the nearest entry of a table."""

    def __init__(self):
        super().__init__()
        self.body, self.table, self.head = nn.Linear(5, 4), nn.Embedding(16, 4), nn.Linear(4, 3)

    def forward(self, x):
        z = self.body(x)
        q = self.table(torch.cdist(z, self.table.weight).argmin(1))
        return self.head(self.through(z, q))

    def through(self, z, q):
        return z + (q - z).detach()


class Swapped(Quantises):
    def through(self, z, q):
        return q.detach() - z.detach() + z


class OfData(Quantises):
    def through(self, z, q):
        return z + (q - z).data


class OnTwoLines(Quantises):
    def through(self, z, q):
        missing = (q - z).detach()
        return z + missing


class Mistaken(Quantises):
    """Adds what it looked up to what it computed, and loses the graph of the former."""

    def through(self, z, q):
        return z + q.detach()


class Residual(nn.Module):
    """Cuts a branch whose input it adds, which is no estimator of anything."""

    def __init__(self, cut):
        super().__init__()
        self.body, self.branch, self.head = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.cut = cut

    def forward(self, x):
        h = self.body(x)
        if self.cut == "data":
            return self.head(h + self.branch(h).data)
        if self.cut == "detach":
            h = h - self.branch(h).detach()
            return self.head(h)
        gate = self.branch(h).detach()
        return self.head(h + gate * h)


def told(model):
    batch = (torch.randn(8, 5),), torch.arange(8) % 3
    contract = Contract(model=model, batch=batch, loss=F.cross_entropy)
    (found,) = contract.check(["gradients-exist"]).findings
    return found


@pytest.mark.parametrize("model", [Quantises, Swapped, OfData, OnTwoLines])
def test_a_cut_that_is_meant(model):
    found = told(model)
    assert (found.status, found.code) == ("suspicious", "grad-none")
    assert "straight-through estimator" in found.cause
    assert "drop" not in found.fix
    assert found.edit is None
    assert [c.name for c in found.culprits if c.kind == "parameter"] == ["table.weight"]


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def trained(model):
    batch = (torch.randn(8, 5),), torch.arange(8) % 3
    contract = Contract(model=model, batch=batch, loss=F.cross_entropy, optimizer=adam)
    (found,) = contract.check(["gradients-exist"]).findings
    return found


class Averages(Quantises):
    """Moves its table by hand in training."""

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.table.weight.mul_(0.99)
        return super().forward(x)


def test_a_table_that_the_optimizer_holds_and_nothing_moves():
    found = trained(Quantises)
    assert (found.status, found.code) == ("violated", "grad-none")
    assert "straight-through estimator" in found.cause


def test_a_table_that_is_moved_by_hand():
    assert trained(Averages).status != "violated"


def test_a_cut_that_is_not():
    found = told(Mistaken)
    assert found.status == "violated"
    assert found.fix.startswith("drop .detach() on this line; tried: the check passes")


@pytest.mark.parametrize("cut", ["data", "detach", "named"])
def test_a_branch_that_is_cut_is_no_estimator(cut):
    found = told(Residual(cut))
    assert (found.status, found.code) == ("violated", "grad-none")
    assert "straight-through" not in found.cause
    word = "data" if cut == "data" else "detach()"
    assert f"drop .{word} on this line; tried: the check passes" in found.fix

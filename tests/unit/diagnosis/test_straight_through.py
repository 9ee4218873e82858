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


class Mistaken(Quantises):
    """Adds what it looked up to what it computed, and loses the graph of the former."""

    def through(self, z, q):
        return z + q.detach()


def told(model):
    batch = (torch.randn(8, 5),), torch.arange(8) % 3
    contract = Contract(model=model, batch=batch, loss=F.cross_entropy)
    (found,) = contract.check(["gradients-exist"]).findings
    return found


@pytest.mark.parametrize("model", [Quantises, Swapped, OfData])
def test_a_cut_that_is_meant(model):
    found = told(model)
    assert (found.status, found.code) == ("suspicious", "grad-none")
    assert "straight-through estimator" in found.cause
    assert "drop" not in found.fix
    assert found.edit is None
    assert [c.name for c in found.culprits if c.kind == "parameter"] == ["table.weight"]


def test_a_cut_that_is_not():
    found = told(Mistaken)
    assert found.status == "violated"
    assert found.fix.startswith("drop .detach() on this line; tried: the check passes")

"""Indices that choose among copies of one entry."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Neighbours(nn.Module):
    """Features of each node's neighbours in a ring."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(8, 2)

    def table(self, h):
        return h.unsqueeze(1).expand(-1, h.shape[1], -1, -1)

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        b, n, d = h.shape
        index = torch.stack([torch.arange(n).roll(1), torch.arange(n).roll(-1)], 1)
        index = index[None, :, :, None].expand(b, n, 2, d)
        near = self.table(h).gather(2, index).mean(2)
        return self.outer(torch.cat([h, near], -1))


class Itself(Neighbours):
    def table(self, h):
        return h.unsqueeze(2).expand(-1, -1, h.shape[1], -1)  # HERE


class Selected(Neighbours):
    def forward(self, x):
        h = torch.tanh(self.inner(x))
        whole = h.mean(1, keepdim=True).repeat(1, h.shape[1], 1)  # HERE
        near = whole.index_select(1, torch.arange(h.shape[1]).roll(1))
        return self.outer(torch.cat([h, near], -1))


class Beams(Neighbours):
    """Begins with copies, as a beam search does, and chooses among other states later."""

    def forward(self, x):
        h = torch.tanh(self.inner(x)).mean(1)
        beams = h.unsqueeze(1).expand(-1, 3, -1)
        for step in range(3):
            chosen = beams.gather(1, torch.tensor([0, 2, 1])[None, :, None].expand(*beams.shape))
            beams = torch.tanh(chosen + 0.1 * step * torch.arange(3.0)[:, None])
        return self.outer(torch.cat([beams, beams.flip(1)], -1))


class OfInputs(Neighbours):
    """Indexes what no layer has computed, along a dimension that is given by its name."""

    def table(self, h):
        return h.unsqueeze(2).repeat(1, 1, h.shape[1], 1)  # HERE

    def forward(self, x):
        b, n, d = x.shape
        nearest = torch.cdist(x, x).topk(2, largest=False).indices
        near = torch.gather(self.table(x), dim=2, index=nearest[..., None].expand(b, n, 2, d))
        return self.outer(nn.functional.pad(near.flatten(2), (0, 2)))


class OfEntries(OfInputs):
    def table(self, h):
        return h.unsqueeze(1).repeat(1, h.shape[1], 1, 1)


class ByBrackets(Neighbours):
    """Computes on the copies before it indexes them."""

    def forward(self, x):
        whole = x.mean(1, keepdim=True).expand_as(x)  # HERE
        h = torch.tanh(self.inner(whole))
        return self.outer(torch.cat([h, h[:, torch.arange(x.shape[1]).roll(1)]], -1))


class AlongDim(Neighbours):
    def forward(self, x):
        h = torch.tanh(self.inner(x))
        whole = h.amax(1, keepdim=True).broadcast_to(h.shape)  # HERE
        order = x.sum(-1, keepdim=True).argsort(1).expand_as(h)
        return self.outer(torch.cat([h, torch.take_along_dim(whole, order, dim=1)], -1))


class Positions(Neighbours):
    """Adds a table of positions that begins at zero to copies of one entry."""

    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.zeros(5, 4))

    def forward(self, x):
        h = torch.tanh(self.inner(x)).mean(1, keepdim=True).expand(-1, 5, -1) + self.places
        return self.outer(torch.cat([h, h.index_select(1, torch.arange(5).roll(1))], -1))


class Gate(Neighbours):
    """Gives every entry the same at first: its only layer begins at zero."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.inner.weight)

    def forward(self, x):
        h = self.inner(x) + x.mean((1, 2), keepdim=True)
        return self.outer(torch.cat([h, h[:, torch.arange(x.shape[1]).roll(1)]], -1))


SOUND = [Neighbours, Beams, OfEntries, Positions, Gate]


@pytest.mark.parametrize("model", [*SOUND, Itself, Selected, OfInputs, ByBrackets, AlongDim])
def test_choices_among_copies(model):
    contract = Contract(model=model, inputs="B N 3", batch=((torch.randn(2, 5, 3),), None))
    (found,) = contract.check(["dead-modules"]).findings
    wrong = model not in SOUND
    assert (found.status == "violated", found.code == "result-unread") == (wrong, wrong)
    assert not wrong or found.location.text.endswith("# HERE")


def test_entries_that_a_batch_makes_equal_may_be_indexed():
    points = torch.randn(2, 1, 3).repeat(1, 5, 1)
    contract = Contract(model=Neighbours, inputs="B N 3", batch=((points,), None))
    assert contract.check(["dead-modules"]).ok

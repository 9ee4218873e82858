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


@pytest.mark.parametrize("model", [Neighbours, Itself, Selected, Beams])
def test_choices_among_copies(model):
    contract = Contract(model=model, inputs="B N 3", batch=((torch.randn(2, 5, 3),), None))
    (found,) = contract.check(["dead-modules"]).findings
    wrong = model in (Itself, Selected)
    assert (found.status, found.code == "result-unread") == (
        "violated" if wrong else "passed",
        wrong,
    )
    assert not wrong or found.location.text.endswith("# HERE")

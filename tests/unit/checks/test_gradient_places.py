"""Gradients that are cut by place in the batch, and sound models that cut them by other things."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Cut(nn.Module):
    def __init__(self, cut, norm=False):
        super().__init__()
        self.body, self.head = nn.Linear(5, 12), nn.Linear(12, 3)
        self.norm = nn.BatchNorm1d(12) if norm else nn.Identity()
        self.cut = cut

    def forward(self, x):
        h = self.norm(self.body(x)).tanh()
        return self.head(self.cut(h) if self.training else h)


def found(cut, norm=False):
    g = torch.Generator().manual_seed(4)
    x, y = torch.randn(8, 5, generator=g), torch.randint(3, (8,), generator=g)
    contract = Contract(model=lambda: Cut(cut, norm), batch=((x,), y), loss=F.cross_entropy)
    return {f.code: f.status for f in contract.check(["descent"]).findings}


def after_first(h):
    return torch.cat((h[:1], h[1:].detach()))


def scaled_by_place(h):
    weight = torch.linspace(0, 1, len(h))[:, None]
    return weight * h + (1 - weight) * h.detach()


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("cut", [after_first, scaled_by_place])
def test_a_gradient_that_is_cut_by_place_is_found(cut, norm):
    assert found(cut, norm).get("gradient-by-place") == "violated"


def by_content(h):
    return torch.where(h[:, :1] > 0, h, h.detach())


def whole(h):
    return h.detach() * 0.5 + h * 0.5


def capacity(h):
    kept = (h[:, 0] > 0).cumsum(0) <= 2
    return torch.where(kept[:, None], h, torch.zeros_like(h))


def noisy(h):
    return torch.where(torch.rand(len(h), 1) < 0.5, h, h.detach() + torch.randn_like(h))


@pytest.mark.parametrize("cut", [by_content, whole, capacity, noisy, F.relu])
def test_a_gradient_that_is_cut_by_content_or_by_chance_is_sound(cut):
    assert "gradient-by-place" not in found(cut)

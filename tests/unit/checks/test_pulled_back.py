"""Frozen copies to which a step pulls the trained weights back, and copies that stay on purpose."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = nn.Linear(5, 3)
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)

    def forward(self, x):
        return self.policy(x)


def swapped(model):
    for old, new in zip(model.reference.parameters(), model.policy.parameters(), strict=True):
        new.data = 0.2 * old.data + 0.8 * new.data  # swapped


def never(model):
    """A reference that stays, as that of a preference loss."""


def bounded(model):
    for new in model.policy.parameters():
        new.data.clamp_(-0.3, 0.3)


def decayed(model):
    for new in model.policy.parameters():
        new.data.mul_(0.9)


def ahead(model):
    """Slow and fast weights that meet, as those of a lookahead."""
    for slow, fast in zip(model.reference.parameters(), model.policy.parameters(), strict=True):
        slow.data.lerp_(fast.data, 0.5)
        fast.data.copy_(slow.data)


def check(after, *, called=True):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        wanted = targets + 0.1 * model.reference(*inputs) if called else targets
        loss = (model(*inputs) - wanted).pow(2).mean()
        loss.backward()
        optimizer.step()
        after(model)
        return loss.detach()

    torch.manual_seed(0)
    return Contract(
        model=Pair, batch=(torch.randn(6, 5), torch.randn(6, 3)), train_step=step,
        optimizer=lambda model: torch.optim.Adam(model.policy.parameters(), lr=1e-2),
    ).check(["averages-follow"])  # fmt: skip


def test_weights_pulled_back_to_a_copy_are_told_with_the_line():
    (found,) = check(swapped).causes
    assert found.code == "average-swapped"
    assert found.location.text.endswith("# swapped")
    assert found.evidence["share"] == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize("after", [never, bounded, decayed, ahead])
def test_copies_that_stay_on_purpose_are_sound(after):
    assert not any(f.status == "violated" for f in check(after).findings)


def test_an_anchor_that_no_step_calls_is_sound():
    assert not any(f.status == "violated" for f in check(swapped, called=False).findings)

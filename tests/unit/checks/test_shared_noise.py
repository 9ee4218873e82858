"""Noise and dropout masks of a training forward belong to one sample each."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Sequence(nn.Module):
    """Reads (B, T, 6), disturbs what its first layer gives, and reads it again."""

    def __init__(self, disturb) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 2)
        self.size = nn.Parameter(torch.full((12,), 0.1))
        self.disturb = disturb

    def forward(self, x):
        h = self.first(x)
        return self.last(self.disturb(self, h) if self.training else h)


def told(disturb):
    contract = Contract(model=lambda: Sequence(disturb), batch=((torch.randn(4, 9, 6),), None))
    (finding,) = contract.check(["seeding"]).findings
    return finding


def mask_of_steps(model, h):
    keep = torch.bernoulli(torch.full((1, *h.shape[1:]), 0.8))  # draw
    return h * keep / 0.8


def mask_by_comparison(model, h):
    keep = torch.rand(h.shape[1:], device=h.device) > 0.3  # draw
    return torch.where(keep, h, torch.zeros_like(h))


def added(model, h):
    return h + 0.1 * torch.randn(h.shape[1:])  # draw


def factors(model, h):
    noise = 1 + 0.2 * torch.randn(h.shape[-1])  # draw
    return h * noise


def latent(model, h):
    noise = torch.randn(1, 1, h.shape[-1])  # draw
    return h + h.tanh().exp() * noise


def dropout_of_ones(model, h):
    keep = F.dropout(h.new_ones(1, 1, h.shape[-1]), 0.3)  # draw
    return h * keep


@pytest.mark.parametrize(
    "disturb", [mask_of_steps, mask_by_comparison, added, factors, latent, dropout_of_ones]
)
def test_noise_that_all_samples_share(disturb):
    finding = told(disturb)
    assert (finding.status, finding.code) == ("violated", "noise-shared")
    assert finding.location.text.endswith("# draw")


def own_mask(model, h):
    return h * F.dropout(h.new_ones(len(h), 1, h.shape[-1]), 0.3)


def own_noise(model, h):
    return h + 0.1 * torch.randn_like(h)


def whole_block(model, h):
    return h * torch.empty(1, 1, 1).bernoulli_(0.7) / 0.7  # stochastic depth by batch


def span_of_time(model, h):
    start = torch.randint(0, 5, ())
    steps = torch.arange(h.shape[1])
    return h.masked_fill(((steps >= start) & (steps < start + 3))[:, None], 0.0)


def noisy_weights(model, h):
    return h + model.size * torch.randn(12)  # a noisy bias of learned size


def factored(model, h):
    """The noise of a NoisyNet, which its authors draw once for all samples."""
    return h + F.linear(h * torch.randn(12), torch.randn(12)[:, None] * model.last.weight[:1])


def rotated(model, h):
    return h @ torch.linalg.qr(torch.randn(12, 12))[0]


def mixed(model, h):
    share = torch.rand(())
    return share * h + (1 - share) * h.flip(0)


def on_the_table(model, h):
    kept = torch.bernoulli(torch.full((12, 1), 0.9)) / 0.9
    return F.linear(h, torch.eye(12) + kept * model.first.weight.mean())


@pytest.mark.parametrize(
    "disturb",
    [own_mask, own_noise, whole_block, span_of_time, noisy_weights, factored, rotated, mixed, on_the_table],
)  # fmt: skip
def test_random_numbers_that_samples_may_share(disturb):
    assert told(disturb).status == "passed"


class TimeFirst(nn.Module):
    """Locked dropout as of recurrent language models, where time stands first."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(20, 12), nn.Linear(12, 20)

    def forward(self, ids):
        h = self.words(ids)
        if self.training:
            h = h * h.new_empty(1, *h.shape[1:]).bernoulli_(0.7) / 0.7
        return self.last(h)


def test_a_mask_that_is_kept_over_time_is_one_for_each_sample():
    contract = Contract(model=TimeFirst, batch=((torch.randint(0, 20, (9, 4)),), None), batch_dim=1)
    (finding,) = contract.check(["seeding"]).findings
    assert finding.status == "passed"

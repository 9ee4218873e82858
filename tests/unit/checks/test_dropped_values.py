"""What is dropped in training, how the rest is scaled, and whether it is drawn again; and modules that only come near it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Drop(nn.Module):
    """Drops values in training; subclasses say how."""

    def forward(self, x):
        return self.drop(x) if self.training else x


def bernoulli(shape, keep):
    return torch.bernoulli(torch.full(shape, keep))


class TimesKept(Drop):
    def drop(self, x):
        mask = bernoulli((*x.shape[:2], 1), 0.7)
        scale = mask.mean()  # HERE
        return x * mask * scale


class ByDropped(Drop):
    """Divides by the share that is dropped."""

    def drop(self, x):
        return x * bernoulli(x.shape, 0.8).div_(0.2)  # HERE


class InPlace(Drop):
    def drop(self, x):
        mask = bernoulli((len(x), 1, 1), 0.75)
        x = x * 0.75  # HERE
        return x.mul_(mask)


class Path(Drop):
    """Drops samples."""

    def drop(self, x):
        return x.div(0.75) * bernoulli((len(x), 1, 1), 0.75)


class WholeBatch(Drop):
    def drop(self, x):
        return x * bernoulli((1, 1, 1), 0.6) / 0.6


class Realised(Drop):
    def drop(self, x):
        mask = bernoulli((*x.shape[:2], 1), 0.7)
        return x * mask * (mask.numel() / mask.sum())


class Blocks(Drop):
    """Scales by the rate that was asked for, which overlapping blocks do not reach."""

    def drop(self, x):
        holes = F.max_pool1d(bernoulli(x.shape, 0.1), 3, 1, 1)
        return x * (1 - holes) / 0.7


class Unscaled(Drop):
    """Masks a span of time, as an augmentation of spectrograms does."""

    def drop(self, x):
        start = int(torch.randint(0, x.shape[1] - 2, ()))
        mask = torch.ones(x.shape[1], 1)
        mask[start : start + 2] = 0
        return x * mask


class Gain(Drop):
    """Draws a gain beside the mask."""

    def drop(self, x):
        return x * (0.5 + 0.5 * torch.rand(())) * bernoulli(x.shape, 0.9)


class Noisy(Drop):
    def drop(self, x):
        return x * (1 + 0.1 * torch.randn_like(x))


class Fresh(Drop):
    """Keeps its mask for those who want to look at it."""

    def drop(self, x):
        self.mask = bernoulli(x.shape, 0.7) / 0.7
        return x * self.mask


class Stale(Drop):
    mask = None

    def drop(self, x):
        if self.mask is None:
            self.mask = bernoulli((1, 1, x.shape[2]), 0.7) / 0.7  # HERE
        return x * self.mask


class StaleNoise(Drop):
    noise = None

    def drop(self, x):
        if self.noise is None:
            self.noise = torch.randn(x.shape[2])  # HERE
        return x + 0.1 * self.noise


class Sometimes(Stale):
    """Draws another mask in each tenth call."""

    calls = 0

    def drop(self, x):
        self.calls += 1
        if self.calls % 10 == 0:
            self.mask = None
        return super().drop(x)


class AfterReset(Stale):
    def reset(self):
        self.mask = None


class PerEpoch(Stale):
    def train(self, mode=True):
        self.mask = None
        return super().train(mode)


class ForTarget(Stale):
    """Is asked by its owner to draw."""

    def redrawn(self):
        self.mask = None
        return self


class Features(Drop):
    """Random features, drawn when the width is known, and read in both modes."""

    weight = None

    def forward(self, x):
        if self.weight is None:
            self.weight = torch.randn(x.shape[-1], x.shape[-1]) / 3
        return x + (F.dropout(x, 0.1, self.training) @ self.weight).cos()


class Lazy(Drop):
    """Takes its scale from the first batch."""

    scale = None

    def drop(self, x):
        if self.scale is None:
            self.scale = x.std()
        return x + 0.1 * self.scale * torch.randn_like(x)


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.enter, self.noise, self.leave = nn.Linear(3, 8), kind(), nn.Linear(8, 2)

    def forward(self, x):
        return self.leave(torch.tanh(self.noise(self.enter(x))))


def finding(kind):
    x, target = torch.randn(12, 9, 3), torch.randn(12, 9, 2)
    contract = Contract(model=lambda: Net(kind), batch=(x, target), loss=F.mse_loss)
    (found,) = contract.check(["dropped-values"]).findings
    return found


@pytest.mark.parametrize("kind", [TimesKept, ByDropped, InPlace])
def test_kept_values_are_scaled_by_the_wrong_number(kind):
    found = finding(kind)
    assert (found.status, found.code) == ("violated", "dropout-scale"), found
    assert found.location.text.endswith("# HERE"), found
    assert found.culprits[0].name == "noise"


@pytest.mark.parametrize("kind", [Path, WholeBatch, Realised, Blocks, Unscaled, Fresh])
def test_the_mean_is_kept_or_nothing_is_scaled(kind):
    assert finding(kind).status == "passed", finding(kind)


@pytest.mark.parametrize("kind", [Stale, StaleNoise])
def test_noise_that_is_drawn_once(kind):
    found = finding(kind)
    assert (found.status, found.code) == ("violated", "noise-kept"), found
    assert found.location.text.endswith("# HERE"), found
    assert found.culprits[0].name == f"noise.{'mask' if kind is Stale else 'noise'}"


@pytest.mark.parametrize(
    "kind",
    [
        Gain, Noisy, Sometimes, AfterReset, PerEpoch, ForTarget, Features, Lazy,
        nn.Dropout, nn.Dropout1d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU, nn.Identity,
    ],
)  # fmt: skip
def test_nothing_to_say(kind):
    assert finding(kind).status in ("passed", "not-applicable"), finding(kind)

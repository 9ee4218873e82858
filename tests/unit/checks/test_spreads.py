"""The spread of a draw is the one that the loss reckons with."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

from pytest_torchcheck import Contract

DIM = 3


class Encoder(nn.Module):
    """Gives the mean and a raw number; ``deviation`` makes the deviation of the draw of it."""

    def __init__(self, deviation, *, library=False, tells=None):
        super().__init__()
        self.deviation, self.library, self.tells = deviation, library, tells
        self.front, self.back = nn.Linear(8, 2 * DIM), nn.Linear(DIM, 8)

    def forward(self, x):
        mean, raw = self.front(x).split(DIM, 1)
        spread = self.deviation(raw)
        if self.library:
            z = Normal(mean, spread).rsample()
        else:
            z = mean + spread * torch.randn(mean.shape)
        return {"out": self.back(z), "mean": mean, "raw": self.tells(raw) if self.tells else raw}


def elbo(divergence, weight=1.0):
    def loss(output, target):
        fit = F.mse_loss(output["out"], target)
        return fit + weight * divergence(output["mean"], output["raw"])

    return loss


def of_log_variance(mean, raw):
    return 0.5 * (raw.exp() + mean.square() - 1 - raw).sum(1).mean()


def of_log_deviation(mean, raw):
    return (0.5 * ((2 * raw).exp() + mean.square() - 1) - raw).sum(1).mean()


def to_wide_prior(mean, raw):
    prior = Normal(torch.zeros(()), torch.tensor(3.0))
    return kl_divergence(Normal(mean, F.softplus(raw)), prior).sum(1).mean()


def free_bits(mean, raw):
    return (0.5 * (raw.exp() + mean.square() - 1 - raw)).clamp_min(0.05).sum(1).mean()


def small_noise(mean, raw):
    return 0.1 * raw.exp().mean() + 0.0 * mean.mean()


def half(raw):
    return (0.5 * raw).exp()


def found(model, loss):
    g = torch.Generator().manual_seed(4)
    x = torch.randn(6, 8, generator=g)
    return Contract(model=model, loss=loss, batch=(x, x.clone())).check(["sampling-paths"])


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("library", [False, True])
def test_a_variance_as_deviation(library):
    (one,) = found(Encoder(torch.exp, library=library), elbo(of_log_variance, 0.3)).causes
    assert one.code == "spread-mistaken"
    assert "spread = self.deviation(raw)" in one.location.text


def test_a_log_variance_that_the_loss_takes_for_a_log_deviation():
    (one,) = found(Encoder(half), elbo(of_log_deviation)).causes
    assert one.code == "spread-mistaken"
    assert "exp(log_var)" in one.fix


@pytest.mark.parametrize(
    ("deviation", "divergence"),
    [
        (half, of_log_variance),
        (torch.exp, of_log_deviation),
        (F.softplus, to_wide_prior),
        (half, free_bits),
        (torch.exp, small_noise),
    ],
)
def test_sound_pairs_of_draw_and_loss(deviation, divergence):
    for library in (False, True):
        report = found(Encoder(deviation, library=library), elbo(divergence, 4.0))
        assert not report.causes, str(report)

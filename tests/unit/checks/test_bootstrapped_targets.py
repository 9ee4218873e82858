"""Targets that add an output to a declared number are constants of the loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Values(nn.Module):
    """The value of a state, and of the one that follows it."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, now, after):
        return self.net(now).squeeze(-1), self.net(after).squeeze(-1)


class Apart(Values):
    """Reads the next state by weights of their own, which another loss trains."""

    def __init__(self):
        super().__init__()
        self.other = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, now, after):
        return self.net(now).squeeze(-1), self.other(after).squeeze(-1)


def by_criterion(output, reward, done):
    value, following = output
    target = reward + 0.9 * (1 - done) * following  # HERE
    return F.mse_loss(value, target)


def by_hand(output, reward, done):
    value, following = output
    error = reward + torch.where(done > 0, torch.zeros_like(following), following) - value  # HERE
    return error.square().mean()


def chosen(output, reward, done):
    value, following = output
    bootstrap = torch.zeros_like(reward)
    bootstrap[done == 0] = following[done == 0]
    target = (reward + bootstrap)[:, None]  # HERE
    return F.huber_loss(input=value[:, None], target=target)


@pytest.mark.parametrize("lost", [by_criterion, by_hand, chosen])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_trained_target(lost, sparse):
    found = told(Values, lost, sparse=sparse)
    assert (found.status, found.code) == ("suspicious", "target-trained")
    assert found.location.text.endswith("# HERE")


def told(model, lost, *, sparse=False, check="loss-sign"):
    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(8, generator=generator)
    contract = Contract(
        model=model,
        inputs=("B 4", "B 4"),
        batch=(
            (torch.randn(8, 4, generator=generator), torch.randn(8, 4, generator=generator)),
            ((reward > 0).float() if sparse else reward, (torch.arange(8) % 3 == 0).float()),
        ),
        loss=lambda output, target: lost(output, *target),
    )
    (found,) = contract.check([check]).findings
    return found


def detached(output, reward, done):
    return F.mse_loss(output[0], reward + 0.9 * (1 - done) * output[1].detach())


def for_the_error_only(output, reward, done):
    value, following = output
    error = reward + 0.9 * (1 - done) * following - value
    return F.mse_loss(value, (value + error).detach()) + error.detach().abs().mean()


def rest_of_another(output, number, mask):
    first, second = output
    return F.mse_loss(first, number - mask * second)


def in_the_place_of_labels(output, number, known):
    first, second = output
    return F.mse_loss(first, torch.where(known > 0, number, second))


def scaled_and_shifted(output, depth, valid):
    guess, other = output
    guess = guess + 0 * other
    weight = valid / valid.sum()
    mean, wanted = (weight * guess).sum(), (weight * depth).sum()
    scale = (weight * (guess - mean) * (depth - wanted)).sum() / (
        weight * (guess - mean).square()
    ).sum()
    return F.l1_loss(valid * depth, valid * (scale * (guess - mean) + wanted))


def of_two_views(output, number, mask):
    first, second = output
    both = F.mse_loss(first, second) + F.mse_loss(mask * first, mask * number)
    return both + F.smooth_l1_loss(0.5 * first + 0.5 * second, number)


def of_an_equation(output, source, inside):
    rate, curve = output
    return F.mse_loss(inside * rate, inside * (0.3 * curve + source))


@pytest.mark.parametrize(
    ("model", "lost"),
    [
        (Values, detached),
        (Apart, by_criterion),
        (Values, for_the_error_only),
        (Values, rest_of_another),
        (Values, in_the_place_of_labels),
        (Values, scaled_and_shifted),
        (Values, of_two_views),
        (Values, of_an_equation),
    ],
    ids=lambda one: one.__name__,
)
def test_what_may_have_a_gradient(model, lost):
    assert told(model, lost).code != "target-trained"
    assert told(model, lost).status not in ("violated", "suspicious", "error")


def without_grad(output, reward, done):
    value, following = output
    with torch.no_grad():
        target = reward + 0.9 * (1 - done) * following
    return F.smooth_l1_loss(value, target)


@pytest.mark.parametrize("lost", [detached, without_grad])
def test_a_target_that_is_cut_leaves_out_nothing(lost):
    assert told(Values, lost, check="descent").status == "not-applicable"


def half_of_a_square(output, reward, done):
    value, following = output
    return ((value - reward) * (value - reward).detach() + done * following).mean()


def test_what_is_cut_by_mistake_is_still_found():
    found = told(Values, half_of_a_square, check="descent")
    assert (found.status, found.code) == ("suspicious", "gradient-partial")

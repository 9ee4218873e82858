"""A training step reads its inputs, and compares each sample's output with that sample's targets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Floats, Ints, Labels


class Net(nn.Module):
    """Scores of four classes."""

    def __init__(self, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 12), nn.Linear(12, 4)
        self.norm = nn.BatchNorm1d(12) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.head(self.drop(torch.tanh(self.norm(self.body(x)))))


def check(compute, model=Net, targets=None, inputs="B 5", **declared):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        given = inputs.values() if isinstance(inputs, dict) else inputs
        loss = compute(model, *given, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    contract = Contract(
        model=model,
        inputs=inputs,
        targets=Labels("B", classes=4) if targets is None else targets,
        optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
        train_step=step,
        **declared,
    )
    found = contract.check(["step-losses"]).findings
    return [(f.status, f.code) for f in found if f.status in ("violated", "suspicious", "error")]


def plain(model, x, y):
    return F.cross_entropy(model(x), y)


def outputs_shuffled(model, x, y):
    return F.cross_entropy(model(x)[torch.randperm(len(x))], y)


def outputs_reversed(model, x, y):
    return F.cross_entropy(model(x).flip(0), y)


def targets_rolled(model, x, y):
    return F.cross_entropy(model(2 * x), y.roll(1, 0))


def noise(model, x, y):
    return F.cross_entropy(model(torch.randn_like(x)), y)


def ones(model, x, y):
    return F.cross_entropy(model(torch.ones_like(x)), y)


def inputs_mixed(model, x, y):
    return F.cross_entropy(model(0.5 * x + 0.5 * x[torch.randperm(len(x))]), y)


def half_of_them(model, x, y):
    half = len(x) // 2
    return F.cross_entropy(model(x[:half]), y[:half])


def every_other(model, x, y):
    return F.cross_entropy(model(x)[::2], y[::2])


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (outputs_shuffled, ("violated", "target-of-another-sample")),
        (outputs_reversed, ("violated", "target-of-another-sample")),
        (targets_rolled, ("violated", "target-of-another-sample")),
        (noise, ("violated", "input-ignored")),
        (ones, ("violated", "input-ignored")),
        (inputs_mixed, ("suspicious", "samples-mixed")),
        (half_of_them, ("violated", "target-unread")),
        (every_other, ("violated", "target-unread")),
    ],
)
def test_a_step_that_loses_its_inputs_or_its_pairs_is_found(compute, expected):
    assert expected in check(compute)


def test_dropout_does_not_hide_what_is_left_out():
    assert check(half_of_them, lambda: Net(dropout=0.3)) == [("violated", "target-unread")]


def test_half_of_a_batch_by_hand_is_left_out_for_certain():
    def batch(seed):
        drawn = torch.Generator().manual_seed(seed)
        return torch.randn(4, 5, generator=drawn), torch.randint(4, (4,), generator=drawn)

    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = half_of_them(model, *inputs, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def optimizer(m):
        return torch.optim.SGD(m.parameters(), lr=0.1)

    contract = Contract(model=Net, batch=batch, optimizer=optimizer, train_step=step)
    told = [(f.status, f.code) for f in contract.check(["step-losses"]).findings]
    assert told == [("violated", "target-unread")]


def shuffled_alike(model, x, y):
    order = torch.randperm(len(x))
    return F.cross_entropy(model(x[order]), y[order])


def mixed_up(model, x, y):
    order, factor = torch.randperm(len(x)), 0.3 + 0.4 * torch.rand(())
    kind = model(factor * x + (1 - factor) * x[order])
    return factor * F.cross_entropy(kind, y) + (1 - factor) * F.cross_entropy(kind, y[order])


def mixed_targets(model, x, y):
    order, one_hot = torch.randperm(len(x)), F.one_hot(y, 4).float()
    soft = 0.6 * one_hot + 0.4 * one_hot[order]
    return F.cross_entropy(model(0.6 * x + 0.4 * x[order]), soft)


def in_parts(model, x, y):
    parts = zip(x.split(2), y.split(2), strict=True)
    return sum(F.cross_entropy(model(a), b, reduction="sum") for a, b in parts) / len(x)


def two_views(model, x, y):
    first, second = model(x + 0.1 * torch.randn_like(x)), model(x * (torch.rand_like(x) > 0.2))
    return F.cross_entropy(first, y) + F.cross_entropy(second, y) + F.mse_loss(first, second)


def stacked_views(model, x, y):
    both = torch.cat([x, x + 0.1 * torch.randn_like(x)])
    return F.cross_entropy(model(both), torch.cat([y, y]))


def hardest(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none").topk(2).values.mean()


def neighbours(model, x, y):
    """Draws samples of one class together (supervised contrastive)."""
    h = F.normalize(model(x), dim=1)
    same = (y[:, None] == y[None]).float() - torch.eye(len(y))
    return -(same * (h @ h.T / 0.5).log_softmax(1)).sum() / len(y)


def sorted_alike(model, x, y):
    order = x[:, 0].argsort()
    return F.cross_entropy(model(x[order]), y[order])


@pytest.mark.parametrize(
    "compute",
    [
        plain,
        shuffled_alike,
        mixed_up,
        mixed_targets,
        in_parts,
        two_views,
        stacked_views,
        hardest,
        neighbours,
        sorted_alike,
    ],
)
@pytest.mark.parametrize("model", [Net, lambda: Net(norm=True, dropout=0.2)])
def test_steps_that_keep_samples_with_their_targets_pass(compute, model):
    assert not check(compute, model)


class Denoiser(nn.Module):
    """Predicts the noise of a noisy vector at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 5)

    def forward(self, x, t):
        return self.head(torch.tanh(self.body(torch.cat([x, t.float()[:, None] / 10], 1))))


def diffused(model, x, t, clean):
    """Draws noise and times itself: the clean vectors are the targets."""
    time, drawn = torch.randint(0, 10, t.shape), torch.randn_like(clean)
    return F.mse_loss(model(clean + drawn * time[:, None] / 10, time), drawn)


def test_a_step_that_makes_its_inputs_of_the_targets_is_at_most_suspicious():
    inputs = {"x": Floats("B 5"), "t": Ints("B", low=0, high=9)}
    told = check(diffused, Denoiser, Floats("B 5"), inputs)
    assert all(status == "suspicious" for status, _ in told)


class Scaled(Net):
    """Takes a weight for each feature too."""

    def forward(self, x, scale):
        return super().forward(x * scale)


def test_one_of_several_inputs_that_the_step_drops_is_suspicious():
    inputs = {"x": "B 5", "scale": "B 5"}

    def dropped(model, x, scale, y):
        return F.cross_entropy(model(x, torch.ones_like(scale)), y)

    assert check(dropped, Scaled, inputs=inputs) == [("suspicious", "input-ignored")]

    def used(model, x, scale, y):
        return F.cross_entropy(model(x, scale), y)

    assert not check(used, Scaled, inputs=inputs)


def test_times_that_the_step_draws_itself_are_not_missed():
    def step(model, x, t, y):
        return F.mse_loss(model(x, torch.randint(0, 10, t.shape)), y)

    inputs = {"x": Floats("B 5"), "t": Ints("B", low=0, high=9)}
    assert not check(step, Denoiser, Floats("B 5"), inputs)

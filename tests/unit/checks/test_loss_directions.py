"""The sign of losses that a model or a training step computes, the dimension of their softmax, and the order of their labels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

SIZE, CLASSES = 7, 4
G = torch.Generator().manual_seed(0)
X, VALUES = torch.randn(SIZE, 5, generator=G), torch.randn(SIZE, CLASSES, generator=G)
LABELS = torch.tensor([0, 1, 2, 3, 0, 2, 1])
CHECKS = ["loss-sign", "target-ownership", "step-losses"]


class Judging(nn.Module):
    """Returns its loss."""

    def __init__(self, loss):
        super().__init__()
        self.layer, self.loss = nn.Linear(5, CLASSES), loss

    def forward(self, x, against):
        return self.loss(self.layer(x), against)


def picked(scores, y):
    return scores.log_softmax(-1)[torch.arange(len(y)), y].mean()


def over(dim):
    def loss(scores, y):
        chances = torch.softmax(scores, dim)
        return -(F.one_hot(y, CLASSES) * torch.log(chances)).sum() / len(y)

    return loss


def opposed(scores, y):
    """A loss of the labels, minus another comparison with them."""
    return F.cross_entropy(scores, y) - 0.1 * F.cross_entropy(scores.tanh(), y)


def weighted(scores, y):
    """Rewards of either sign weigh the samples, as in a policy gradient."""
    rewards = torch.linspace(-1, -0.1, len(y))
    return (-scores.log_softmax(-1).gather(1, y[:, None])[:, 0] * rewards).mean()


def denoising(sign):
    def loss(scores, _):
        noise = torch.ones_like(scores)
        return sign * F.mse_loss(scores, noise)

    return loss


SIGN, SAMPLES = ("violated", "loss-sign"), ("violated", "samples-share-targets")
OWN = [
    (lambda s, y: -F.smooth_l1_loss(s, y), VALUES, SIGN),
    (lambda s, y: F.smooth_l1_loss(s, y), VALUES, None),
    (lambda s, y: -F.binary_cross_entropy_with_logits(s, y), (VALUES > 0).float(), SIGN),
    (lambda s, y: F.binary_cross_entropy(s.sigmoid(), y), (VALUES > 0).float(), None),
    (picked, LABELS, SIGN),
    (lambda s, y: -picked(s, y), LABELS, None),
    (over(0), LABELS, SAMPLES),
    (over(1), LABELS, None),
    (opposed, LABELS, ("suspicious", "loss-sign")),
    (weighted, LABELS, None),
    (lambda s, y: F.cross_entropy(s, y, label_smoothing=0.1), LABELS, None),
    (denoising(-1), VALUES, SIGN),
    (denoising(1), VALUES, None),
    (
        lambda s, y: s.pow(2).sum() - 0.1 * F.mse_loss(s.tanh(), y),
        VALUES,
        ("suspicious", "loss-sign"),
    ),
]


def told(report):
    return [
        (f.status, f.code)
        for f in report.findings
        if f.status in ("violated", "suspicious", "error")
    ]


@pytest.mark.parametrize(("loss", "against", "expected"), OWN, ids=range(len(OWN)))
def test_a_models_own_loss(loss, against, expected):
    report = Contract(model=lambda: Judging(loss), batch=((X, against), None), loss="output").check(
        CHECKS
    )
    assert told(report) == ([expected] if expected else []), str(report)


def stepping(loss, order=lambda x, y: (x, y)):
    def step(model, optimizer, inputs, targets):
        x, y = order(inputs[0], targets)
        value = loss(model(x), y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value

    return Contract(
        model=lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES)),
        batch=((X,), LABELS),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        train_step=step,
    ).check(CHECKS)


def both(scores, y):
    """Mixup: the labels of the samples, and those of their partners."""
    return 0.7 * F.cross_entropy(scores, y) + 0.3 * F.cross_entropy(scores, y.flip(0))


PERM = torch.tensor([3, 0, 6, 1, 5, 2, 4])
STEPS = [
    (F.cross_entropy, lambda x, y: (x, y), None),
    (lambda s, y: -F.cross_entropy(s, y), lambda x, y: (x, y), SIGN),
    (lambda s, y: F.nll_loss(s.log_softmax(0), y), lambda x, y: (x, y), SAMPLES),
    (F.cross_entropy, lambda x, y: (x, y[PERM]), ("violated", "target-of-another-sample")),
    (F.cross_entropy, lambda x, y: (x[PERM], y[PERM]), None),
    (both, lambda x, y: (x, y), None),
]


@pytest.mark.parametrize(("loss", "order", "expected"), STEPS, ids=range(len(STEPS)))
def test_a_training_steps_loss(loss, order, expected):
    report = stepping(loss, order)
    assert told(report) == ([expected] if expected else []), str(report)


class Adversaries(nn.Module):
    """A generator, and a critic that labels of the batch train beside it."""

    def __init__(self):
        super().__init__()
        self.made, self.critic = nn.Linear(5, 5), nn.Linear(5, 1)

    def forward(self, x):
        return self.critic(self.made(x))


def test_a_step_of_two_opponents():
    real = torch.ones(SIZE, 1)

    def step(model, optimizers, inputs, targets):
        (x,) = inputs
        first, second = optimizers
        fake = model.made(x)
        loss = F.binary_cross_entropy_with_logits(model.critic(x), targets)
        loss = loss + F.binary_cross_entropy_with_logits(model.critic(fake.detach()), 1 - targets)
        second.zero_grad()
        loss.backward()
        second.step()
        first.zero_grad()
        fooled = -F.binary_cross_entropy_with_logits(model.critic(fake), 1 - targets)
        fooled.backward()
        first.step()
        return fooled

    report = Contract(
        model=Adversaries,
        batch=((X,), real),
        optimizer=lambda m: (
            torch.optim.SGD(m.made.parameters(), 0.1),
            torch.optim.SGD(m.critic.parameters(), 0.1),
        ),
        train_step=step,
    ).check(CHECKS)
    assert not told(report), str(report)


class Partial(Judging):
    """Looks at the first samples only; its labels are known by their place."""

    def forward(self, x, y):
        return self.loss(self.layer(x)[: self.rows], y[: self.rows])


@pytest.mark.parametrize("rows", [1, SIZE])
def test_labels_that_are_given_by_their_place_belong_to_samples(rows):
    def build():
        model = Partial(F.cross_entropy)
        model.rows = rows
        return model

    report = Contract(model=build, batch=((X, LABELS), None), loss="output").check(CHECKS)
    assert told(report) == ([("violated", "target-unread")] if rows == 1 else []), str(report)


def relabelled(scores, y):
    """Each label is exchanged for another one, as a table of classes may."""
    return F.cross_entropy(scores, scores.shape[1] - 1 - y)


def test_what_a_loss_is_given_is_not_called_the_target():
    contract = Contract(model=nn.Linear(5, CLASSES), batch=((X,), LABELS), loss=relabelled)
    (found,) = contract.check(["loss-sign"]).findings
    assert found.status == "passed"
    assert "the logits of the classes that F.cross_entropy is given" in found.summary
    assert "target" not in found.summary

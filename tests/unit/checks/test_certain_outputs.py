"""A loss and its gradient are finite where the outputs are sure of their targets: that is where training leads."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
CLASSES, FLAGS = torch.arange(12) % 3, (torch.arange(36).reshape(12, 3) % 2).float()


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    log_p = logits.log_softmax(1).gather(1, labels[:, None])
    return -((1 - log_p.exp()).pow(0.5) * log_p).mean()  # the power


def guarded(logits: Tensor, labels: Tensor) -> Tensor:
    log_p = logits.log_softmax(1).gather(1, labels[:, None])
    return -((1 - log_p.exp()).clamp(min=1e-6).pow(0.5) * log_p).mean()


def squared(logits: Tensor, labels: Tensor) -> Tensor:
    log_p = logits.log_softmax(1).gather(1, labels[:, None])
    return -((1 - log_p.exp()).pow(2) * log_p).mean()


def by_hand(p: Tensor, flags: Tensor) -> Tensor:
    return -(flags * p.log() + (1 - flags) * (1 - p).log()).mean()


def of_scores(scores: Tensor, flags: Tensor) -> Tensor:
    return by_hand(scores.sigmoid(), flags)


def of_angles(cosines: Tensor, labels: Tensor) -> Tensor:
    """Add a margin to the angle of the right class."""
    angle = torch.acos(cosines.clamp(-1 + 1e-6, 1 - 1e-6))
    right = F.one_hot(labels, 3).bool()
    return F.cross_entropy(8 * torch.where(right, (angle + 0.2).cos(), cosines), labels)


def of_plain_angles(cosines: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(8 * torch.cos(torch.acos(0.999 * cosines)), labels)


def root(p: Tensor, flags: Tensor) -> Tensor:
    return (F.mse_loss(p, flags) + 1e-8).sqrt()


class Cosines(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1) @ F.normalize(self.weight, dim=1).T


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def unit() -> nn.Module:
    return nn.Sequential(plain(), nn.Sigmoid())


def told(model, targets: Tensor, loss):
    report = Contract(model=model, batch=((X,), targets), loss=loss).check(["edge-targets"])
    return [f for f in report.findings if f.status in ("violated", "suspicious", "error")]


@pytest.mark.parametrize(
    ("model", "targets", "loss"),
    [(plain, CLASSES, focal), (unit, FLAGS, by_hand), (plain, FLAGS, of_scores)],
)
def test_a_loss_that_breaks_where_it_should_end_is_told(model, targets: Tensor, loss) -> None:
    (found,) = told(model, targets, loss)
    assert (found.status, found.code) == ("violated", "edge-targets-non-finite")
    assert "outputs that are certain, and right" in found.summary
    assert found.location is not None
    assert found.location.function in ("focal", "by_hand")


@pytest.mark.parametrize(
    ("model", "targets", "loss"),
    [
        (plain, CLASSES, F.cross_entropy),
        (plain, CLASSES, guarded),
        (plain, CLASSES, squared),
        (unit, FLAGS, F.binary_cross_entropy),
        (plain, FLAGS, F.binary_cross_entropy_with_logits),
        (plain, FLAGS, F.mse_loss),
        (unit, FLAGS, root),
        (lambda: Cosines(5, 3), CLASSES, of_angles),
        (lambda: Cosines(5, 3), CLASSES, of_plain_angles),
        (plain, FLAGS, lambda o, t: F.poisson_nll_loss(o, t)),
        (plain, FLAGS, lambda o, t: (o.exp() - t * o + math.log(2)).mean()),
    ],
)
def test_losses_that_stay_finite_or_are_made_for_other_outputs_pass(
    model, targets: Tensor, loss
) -> None:
    assert not told(model, targets, loss)


def growing(scores: Tensor, flags: Tensor) -> Tensor:
    """Is infinite at large scores, as a likelihood of counts may be."""
    return (scores.exp().exp() - flags * scores).mean()


def test_what_is_infinite_there_is_not_counted_as_finite() -> None:
    counted = []
    for loss in (F.binary_cross_entropy_with_logits, growing):
        (found,) = (
            Contract(model=plain, batch=((X,), FLAGS), loss=loss).check(["edge-targets"]).findings
        )
        assert found.status == "passed"
        counted.append(int(found.summary.split(" edge cases")[0].split()[-1]))
    assert counted[0] == counted[1] + 1

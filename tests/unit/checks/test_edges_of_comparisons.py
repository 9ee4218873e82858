"""A loss that compares samples is not asked by one sample alone; one over positives is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Labels

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(12, 6, generator=GENERATOR)
TIME = torch.tensor([3.0, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])  # with ties
EVENT = torch.tensor([0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1])
KIND = torch.arange(12) % 3


def told(loss: Any, targets: Any, width: int = 1, low: int = 1) -> list[tuple[str, str]]:
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, width)]
    contract = Contract(
        model=lambda: nn.Sequential(*layers, *([nn.Flatten(0)] if width == 1 else [])),
        batch=((X,), targets), inputs="B 6", sizes={"B": (low, 12)}, loss=loss,
    )  # fmt: skip
    found = contract.check(["edge-targets"]).findings
    return [(f.status, f.summary) for f in found if f.status in ("violated", "suspicious")]


def breslow(hazard: Tensor, targets: Any) -> Tensor:
    time, event = targets
    at_risk = time[None] >= time[:, None]
    total = torch.where(at_risk, hazard[None], -torch.inf).logsumexp(1)
    return -(hazard - total)[event.bool()].mean()


def test_a_patient_without_event_is_no_batch_but_several_of_them_may_be() -> None:
    [(status, summary)] = told(breslow, (TIME, EVENT))
    assert (status, summary) == (
        "suspicious",
        "the loss is not finite for a batch of samples 0, 3, 5 and 2 more",
    )


def penalised(hazard: Tensor, targets: Any) -> Tensor:
    return breslow(hazard, targets) + 1e-4 * hazard.square().mean()


def test_a_weak_penalty_of_each_sample_beside_the_comparison() -> None:
    assert [status for status, _ in told(penalised, (TIME, EVENT))] == ["suspicious"]


def guarded(hazard: Tensor, targets: Any) -> Tensor:
    _, event = targets
    return breslow(hazard, targets) if event.any() else hazard.sum() * 0


def ranks(score: Tensor, targets: Any) -> Tensor:
    """Pairs of an event and of a longer time; each has a partner, but not by itself."""
    time, event = targets
    pairs = (time[:, None] < time[None]) & event.bool()[:, None]
    return F.softplus(score[None] - score[:, None])[pairs].mean()


def nt_xent(z: Tensor, kind: Tensor) -> Tensor:
    z = F.normalize(z, dim=1)
    own = torch.eye(len(z), dtype=torch.bool)
    likeness = (z @ z.T / 0.5).masked_fill(own, -torch.inf)
    positive = (kind[:, None] == kind[None]) & ~own
    return -likeness.log_softmax(1)[positive].mean()


def triplets(z: Tensor, kind: Tensor) -> Tensor:
    far = (z[:, None] - z[None]).square().sum(2)
    same = kind[:, None] == kind[None]
    positive = same & ~torch.eye(len(z), dtype=torch.bool)
    valid = positive[:, :, None] & ~same[:, None]
    return F.relu(far[:, :, None] - far[:, None] + 1)[valid].mean()


def listnet(score: Tensor, targets: Any) -> Tensor:
    time, _ = targets
    return -(time.softmax(0) * score.log_softmax(0)).sum()


def coral(z: Tensor, kind: Tensor) -> Tensor:
    parts = [z[kind == 0], z[kind != 0]]
    one, two = ((p - p.mean(0)).T @ (p - p.mean(0)) / (len(p) - 1) for p in parts)
    return (one - two).square().sum()


@pytest.mark.parametrize(
    ("loss", "targets", "width"),
    [
        (guarded, (TIME, EVENT), 1),
        (listnet, (TIME, EVENT), 1),
        (ranks, (TIME, EVENT), 1),
        (nt_xent, KIND, 4),
        (triplets, KIND, 4),
        (coral, KIND, 4),
    ],
)
def test_losses_that_compare_samples_are_not_blamed(loss: Any, targets: Any, width: int) -> None:
    assert not [status for status, _ in told(loss, targets, width) if status == "violated"]


def test_a_batch_of_the_samples_that_are_not_finite_alone() -> None:
    def apart(z: Tensor, kind: Tensor) -> Tensor:
        """Compare the first sample with the others; by itself with itself, or, of kind 0, with nothing."""
        rest = z[1:] if len(z) > 1 else z[:1].expand(1 - int(kind[0] == 0), -1)
        return (z[0] - rest).square().sum(1).mean()

    assert told(apart, KIND, 4) == []


def over_positives(score: Tensor, targets: Any) -> Tensor:
    _, event = targets
    return F.softplus(-score)[event.bool()].mean()


def dice(score: Tensor, targets: Any) -> Tensor:
    _, event = targets
    p = score.sigmoid()
    return 1 - (p * event).square().sum() / (p * event).sum()


def weighed_by_the_hardest(score: Tensor, targets: Any) -> Tensor:
    _, event = targets
    chosen = score[event.bool()]
    return (chosen.detach().softmax(0) * F.softplus(-chosen)).sum() / len(chosen)


@pytest.mark.parametrize("loss", [over_positives, dice, weighed_by_the_hardest])
def test_a_loss_over_positives_has_to_be_finite_without_any(loss: Any) -> None:
    assert [status for status, _ in told(loss, (TIME, EVENT))] == ["violated"]


@pytest.mark.parametrize(
    ("loss", "status"),
    [
        (triplets, "suspicious"),
        (lambda o, y: (F.cross_entropy(o, y, reduction="none") / (y > 0).sum()).sum(), "violated"),
    ],
)
def test_labels_of_one_class(loss: Any, status: str) -> None:
    contract = Contract(
        model=lambda: nn.Linear(6, 4), inputs="B 6", targets=Labels("B", classes=4),
        sizes={"B": (12, 12)}, loss=loss,
    )  # fmt: skip
    found = contract.check(["edge-targets"]).findings
    assert [f.status for f in found] == [status]

"""Losses by position that mix the positions of a sample; weights, masks, smoothing, shifts and windows are sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(6, 7, 5, generator=GENERATOR)
TAGS = torch.randint(0, 4, (6, 7), generator=GENERATOR)


def flat(logits: Tensor, tags: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tags.flatten(), **options)


def over_positions(logits: Tensor, tags: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(logits, 1).flatten(0, 1), tags.flatten())


def of_the_mean(logits: Tensor, tags: Tensor) -> Tensor:
    return flat(logits.mean(1, keepdim=True).expand_as(logits), tags)


def centred(logits: Tensor, tags: Tensor) -> Tensor:
    return flat(logits / logits.norm(dim=1, keepdim=True), tags)


def weighted(logits: Tensor, tags: Tensor) -> Tensor:
    return flat(logits, tags, weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))


def smoothed(logits: Tensor, tags: Tensor) -> Tensor:
    return flat(logits, tags, label_smoothing=0.1)


def next_tag(logits: Tensor, tags: Tensor) -> Tensor:
    return flat(logits[:, :-1], tags[:, 1:])


def by_sample(logits: Tensor, tags: Tensor) -> Tensor:
    each = F.cross_entropy(logits.mT, tags, reduction="none")
    return (each.sum(1) / (tags >= 0).sum(1)).mean()


def in_windows(logits: Tensor, tags: Tensor) -> Tensor:
    return flat(F.avg_pool1d(logits.mT, 3, 1, 1).mT, tags)


def plain(logits: Tensor, tags: Tensor) -> Tensor:
    return F.cross_entropy(logits.mT, tags)


def judged(loss: Any) -> Finding:
    contract = Contract(model=nn.Linear(5, 4), batch=((X,), TAGS), loss=loss)
    (found,) = contract.check(["target-alignment"]).findings
    return found


@pytest.mark.parametrize("loss", [over_positions, of_the_mean, centred])
def test_positions_that_are_mixed_before_the_criterion_are_found(loss: Any) -> None:
    found = judged(loss)
    assert (found.status, found.code) == ("violated", "positions-share-targets")
    assert found.location is not None
    assert "1" in found.location.text


@pytest.mark.parametrize("loss", [plain, flat, weighted, smoothed, next_tag, by_sample, in_windows])
def test_losses_by_position_pass(loss: Any) -> None:
    assert judged(loss).status == "passed"


def test_targets_without_the_axis_of_the_batch_are_left_alone() -> None:
    contract = Contract(
        model=nn.Linear(5, 4),
        batch=((X[:, 0][None],), torch.arange(6) % 4),
        batch_dim=1,
        loss=lambda logits, tags: F.cross_entropy(logits[0], tags),
    )
    (found,) = contract.check(["target-alignment"]).findings
    assert found.status in ("passed", "not-applicable")

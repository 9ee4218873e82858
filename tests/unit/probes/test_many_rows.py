"""Of many rows of scores some are compared whole: what a loss pulls to is told as for a few."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

from pytest_torchcheck.probes.loss.consumption import LossWatch

if TYPE_CHECKING:
    from collections.abc import Callable


def plain(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores, labels)


def with_ignored(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores, labels)  # some of which are -100


def weighed(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(0.1, 2.0, len(labels))
    return (weights * F.cross_entropy(scores, labels, reduction="none")).mean()


def turned(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -F.cross_entropy(scores, labels)


def partly_turned(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    signs = torch.where(torch.arange(len(labels)) == 5, -1.0, 1.0)
    return (signs * F.cross_entropy(scores, labels, reduction="none")).mean()


def over_samples(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -scores.log_softmax(0).gather(1, labels[:, None]).mean()


def way_of(loss: Callable[..., torch.Tensor], size: int) -> set[str]:
    torch.manual_seed(0)
    labels = torch.randint(0, 5, (size,))
    labels[::3] = -100 if loss is with_ignored else labels[::3]
    scores = torch.randn(size, 5, requires_grad=True)
    watch = LossWatch()
    watch.between([scores], [labels])
    watch.comparisons.of([labels])
    with watch:
        value = loss(scores * 1.0, labels)
    slope = torch.autograd.grad(value, scores)[0]
    slopes = {id(one.given): slope for one in watch.comparisons._found}
    return {one.way for one in watch.comparisons.directions(float(value.detach()), slopes)}


@pytest.mark.parametrize(
    "loss", [plain, with_ignored, weighed, turned, partly_turned, over_samples]
)
def test_many_rows_are_told_as_a_few_are(loss: Callable[..., torch.Tensor]) -> None:
    few, many = way_of(loss, 12), way_of(loss, 400)
    assert few == many
    assert few

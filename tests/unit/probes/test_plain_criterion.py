"""Losses that are one of torch's criteria and nothing else, and those that look alike and are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.probes.loss.plain import plain_criterion

SCORES, CLASSES = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 1, 0])
FLAGS = (torch.randn(6, 4) > 0).float()


def found(loss: Any, output: torch.Tensor, target: torch.Tensor) -> Any:
    leaf = output.detach().clone().requires_grad_()
    given = target.clone()
    return plain_criterion(loss(leaf, given), {"output": leaf}, {"y": given})


@pytest.mark.parametrize(
    ("loss", "output", "target"),
    [
        (F.cross_entropy, SCORES, CLASSES),
        (nn.CrossEntropyLoss(), SCORES, CLASSES),
        (lambda o, y: F.nll_loss(o.log_softmax(1), y), SCORES, CLASSES),
        (F.cross_entropy, torch.randn(2, 4, 3, 3), torch.randint(0, 4, (2, 3, 3))),
        (F.mse_loss, SCORES, FLAGS),
        (F.binary_cross_entropy_with_logits, SCORES, FLAGS),
    ],
    ids=["classes", "module", "of logarithms", "of places", "numbers", "flags"],
)
def test_a_criterion_alone_is_plain(loss: Any, output: torch.Tensor, target: torch.Tensor) -> None:
    made = found(loss, output, target)
    assert made is not None
    assert not made.summed
    assert bool(made.counts(target).all())


def test_what_a_criterion_leaves_out_and_how_it_reduces_is_told() -> None:
    target = torch.tensor([0, -100, 2, 3, 1, 3])
    made = found(lambda o, y: F.cross_entropy(o, y, reduction="sum"), SCORES, target)
    assert made.summed
    assert made.counts(target).tolist() == [True, False, True, True, True, True]
    other = found(lambda o, y: F.cross_entropy(o, y, ignore_index=3), SCORES, CLASSES)
    assert other.counts(CLASSES).tolist() == [True, True, True, False, True, True]


def overwritten(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    target.copy_(target.roll(1))
    return F.cross_entropy(output, target)


OTHERS = {
    "labels of another sample": lambda o, y: F.cross_entropy(o, y.roll(1)),
    "labels in reverse": lambda o, y: F.cross_entropy(o, y.flip(0)),
    "outputs of another sample": lambda o, y: F.cross_entropy(o.roll(1, 0), y),
    "half of the batch": lambda o, y: F.cross_entropy(o[:3], y[:3]),
    "weights": lambda o, y: F.cross_entropy(o, y, weight=torch.ones(4)),
    "smoothed labels": lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1),
    "divided again": lambda o, y: F.cross_entropy(o, y) / len(o),
    "a second term": lambda o, y: F.cross_entropy(o, y) + o.pow(2).mean(),
    "probabilities": lambda o, y: F.cross_entropy(o.softmax(1), y),
    "over samples": lambda o, y: F.nll_loss(o.log_softmax(0), y),
    "some terms": lambda o, y: F.cross_entropy(o, y, reduction="none")[:3].mean(),
    "labels written to": overwritten,
}


@pytest.mark.parametrize("loss", OTHERS.values(), ids=OTHERS)
def test_whatever_else_is_done_is_not(loss: Any) -> None:
    assert found(loss, SCORES, CLASSES) is None


def test_an_error_between_other_places_or_under_a_mask_is_not() -> None:
    assert found(lambda o, y: F.mse_loss(o, y.roll(1, 0)), SCORES, FLAGS) is None
    assert found(lambda o, y: F.mse_loss(o * y, y), SCORES, FLAGS) is None
    assert found(lambda o, y: (o - y).pow(2).mean(), SCORES, FLAGS) is None
    weighted = lambda o, y: F.binary_cross_entropy_with_logits(o, y, pos_weight=torch.ones(4))  # noqa: E731
    assert found(weighted, SCORES, FLAGS) is None


CHECKS = ["target-ownership", "target-alignment", "loss-weights", "edge-targets"]


def verdicts(loss: Any) -> dict[str, str]:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))
    batch = (torch.randn(6, 5),), torch.tensor([0, 1, 2, 3, 1, 0])
    report = Contract(model=model, batch=batch, loss=loss).check(CHECKS)
    return {finding.check: finding.status for finding in report.findings}


def test_the_checks_of_a_plain_loss_call_it_less_often_and_say_the_same() -> None:
    calls = []

    def plain(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append("plain")
        return F.cross_entropy(output, target)

    def weighted(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append("weighted")
        return F.cross_entropy(output, target, weight=torch.ones(4))

    assert verdicts(plain) == verdicts(weighted) == dict.fromkeys(CHECKS, "passed")
    assert 3 * calls.count("plain") < calls.count("weighted")


def test_labels_of_other_samples_are_found_beside_a_plain_loss() -> None:
    assert verdicts(F.cross_entropy)["target-ownership"] == "passed"
    rolled = verdicts(lambda o, y: F.cross_entropy(o, y.roll(1)))
    assert rolled["target-ownership"] == "violated"

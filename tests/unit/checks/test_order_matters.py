"""A loss that compares samples with each other must not depend on their order, but for pairs made by place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


def spread(points, scores):
    """Regress distances of embeddings to those of the scores, which stand in another order."""
    wanted = (scores[:, None] - scores).abs().repeat(2, 2)
    both = points.flatten(0, 1)  # copies of one sample are neighbours
    return (torch.cdist(both, both) - wanted).pow(2).mean()


def spread_alike(points, scores):
    wanted = (scores[:, None] - scores).abs().repeat_interleave(2, 0).repeat_interleave(2, 1)
    both = points.flatten(0, 1)
    return (torch.cdist(both, both) - wanted).pow(2).mean()


def neighbours(points, scores):
    """Compares each sample with the next, on purpose."""
    gap = (points - points.roll(1, 0)).norm(dim=-1).mean(-1)
    return (gap - (scores - scores.roll(1, 0)).abs()).pow(2).mean()


def halves(points, scores):
    first, second = points[:3].mean(1), points[3:].mean(1)
    return ((first * second).sum(-1) - scores[:3] * scores[3:]).pow(2).mean()


def drawn(points, scores):
    order = torch.randperm(len(points))
    return ((points.mean(1) * points[order].mean(1)).sum(-1) - scores * scores[order]).pow(2).mean()


def ranking(points, scores):
    values = points.mean((1, 2))
    gap, sign = values[:, None] - values, (scores[:, None] - scores).sign()
    return F.softplus(-gap * sign).mean()


KEPT = torch.linspace(0.5, 2.0, 6)


def weighted(points, scores):
    return (KEPT[: len(points)] * (points.mean((1, 2)) - scores).pow(2)).mean()


def partners(points, columns):
    """Contrasts two views; the targets say in which column a sample's partner is."""
    return F.cross_entropy(points[:, 0] @ points[:, 1].T, columns)


def named(points, others):
    """Brings each sample near to the one that its target names."""
    near = torch.cdist(points.flatten(1), points.flatten(1))
    return (near * (others[:, None] == torch.tensor([0, 1, 2, 3, 4, 5]))).sum()


def compared(points, wanted):
    """Regresses the distances of all pairs."""
    return (torch.cdist(points.flatten(1), points.flatten(1)) - wanted).pow(2).mean()


def check(loss, targets=None):
    torch.manual_seed(0)
    batch = torch.randn(6, 2, 4), torch.randn(6) if targets is None else targets
    return Contract(model=nn.Linear(4, 3), loss=loss, batch=batch).check(["in-batch-pairs"])


def test_labels_in_another_order_than_outputs_are_told_with_both_lines():
    (found,) = check(spread).causes
    assert found.code == "order-matters"
    texts = [culprit.location.text for culprit in found.culprits]
    assert any("repeat(2, 2)" in text for text in texts)
    assert any("flatten(0, 1)" in text for text in texts)


def crowded(points, labels):
    """Brings views of one class together; the labels are repeated in another way than the views."""
    views = torch.cat([points[:, 0], points[:, 1]])
    same = labels.repeat_interleave(2)
    return (torch.cdist(views, views) * (same[:, None] == same)).sum()


def test_an_order_that_leaves_the_pairs_of_a_few_classes_by_chance_excuses_nothing():
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    (found,) = check(crowded, labels).causes
    assert found.code == "order-matters"


@pytest.mark.parametrize("loss", [spread_alike, neighbours, halves, drawn, ranking, weighted])
def test_sound_losses_are_not(loss):
    assert not any(f.status == "violated" for f in check(loss).findings)


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (partners, torch.arange(6)),
        (named, torch.tensor([1, 2, 0, 4, 5, 3])),
        (compared, torch.rand(6, 6)),
    ],
)
def test_targets_that_name_samples_are_sound(loss, targets):
    assert not any(f.status == "violated" for f in check(loss, targets).findings)


class Committee(nn.Module):
    """Gives each member's answer in training, and their mean in evaluation."""

    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList([nn.Linear(4, 3) for _ in range(members)])

    def forward(self, x):
        answers = torch.stack([member(x) for member in self.members])
        return answers if self.training else answers.mean(0)


def each_member(answers, targets):
    alike = 0.01 * torch.cdist(answers.flatten(1), answers.flatten(1)).mean()
    return sum(F.cross_entropy(one, targets) for one in answers) - alike


@pytest.mark.parametrize("members", [3, 6])
def test_outputs_of_training_may_begin_with_members(members):
    g = torch.Generator().manual_seed(0)
    made = Contract(
        model=Committee(members),
        batch=((torch.randn(6, 4, generator=g),), torch.arange(6) % 3),
        loss=each_member,
    )
    (finding,) = made.check(["in-batch-pairs"]).findings
    assert finding.status == "not-applicable"

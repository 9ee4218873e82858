"""Losses that rank what all samples have: over probabilities and labels of the same places, or of others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract

CHECKS = ["target-alignment", "in-batch-pairs"]


def jaccard(ranked):
    total = ranked.sum()
    values = 1 - (total - ranked.cumsum(0)) / (total + (1 - ranked).cumsum(0))
    values[1:] = values[1:] - values[:-1]
    return values


def lovasz(rows, labels):
    losses = []
    for kind in range(rows.shape[1]):
        own = (labels == kind).float()
        errors, order = (own - rows[:, kind]).abs().sort(descending=True)
        losses.append(errors @ jaccard(own[order]))
    return sum(losses) / len(losses)


def of_places(logits, labels):
    rows = logits.softmax(1).movedim(1, -1)
    return lovasz(rows.reshape(-1, 3), labels.flatten())


def of_other_places(logits, labels):
    rows = logits.softmax(1).movedim(0, -1)  # HERE
    return lovasz(rows.reshape(-1, 3), labels.flatten())


def without_moving(logits, labels):
    return lovasz(logits.softmax(1).reshape(-1, 3), labels.flatten())  # HERE


def turned_first(logits, labels):
    """Both are turned, in the same way."""
    rows = logits.softmax(1).permute(3, 2, 0, 1)
    return lovasz(rows.reshape(-1, 3), labels.permute(2, 1, 0).flatten())


def of_images(logits, labels):
    return sum(of_places(one[None], known) for one, known in zip(logits, labels, strict=True))


class Segmenter(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.net = nn.Conv2d(2, 3, 3, padding=1)
        self.scale = scale

    def forward(self, x):
        return self.scale * self.net(x)


def segmented(loss, scale=1.0):
    torch.manual_seed(0)
    contract = Contract(
        model=lambda: Segmenter(scale),
        inputs="B 2 H W",
        sizes={"B": (2, 4), "H": (5, 8), "W": (5, 8)},
        batch=((torch.randn(4, 2, 8, 8),), torch.randint(0, 3, (4, 8, 8))),
        loss=loss,
    )
    return [f for f in contract.check(CHECKS).causes if f.status == "violated"]


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("loss", [of_other_places, without_moving])
def test_probabilities_of_other_places_than_the_labels(loss, scale):
    (found,) = segmented(loss, scale)
    assert found.code == "target-misplaced"
    assert found.location.text.endswith("# HERE")


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("loss", [of_places, turned_first, of_images])
def test_probabilities_of_the_same_places(loss, scale):
    assert segmented(loss, scale) == []


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x):
        return self.net(x)[:, 0]


def cox(risk, times):
    """Compares each sample with all that live longer; of those that die at once, with some."""
    ranked = risk[times.argsort(descending=True)]
    return (ranked.logcumsumexp(0) - ranked).mean()


def in_rank_order(scores, wanted):
    ranked = scores[wanted.argsort(descending=True)]
    return (ranked.flip(0).logcumsumexp(0).flip(0) - ranked).mean()


def average_precision(scores, labels):
    own = (labels > 0.5).float()
    ranked = scores.sigmoid().sort(descending=True)
    hits = own[ranked.indices]
    precision = (ranked.values * hits).cumsum(0) / ranked.values.cumsum(0)
    return 1 - (precision * hits).sum() / hits.sum()


def of_the_hardest(scores, wanted):
    losses = (scores - wanted).pow(2)
    return losses.topk(3).values.mean() + 0.1 * losses.mean() * losses.detach().std()


def in_line(scores, wanted):
    """Samples that are to stand in the order in which they came, whatever their rank."""
    fit = (scores - wanted).pow(2).sort().values.mean()
    return fit + (scores[1:] - scores[:-1]).relu().mean()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("loss", [cox, in_rank_order, average_precision, of_the_hardest, in_line])
def test_losses_of_ranked_samples(loss, ties):
    torch.manual_seed(0)
    wanted = 3 * torch.rand(12)
    batch = (torch.randn(12, 4),), wanted.round() if ties else wanted
    contract = Contract(model=Scorer, batch=batch, loss=loss, inputs="B 4")
    found = contract.check(CHECKS).findings
    assert [f for f in found if f.status == "violated"] == []

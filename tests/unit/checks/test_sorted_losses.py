"""A loss that sorts values and leaves their targets where they were; and losses that sort and are right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

B, N = 6, 12


def weights_of(sorted_labels):
    """The gradient of the Jaccard index by rank, as in the Lovasz extension."""
    total = sorted_labels.sum(-1, keepdim=True)
    inside = total - sorted_labels.cumsum(-1)
    union = total + (1 - sorted_labels).cumsum(-1)
    jaccard = 1 - inside / union
    return torch.cat([jaccard[:, :1], jaccard[:, 1:] - jaccard[:, :-1]], 1)


def lovasz(logits, labels, *, moved=True):
    errors, order = (1 - logits * (2 * labels - 1)).sort(1, descending=True)
    known = labels.gather(1, order) if moved else labels
    return (F.relu(errors) * weights_of(known)).sum(1).mean()  # HERE


def lovasz_unsorted(logits, labels):
    return lovasz(logits, labels, moved=False)


def trimmed_by_label(logits, labels):
    """The largest losses count by their class; the classes are not sorted with them."""
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none").flatten()
    largest = losses.sort(descending=True).values
    return (largest * (1 + 3 * labels.flatten()))[: largest.numel() // 2].mean()  # HERE


def hard_examples(logits, labels):
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    ranked = losses.flatten().sort(descending=True).values
    return losses[losses >= ranked[20]].mean() + (losses * (1 + labels)).mean()


def in_order(outputs, targets):
    """Outputs must rise: they are compared with themselves in order."""
    return F.mse_loss(outputs, targets) + (outputs - outputs.sort(1).values).abs().mean()


def transport(outputs, targets):
    return (outputs.sort(1).values - targets.sort(1).values).abs().mean()


def listwise(outputs, targets):
    """ListMLE, with ties among the targets: outputs are indexed by the order of the targets."""
    ranked, order = targets.round().sort(1, descending=True)
    by_rank = outputs.gather(1, order)
    rest = by_rank.flip(1).logcumsumexp(1).flip(1)
    return ((rest - by_rank) * (1 + ranked.abs())).mean()


def quantiles(outputs, targets):
    """Both are quantiles: the targets rise already."""
    return (outputs.sort(1).values - targets).abs().mean()


def by_time(outputs, targets):
    """Cumulative sums over time, without any sort."""
    return (outputs.sigmoid().cumsum(1) - targets.cumsum(1)).abs().mean()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, N))

    def forward(self, x):
        return self.net(x)


def checked(loss, *, labels=False, rising=False):
    torch.manual_seed(0)
    targets = torch.rand(B, N)
    targets = (targets > 0.6).float() if labels else 3 * targets
    targets = targets.sort(1).values if rising else targets
    return Contract(
        model=Tagger,
        inputs="B 4",
        batch=((torch.randn(B, 4),), targets),
        sizes={"B": (2, B)},
        loss=loss,
    ).check("target-alignment")


@pytest.mark.parametrize("loss", [lovasz_unsorted, trimmed_by_label])
def test_targets_that_are_not_sorted_with_the_values(loss):
    (found,) = checked(loss, labels=True).findings
    assert (found.status, found.code) == ("violated", "target-misplaced")
    assert found.location.text.endswith("# HERE")
    assert "sorts values, and the targets that belong to them keep their places" in found.cause


@pytest.mark.parametrize("loss", [lovasz, hard_examples])
def test_labels_that_are_sorted_too(loss):
    assert "target-misplaced" not in {f.code for f in checked(loss, labels=True).findings}


@pytest.mark.parametrize("loss", [in_order, transport, listwise, by_time])
def test_other_losses_that_sort(loss):
    assert "target-misplaced" not in {f.code for f in checked(loss).findings}


def test_targets_that_rise_already():
    assert "target-misplaced" not in {f.code for f in checked(quantiles, rising=True).findings}

"""Losses of samples whose labels only say which of them are alike."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

LABELS = torch.arange(12) % 3


def similarity(z):
    return F.normalize(z, dim=1) @ F.normalize(z, dim=1).T


def pairs(labels):
    alike = labels[:, None] == labels
    own = torch.eye(len(labels), dtype=torch.bool)
    return alike & ~own, ~alike


def contrastive(z, labels):
    alike, unlike = pairs(labels)
    s = similarity(z)
    return F.relu(0.9 - s)[alike].mean() + F.relu(s - 0.2)[unlike].mean()


def copied_margin(z, labels):
    alike, unlike = pairs(labels)
    s = similarity(z)
    near = F.relu(0.9 - s)
    far = F.relu(0.9 - s)  # COPIED
    return near[alike].mean() + far[unlike].mean()


def masks_exchanged(z, labels):
    unlike, alike = pairs(labels)
    s = similarity(z)
    return F.relu(0.9 - s)[alike].mean() + F.relu(s - 0.2)[unlike].mean()


def sign_lost(z, labels):
    """Distances of unlike samples are added, as those of like ones are."""
    alike, unlike = pairs(labels)
    d = torch.cdist(z, z)
    return d[alike].mean() + 0.5 * d[unlike].mean()


def hardest_triplets(z, labels):
    alike, unlike = pairs(labels)
    d = (z[:, None] - z).pow(2).sum(-1).add(1e-8).sqrt()
    far = d.masked_fill(~alike, 0.0).amax(1)
    near = d.masked_fill(~unlike, 1e9).amin(1)
    return F.relu(far - near + 0.3).mean()


def of_one_kind(z, labels):
    alike, _ = pairs(labels)
    own = torch.eye(len(labels), dtype=torch.bool)
    logs = (similarity(z) / 0.1).masked_fill(own, float("-inf")).log_softmax(1)
    return -logs.masked_fill(~alike, 0.0).sum(1).div(alike.sum(1)).mean()


def fisher(z, labels):
    means = torch.stack([z[labels == kind].mean(0) for kind in range(3)])
    within = (z - means[labels]).pow(2).sum(1).mean()
    return within / (means - means.mean(0)).pow(2).sum(1).mean().clamp(min=1e-6)


def to_their_means(z, labels):
    """Only pulls together; another part of the program keeps classes apart."""
    means = torch.stack([z[labels == kind].mean(0) for kind in range(3)])
    return (z - means[labels]).pow(2).sum(1).mean()


def even_pairs(z, labels):
    """A regulariser: pairs of one kind are to be equally similar."""
    alike, unlike = pairs(labels)
    s = similarity(z)
    return s[alike].var() + s[unlike].var()


def of_classes(z, labels):
    return F.cross_entropy(z, labels)


def by_rank(z, labels):
    """Labels are grades: what has a higher one is to have a higher score."""
    score = z.mean(1)
    higher = labels[:, None] > labels
    return F.softplus(score - score[:, None])[higher].mean()


def checked(loss, labels=LABELS):
    torch.manual_seed(0)
    contract = Contract(
        model=lambda: nn.Linear(5, 8), batch=((torch.randn(len(labels), 5),), labels), loss=loss
    )
    (found,) = contract.check(["loss-sign"]).findings
    return found


@pytest.mark.parametrize("loss", [copied_margin, sign_lost])
def test_a_loss_that_pulls_unlike_samples_together(loss):
    found = checked(loss)
    assert (found.status, found.code) == ("violated", "unlike-joined")
    if loss is copied_margin:
        assert found.location.text.endswith("# COPIED")
        assert found.culprits[0].name == "far"


def between_groups(z, labels):
    """Makes groups alike, as for domains: the distance of their means."""
    means = torch.stack([z[labels == kind].mean(0) for kind in range(3)])
    return (means[:, None] - means).pow(2).sum(-1).mean()


@pytest.mark.parametrize("loss", [masks_exchanged, between_groups])
def test_a_loss_that_pulls_no_like_samples_together_may_be_meant(loss):
    found = checked(loss)
    assert (found.status, found.code) == ("suspicious", "unlike-joined")
    assert "meant to become alike" in found.cause


@pytest.mark.parametrize("loss", [contrastive, hardest_triplets, of_one_kind, fisher])
def test_a_loss_that_keeps_unlike_samples_apart(loss):
    found = checked(loss)
    assert (found.status, "grouped by" in found.summary) == ("passed", True)


@pytest.mark.parametrize("loss", [to_their_means, even_pairs, of_classes, by_rank])
def test_labels_that_mean_something_else(loss):
    assert checked(loss).status != "violated"


@pytest.mark.parametrize("labels", [torch.zeros(12, dtype=torch.long), torch.arange(12)])
def test_one_label_for_all_and_one_for_each(labels):
    assert checked(copied_margin, labels).status != "violated"

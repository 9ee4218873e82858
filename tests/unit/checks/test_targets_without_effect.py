"""A target that a loss computes with has an effect on it; one that the loss leaves alone may be for something else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels

G = torch.Generator().manual_seed(3)
X, Y = torch.randn(6, 5, generator=G), torch.randint(4, (6,), generator=G)
WEIGHT = torch.rand(6, generator=G) + 0.5


def each(output, targets):
    return F.cross_entropy(output, targets["label"], reduction="none")


def dropped(output, targets):
    loss = each(output, targets)
    torch.mul(loss, targets["weight"])
    return loss.mean()


def bound_again(output, targets):
    loss = each(output, targets)
    total = (loss * targets["weight"]).sum()
    total = loss.sum()
    return total / len(loss)


def weighted(output, targets):
    loss = each(output, targets)
    loss.mul_(targets["weight"])
    return loss.mean()


def untouched(output, targets):
    return each(output, targets).mean()


def only_watched(output, targets):
    heaviest = targets["weight"].argmax()  # noqa: F841
    return each(output, targets).mean()


def findings(loss):
    contract = Contract(
        model=lambda: nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 4)),
        batch=((X,), {"label": Y, "weight": WEIGHT}),
        loss=loss,
    )
    return [f for f in contract.check(["target-ownership"]).findings if f.status != "passed"]


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (dropped, 'torch.mul(loss, targets["weight"])'),
        (bound_again, 'total = (loss * targets["weight"]).sum()'),
    ],
)
def test_a_target_whose_use_is_lost(loss, text):
    (found,) = findings(loss)
    assert (found.status, found.code) == ("violated", "targets-ignored")
    assert found.location.text == text
    assert found.culprits[0].name == "y['weight']"


@pytest.mark.parametrize("loss", [weighted, untouched, only_watched])
def test_targets_that_are_used_or_not_meant_to_be(loss):
    found = findings(loss)
    assert all(finding.status == "inconclusive" for finding in found)
    assert bool(found) == (loss is not weighted)


def unchanging(loss, head=nn.Linear, batch=None):
    def model():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 8), nn.GELU(), head(8, 3))
        if head is not nn.Linear:
            nn.init.zeros_(net[2].weight), nn.init.zeros_(net[2].bias)
        return net

    contract = Contract(
        model=model, inputs="B 5", targets=Labels("B", classes=3), loss=loss, sizes={"B": 7}
    )
    return [f for f in contract.check(["target-ownership"]).findings if f.status == "violated"]


class ZeroHead(nn.Linear):
    """A head that gives the same loss for each class before the first step."""


@pytest.mark.parametrize("head", [nn.Linear, ZeroHead])
def test_labels_that_all_become_one_class(head):
    def first_class(output, label):
        return F.cross_entropy(output, torch.where(label.abs() > 2, label, 0))

    (found,) = unchanging(first_class, head)
    assert found.code == "targets-ignored"
    assert "outside the range declared do not" in found.observed


@pytest.mark.parametrize("head", [nn.Linear, ZeroHead])
def test_labels_of_which_some_are_merged(head):
    assert not unchanging(lambda output, label: F.cross_entropy(output, label.clamp(max=1)), head)


def same_classes(output, label):
    """Compare pairs only: which class it is does not matter."""
    alike = (label[:, None] == label).float()
    return F.binary_cross_entropy_with_logits(output @ output.T, alike)


def test_labels_that_are_only_compared_with_each_other():
    assert not unchanging(same_classes)


class Masked(nn.Module):
    """Hides some positions while it trains, and says which: a loss of these alone has nothing to compare in eval mode."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(3, 8), nn.Linear(8, 4)

    def forward(self, x):
        hidden = torch.zeros(x.shape[:2], dtype=torch.bool)
        if self.training:
            hidden = torch.rand(x.shape[:2]) < 0.5
        return self.head(torch.tanh(self.layer(x * ~hidden[..., None]))), hidden


@pytest.mark.parametrize("reads", [True, False])
def test_a_loss_of_what_training_hides_is_asked_with_an_output_of_training(reads):
    def loss(output, y):
        scores, hidden = output
        wanted = y if reads else scores.argmax(-1)
        return F.cross_entropy(scores[hidden], wanted[hidden], reduction="sum") / max(
            1, hidden.sum()
        )

    torch.manual_seed(0)
    batch = (torch.randn(4, 6, 3),), torch.randint(0, 4, (4, 6))
    report = Contract(model=Masked, batch=batch, loss=loss).check(["target-ownership"])
    assert [f.code for f in report.with_status("violated")] == (
        [] if reads else ["targets-ignored"]
    )


def by_click(position, clicked, output):
    """Compare what was clicked with what was seen before it."""
    before = (position[:, None] > position) & (clicked[:, None] > 0)
    apart = F.softplus(output[None, :, 0] - output[:, :1])
    return (apart * before).sum() / before.sum().clamp(min=1)


def pages(seed):
    """Of the first page, nothing was clicked."""
    g = torch.Generator().manual_seed(seed)
    position = torch.rand(6, generator=g)
    clicked = (torch.rand(6, generator=g) < 0.6).long() * (seed > 0)
    return (torch.randn(6, 5, generator=g),), (position, clicked)


@pytest.mark.parametrize("reads", [True, False])
def test_targets_that_count_together_are_looked_at_with_other_values(reads):
    def loss(output, targets):
        position, clicked = targets
        clicked = clicked if reads else torch.zeros_like(clicked)
        return by_click(position, clicked, output)

    contract = Contract(model=lambda: nn.Linear(5, 1), batch=pages, loss=loss)
    found = contract.check(["target-ownership"]).findings
    assert ("targets-ignored" in {f.code for f in found}) == (not reads)

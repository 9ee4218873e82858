"""Class labels beside other targets decide something of the loss, in some batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract

X, LABELS = torch.randn(12, 5), torch.arange(12) % 3
KNOWN = torch.arange(12) % 4 != 3


def told(loss, flags: Tensor, *more: Tensor):
    contract = Contract(
        model=lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)),
        batch=((X,), (LABELS, flags, *more)), loss=loss,
    )  # fmt: skip
    found = contract.check(["target-ownership"]).findings
    return [(f.status, f.code, f.location) for f in found if f.status in ("violated", "suspicious")]


def pseudo(logits: Tensor, targets: tuple[Tensor, Tensor], *, turned: bool = False) -> Tensor:
    """Train on labels where they are known, and on the model's own confident guesses elsewhere."""
    labels, known = targets
    sure, guess = logits.detach().softmax(1).max(1)
    chosen = torch.where(known, guess, labels) if turned else torch.where(known, labels, guess)
    weight = torch.where(known, torch.ones_like(sure), (sure > 0.99).float())
    return (weight * F.cross_entropy(logits, chosen, reduction="none")).mean()


def masked(logits: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    """Train on the labels that count; none of them does in some batches."""
    labels, counts = targets
    loss = F.cross_entropy(logits, labels, reduction="none") * counts
    return loss.sum() / counts.sum().clamp(min=1) + 1e-3 * logits.square().mean()


def weighted(logits: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    labels, weights = targets
    return (F.cross_entropy(logits, labels, reduction="none") * weights).mean()


def reinforced(logits: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    """Raise the probability of actions by how much more than usual they are rewarded."""
    actions, rewards = targets
    gain = rewards - rewards.mean()
    return -(gain * logits.log_softmax(1).gather(1, actions[:, None])[:, 0]).mean()


def test_labels_that_are_chosen_where_they_count_for_nothing_are_told() -> None:
    ((status, code, place),) = told(lambda o, t: pseudo(o, t, turned=True), KNOWN)
    assert (status, code) == ("violated", "targets-ignored")
    assert place is not None


@pytest.mark.parametrize(
    ("loss", "flags"),
    [
        (pseudo, KNOWN),
        (masked, KNOWN),
        (masked, torch.zeros(12)),
        (weighted, torch.rand(12) + 0.5),
        (reinforced, torch.zeros(12)),
    ],
)
def test_labels_that_count_in_some_batch_are_read(loss, flags: Tensor) -> None:
    assert not told(loss, flags)


class Remembers:
    """Compares samples with each other, and with those of earlier calls."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, z: Tensor, labels: Tensor) -> Tensor:
        same = (labels[:, None] == labels[None]).float()
        loss = ((z @ z.T).tanh() - same).square().mean()
        for old in self.seen[-3:]:
            loss = loss + (z @ old.T).tanh().square().mean()
        self.seen.append(z.detach().clone())
        return loss


def test_a_loss_that_remembers_earlier_calls_is_not_compared_in_two_orders() -> None:
    contract = Contract(
        model=lambda: nn.Linear(5, 4), batch=((X,), LABELS), loss=Remembers(),
    )  # fmt: skip
    found = contract.check(["in-batch-pairs"]).findings
    assert not [f for f in found if f.status == "violated"], found

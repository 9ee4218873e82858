"""A one-hot target must still be one-hot over the classes where probabilities are multiplied with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

CLASSES = 3


def dice(one_hot: Any) -> Any:
    """Return a Dice loss; ``one_hot`` makes ``[N, C, H, W]`` of ``[N, H, W, C]``."""

    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        shares = scores.softmax(1)
        wanted = one_hot(F.one_hot(labels, CLASSES)).to(shares.dtype)
        both = (shares * wanted).sum((0, 2, 3))
        return 1 - (2 * both / (shares + wanted).sum((0, 2, 3)).clamp(min=1e-6)).mean()

    return loss


def check(loss: Any) -> Any:
    return Contract(
        model=lambda: nn.Conv2d(1, CLASSES, 3, padding=1),
        batch=((torch.randn(4, 1, 6, 6),), torch.randint(0, CLASSES, (4, 6, 6))),
        loss=loss,
    ).check(["loss-input"])


SCRAMBLED = {
    "reshape": lambda t: t.reshape(-1, CLASSES, 6, 6),  # BUG
    "view after a copy": lambda t: t.float().contiguous().view(len(t), CLASSES, 6, 6),  # BUG
    "flattened, then unflattened": lambda t: t.flatten(1).unflatten(1, (CLASSES, 6, 6)),  # BUG
}


@pytest.mark.parametrize("name", SCRAMBLED)
def test_a_view_that_scrambles_the_classes_is_told(name: str) -> None:
    report = check(dice(SCRAMBLED[name]))
    [found] = [f for f in report.findings if f.status != "passed"]
    assert (found.status, found.code) == ("violated", "distribution-axes")
    assert "# BUG" in found.location.text


SOUND = {
    "permute": lambda t: t.permute(0, 3, 1, 2),
    "movedim": lambda t: t.movedim(-1, 1),
    "positions flattened and back": lambda t: t.view(len(t), 36, CLASSES).mT.reshape(
        -1, CLASSES, 6, 6
    ),
    "smoothed": lambda t: t.permute(0, 3, 1, 2) * 0.9 + 0.1 / CLASSES,
    "without what is ignored": lambda t: t.permute(0, 3, 1, 2) * (t[..., 0] == 0)[:, None],
}


@pytest.mark.parametrize("name", SOUND)
def test_classes_that_are_moved_are_right(name: str) -> None:
    assert not [f for f in check(dice(SOUND[name])).findings if f.status == "violated"]


def test_rows_of_one_hot_that_are_multiplied_along_the_last_dimension_are_right() -> None:
    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        shares = scores.movedim(1, -1).reshape(-1, CLASSES).log_softmax(-1).exp()
        return 1 - (shares * F.one_hot(labels, CLASSES).view(-1, CLASSES)).sum(-1).mean()

    assert all(f.status in ("passed", "not-applicable") for f in check(loss).findings)

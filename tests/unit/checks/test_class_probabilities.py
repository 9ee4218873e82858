"""Cross entropies of float targets: which are no class probabilities, and which are meant."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

ONE_HOT = F.one_hot(torch.tensor([0, 2, 1, 1, 0, 2]), 3).float()
SEVERAL = torch.tensor([[1.0, 1, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
RANDOM = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
BITS = torch.tensor([0.0, 1, 1, 0, 1, 0])


def codes(targets: torch.Tensor, loss=F.cross_entropy, *, out: int = 3) -> list[str]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, out)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x) if out > 1 else self.head(x).squeeze(1)

    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    report = Contract(model=Net, batch=((x,), targets), loss=loss).check(["loss-input"])
    return [f.code for f in report.findings if f.status in ("violated", "suspicious")]


MEANT = {
    "one-hot": ONE_HOT,
    "smoothed": 0.9 * ONE_HOT + 0.1 / 3,
    "mixed": 0.3 * ONE_HOT + 0.7 * ONE_HOT.flip(0),
    "a teacher's": RANDOM.softmax(1),
    "a teacher's in half precision": RANDOM.softmax(1).to(torch.bfloat16).float(),
    "rows with weights": ONE_HOT * torch.tensor([[0.5], [2.0], [1], [3], [1], [1]]),
    "soft rows with weights": RANDOM.softmax(1) * torch.tensor([[0.5], [2.0], [1], [3], [1], [1]]),
    "rows that are left out": ONE_HOT * BITS[:, None],
    "advantages of chosen actions": ONE_HOT * RANDOM[:, :1],
    "several, shared out": SEVERAL / SEVERAL.sum(1, keepdim=True).clamp(min=1),
}


@pytest.mark.parametrize("targets", MEANT.values(), ids=MEANT)
def test_targets_that_are_meant(targets: torch.Tensor) -> None:
    assert codes(targets) == []


def test_a_list_that_is_ranked_is_one_distribution() -> None:
    assert codes(RANDOM[:, 0].softmax(0), out=1) == []


@pytest.mark.parametrize(
    ("targets", "out"), [(SEVERAL, 3), (RANDOM, 3), (BITS, 1), (RANDOM[:, 0], 1)],
    ids=["several classes", "values", "a bit per sample", "a value per sample"],
)  # fmt: skip
def test_targets_that_are_no_class_probabilities(targets: torch.Tensor, out: int) -> None:
    assert codes(targets, out=out) == ["targets-no-distribution"]


def squashed(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy(output.sigmoid(), targets)


def swapped(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(targets, output)


def symmetric(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    sure = targets.clamp(1e-4, 1 - 1e-4)
    return squashed(output, targets) + F.binary_cross_entropy(sure, output.sigmoid())


def test_swapped_arguments() -> None:
    assert codes(BITS, swapped, out=1) == ["loss-arguments-swapped"]
    assert codes(BITS, squashed, out=1) == []
    assert codes(BITS, symmetric, out=1) == []

"""Class 0 is missed among the labels that a batch holds: copies, parts and the package's own draw prove nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.specs import Labels

CLASSES = 4


class Crops(nn.Module):
    """Scores several crops of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(torch.cat([x.roll(shift, 1) for shift in range(16)]))


def _said(loss, batch) -> list[str]:
    return [
        f.code
        for f in Contract(model=Crops, loss=loss, batch=batch).check(["label-range"]).findings
    ]


def _of_all(output, targets):
    return F.cross_entropy(output, targets.repeat(16))


def _of_the_last(output, targets):
    return F.cross_entropy(output[:32], targets[-1:].expand(32))


def _from_one(output, targets):
    return F.cross_entropy(output, (targets % (CLASSES - 1) + 1).repeat(16))


@pytest.mark.parametrize("loss", [_of_all, _of_the_last])
def test_copies_of_a_few_drawn_labels(loss) -> None:
    for seed in range(6):
        contract = Contract(
            model=Crops, loss=loss, inputs="B 5", targets=Labels("B", classes=CLASSES)
        )
        (finding,) = contract.check(["label-range"], seed=seed).findings
        assert finding.status == "passed", finding.summary


def test_copies_of_a_few_given_labels() -> None:
    batch = (torch.randn(3, 5), torch.tensor([1, 3, 2]))
    assert _said(_of_all, batch) == ["held"]


def test_many_given_labels_without_zero() -> None:
    labels = 1 + torch.arange(24) % (CLASSES - 1)
    assert _said(_of_all, (torch.randn(24, 5), labels)) == ["label-base"]


def test_zeros_that_the_loss_makes_ones() -> None:
    batch = (torch.randn(8, 5), torch.arange(8) % (CLASSES - 1))
    assert _said(_from_one, batch) == ["label-base"]

"""A loss that leaves out places of its batch is found wherever they stand; one that chooses by values is not blamed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels


def batch_of(count):
    def batch(seed):
        drawn = torch.Generator().manual_seed(seed)
        return torch.randn(count, 6, generator=drawn), torch.randint(3, (count,), generator=drawn)

    return batch


def told(loss, seed=0, **declared):
    declared = declared or {"inputs": "B 6", "targets": Labels("B", classes=3)}
    contract = Contract(model=lambda: nn.Linear(6, 3), loss=loss, **declared)
    found = contract.check(["target-ownership"], seed=seed).findings
    return [(f.status, f.code) for f in found if f.status in ("violated", "suspicious", "error")]


def without_last(output, y):
    return F.cross_entropy(output[:-1], y[:-1])


def without_first(output, y):
    return F.cross_entropy(output[1:], y[1:])


def more_than_half(output, y):
    n = len(output) // 2 + 1
    return F.cross_entropy(output[:n], y[:n])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", [without_last, without_first, more_than_half])
def test_places_that_a_loss_leaves_out_are_found_whatever_their_losses(loss, seed):
    assert told(loss, seed) == [("violated", "target-unread")]


@pytest.mark.parametrize("part", [slice(0, 16), slice(16, 32), slice(0, -1)])
def test_the_end_of_a_large_batch_is_asked_too(part):
    def loss(output, y):
        return F.cross_entropy(output[part], y[part])

    assert told(loss, batch=batch_of(32)) == [("violated", "target-unread")]


def hardest(output, y):
    return F.cross_entropy(output, y, reduction="none").topk(2).values.mean()


def easiest(output, y):
    return (
        F.cross_entropy(output, y, reduction="none")
        .topk(2 * len(y) // 3, largest=False)
        .values.mean()
    )


def without_the_worst(output, y):
    each = F.cross_entropy(output, y, reduction="none")
    return each[each < each.max()].mean()


def whole(output, y):
    return F.cross_entropy(output, y)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", [hardest, easiest, without_the_worst, whole])
def test_samples_that_a_loss_chooses_by_their_values_are_not_missed(loss, seed):
    assert not told(loss, seed)
    assert not told(loss, seed, batch=batch_of(32))


def in_pairs(output, y):
    n = len(output) // 2 * 2
    return F.cross_entropy(output[:n], y[:n])


def test_a_remainder_of_pairs_is_no_more_than_suspicious():
    assert told(in_pairs, batch=batch_of(5)) == [("suspicious", "target-unread")]
    assert not told(in_pairs, batch=batch_of(6))


class OneNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        return self.head(x)[:, 0]


def test_one_number_for_each_sample_has_places_too():
    def told_of(loss):
        contract = Contract(model=OneNumber, inputs="B 6", targets="B", loss=loss)
        (found,) = contract.check(["target-ownership"]).findings
        return found.status

    assert told_of(lambda o, t: F.mse_loss(o[:-1], t[:-1])) == "violated"
    assert told_of(F.mse_loss) == "passed"

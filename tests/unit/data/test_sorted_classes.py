"""Samples that stand sorted by class are not for training in that order; mixed ones, evaluation and shuffling are sound."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from pytest_torchcheck import Contract

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
SORTED = TensorDataset(X, torch.arange(40) // 20)
MIXED = TensorDataset(X, torch.arange(40) % 2)
AMOUNTS = TensorDataset(X, torch.linspace(0, 1, 40))
COUNTED = TensorDataset(X, torch.arange(40))


def told(dataset, loader):
    found = Contract(dataset=dataset, loader=loader).check(["loader-order"]).findings
    return [(f.status, f.code) for f in found if f.status in ("violated", "suspicious")]


@pytest.mark.parametrize(
    "loader", [{"batch_size": 8}, DataLoader(SORTED, 8)], ids=["arguments", "loader"]
)
def test_sorted_classes_in_training(loader):
    assert told({"train": SORTED}, loader) == [("suspicious", "order-by-class")]


@pytest.mark.parametrize(
    ("dataset", "loader"),
    [
        ({"train": SORTED}, {"batch_size": 8, "shuffle": True}),
        ({"train": SORTED}, DataLoader(SORTED, 8, sampler=RandomSampler(SORTED))),
        ({"val": SORTED}, {"batch_size": 8}),
        (SORTED, {"batch_size": 8}),
        ({"train": SORTED}, None),
        ({"train": MIXED}, {"batch_size": 8}),
        ({"train": AMOUNTS}, {"batch_size": 8}),
        ({"train": COUNTED}, {"batch_size": 8}),
    ],
    ids=[
        "shuffled",
        "sampled",
        "validation",
        "no role",
        "no loader",
        "mixed",
        "amounts",
        "numbers",
    ],
)
def test_other_orders(dataset, loader):
    assert told(dataset, loader) == []

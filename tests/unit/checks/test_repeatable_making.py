"""Models and batches that a seed repeats, by whichever of the generators that are seeded, are not suspected."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0])


def drawn_by(draw):
    def build():
        model = nn.Linear(8, 3)
        with torch.no_grad():
            model.weight.mul_(draw())
        return model

    return build


def unwritten():
    model = nn.Linear(8, 3)
    model.bias = nn.Parameter(torch.empty(3))
    return model


MODELS = {
    "torch": lambda: nn.Linear(8, 3),
    "random": drawn_by(lambda: random.uniform(0.5, 1)),
    "NumPy": drawn_by(lambda: float(np.random.uniform(0.5, 1))),
    "its own, seeded": drawn_by(lambda: float(np.random.default_rng(0).uniform(0.5, 1))),
    "uninitialised memory": unwritten,  # which the check of the initialisation tells
}


@pytest.mark.parametrize("name", MODELS)
def test_a_factory_that_a_seed_repeats(name: str) -> None:
    report = Contract(model=MODELS[name], batch=((X,), Y), loss=F.cross_entropy).check("seeding")
    assert [f.code for f in report.findings if f.status == "suspicious"] == [], str(report)


NOISE = {"torch": lambda: torch.randn(()), "random": random.random, "NumPy": np.random.rand}


@pytest.mark.parametrize("name", NOISE)
def test_a_batch_that_a_seed_repeats(name: str) -> None:
    def batch(seed):
        return (X + float(NOISE[name]()),), Y

    report = Contract(model=lambda: nn.Linear(8, 3), batch=batch, loss=F.cross_entropy).check(
        "seeding"
    )
    assert [f.status for f in report.findings] == ["passed"], str(report)

"""Evaluation and constructors leave gradients on, and the generators of the process where they were."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(6, 12), nn.Dropout(0.5), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.body(x))))


class LeavesGradientsOff(Net):
    def forward(self, x):
        if not self.training:
            torch.set_grad_enabled(False)  # HERE
        return super().forward(x)


class SwitchesThemOffInEval(Net):
    def eval(self):
        torch.set_grad_enabled(False)  # HERE
        return super().eval()


class SeedsEvaluation(Net):
    def forward(self, x):
        if not self.training:
            torch.manual_seed(0)  # HERE
        return super().forward(x)


class SeedsNumpy(Net):
    def forward(self, x):
        if not self.training:
            np.random.seed(3)  # HERE
            return super().forward(x)
        return super().forward(x) + float(np.random.randn())


class SeedsConstructor(Net):
    def __init__(self) -> None:
        torch.manual_seed(0)  # HERE
        super().__init__()


class SeedsConstructorOfAll(Net):
    def __init__(self) -> None:
        np.random.seed(1)  # HERE
        random.seed(1)
        super().__init__()


class PutsGradientsBack(Net):
    def eval(self):
        with torch.no_grad():
            return super().eval()

    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class SwitchesThemOnInTrain(Net):
    """Switches gradients with the mode."""

    def train(self, mode=True):
        torch.set_grad_enabled(mode)
        return super().train(mode)


class ForksEvaluation(Net):
    def forward(self, x):
        if self.training:
            return super().forward(x)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return super().forward(x + torch.randn_like(x))


class SamplesInEvaluation(Net):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


class OwnGenerator(Net):
    def forward(self, x):
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        return super().forward(x + noise)


class ForksConstructor(Net):
    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            super().__init__()


def seeded():
    torch.manual_seed(0)
    return Net()


def told(model):
    contract = Contract(
        model=model, inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy
    )
    found = contract.check(["rng-hygiene"]).findings
    return [f for f in found if f.status in ("violated", "suspicious", "error")]


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        (LeavesGradientsOff, "violated", "global-state"),
        (SwitchesThemOffInEval, "violated", "global-state"),
        (SeedsEvaluation, "violated", "reseeds"),
        (SeedsNumpy, "violated", "reseeds"),
        (SeedsConstructor, "suspicious", "reseeds"),
        (SeedsConstructorOfAll, "suspicious", "reseeds"),
    ],
)
def test_what_evaluation_or_building_leaves_behind_is_found(model, status, code):
    (finding,) = told(model)
    assert (finding.status, finding.code) == (status, code)
    assert finding.location.text.endswith("# HERE")


@pytest.mark.parametrize(
    "model",
    [
        Net,
        PutsGradientsBack,
        SwitchesThemOnInTrain,
        ForksEvaluation,
        SamplesInEvaluation,
        OwnGenerator,
        ForksConstructor,
        seeded,
    ],
)
def test_what_is_put_back_is_not_told(model):
    assert not told(model)
    assert torch.is_grad_enabled()

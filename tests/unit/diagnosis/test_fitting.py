"""Where an input does not fit a layer, both may be meant: what runs with another input is said beside the edit of the model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels, Tokens


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU())
        self.words, self.head = nn.Embedding(20, 4), nn.Linear(6 * 6 * 6 + 4, 3)

    def forward(self, image, ids):
        seen = self.body(image).flatten(1)
        return self.head(torch.cat([seen, self.words(ids).mean(1)], 1))


class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)
        self.places = nn.Parameter(torch.randn(1, 10, 8))
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, ids):
        self.runs += 1
        return self.head((self.words(ids) + self.places).mean(1))


def told(model, inputs):
    contract = Contract(
        model=model, inputs=inputs, targets=Labels("B", classes=3), loss=F.cross_entropy
    )
    (finding,) = contract.check(["backward"]).causes
    return finding


IDS = Tokens("B 7", vocab=20)


@pytest.mark.parametrize(
    ("model", "inputs", "asked"),
    [
        (Pictures, ("B 3 16 16", IDS), "give image size 12 instead of 16 in dimensions 2 and 3"),
        (Pictures, (IDS, "B 3 12 12"), "give image and ids in the other order"),
        (Pictures, ("B 12 12 3", IDS), "give image with its channels in dimension 1, as .movedim(-1, 1) does"),
        (Placed, Tokens("B 14", vocab=20), "give ids size 10 instead of 14 in dimension 1"),
    ],
)  # fmt: skip
def test_what_runs_instead_is_asked_for(model, inputs, asked):
    assert (
        f"; or, if the model is right, {asked} (tried: the forward runs)" in told(model, inputs).fix
    )


def test_a_model_that_runs_with_no_other_input_is_asked_nothing():
    class Wrong(Placed):
        def forward(self, ids):
            return self.head(self.words(ids).mean(1)[:, :5])

    assert "if the model is right" not in told(Wrong, IDS).fix


def test_unlike_numbers_of_samples():
    images, ids = torch.randn(6, 3, 12, 12), torch.zeros(5, 7, dtype=torch.int64)
    contract = Contract(
        model=Pictures, batch=((images, ids), torch.arange(6) % 3), loss=F.cross_entropy
    )
    (finding,) = contract.check(["backward"]).causes
    assert finding.cause == "image holds 6 samples, and ids holds 5"
    assert finding.fix == "give every input the same number of samples"


def test_the_model_is_put_back():
    model = Placed()
    contract = Contract(
        model=model, inputs=Tokens("B 14", vocab=20), targets=Labels("B", classes=3), loss=F.cross_entropy
    )  # fmt: skip
    contract.check(["backward"])
    assert float(model.runs) == 0

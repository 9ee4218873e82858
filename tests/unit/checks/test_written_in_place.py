"""Losses and models that write to what they are given, as what a model returns may be written to."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def stable(scores: Tensor, labels: Tensor) -> Tensor:
    scores -= scores.detach().max(1, keepdim=True).values
    return F.cross_entropy(scores, labels)


def of_shares(scores: Tensor, labels: Tensor) -> Tensor:
    scores.sigmoid_()
    return F.binary_cross_entropy(scores, F.one_hot(labels, 3).float())


class Scaled(nn.Module):
    """Scales its embeddings in place, as many transformers do, and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 16), nn.Linear(16, 3)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        h = self.embed(ids)
        h *= 4.0
        return F.cross_entropy(self.head(torch.tanh(h).mean(1)), labels)


@pytest.mark.parametrize("loss", [stable, of_shares])
def test_a_loss_may_write_to_the_output(loss: object) -> None:
    labels = torch.arange(8) % 3
    contract = Contract(
        model=net,
        batch=lambda seed: ((torch.randn(8, 4),), labels),
        loss=loss,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-2),
    )
    found = contract.check().findings
    assert not [f for f in found if f.code == "inplace-leaf" or "leaf" in f.summary], found
    assert not [f for f in found if f.status in ("violated", "error")]


def test_a_model_may_write_to_its_embeddings() -> None:
    batch = {"ids": torch.randint(0, 11, (8, 5)), "labels": torch.arange(8) % 3}
    contract = Contract(model=Scaled, batch=(batch, None), loss="output")
    found = contract.check().findings
    assert not [f for f in found if f.status in ("violated", "error")]
    assert {f.status for f in found if f.check == "target-ownership"} == {"passed"}

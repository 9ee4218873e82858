"""Decoders that shift their labels themselves, beside those that learn the token they are given."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, promises


class Decoder(nn.Module):
    """A recurrent decoder of labels, which reads those before each place: all of them, or its own too."""

    def __init__(self, shifts: bool) -> None:
        super().__init__()
        self.embed, self.shifts = nn.Embedding(30, 16), shifts
        self.body, self.head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 30)

    def forward(self, labels: Tensor) -> Tensor:
        given = F.pad(labels[:, :-1], (1, 0)) if self.shifts else labels
        return self.head(self.body(self.embed(given))[0])


def loss(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("shifts", [True, False])
def test_a_decoder_may_shift_its_labels(shifts: bool) -> None:
    ids = 1 + torch.randperm(29)[:24].view(2, 12)
    contract = Contract(
        model=lambda: Decoder(shifts),
        batch=({"labels": ids}, ids.clone()),
        loss=loss,
        promises=[promises.Causal(input="labels", dim=1)],
    )
    (found,) = contract.check(["label-shift"]).findings
    assert found.status == ("passed" if shifts else "violated"), found

"""Labels that are shifted twice are found in rows that are padded one by one, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from pytest_torchcheck import Contract, promises


class Words(nn.Module):
    """Reads from left to right."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = (
            nn.Embedding(40, 12, padding_idx=0),
            nn.GRU(12, 16, batch_first=True),
        )
        self.head = nn.Linear(16, 40)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.read(self.embed(ids))[0])


def rows(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(1, 40, (n,), generator=generator) for n in (9, 7, 5, 4, 8)]
    ids, labels = ([row[cut] for row in drawn] for cut in (slice(-1), slice(1, None)))
    return (pad_sequence(ids, batch_first=True),), pad_sequence(labels, batch_first=True)


def once(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), labels.flatten(), ignore_index=0)


def twice(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=0)


@pytest.mark.parametrize("loss", [once, twice])
def test_labels_of_ragged_rows(loss: Any) -> None:
    (found,) = (
        Contract(model=Words, batch=rows, loss=loss, promises=[promises.Causal()])
        .check(["label-shift"])
        .findings
    )
    assert found.status == ("passed" if loss is once else "violated"), str(found)

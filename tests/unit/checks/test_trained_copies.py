"""A copy of the trained model computes what the model computes, also where a module says itself what is copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class _Counts(nn.Module):
    """Scales each token by how often training met it; its copies say themselves what they get."""

    counts: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 5)
        self.head = nn.Linear(5, 2)
        self.register_buffer("counts", torch.ones(6))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.counts.index_add_(0, ids.flatten(), torch.ones(ids.numel()))
        return self.head((self.table(ids) / self.counts[ids][..., None].sqrt()).mean(1))


class _Forgets(_Counts):
    def __getstate__(self) -> dict[str, Any]:
        kept = dict(self.__dict__)
        kept["_buffers"] = {"counts": torch.ones(6)}
        return kept


class _Keeps(_Counts):
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffers": dict(self._buffers)}


@pytest.mark.parametrize(("model", "red"), [(_Forgets, True), (_Keeps, False), (_Counts, False)])
def test_a_trained_copy_has_what_training_wrote(model: type[nn.Module], *, red: bool) -> None:
    ids = torch.randint(6, (5, 4), generator=torch.Generator().manual_seed(2))
    report = Contract(
        model=model, batch=((ids,), torch.tensor([0, 1, 0, 1, 1])),
        loss=nn.functional.cross_entropy,
    ).check(["copy-and-pickle"])  # fmt: skip
    assert any(f.code in ("pickle-differs", "copy-differs") for f in report.findings) is red

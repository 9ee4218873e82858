"""An initialisation that overwrites the row of ``padding_idx`` is named where padding changes a sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_torchcheck import Contract, Tokens, promises


class Bag(nn.Module):
    """Sums the vectors of words."""

    def __init__(self, *, resets: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(30, 8, padding_idx=0), nn.Linear(8, 3)
        nn.init.normal_(self.words.weight, std=0.3)  # every row
        if resets:
            with torch.no_grad():
                self.words.weight[0].zero_()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).sum(1))


@pytest.mark.parametrize("resets", [True, False])
def test_the_line_that_fills_the_padding_row_is_named(resets: bool) -> None:
    report: Any = Contract(
        model=lambda: Bag(resets=resets), inputs={"ids": Tokens("B T", vocab=30, pad=0)},
        sizes={"B": 4, "T": 7}, promises=[promises.PaddingInvariant(ids="ids", pad=0)],
    ).check(["padding-invariance"])  # fmt: skip
    assert report.ok is resets
    for found in report.failing:
        assert found.location.text == "nn.init.normal_(self.words.weight, std=0.3)  # every row"
        assert "padding counts as a token" in found.cause
        assert "words.weight" in {c.name for c in found.culprits}

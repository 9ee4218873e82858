"""A condition that reads one number of the batch decides for all samples what is computed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pytest_torchcheck import Contract

LENGTHS = torch.tensor([7, 6, 4, 3, 2])
MASK = torch.arange(7) < LENGTHS[:, None]
X = torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(1)) * MASK[..., None]


class Pooled(nn.Module):
    """Averages over the real positions; a batch without padding needs no mask."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first, self.body = first, nn.Linear(4, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        whole = bool(mask[0].all() if self.first else mask.all())  # decides
        h = torch.tanh(self.body(x))
        if whole:
            return h.mean(1)
        return (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


@pytest.mark.parametrize("first", [True, False])
def test_the_number_that_decides_is_named(first: bool) -> None:
    report = Contract(
        model=lambda: Pooled(first), batch=((X, MASK), None),
    ).check(["batch-independence"])  # fmt: skip
    assert report.ok is not first, str(report)
    for found in report.failing:
        assert found.location.text.endswith("# decides")
        assert "mask" in {c.name for c in found.culprits}
        assert "Tensor.all gave 1 and 0" in found.because

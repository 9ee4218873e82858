"""Indices counted within each sample, used on the rows of all samples: the line that uses them is named."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding


class Neighbours(nn.Module):
    """The mean of the nearest points of a cloud, looked up in the rows of all clouds."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right, self.lin = right, nn.Linear(3, 4)

    def forward(self, points: Tensor) -> Tensor:
        b, n, _ = points.shape
        nearest = torch.cdist(points, points).topk(3, largest=False).indices
        if self.right:
            nearest = nearest + n * torch.arange(b)[:, None, None]
        rows = self.lin(points).reshape(b * n, 4)
        found = rows[nearest.reshape(-1)].view(b, n, 3, 4)
        return found.amax(2).mean(1)


class Pooled(nn.Module):
    """Events that are added up in the bins of their sample."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right, self.lin = right, nn.Linear(3, 4)

    def forward(self, events: Tensor, bins: Tensor) -> Tensor:
        b = len(events)
        if self.right:
            bins = bins + 5 * torch.arange(b)[:, None]
        h = self.lin(events).flatten(0, 1)
        sums = torch.zeros(b * 5, 4, dtype=h.dtype).index_add(0, bins.flatten(), h)
        return sums.view(b, 5, 4).tanh().sum(1)


def _judge(model: nn.Module, check: str) -> Finding:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 3)
    inputs = (x,) if isinstance(model, Neighbours) else (x, torch.randint(0, 5, (4, 6)))
    contract = Contract(model=model, batch=(inputs, torch.randn(4, 4)), loss=F.mse_loss)
    return contract.check([check]).findings[0]


@pytest.mark.parametrize("kind", [Neighbours, Pooled])
def test_shifted_indices_pass(kind: type[nn.Module]) -> None:
    assert _judge(kind(True), "batch-independence").status == "passed"


@pytest.mark.parametrize(
    ("kind", "check", "line"),
    [
        (Neighbours, "batch-independence", "rows[nearest.reshape(-1)]"),
        (Pooled, "batch-independence", "index_add(0, bins.flatten(), h)"),
        (Pooled, "batch-sizes", "index_add(0, bins.flatten(), h)"),
    ],
)
def test_the_line_that_uses_them_is_named(kind: type[nn.Module], check: str, line: str) -> None:
    found = _judge(kind(False), check)
    assert found.status == "violated"
    assert found.location is not None
    assert line in found.location.text

"""One run asks whether samples follow each other or their places: whatever mixes them, and whichever of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from collections.abc import Callable

MIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "largest": lambda x: x - x.amax(0, keepdim=True),
    "smallest": lambda x: x - x.amin(0, keepdim=True),
    "mean": lambda x: x - 0.1 * x.mean(0, keepdim=True),
    "pairs": lambda x: x + 0.1 * x.view(-1, 2, 4).flip(1).reshape(-1, 4),
    "halves": lambda x: x + 0.1 * x.roll(len(x) // 2, 0),
    "before": lambda x: x + 0.1 * x.roll(1, 0),
    "after": lambda x: x + 0.1 * x.roll(-1, 0),
    "turned": lambda x: x + 0.1 * x.flip(0),
    "first": lambda x: x + 0.1 * x[:1],
    "last": lambda x: x + 0.1 * x[-1:],
    "place": lambda x: x * (1 + torch.arange(len(x))[:, None]),
    "end": lambda x: torch.cat([x[:-1], x[-1:] * 2]),
    "start": lambda x: torch.cat([x[:1] * 2, x[1:]]),
    "order": lambda x: x[x[:, 0].argsort()],
}
APART: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "own": lambda x: x - x.amax(1, keepdim=True),
    "sorted and back": lambda x: x[x[:, 0].argsort()][x[:, 0].argsort().argsort()],
    "rows": lambda x: torch.stack([row * 2 for row in x]),
}


class Net(nn.Module):
    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.mix = nn.Linear(4, 4), mix

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.mix(x))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [4, 6])
@pytest.mark.parametrize("name", [*MIXED, *APART])
def test_whatever_mixes_samples_is_seen(name: str, size: int, seed: int) -> None:
    torch.manual_seed(seed)
    contract = Contract(
        model=lambda: Net((MIXED | APART)[name]), batch=((torch.randn(size, 4),), None)
    )
    (found,) = contract.check(["batch-independence"]).findings
    assert found.status == ("violated" if name in MIXED else "passed"), found.summary

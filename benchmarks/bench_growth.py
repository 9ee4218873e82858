"""What stays: memory of the process for each contract checked, and time of an explanation by the message's length.

``tox -e bench`` prints both. Growth is what is left once what is freed has been given back to the system.
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import pytest
import torch
from timing import median
from torch import nn

from pytest_torchcheck import Contract

CONTRACTS = 60
WARM = 20
MOST_KIB = 40.0
LENGTHS = (20_000, 320_000)
MOST_RATIO = 16.0
"""An explanation that reads every character once may grow as the message does, by 16; its square would be 256."""


class Net(nn.Module):
    """Two layers; ``words`` makes the forward raise them, ``cut`` leaves the first without gradient."""

    def __init__(self, words: str = "", *, cut: bool = False) -> None:
        super().__init__()
        self.words, self.cut = words, cut
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, 2)."""
        if self.words:
            raise RuntimeError(self.words)
        h = torch.relu(self.first(x))
        return self.last(h.detach() if self.cut else h)


def _resident() -> float:
    """Return the pages that the process holds in memory, in KiB."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4.0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("cut", [False, True])
def test_growth(cut: bool) -> None:
    before = 0.0
    for number in range(WARM + CONTRACTS):
        if number == WARM:
            before = _resident()
        batch = torch.randn(6, 4), torch.randint(0, 2, (6,))
        report = Contract(
            model=lambda: Net(cut=cut), loss=nn.functional.cross_entropy, batch=batch
        ).check()
        assert report.ok != cut
    grown = (_resident() - before) / CONTRACTS
    print(f"\n{grown:6.1f} KiB for each contract ({'explained' if cut else 'sound'})")
    assert grown < MOST_KIB


@pytest.mark.parametrize("unit", ["a", "7", "[1, ", "'a\" ", " ", "\n", "a.b.", "size [1] "])
def test_messages(unit: str) -> None:
    taken = []
    for length in LENGTHS:
        words = (unit * length)[:length]

        def explain(words: str = words) -> object:
            return Contract(model=Net(words), batch=torch.randn(6, 4)).check(["backward"])

        explain()
        taken.append(median(explain))
    print(f"\n{unit!r:10} {taken[0] * 1e3:.1f} ms, {taken[1] * 1e3:.1f} ms")
    assert taken[1] < taken[0] * MOST_RATIO

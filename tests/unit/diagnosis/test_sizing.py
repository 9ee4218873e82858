"""An output of another size than the declared one is told by the operation that gave it that size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract


class Blocks(nn.Module):
    """Halves a picture and doubles it again, in some way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.into, self.out = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.avg_pool2d(self.into(x), 2)
        if self.way == "twice":
            h = F.interpolate(h, scale_factor=2.0)  # twice
        elif self.way == "spectrum":
            wide = torch.fft.rfft(F.interpolate(h, size=x.shape[-2:]))
            h = torch.fft.irfft(wide)  # spectrum
        else:
            h = F.interpolate(h, size=x.shape[-2:])
        return torch.relu(self.out(h))


def report_of(way: str):
    return Contract(
        model=lambda: Blocks(way), inputs="B 1 H W", sizes={"B": 2, "H": 8, "W": (5, 12)}, output="B 1 H W"
    ).check(["output-spec"])  # fmt: skip


@pytest.mark.parametrize("way", ["twice", "spectrum"])
def test_the_operation_that_gives_the_size_is_named(way: str) -> None:
    (found,) = report_of(way).failing
    assert found.code == "output-shape"
    assert found.location.text.endswith(f"# {way}")
    assert "keeps the size" in found.because


def test_the_declared_size_passes() -> None:
    assert report_of("whole").ok

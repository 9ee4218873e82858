"""What overfit and descent cost, in plain training steps of the same model, with the ratio taken within one run.

``tox -e bench`` prints it. The budget of overfit is 40 plain steps by construction: it counts what it runs. What is
printed besides is processor time, which holds what the counting leaves out: building, restoring and looking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from timing import median
from torch import nn

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from collections.abc import Callable

BUDGET = 40


def block(channels: int, out: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution, batch statistics and a rectifier."""
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()
    )


class Segments(nn.Module):
    """A small encoder and decoder with skip connections, a class for each pixel."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            block(3, width), block(width, 2 * width, 2), block(2 * width, 4 * width, 2),
        )  # fmt: skip
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.last = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, classes, height, width)."""
        first = self.first(x)
        second = self.second(first)
        up = torch.relu(self.up(self.third(second)) + second)
        return self.head(torch.relu(self.last(up) + first))


def regions(count: int, size: int, classes: int) -> torch.Tensor:
    """Return label maps of large blocks, as masks are."""
    coarse = torch.randint(0, classes, (count, 1, size // 16, size // 16)).float()
    return F.interpolate(coarse, scale_factor=16).squeeze(1).long()


def models() -> dict[str, tuple[Callable[[], nn.Module], Any, Any, Any]]:
    """A factory, inputs, targets and a loss for each kind of model."""
    torch.manual_seed(0)
    images, dense = torch.randn(8, 3, 48, 48), torch.randn(4, 3, 64, 64)
    smooth = F.interpolate(torch.rand(8, 1, 4, 4), size=32, mode="bilinear")
    return {
        "mlp": (
            lambda: nn.Sequential(
                nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
            ),
            torch.randn(16, 128), torch.randint(0, 10, (16,)), F.cross_entropy,
        ),
        "conv net": (
            lambda: nn.Sequential(
                block(3, 32), block(32, 64, 2), block(64, 128, 2), nn.AdaptiveAvgPool2d(1),
                nn.Flatten(), nn.Linear(128, 10),
            ),
            images, torch.randint(0, 10, (8,)), F.cross_entropy,
        ),
        "segmentation, masks": (Segments, dense, regions(4, 64, 5), F.cross_entropy),
        "segmentation, noise": (
            Segments, dense, torch.randint(0, 5, (4, 64, 64)), F.cross_entropy,
        ),
        "autoencoder": (
            lambda: nn.Sequential(
                block(1, 32, 2), block(32, 64, 2), nn.ConvTranspose2d(64, 32, 2, 2), nn.ReLU(),
                nn.ConvTranspose2d(32, 1, 2, 2),
            ),
            smooth, smooth.clone(), F.mse_loss,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(models()))
def test_plain_steps(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the cost of both checks and hold overfit to its budget."""
    torch.set_num_threads(1)
    make, inputs, targets, loss = models()[name]
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model(inputs), targets).backward()
        optimizer.step()

    contract = Contract(model=make, batch=((inputs,), targets), loss=loss)
    (found,) = contract.check(["overfit"]).findings
    plain = median(lambda: [step() for _ in range(5)]) / 5
    ratios = {
        check: median(lambda check=check: contract.check([check]), rounds=3) / plain
        for check in ("overfit", "descent")
    }
    counted = float(found.evidence.get("steps spent", 0.0))
    with capsys.disabled():
        print(
            f"\n{name}: plain step {1000 * plain:.1f} ms; overfit {found.status}, {counted:.1f} steps counted, "
            f"{ratios['overfit']:.1f} by processor time; descent {ratios['descent']:.1f}"
        )
    assert counted <= BUDGET

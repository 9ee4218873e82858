"""Time gradient checks of whole modules, beside pytest-torch and torchtest2 where they are installed.

    python benchmarks/gradcheck_modules.py

The promises: a halved parameter gradient of a small conv net (2x3x32x32) is found, with its Function and line, in at most 0.1 s;
a module of a million parameters is screened in at most 20 of its training steps. The process exits with status 1 where one is
broken. Times are of the processor, so that a busy machine matters little; the least of a few runs counts.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from typing import Any

import timing
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from pytest_torchcheck.functions.modules import check_module


class HalfScale(Function):
    """A scale per channel whose own gradient is halved; that of its input is right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(x, scale)
        return x * scale[:, None, None]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        x, scale = ctx.saved_tensors
        return g * scale[:, None, None], 0.5 * (g * x).sum((0, 2, 3))


class Gain(nn.Module):
    """Applies the wrong Function."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return HalfScale.apply(x, self.scale)


class ConvNet(nn.Module):
    """A small convolutional net, with the wrong Function inside or without."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            Gain(16) if wrong else nn.Identity(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.body(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


def ours(model: nn.Module, x: Tensor) -> str:
    finding = check_module(model, x)[0]
    return f"{finding.status}: {finding.summary}"


def pytest_torch(model: nn.Module, x: Tensor) -> str:
    from pytest_torch import assert_gradcheck

    try:
        assert_gradcheck(model.eval(), x)
    except AssertionError as error:
        return f"violated: {str(error).splitlines()[0]}"
    return "passed"


def torchtest2(model: nn.Module, x: Tensor) -> str:
    from torchtest2 import check_model

    target = torch.zeros(len(x), dtype=torch.long)
    report = check_model(model, x, target, loss_fn=F.cross_entropy, gradcheck=True, overfit_steps=1)
    return next(str(result.status) for result in report.results if result.name == "gradcheck")


def million() -> tuple[float, float]:
    """Return the time of one training step and of one screening."""
    sizes = (256, 1024, 700, 100)
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    x, y = torch.randn(64, 256), torch.randint(0, 100, (64,))
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    timing.least(step, 3)
    return timing.least(step, 20), timing.least(lambda: check_module(model, x), 3)


def main() -> int:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(2, 3, 32, 32)
    print(f"{'':14s} {'halved gradient':>16s} {'right twin':>12s}")
    least = float("inf")
    for name, check, rounds in (
        ("torchcheck", ours, 10),
        ("pytest-torch", pytest_torch, 1),
        ("torchtest2", torchtest2, 1),
    ):
        bad, good = ConvNet(wrong=True), ConvNet(wrong=False)
        try:
            said = check(bad, x)
            times = [timing.least(partial(check, model, x), rounds) for model in (bad, good)]
        except ImportError:
            print(f"{name:14s} {'not installed':>16s}")
            continue
        print(f"{name:14s} {times[0]:14.3f} s {times[1]:10.3f} s   {said}")
        if check is ours:
            least = times[0]
    step, screened = million()
    print(f"a million parameters: {screened:.3f} s, {screened / step:.1f} of its training steps")
    kept = least <= 0.1 and screened <= 20 * step
    print("kept" if kept else "BROKEN")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

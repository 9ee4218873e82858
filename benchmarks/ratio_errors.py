"""How often a declared ratio of times errs: a forward 20 % slower must fail, an equal one must not.

Run it on a machine with other load, such as ``python benchmarks/ratio_errors.py 20 --load 3``: it starts so
many busy processes beside itself, and prints how often each model passed, failed and stayed undecided.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter

import torch
from torch import nn

from pytest_torchcheck import Contract, SlowerBy

BUSY = "import time\nwhile time.time() < {}: sum(i * i for i in range(20000))"


class Layers(nn.Module):
    """So many products of one size: the time is in proportion."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.count = count
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Repeat the layer."""
        for _ in range(self.count):
            x = torch.tanh(self.layer(x))
        return x


def verdict(count: int, width: int, seed: int) -> tuple[str, float]:
    contract = Contract(
        model=lambda: Layers(count, width), inputs=f"B {width}", sizes={"B": 32},
        speed={"forward": SlowerBy(than=lambda: Layers(10, width), at_most=1.05)},
    )  # fmt: skip
    start = time.perf_counter()
    (finding,) = contract.check("speed", seed=seed).findings
    return finding.code, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=int, nargs="?", default=20)
    parser.add_argument("--load", type=int, default=0, help="busy processes beside this one")
    given = parser.parse_args()
    command = [sys.executable, "-c", BUSY.format(time.time() + 3600)]
    busy = [subprocess.Popen(command) for _ in range(given.load)]
    try:
        for width in (64, 256):
            for name, count in (("equal", 10), ("20 % slower", 12)):
                found = [verdict(count, width, seed) for seed in range(given.runs)]
                codes = dict(Counter(code for code, _ in found))
                took = sorted(seconds for _, seconds in found)
                with contextlib.suppress(OSError):
                    load = f"load {os.getloadavg()[0]:.1f}"
                print(
                    f"width {width}, {name}: {codes}; {took[len(took) // 2]:.1f} s each, "
                    f"{took[-1]:.1f} s at most; {load}", flush=True,
                )  # fmt: skip
    finally:
        for process in busy:
            process.kill()


if __name__ == "__main__":
    main()

"""Measure what the data checks cost beside iterating the dataset once: ``python benchmarks/bench_data.py [samples]``.

The promise: over 10 000 samples, at most twice the time of reading each of them once. Two datasets: images in memory that are
augmented as they are read, and bytes that are unpacked as they are read. The checks read samples of every split, take content hashes
of all of them for split hygiene, and start a spawned worker, which has to import torch. That time is measured apart and left out
of the ratio, since it does not grow with the dataset; both are shown. The process exits with status 1 where the promise is broken.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract

TIMES = 2.0
SIDE = 128


class Augmented(Dataset[Any]):
    """Images in memory, flipped, cropped and normalised as they are read."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        size = (samples, 3, SIDE // 4, SIDE // 4)
        self.images = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(0, 10, (samples,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        image = self.images[place].float().div(255.0)
        if float(torch.rand(())) < 0.5:
            image = image.flip(-1)
        image = torch.nn.functional.pad(image, (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        side = self.images.shape[-1]
        return (image[:, top : top + side, left : left + side] - 0.5) / 0.25, self.labels[place]


class Packed(Dataset[Any]):
    """Images as compressed bytes, unpacked as they are read, as from files."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.packed = []
        for _ in range(samples):
            row = torch.randint(0, 32, (3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
            self.packed.append(zlib.compress(row.numpy().tobytes(), 1))

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        data = bytearray(zlib.decompress(self.packed[place]))
        image = torch.frombuffer(data, dtype=torch.uint8).view(3, SIDE, SIDE)
        return image.float().div(255.0), place % 10


def seconds(function: Any) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(kind: Any, samples: int, spawned: float) -> float:
    """Print the times of one kind of dataset and return their ratio, without the start of a process."""
    train, evaluation = kind(samples * 8 // 10, 1), kind(samples - samples * 8 // 10, 2)
    once = seconds(
        lambda: [part[place] for part in (train, evaluation) for place in range(len(part))]
    )
    contract = Contract(
        dataset={"train": train, "eval": evaluation},
        loader={"train": {"batch_size": 32, "shuffle": True, "num_workers": 2}, "eval": {"batch_size": 32}},
    )  # fmt: skip
    each: dict[str, float] = {}
    from pytest_torchcheck.runner import Runner, cases

    runner = Runner(contract)
    statuses = set()
    for case in cases(contract):
        each[case.check.name] = seconds(
            lambda case=case: statuses.update(f.status for f in runner.run(case))
        )
    runner.close()
    total = sum(each.values())
    print(
        f"{kind.__name__}: {samples} samples read once in {once:.2f} s, {once / samples * 1e6:.0f} us each"
    )
    for name, spent in sorted(each.items(), key=lambda pair: -pair[1]):
        print(f"    {name:22} {spent:6.2f} s")
    ratio = (total - spawned) / once
    print(
        f"    all data checks {total:.2f} s, {total / once:.2f} times, {ratio:.2f} without the start of a process; "
        f"{', '.join(sorted(statuses))}"
    )
    return ratio


def main(samples: int) -> int:
    spawned = seconds(lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True))
    print(f"a process that imports torch: {spawned:.2f} s")
    ratios = {kind.__name__: measure(kind, samples, spawned) for kind in (Augmented, Packed)}
    worst = max(ratios.values())
    print(f"worst ratio {worst:.2f}, promised {TIMES:.0f}: {'ok' if worst <= TIMES else 'BROKEN'}")
    return int(worst > TIMES)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))

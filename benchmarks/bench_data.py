"""Measure what the data checks cost beside iterating the dataset once: ``python benchmarks/bench_data.py [samples]``.

The promise: over 10 000 samples, at most twice the time of reading each of them once. Three datasets: cheap ones in memory,
images that are augmented as they are read, and bytes that are unpacked as they are read. The checks read samples of every split,
compare all of them for split hygiene, and start a spawned worker. What workers are forked off has to import torch and the
package first, once per session and beside the other checks: each dataset is checked as the first of a session, which waits for what
is left of that import, and again as a later one. The whole is judged, with the start of every process: later checks against the promise, and
first ones against the promise or, where reading everything takes less than the import alone, against that import and the promise
together. The process exits with status 1 where one is broken.
"""

from __future__ import annotations

import functools
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
from pytest_torchcheck.data import zygote
from pytest_torchcheck.runner import Runner, cases

IMPORTS = "import torch.utils.data; from pytest_torchcheck import Contract"
TIMES = 2.0
SIDE = 128


class InMemory(Dataset[Any]):
    """Rows in memory, scaled as they are read: about as cheap as a dataset can be."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randn(samples, 256, generator=generator)
        self.labels = torch.randint(0, 10, (samples,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        row = self.rows[place]
        return (row - row.mean()) / (row.std() + 1e-6), self.labels[place]


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


def measure(kind: Any, samples: int, started: float) -> bool:
    """Print the times of one kind of dataset, as the first of a session and as a later one; say whether both hold."""
    train, evaluation = kind(samples * 8 // 10, 1), kind(samples - samples * 8 // 10, 2)

    def read() -> None:
        for part in (train, evaluation):
            for place in range(len(part)):
                part[place]

    once = min(seconds(read) for _ in range(4))
    contract = Contract(
        dataset={"train": train, "eval": evaluation},
        loader={"train": {"batch_size": 32, "shuffle": True, "num_workers": 2}, "eval": {"batch_size": 32}},
    )  # fmt: skip
    print(
        f"{kind.__name__}: {samples} samples read once in {once:.2f} s, {once / samples * 1e6:.0f} us each"
    )
    zygote.close()
    first = seconds(contract.check)
    later = min(seconds(contract.check) for _ in range(4))
    limits = {"first": TIMES * max(once, 0.0) + max(0.0, started - once), "later": TIMES * once}
    for name, spent in (("first", first), ("later", later)):
        print(
            f"    {name} of a session: all data checks {spent:.2f} s, {spent / once:.2f} times; at most {limits[name]:.2f} s"
        )
    each: dict[str, float] = {}
    runner = Runner(contract)
    for case in cases(contract):
        each[case.check.name] = seconds(functools.partial(runner.run, case))
    runner.close()
    for name, spent in sorted(each.items(), key=lambda pair: -pair[1])[:5]:
        print(f"        {name:22} {spent:6.2f} s")
    return first <= limits["first"] and later <= limits["later"]


def main(samples: int) -> int:
    started = min(
        seconds(lambda: subprocess.run([sys.executable, "-c", IMPORTS], check=True))
        for _ in range(2)
    )
    print(f"a process that imports torch and the package: {started:.2f} s")
    Contract(dataset=InMemory(64, 0), loader={"batch_size": 32, "num_workers": 2}).check()
    held = [measure(kind, samples, started) for kind in (InMemory, Augmented, Packed)]
    print(f"promised {TIMES:.0f} times: {'ok' if all(held) else 'BROKEN'}")
    return int(not all(held))


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))

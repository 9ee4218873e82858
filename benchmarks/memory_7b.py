"""Measure a training step of a 7-billion-parameter transformer with nothing allocated.

    python benchmarks/memory_7b.py            prints the peak by category, seconds and resident memory
    python benchmarks/memory_7b.py --json     the same as one line of JSON

The promise: at most 30 s and 2 GiB of resident memory on one core, for AdamW at 2048 tokens. The process
exits with status 1 where it is broken.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SECONDS, BYTES = 30.0, 2 * 2**30


def resident_bytes() -> int:
    """Return the most memory that this process ever had, as the kernel counts it."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    begin = time.perf_counter()

    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    from pytest_torchcheck import Contract, Labels, Tokens
    from pytest_torchcheck.measure.memory import measure_memory
    from pytest_torchcheck.text.units import format_bytes

    torch.set_num_threads(1)

    class Block(nn.Module):
        def __init__(self, width: int, heads: int, inner: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.proj = nn.Linear(width, width, bias=False)
            self.gate = nn.Linear(width, inner, bias=False)
            self.up = nn.Linear(width, inner, bias=False)
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
            h = self.norm2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Transformer(nn.Module):
        def __init__(
            self, width: int = 4096, depth: int = 32, heads: int = 32, inner: int = 11008
        ) -> None:
            super().__init__()
            self.embed = nn.Embedding(48_000, width)
            self.blocks = nn.ModuleList(Block(width, heads, inner) for _ in range(depth))
            self.norm = nn.RMSNorm(width)
            self.head = nn.Linear(width, 48_000, bias=False)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)).transpose(1, 2)

    contract = Contract(
        model=Transformer,
        inputs=Tokens("B T", vocab=48_000),
        targets=Labels("B T", classes=48_000),
        loss=F.cross_entropy,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-4),
    )
    ready = time.perf_counter()
    profile = measure_memory(contract, at={"B": options.batch, "T": options.length})
    seconds = time.perf_counter() - ready
    resident = resident_bytes()
    kept = seconds <= SECONDS and resident <= BYTES
    parameters = profile.by_category["parameters"] // 4
    if options.json:
        print(
            json.dumps(
                {
                    "parameters": parameters,
                    "seconds": round(seconds, 2),
                    "import_seconds": round(ready - begin, 2),
                    "resident_bytes": resident,
                    "operations": profile.operations,
                    **profile.to_dict(),
                }
            )
        )
        return 0 if kept else 1
    print(
        f"{parameters / 1e9:.2f} billion parameters, B={options.batch}, T={options.length}, AdamW, float32"
    )
    print(
        f"peak {format_bytes(profile.peak_bytes)} ({profile.peak_bytes} bytes) in {profile.peak_phase}"
    )
    for row in profile.rows():
        print(
            f"  {row['category']:<16} {format_bytes(row['at_peak']):>12} at the peak {format_bytes(row['at_most']):>12} at most"
        )
    for phase, most in profile.by_phase.items():
        print(f"  {phase:<16} {format_bytes(most):>12}")
    for row in profile.line_rows(5):
        print(f"  {format_bytes(row['bytes']):>12}  {row.get('text') or row.get('where')}")
    print(
        f"{seconds:.1f} s (and {ready - begin:.1f} s to import torch), {format_bytes(resident)} resident, "
        f"{profile.operations} operations: {'kept' if kept else 'BROKEN'} ({SECONDS:.0f} s, {format_bytes(BYTES)})"
    )
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())

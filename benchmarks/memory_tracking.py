"""Compare tracked memory with the CPU allocator's own record, and say what tracking costs.

    python benchmarks/memory_tracking.py      one row per model of tests/unit/memory/memory_zoo.py

Columns: the tracked peak; its distance to the peak of torch's profiler over what outlives an operation;
what kernels take on top of that and give back at once; the peak on fake tensors less the real one; the
time of a tracked step, and of the same step on fake tensors, in plain steps. Every time is the best of
some repeats. Exits with status 1 where a distance exceeds 0.1 %, fake differs from real, or the median
tracked step costs more than five plain ones.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit" / "memory")]

import torch  # noqa: E402
from memory_zoo import ZOO, Entry  # noqa: E402

from pytest_torchcheck import Contract, Unmeasurable, measure_memory  # noqa: E402
from pytest_torchcheck.measure.memory import record  # noqa: E402
from pytest_torchcheck.probes.memory import MemoryTracker, build_profile  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 25


def prepare(
    entry: Entry,
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], torch.Tensor, Callable[[], None]]:
    torch.manual_seed(0)
    model = entry.build()
    args, targets = entry.batch()
    optimizer = entry.optimizer(model)

    def step() -> None:
        optimizer.zero_grad()
        loss = entry.loss(model(*args), targets)
        loss.backward()
        optimizer.step()

    return model, args, targets, step


def best(run: Callable[[], object]) -> float:
    found = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def main() -> int:
    torch.set_num_threads(1)
    print(
        f"{'model':<22}{'peak':>12}{'profiler':>11}{'kernels':>10}{'fake':>6}{'plain':>11}{'tracked':>9}"
    )
    costs, kept = [], True
    for name, entry in ZOO.items():
        model, args, targets, step = prepare(entry)
        tracker = MemoryTracker(model=model, inputs=(args, targets))
        with tracker:
            step()
            tracker.next_step()
            step()
        peak = build_profile(tracker).peak_bytes
        operations = {
            a.op.rpartition(".")[0].replace("aten.", "aten::")
            for a in tracker.allocations()
            if a.op
        }

        def tracked(model: torch.nn.Module = model, step: Callable[[], None] = step) -> None:
            with MemoryTracker(model=model):
                step()

        plain = best(step)
        costs.append(best(tracked) / plain)
        model, args, targets, step = prepare(entry)
        held = sum(t.nbytes for t in (*args, targets, *model.buffers()))
        held += sum({p.data_ptr(): p.nbytes for p in model.parameters()}.values())
        seen = record(step)
        apart = peak / (held + seen.peak_between(operations)) - 1
        kernels = seen.peak - seen.peak_between(operations)
        contract = Contract(
            model=entry.build, batch=entry.batch(), loss=entry.loss, optimizer=entry.optimizer
        )
        try:
            gap = (
                measure_memory(contract).peak_bytes
                - measure_memory(contract, fake=False).peak_bytes
            )
            fake = str(gap)
            kept = kept and gap == 0
        except Unmeasurable:
            fake = "-"
        kept = kept and abs(apart) <= 1e-3
        print(
            f"{name:<22}{peak:>12}{apart:>+11.5%}{kernels:>10}{fake:>6}{plain * 1e3:>8.1f} ms{costs[-1]:>8.1f}x"
        )
    middle = statistics.median(costs)
    print(f"a tracked step costs {middle:.1f} plain steps (median), {max(costs):.1f} at most")
    return 0 if kept and middle <= 5 else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Measure how fast batches are drawn, and how surely and how far failures shrink, beside other plugins where installed.

    python benchmarks/bench_strategies.py                 drawing rates and value bugs, about a minute
    python benchmarks/bench_strategies.py --seeds 100     and every seeded shape bug for 100 seeds of Hypothesis

The promises: float32 batches of 8x3x64x64 within Hypothesis at 60 % or more of the rate of bare torch.randn, at least as fast as
pytest-torch and, where it can draw at all (8x32, every element), 20 times as fast as hypothesis-torch; a value bug among 4 096 elements shrinks to one
element within 2 s; a seeded shape bug is found in Hypothesis's default 100 examples and shrinks to the smallest batch that
exists. The process exits with status 1 where one is broken. Times are of the processor, so that a busy machine does not matter.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from pytest_torchcheck.specs import Ints
from pytest_torchcheck.strategies import batches, tensors
from pytest_torchcheck.strategies.sequence import examples

LARGE, SMALL = (8, 3, 64, 64), (8, 32)
SHARE, TIMES, SECONDS = 0.60, 20.0, 2.0
Loop = Callable[[int], int]


def within_hypothesis(strategy: st.SearchStrategy[Any]) -> Loop:
    """Return a loop over so many examples of a test that does nothing; it returns how many really ran."""

    def loop(count: int) -> int:
        ran = 0

        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def test(value: Any) -> None:
            nonlocal ran
            ran += 1

        test()
        return ran

    return loop


def in_a_loop(shape: tuple[int, ...]) -> Loop:
    def loop(count: int) -> int:
        for _ in range(count):
            torch.randn(shape)
        return count

    return loop


def contender(name: str, shape: tuple[int, ...]) -> Loop:
    """Return what draws one shape; other plugins are imported only here, since one of them slows all of Hypothesis down."""
    text = " ".join(map(str, shape))
    if name == "torch.randn in a loop":
        return in_a_loop(shape)
    if name == "batches":
        return within_hypothesis(batches(x=text))
    if name == "tensors":
        return within_hypothesis(tensors(text))
    if name == "pytest-torch":
        from pytest_torch import strategies as theirs

        return within_hypothesis(theirs.tensors(shape=shape))
    if name == "16 bytes":
        return within_hypothesis(st.binary(min_size=16, max_size=16))
    import hypothesis_torch

    options = {"fill": st.nothing()} if name == "hypothesis-torch, full" else {}
    made = hypothesis_torch.tensor_strategy(
        dtype=torch.float32, shape=shape, layout=torch.strided, **options
    )
    return within_hypothesis(made)


def run_contender(name: str, shape: tuple[int, ...], rounds: int = 7) -> None:
    """Print milliseconds per example of the fastest round, or why there are none."""
    try:
        loop = contender(name, shape)
        count = 30 if loop(10) and name.startswith("hypothesis-torch") else 1500
    except Exception as error:
        print(f"RESULT {type(error).__name__}: {str(error).strip().splitlines()[0][:60]}")
        return
    gc.collect()
    gc.freeze()  # a full collection of torch's modules in one round and not in another is no property of a strategy
    times = []
    for _ in range(rounds):
        start = time.process_time()
        ran = loop(count)
        times.append((time.process_time() - start) / max(1, ran) * 1e3)
    print(f"RESULT {min(times)}")


CONTENDERS = (
    "torch.randn in a loop",
    "16 bytes",  # the least that Hypothesis takes
    "batches",
    "tensors",
    "pytest-torch",
    "hypothesis-torch",  # by default it draws few elements and repeats one: over 90 % are equal
    "hypothesis-torch, full",
)


def compare_drawing() -> list[str]:
    broken = []
    for shape in (LARGE, SMALL):
        sides = "x".join(map(str, shape))
        print(
            f"drawing float32 {sides}: milliseconds of one core per example, each in a process of its own"
        )
        times: dict[str, float] = {}
        for name in CONTENDERS:
            command = [sys.executable, __file__, "--contender", name, "--shape", sides]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            result = done.stdout.rpartition("RESULT ")[2].strip() or done.stderr.strip()[-60:]
            try:
                times[name] = float(result)
            except ValueError:
                print(f"  {name:24} {result}")
                continue
            rate = times["torch.randn in a loop"] / times[name]
            print(f"  {name:24} {times[name]:9.3f}   {rate:7.1%} of the rate of torch.randn")
        reference, ours = times["torch.randn in a loop"], times["batches"]
        if shape == LARGE and reference / ours < SHARE:
            if reference / times["16 bytes"] < SHARE / 0.75:  # on a quiet machine it is above 1
                print("  (this machine is busy: Hypothesis alone leaves no room; not judged)")
            else:
                broken.append(f"batches are drawn at {reference / ours:.0%} of torch.randn's rate")
        if times.get("pytest-torch", ours) < ours:
            broken.append(f"pytest-torch draws {sides} faster")
        peer = times.get("hypothesis-torch, full")
        if shape == SMALL and peer is not None and peer / times["tensors"] < TIMES:
            broken.append(f"only {peer / times['tensors']:.0f} times as fast as hypothesis-torch")
    return broken


def shrink(
    strategy: st.SearchStrategy[Any], fails: Callable[[Any], Any], number: int, most: int = 100
) -> tuple[Any, float, int]:
    """Return what a failure shrinks to (None if it was not found), seconds and calls."""
    last: list[Any] = []
    calls = 0

    @seed(number)
    @settings(
        max_examples=most,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
    )
    @given(strategy)
    def check(value: Any) -> None:
        nonlocal calls
        calls += 1
        if fails(value):
            last.append(value)
            raise AssertionError

    start = time.process_time()
    try:
        check()
    except AssertionError:
        return last[-1], time.process_time() - start, calls
    return None, time.process_time() - start, calls


def compare_values(seeds: int) -> list[str]:
    bugs: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any], int]] = {
        "one infinity": (batches(x="64 64", allow_infinity=True), lambda b: b.x.isinf().any(), 100),
        "a negative under log": (batches(x="64 64"), lambda b: (b.x < 0).any(), 100),
        "an id out of range": (batches(x=Ints("64 64", high=101)), lambda b: (b.x > 99).any(), 100),
        "one zero norm": (batches(x="64 64"), lambda b: (b.x.norm(dim=1) == 0).any(), 100),
    }
    broken = []
    print(f"value bugs among 4 096 elements, {seeds} seeds: one element left, seconds, calls")
    for name, (strategy, fails, most) in bugs.items():
        runs = [shrink(strategy, fails, number, most) for number in range(seeds)]
        wanted = 0 if "norm" in name else 1
        single = sum(
            found is not None and int((found.x != 0).sum()) == wanted for found, _, _ in runs
        )
        slowest = max(seconds for _, seconds, _ in runs)
        print(
            f"  {name:24} {single:3d}/{seeds}   median {statistics.median(r[1] for r in runs):.2f} s, "
            f"slowest {slowest:.2f} s   median {statistics.median(r[2] for r in runs):.0f} calls"
        )
        if single < seeds:
            broken.append(
                f"{name}: {seeds - single} of {seeds} seeds did not shrink to one element"
            )
        if slowest > SECONDS:
            broken.append(f"{name}: {slowest:.1f} s")
    return broken


def compare_shapes(seeds: int) -> list[str]:
    from tests.unit.strategies.shape_bugs import BUGS

    broken = []
    print(
        f"seeded shape bugs, {seeds} seeds: found in 100 examples, smallest; found by 8 edge-first examples"
    )
    for bug in BUGS:
        source = bug.source()
        runs = [shrink(batches(source, layouts=bug.layouts), bug.fails, n) for n in range(seeds)]
        found = sum(value is not None for value, _, _ in runs)
        smallest = sum(value is not None and value.sizes in bug.smallest for value, _, _ in runs)
        edge_first = sum(
            any(map(bug.fails, examples(source, 8, n, layouts=bug.layouts))) for n in range(seeds)
        )
        print(
            f"  {bug.name:40} {found:3d}/{seeds}  {smallest:3d}/{seeds}   {edge_first:3d}/{seeds}   "
            f"median {statistics.median(r[1] for r in runs):.2f} s"
        )
        if min(found, smallest, edge_first) < seeds:
            broken.append(f"{bug.name}: not for every seed")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seeds", type=int, default=0, help="seeds of the shape bugs; 0 leaves them out"
    )
    parser.add_argument("--value-seeds", type=int, default=20)
    parser.add_argument("--no-drawing", action="store_true", help="leave the drawing rates out")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.contender:
        run_contender(options.contender, tuple(map(int, options.shape.split("x"))))
        return 0
    broken = [] if options.no_drawing else compare_drawing()
    broken += compare_values(options.value_seeds)
    if options.seeds:
        broken += compare_shapes(options.seeds)
    for promise in broken:
        print(f"BROKEN: {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())

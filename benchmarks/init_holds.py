"""Whether the files that ``init`` writes hold: they pass with other seeds, and fail once the model breaks a promise.

``python benchmarks/init_holds.py`` writes a contract file for each model of ``init_models.py``, runs it with ten
other seeds, then once more with the model broken. Names as arguments choose models; ``--seeds=3`` runs fewer,
``--runs=2`` lets ``init`` observe fewer.
The exit status is 1 where a file fails on the sound model or passes on the broken one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from init_models import MODELS

HERE: Final = Path(__file__).resolve().parent
RUN: Final = """
import runpy, sys
from pytest_torchcheck import Contract
names = runpy.run_path(sys.argv[1])
contract = next(value for value in names.values() if isinstance(value, Contract))
for seed in map(int, sys.argv[2:]):
    report = contract.check(seed=seed)
    told = [f"{one.check}: {one.summary}" for one in (*report.causes, *report.with_status("error"))]
    if not report.ok:
        print(f"seed {seed}:", "; ".join(told)[:300])
"""


def run(file: Path, seeds: range, *, broken: bool) -> str:
    """Return what the file's contract finds, empty where it passes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    environment.pop("BROKEN", None)
    if broken:
        environment["BROKEN"] = "1"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, str(file), *map(str, seeds)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return (done.stdout + done.stderr[-500:] if done.returncode else done.stdout).strip()


def main() -> int:
    """Print a row for each model and the counts."""
    given = dict(one.removeprefix("--").split("=") for one in sys.argv[1:] if one.startswith("--"))
    seeds, runs = int(given.get("seeds", 10)), int(given.get("runs", 3))
    named = [one for one in sys.argv[1:] if not one.startswith("--")]
    chosen = [name for name in MODELS if not named or name in named]
    sound = caught = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            start = time.perf_counter()
            file = Path(folder) / f"test_{name.lower()}.py"
            made = subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "pytest_torchcheck", "init", f"init_models:{name}", f"--runs={runs}",
                 "-o", str(file)],
                cwd=HERE, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if not file.exists():
                print(f"{name:16} no file: {made.stderr.strip()[-300:]}", flush=True)
                continue
            before = run(file, range(1, seeds + 1), broken=False)
            after = run(file, range(1, 2), broken=True)
            sound, caught = sound + (not before), caught + bool(after)
            seconds = time.perf_counter() - start
            print(f"{name:16} {seconds:5.1f} s  sound: {before or 'passes'}", flush=True)
            print(
                f"{'':16}          broken: {after.splitlines()[0] if after else 'PASSES'}",
                flush=True,
            )
    print(
        f"{sound} of {len(chosen)} files pass with {seeds} seeds, {caught} fail once the model is broken"
    )
    return 0 if sound == caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())

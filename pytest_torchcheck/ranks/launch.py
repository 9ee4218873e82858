"""Start the ranks, watch them, and read what they found, also when they crash or wait for each other for ever."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import sources
from ..findings import Location
from ..lean import dataclass
from .sending import dump

if TYPE_CHECKING:
    from ..contracts import Contract
    from .sending import Program

START_SECONDS = 120.0
"""How long importing torch and the user's files may take before it counts as a hang."""
QUIET_SECONDS = 12.0
"""How long no rank may get on or compute before it counts as a hang; longer for slow models, by their own step."""
CUDA_QUIET_SECONDS = 60.0
"""The same on GPUs, where NCCL starts late, and a rank that waits in a kernel is as busy as one that computes."""
LOOP_SECONDS = 300.0
"""How long ranks may compute without getting on."""
_GRACE = 2.0
"""How long ranks may do nothing after another one has failed."""
_LAST = 20.0
"""How long they may go on at all."""
_BOOT = (
    "import sys, json; sys.path[:] = json.load(open(sys.argv[1] + '/path.json')); "
    "from pytest_torchcheck.ranks.child import main; main(sys.argv[1])"
)
_LOST_PEER = re.compile(
    r"closed by (remote )?peer|Connection (reset|refused|closed)|Broken pipe|recvValue failed|remote process", re.I
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a rank raised.

    Attributes:
        rank: Which one.
        stage: What it was doing.
        kind: Class of the exception.
        message: Its text.
        location: The user's line.
        traceback: The whole traceback, as text.
        follows: Whether it only reports that another rank is gone.
    """

    rank: int
    stage: str
    kind: str
    message: str
    location: Location | None
    traceback: str
    follows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Where a rank was waiting when it was ended.

    Attributes:
        rank: Which one.
        stage: What it was doing.
        location: The user's line.
        stack: Its stack, as text, the innermost call first.
    """

    rank: int
    stage: str
    location: Location | None
    stack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the ranks found.

    Attributes:
        ranks: How many there were.
        stages: By stage: what each rank measured, plain data; only stages that every rank finished.
        failures: What was raised, the first cause first.
        stuck: Ranks that had to be ended while waiting.
        seconds: Wall time of it all.
        quiet: Seconds without progress that were waited for.
        device: Where they ran: ``cpu`` or ``cuda``.
    """

    ranks: int
    stages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    seconds: float = 0.0
    quiet: float = QUIET_SECONDS
    device: str = "cpu"


def run(
    contract: Contract, program: Program, *, ranks: int, quiet: float = QUIET_SECONDS
) -> Outcome:
    """Run a program as so many ranks.

    Args:
        contract: Where the program's parts stand.
        program: What to run.
        ranks: How many processes.
        quiet: Seconds without progress of any rank that count as a hang.

    Raises:
        NotSendable: A part of the program cannot be sent to another process.
    """
    data = dump(contract, program)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="torchcheck-ranks-", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        (folder / "program.pkl").write_bytes(data)
        (folder / "path.json").write_text(json.dumps([os.path.abspath(p) for p in sys.path]))
        processes = [_start(folder, rank, ranks, program.device) for rank in range(ranks)]
        try:
            if program.device == "cuda":
                quiet = max(quiet, CUDA_QUIET_SECONDS)
            hung, quiet = _watch(folder, processes, quiet, busy=program.device == "cpu")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        return replace(
            _read(folder, processes, hung, time.monotonic() - start, quiet), device=program.device
        )


def _start(folder: Path, rank: int, ranks: int, device: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    if sys.platform == "linux":  # a host whose own name does not resolve would fail otherwise
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if device == "cpu":  # code that asks for "the accelerator" must find the one that the ranks use
        environment["CUDA_VISIBLE_DEVICES"] = ""
    with (folder / f"output{rank}.txt").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(folder)],
            env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip


def _watch(
    folder: Path, processes: list[subprocess.Popen[bytes]], quiet: float, *, busy: bool = True
) -> tuple[set[int], float]:
    """Wait until all ranks ended; end those that wait for ever, after their stacks were written.

    Args:
        folder: Where they write how far they are.
        processes: The ranks.
        quiet: Seconds without progress that count as a hang.
        busy: Whether a rank that uses a core gets on.

    Returns:
        The ranks that had to be ended, and how many seconds without progress were allowed.
    """
    progress = [folder / f"progress{rank}.json" for rank in range(len(processes))]
    last, seen, failed_at, first = time.monotonic(), "", None, 0.0
    moved, worked = last, 0.0  # a busy machine is no hang: what counts is that nobody computes
    while any(process.poll() is None for process in processes):
        time.sleep(0.02)
        now = "".join(path.read_text() if path.exists() else "-" for path in progress)
        if now != seen:
            last = moved = time.monotonic()
            seen = now
        elif busy and (work := _worked(processes)) - worked > 0.1:
            last, worked = time.monotonic(), work
        elif busy:
            worked = min(worked, work)  # a rank that ended takes its seconds with it
        slowest = max(
            (float(found) for found in re.findall(r'"step": ([0-9.e+-]+)', now)), default=0.0
        )
        allowed = START_SECONDS if "-" in now else max(quiet, 40 * slowest)  # fmt: skip
        if failed_at is None and any(process.poll() for process in processes):
            first = failed_at = time.monotonic()
        elif failed_at is not None and last - first < _LAST:
            failed_at = max(failed_at, last)  # the others may be on their way to the same error
        over = time.monotonic() - last > allowed or time.monotonic() - moved > LOOP_SECONDS
        if over or (failed_at is not None and time.monotonic() - failed_at > _GRACE):
            waiting = {rank for rank, process in enumerate(processes) if process.poll() is None}
            for rank in waiting:
                if hasattr(signal, "SIGUSR1") and progress[rank].exists():
                    processes[rank].send_signal(signal.SIGUSR1)
            time.sleep(0.3)
            return waiting, allowed
    return set(), quiet


def _worked(processes: list[subprocess.Popen[bytes]]) -> float:
    """Return the CPU seconds of all ranks so far; 0 where the system does not tell."""
    total = 0.0
    for process in processes:
        try:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended, or a system without /proc
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _stage(folder: Path, rank: int) -> str:
    path = folder / f"progress{rank}.json"
    try:
        return str(json.loads(path.read_text())["stage"]) if path.exists() else "start"
    except ValueError:  # ended in the middle of writing it
        return "start"


def _read(
    folder: Path,
    processes: list[subprocess.Popen[bytes]],
    hung: set[int],
    seconds: float,
    quiet: float,
) -> Outcome:
    ranks = len(processes)
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for path in sorted(folder.glob("result-*.pkl"), key=lambda p: p.stat().st_mtime_ns):
        _, stage, owner = path.stem.split("-")
        try:
            found.setdefault(stage, {})[int(owner)] = pickle.loads(path.read_bytes())
        except (EOFError, pickle.UnpicklingError):
            continue  # the rank was ended while it wrote: the stage counts as not finished
    failures, stuck = [], []
    for rank, process in enumerate(processes):
        error = folder / f"error{rank}.pkl"
        if rank in hung:  # what it raises when the others are ended is no error of its own
            stacks = folder / f"stack{rank}.txt"
            text = stacks.read_text() if stacks.exists() else ""
            stuck.append(
                Stuck(rank=rank, stage=_stage(folder, rank), location=_user_line(text), stack=text)
            )
        elif error.exists():
            raised = pickle.loads(error.read_bytes())
            failures.append(
                Failure(rank=rank, follows=bool(_LOST_PEER.search(raised["message"])), **raised)
            )
        elif process.returncode:
            output = (folder / f"output{rank}.txt").read_text(errors="replace")
            failures.append(
                Failure(
                    rank=rank, stage=_stage(folder, rank), kind="exit", location=None, traceback=output[-4000:],
                    message=f"the process ended with code {process.returncode}: "
                        f"{(output.strip().splitlines() or [''])[-1]}",
                )
            )  # fmt: skip
    return Outcome(
        ranks=ranks,
        stages={
            stage: [by_rank[rank] for rank in range(ranks)]
            for stage, by_rank in found.items()
            if len(by_rank) == ranks
        },
        failures=tuple(sorted(failures, key=lambda failure: failure.follows)),
        stuck=tuple(stuck),
        seconds=seconds,
        quiet=quiet,
    )


_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$', re.M)


def _user_line(stack: str) -> Location | None:
    """Return the innermost line of the user's own code in a stack that faulthandler wrote."""
    import linecache

    best: Location | None = None
    for match in _FRAME.finditer(stack):
        file, line = match["file"], int(match["line"])
        value = sources.rank(file)
        if value == 2 or (value == 1 and best is None):
            best = Location(
                file=file, line=line, text=linecache.getline(file, line).strip(), function=match["function"]
            )  # fmt: skip
            if value == 2:
                return best
    return best

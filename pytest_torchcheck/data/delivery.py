"""Does a spawned worker deliver batches, within a deadline?

A process that knows nothing but torch does what a spawned DataLoader worker does: it is prepared by
:mod:`multiprocessing.spawn` (``__main__`` is imported again), unpickles the dataset, is seeded,
runs ``worker_init_fn``, fetches two batches and pickles them for the way back. A process of our own
instead of a DataLoader gives its stderr, a deadline that holds, and the stack of a worker that
hangs; and it leaves the user's tensors where they are (DataLoader would move them into shared
memory). It is forked off a :mod:`~.zygote`, so that torch is imported once per session and beside
the other checks.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import itertools
import json
import os
import pickle
import pickletools
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import field
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import DataLoader

from .. import sources
from ..lean import dataclass
from ..record.tracing import line_at
from ..state import isolated, seed_process
from . import zygote
from .plan import LoaderPlan, Part, indices

if TYPE_CHECKING:
    from ..contracts import Contract
    from ..findings import Location
    from .relations.worker_agreement import Told

BATCHES = 2
DEADLINE_S = 60.0
"""Seconds for two batches."""
START_S = 60.0
"""Seconds to start, import the main module and unpickle, which take long on a busy machine."""
MOST_BYTES = 2**30
IN_WORKER = "TORCHCHECK_IN_WORKER"
"""Set in the worker, so that a main module without a guard cannot start a second one."""

Phase = Literal["start", "main", "unpickle", "init", "read", "collate", "send", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a spawned worker did.

    Attributes:
        outcome: ``delivered``; ``raised``; ``hung`` past the deadline; ``died`` with no word; or
            ``too-large`` to be sent.
        phase: The last phase it entered.
        batches: How many batches it delivered.
        seconds: Wall time.
        error_type, message: Of what it raised.
        location: The user's line that raised, or at which it hung.
        index: Which sample failed, was read as the process died, or is the first that does not stack.
        shapes: Shapes of the samples that do not stack, with their index.
        payload_bytes: What the worker is sent.
        exit_code: Of the process, None where it was stopped.
        told: What it says of the samples that it read, by index, for :mod:`~.agreement`.
    """

    outcome: Literal["delivered", "raised", "hung", "died", "too-large"]
    phase: Phase = "start"
    batches: int = 0
    seconds: float = 0.0
    error_type: str = ""
    message: str = ""
    location: Location | None = None
    index: int | None = None
    shapes: tuple[str, ...] = ()
    payload_bytes: int = 0
    exit_code: int | None = None
    told: dict[int, Told] = field(default_factory=dict)


def expect(loader: Any) -> None:
    """Start what workers are made of, in the background, where a loader declares workers.

    Args:
        loader: As a contract declares it: a DataLoader, its arguments, or a mapping from role to either.
    """
    plans = [loader, *(loader.values() if isinstance(loader, Mapping) else ())]
    declared = any(
        LoaderPlan.of(one).num_workers for one in plans if isinstance(one, DataLoader | Mapping)
    )
    if declared and not os.environ.get(IN_WORKER):
        zygote.started(_search_path(), {**os.environ, IN_WORKER: "1"})


def expect_loader(contract: Contract) -> None:
    """Do what :func:`expect` does for the loader that a contract declares."""
    expect(contract.loader)


def deliver(part: Part, *, seed: int = 0, deadline_s: float = DEADLINE_S) -> Delivery:
    """Start one spawned worker and have it deliver two batches.

    Args:
        part: The dataset, which must pickle, and how it is read.
        seed: Seed of the order.
        deadline_s: Longest wall time of two batches, from the moment that the worker begins to read.

    Raises:
        RuntimeError: Called from within such a worker: the main module has no guard.
    """
    if os.environ.get(IN_WORKER):
        raise RuntimeError(
            "a new process was started while this worker imports the main module; "
            'put the code that runs under if __name__ == "__main__":'
        )
    plan = part.plan
    payload = pickle.dumps(
        (part.dataset, plan.collate_fn, plan.worker_init_fn), pickle.HIGHEST_PROTOCOL
    )
    if len(payload) > MOST_BYTES:
        return Delivery(outcome="too-large", payload_bytes=len(payload))
    request = {
        "preparation": _preparation(),
        "modules": _unimportable(payload),
        "batches": _first_batches(part, seed),
        "workers": max(plan.num_workers, 1),
        "drop_last": plan.drop_last,
        "seed": seed,
        "start_s": START_S,
        "deadline_s": deadline_s,
    }
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchcheck-worker-") as folder:
        (Path(folder) / "payload").write_bytes(payload)
        (Path(folder) / "request").write_bytes(pickle.dumps(request))
        code = _run(Path(folder), START_S + deadline_s + 2.0)
        lines = [
            json.loads(line)
            for line in _text(Path(folder) / "report").splitlines()
            if line.endswith("}")
        ]
        errors = _text(Path(folder) / "stderr")
    return _judge(lines, errors, time.monotonic() - start, code, len(payload))


def _run(folder: Path, limit_s: float) -> int | None:
    """Have a worker serve the request in a folder; return its exit code."""
    path, environment = _search_path(), {**os.environ, IN_WORKER: "1"}
    shared = zygote.started(path, environment)
    if shared is not None and (code := shared.run(folder, path, environment, limit_s)) is not None:
        return code
    for left in ("report", "stderr"):  # by a worker whose zygote was lost
        (folder / left).unlink(missing_ok=True)
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, *path, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            env=environment,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
    return process.returncode


_BOOTSTRAP = (
    "import sys; sys.path[:] = sys.argv[1:-1]; "
    "from pytest_torchcheck.data import served; served.main(sys.argv[-1])"
)


def _search_path() -> list[str]:
    """Return the path with this package first; empty entries mean the current directory."""
    here = str(Path(__file__).resolve().parents[2])
    return [here, *(entry or os.getcwd() for entry in sys.path if entry != here)]


def _preparation() -> dict[str, Any]:
    preparation = spawn.get_preparation_data("torchcheck-worker")
    preparation.pop("authkey", None)
    return preparation


def _unimportable(payload: bytes) -> dict[str, str]:
    """Map the modules that the payload names, and that only a path can import, to their files.

    Test files under pytest's importlib mode are such; a training script would import them by name.
    """
    found = {}
    for name in _module_names(payload):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if name == "__main__" or not file or _is_importable(name):
            continue
        found[name] = os.path.abspath(file)
    return found


def _module_names(payload: bytes) -> set[str]:
    strings: list[str] = []
    names = set()
    for opcode, argument, _ in pickletools.genops(payload):
        if opcode.name == "GLOBAL":
            names.add(str(argument).split(" ")[0])
        elif isinstance(argument, str):
            strings.append(argument)
    return names | {text for text in strings if text in sys.modules}


def _is_importable(name: str) -> bool:
    path: Any = None
    for depth in range(name.count(".") + 1):
        part = ".".join(name.split(".")[: depth + 1])
        try:
            spec = importlib.machinery.PathFinder.find_spec(part, path)
        except (ImportError, ValueError):
            return False
        if spec is None:
            return (
                part in sys.builtin_module_names
                or part in sys.stdlib_module_names
                or _found_elsewhere(part)
            )
        path = spec.submodule_search_locations
    return True


def _found_elsewhere(name: str) -> bool:
    """Ask the other finders, such as those of editable installs."""
    for finder in sys.meta_path:
        if finder is importlib.machinery.PathFinder or type(finder).__module__.startswith(
            "_pytest"
        ):
            continue
        with contextlib.suppress(Exception):
            if getattr(finder, "find_spec", lambda *_: None)(name, None) is not None:
                return True
    return False


def _first_batches(part: Part, seed: int) -> list[list[int]] | None:
    if not part.is_map_style:
        return None
    with isolated():
        seed_process(seed)
        return [list(map(int, batch)) for batch in itertools.islice(indices(part), BATCHES)]


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _judge(
    lines: list[dict[str, Any]], errors: str, seconds: float, code: int | None, size: int
) -> Delivery:
    phase: Phase = "start"
    batches = 0
    for line in lines:
        phase = line.get("phase", phase)
        batches = line.get("batches", batches)
    common: dict[str, Any] = {
        "phase": phase, "batches": batches, "seconds": seconds, "payload_bytes": size, "exit_code": code,
    }  # fmt: skip
    if phase == "done":
        told = {index: one for line in lines for index, one in line.get("told", ())}
        return Delivery(outcome="delivered", told=told, **common)
    raised = next((line for line in lines if "error" in line), None)
    if raised is not None:
        return Delivery(
            outcome="raised",
            error_type=raised["error"],
            message=raised["message"],
            location=None if raised["file"] is None else line_at(raised["file"], raised["line"]),
            index=raised["index"],
            shapes=tuple(raised["shapes"]),
            **common,
        )
    if "Timeout (" in errors:
        return Delivery(outcome="hung", location=_innermost(errors), **common)
    last = errors.strip().splitlines()[-1:] or [""]
    reading = [line["reading"] for line in lines if "reading" in line] if phase == "read" else []
    return Delivery(
        outcome="died",
        message=last[0][:200],
        location=_innermost(errors),
        index=reading[-1] if reading else None,
        **common,
    )


def _innermost(text: str) -> Location | None:
    """Read the user's innermost line from the stack that faulthandler or Python printed."""
    stack = text[text.rfind("Timeout (") :] if "Timeout (" in text else text
    frames = re.findall(r'File "([^"]+)", line (\d+)', stack)
    if "most recent call first" not in stack:
        frames.reverse()
    best = max((sources.rank(file) for file, _ in frames), default=0)
    return next(
        (line_at(file, int(line)) for file, line in frames if best and sources.rank(file) == best),
        None,
    )

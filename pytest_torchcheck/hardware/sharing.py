"""How processes share the GPUs and cores of a machine."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
from .layers import CONTEXT_BYTES

LEAST_SHARE: Final = 0.1
"""Smallest part of a GPU's memory that a worker is given; below it nothing useful fits."""


def visible(setting: str | None, present: Sequence[str]) -> tuple[str, ...]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves visible, as entries for that variable.

    Args:
        setting: Value of the variable, or None where it is not set. Numbers, UUIDs (``GPU-...``) and
            MIG names are kept as they are: they may only be passed on, never counted from 0.
        present: Every GPU of the machine, used where the variable is not set.

    Source:
        CUDA C Programming Guide, "Environment variables": entries behind the first invalid one are
        hidden.
    """
    if setting is None:
        return tuple(present)
    kept: list[str] = []
    for entry in (part.strip() for part in setting.split(",")):
        if not (entry.isdigit() or re.match(r"(GPU|MIG)-", entry)):
            break
        if entry not in kept:
            kept.append(entry)
    return tuple(kept)


def memory_share(workers: int, total: int) -> float:
    """Return the part of a GPU's memory that each of several workers may take.

    Args:
        workers: How many share the GPU.
        total: Its bytes.

    Raises:
        ValueError: There are too many of them for it.

    Source:
        pytorch's ``run_test.py``: ``(total - n * 0.85 GB) / total / n``.
    """
    if workers <= 1:
        return 1.0
    share = (total - workers * CONTEXT_BYTES) / total / workers
    if share < LEAST_SHARE:
        fits = max(1, int(1 / (LEAST_SHARE + CONTEXT_BYTES / total)))
        raise ValueError(
            f"{workers} workers share a GPU of {total / 2**30:.1f} GiB, which leaves {max(share, 0):.0%} of it to "
            f"each; {fits} would fit"
        )
    return share


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def lock_folder(run: str) -> Path:
    """Return the folder that holds the locks of one run on this machine."""
    return Path(tempfile.gettempdir()) / f"torchcheck-gpus-{run}"


@contextlib.contextmanager
def holding(gpus: Sequence[str], *, run: str, exclusive: bool) -> Iterator[None]:
    """Hold GPUs against other workers of the same run on this machine while the block runs.

    Args:
        gpus: Their names; locked in sorted order, so that two holders cannot wait for each other.
        run: Name of the run.
        exclusive: Alone, or together with others that do not ask to be alone.

    The lock is the operating system's and dies with the process: a killed worker leaves none behind.
    """
    with contextlib.ExitStack() as stack:
        folder = lock_folder(run)
        folder.mkdir(mode=0o700, exist_ok=True)
        for gpu in sorted(gpus):
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", gpu)
            # whoever waits to be alone holds the gate, so that newcomers cannot keep it waiting for ever
            with _locked(folder / f"{name}.gate", exclusive=True):
                stack.enter_context(_locked(folder / f"{name}.lock", exclusive=exclusive))
        yield


@contextlib.contextmanager
def _locked(path: Path, *, exclusive: bool) -> Iterator[None]:
    with path.open("a+b") as file:
        if os.name == "nt":
            import msvcrt
            import time

            while True:  # Windows knows no shared locks of this kind, so there everybody is alone
                try:
                    file.seek(0)
                    msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
                    break
                except OSError:
                    time.sleep(0.05)
            try:
                yield
            finally:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)

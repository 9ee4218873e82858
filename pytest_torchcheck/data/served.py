"""The inside of the worker that :mod:`~.delivery` starts; nothing else imports it."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import pickle
import sys
from multiprocessing import process, spawn
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import sources
from ..text.printable import message_of

if TYPE_CHECKING:
    from collections.abc import Callable


class _Report:
    """Writes one line of JSON per event, at once: the process may be killed at any time."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "report").open("a", encoding="utf-8")

    def write(self, **event: Any) -> None:
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()


class _Progress:
    """Where the worker stands: which sample it reads, and what it has read for this batch."""

    def __init__(self) -> None:
        self.index: int | None = None
        self.read: list[tuple[int, Any]] = []


def main(folder: str) -> None:
    """Serve one request; exits with 0 whatever the user's code does, after reporting it."""
    report = _Report(Path(folder))
    request = pickle.loads((Path(folder) / "request").read_bytes())
    faulthandler.dump_traceback_later(request["start_s"], exit=True)
    progress = _Progress()
    try:
        _serve(Path(folder) / "payload", request, report, progress)
    except BaseException as error:  # what the user's code raises is what is asked for
        report.write(**_describe(error, progress))
    report.write(finished=True)
    os._exit(0)  # threads of the user's must not keep the process


def _serve(payload: Path, request: dict[str, Any], report: _Report, progress: _Progress) -> None:
    report.write(phase="main")
    current = process.current_process()
    current._inheriting = True  # type: ignore[attr-defined]  # as spawn does: no process may be started
    try:
        spawn.prepare(request["preparation"])
        for name, file in request["modules"].items():
            _load(name, file)
        report.write(phase="unpickle")
        with payload.open("rb") as file:
            dataset, collate, init = pickle.load(file)
    finally:
        del current._inheriting  # type: ignore[attr-defined]
    report.write(phase="init")
    import torch
    from torch.utils.data import default_collate
    from torch.utils.data._utils import worker

    from .relations.worker_agreement import tell  # needed in a worker alone
    from .simulation import seed_worker  # needed in a worker alone

    torch.set_num_threads(1)
    seed_worker(request["seed"], 0)
    worker._worker_info = worker.WorkerInfo(
        id=0, num_workers=request["workers"], seed=request["seed"], dataset=dataset
    )
    if init is not None:
        init(0)
    batches = request["batches"]
    collate = collate or default_collate
    report.write(phase="read")
    faulthandler.dump_traceback_later(request["deadline_s"], exit=True)  # instead of the first one
    if batches is None:
        stream = iter(dataset)
        batches = [range(2), range(2, 4)]

        def take(index: int) -> Any:
            return next(stream)
    else:
        take = dataset.__getitem__
    for number, batch in enumerate(batches, 1):
        samples = _read(take, batch, progress, report)
        if not samples:
            break
        report.write(phase="collate", told=[[index, tell(one)] for index, one in progress.read])
        made = collate(samples)
        report.write(phase="send")
        ForkingPickler.dumps(made)
        report.write(phase="read", batches=number)
    report.write(phase="done")


def _read(
    take: Callable[[int], Any], batch: Any, progress: _Progress, report: _Report
) -> list[Any]:
    progress.read = []
    for index in batch:
        progress.index = index
        report.write(reading=index)  # a process that dies cannot say it any more
        try:
            sample = take(index)
        except StopIteration:
            break
        progress.read.append((index, sample))
    progress.index = None
    return [sample for _, sample in progress.read]


def _load(name: str, file: str) -> None:
    """Import a module by its file, under the name that the pickles use."""
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _describe(error: BaseException, progress: _Progress) -> dict[str, Any]:
    place = sources.of_error(error)
    lines = message_of(error).strip().splitlines()
    unlike = [] if progress.index is not None else _unlike(progress.read)
    return {
        "error": type(error).__name__,
        "message": lines[0][:400] if lines else "",
        "file": place.file if place else None,
        "line": place.line if place else 0,
        "index": progress.index if progress.index is not None else unlike[1][0] if unlike else None,
        "shapes": [f"sample {index}: {text}" for index, text in unlike],
    }


def _unlike(samples: list[tuple[int, Any]]) -> list[tuple[int, str]]:
    """Return the first sample and the first that differs from it in shape, type or structure."""
    from .describing import describe  # needed in a worker alone

    described = [
        (
            index,
            ", ".join(
                f"{leaf.path or 'value'} {leaf.type}{list(leaf.shape)}" for leaf in describe(sample)
            ),
        )
        for index, sample in samples
    ]
    for index, text in described[1:]:
        if text != described[0][1]:
            return [described[0], (index, text)]
    return described[:0]

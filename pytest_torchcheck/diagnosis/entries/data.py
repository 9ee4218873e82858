"""Datasets and DataLoaders: collation, pickling, workers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import Explanation, on_line
from ...findings import Culprit
from ..crashes.table import entry

if TYPE_CHECKING:
    from ...findings import Location
    from ..crashes.scene import Scene


def _collating(scene: Scene) -> bool:
    return any("collate" in frame.f_code.co_name for frame, _ in scene.frames)


def _dataset(scene: Scene) -> Any:
    """Return the dataset of the loader that was running, or None."""
    for frame, _ in reversed(scene.frames):
        for name in ("self", "loader", "dataset"):
            owner = frame.f_locals.get(name)
            for attribute in ("dataset", "_dataset"):
                if (
                    owner is not None
                    and hasattr(owner, attribute)
                    and not isinstance(owner, torch.nn.Module)
                ):
                    return getattr(owner, attribute)
    return None


def _getitem(scene: Scene) -> tuple[str, Location | None]:
    dataset = _dataset(scene)
    if dataset is None:
        return "the dataset", None
    method = getattr(type(dataset), "__getitem__", None)
    place = None
    if method is not None and hasattr(method, "__code__"):
        place = sources.search(method, r"^\s*return") or sources.of_object(method)
    if place is not None and not sources.rank(place.file):
        place = None
    return f"{type(dataset).__name__}.__getitem__", place


@entry(r"Caught (\w+) in DataLoader worker process (\d+)\.")
def worker(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """An exception in a worker: its own traceback stands in the message."""
    found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', scene.message)
    own = [place for place in found if sources.rank(place[0]) == 2] or [
        p for p in found if sources.rank(p[0]) == 1
    ]
    place = None
    if own:
        filename, line, function = own[-1]
        place = sources.of_line(filename, int(line), function)
    lines = [text for text in scene.message.splitlines() if text.strip()]
    message = lines[-1].strip() if lines else scene.first_line
    name, getitem = _getitem(scene)
    place = place or getitem or scene.location
    sizes = re.search(
        r"stack expects each tensor to be equal size, but got (\[.*?\]) at entry (\d+) and (\[.*?\]) at entry (\d+)",
        message,
    )
    if sizes is not None:
        return _unequal(scene, sizes, name, getitem)
    return scene.explain(
        code="worker-error",
        summary=f"{name} raises {match[1]} in a DataLoader worker: {message.partition(': ')[2] or message}"[
            :180
        ],
        observed=f"worker {match[2]}: {message}",
        cause=f"{match[1]} was raised while a sample was read",
        because="the worker's own traceback ends "
        + (f"at {place.function or 'line'} line {place.line}" if place else f"with {message!r}"),
        fix=f"see line {place.line}: {place.text}"
        if place
        else "read the sample in the main process (num_workers=0) to debug it",
        culprits=(Culprit("dataset", name, location=place),),
        location=place,
    )


def _unequal(
    scene: Scene, match: re.Match[str], name: str, getitem: Location | None
) -> Explanation:
    place = getitem or scene.location
    first, second = match[1], match[3]
    one_dimension = first.count(",") == second.count(",") == 0
    return scene.explain(
        code="collate-sizes",
        summary=f"samples of {name} have different shapes: {first} and {second}",
        observed=f"entry {match[2]} is {first}, entry {match[4]} is {second}",
        cause="the default collate stacks samples, so all must have the same shape"
        + ("; these are sequences of different lengths" if one_dimension else ""),
        because=f'torch said "{match[0][:110]}"',
        fix="pad in a collate_fn (torch.nn.utils.rnn.pad_sequence)"
        if one_dimension
        else f"resize or crop to the same shape{on_line(getitem)}",
        culprits=(Culprit("dataset", name, f"{first} and {second}", getitem),),
        location=place,
    )


@entry(r"stack expects each tensor to be equal size, but got (\[.*?\]) at entry (\d+) and (\[.*?\]) at entry (\d+)",
       r"each element in list of batch should be of equal size()")  # fmt: skip
def collate_sizes(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Samples that cannot be stacked into a batch."""
    if not _collating(scene):
        return None
    name, getitem = _getitem(scene)
    if "each element" not in match[0]:
        return _unequal(scene, match, name, getitem)
    return scene.explain(
        code="collate-sizes",
        summary=f"samples of {name} hold lists of different lengths",
        observed=scene.first_line,
        cause="the default collate transposes lists, so all must have the same length",
        fix="return a tensor per field, and pad in a collate_fn",
        culprits=(Culprit("dataset", name, location=getitem),),
        location=getitem,
    )


@entry(
    r"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found <class '([^']+)'>"
)
def collate_type(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Samples of a type that the default collate does not know."""
    name, getitem = _getitem(scene)
    kind = match[1]
    cause = (
        "a sample (or one field of it) is None"
        if kind == "NoneType"
        else f"a sample holds a {kind}"
    )
    fix = (
        "drop such samples in a collate_fn, or return a value"
        if kind == "NoneType"
        else f"convert it to a tensor{on_line(getitem)}"
    )
    return scene.explain(
        code="collate-type",
        summary=f"{name} returns a {kind.rpartition('.')[2]}, which cannot be collated",
        observed=f"a field of type {kind}",
        cause=cause,
        fix=fix,
        culprits=(Culprit("dataset", name, kind, getitem),),
        location=getitem,
    )


@entry(
    r"Can't (?:pickle|get) (?:local object )?(?:<(?:function|class) |')?(?P<what>[\w.]*<locals>[\w.<>]*|<lambda>|[\w.]*<lambda>|[\w.]+)",
    r"cannot pickle '(?P<what>[\w.]+)' object",
    r"(?<![\w.<>])(?P<what>[\w.<>]+) objects? (?:is|are) not pickl?able",
    types=("PicklingError", "AttributeError", "TypeError"),
)
def pickling(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Something that cannot go to a worker process."""
    what = match["what"].strip().strip("'\"")
    dataset = _dataset(scene)
    path = unpicklable(dataset, "dataset") if dataset is not None else ""
    if not path and scene.model is not None:
        path = unpicklable(scene.model, "model")
    place = None
    attribute = path.rpartition(".")[2].split("[")[0]
    if attribute and dataset is not None:
        place = sources.of_assignment(dataset, attribute)
    shown = (
        "a lambda"
        if "<lambda>" in what
        else "a local function or class"
        if "<locals>" in what
        else what
    )
    name = path.partition(".")[2] or path or what
    owner = type(dataset).__name__ if dataset is not None else ""
    return scene.explain(
        code="not-picklable",
        summary=(
            f"{f'{owner}.' if owner and path.startswith('dataset.') else ''}{name} cannot be "
            f"sent to a worker: it is {shown}"
        ),
        observed=f"{path or what}: {scene.first_line}",
        cause="spawned workers receive a pickled copy, and pickle stores functions by their "
        "importable name"
        if "<l" in what or "lambda" in what
        else f"{what} holds an object of this process (a file, a lock, a socket, a generator)",
        fix=f"use a function at the module's top level, or functools.partial{on_line(place)}"
        if "<l" in what or "lambda" in what
        else f"open it in the worker, on first use{on_line(place)}",
        culprits=(Culprit("dataset", name, shown, place),),
        location=place,
    )


def unpicklable(value: Any, name: str, depth: int = 5) -> str:
    """Return the path of the innermost part that pickle refuses, or empty when all can be pickled."""
    import pickle

    try:
        pickle.dumps(value)
    except Exception:  # pickle raises whatever the objects raise
        pass
    else:
        return ""
    parts: dict[str, Any] = {}
    if isinstance(value, dict):
        parts = {f"{name}[{key!r}]": item for key, item in value.items()}
    elif isinstance(value, list | tuple):
        parts = {f"{name}[{place}]": item for place, item in enumerate(value)}
    elif (
        hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value)
    ) or isinstance(value, torch.nn.Module):
        parts = {f"{name}.{key}": item for key, item in vars(value).items()}
    for path, item in parts.items() if depth else ():
        if found := unpicklable(item, path, depth - 1):
            return found
    return name


@entry(r"DataLoader worker \(pid\(?s?\)? ?:?([\d, ]+)\) (?:exited unexpectedly|is killed by signal: (.*?)\.)",
       r"DataLoader timed out after (\d+) seconds()")  # fmt: skip
def worker_died(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A worker that was killed or left."""
    name, getitem = _getitem(scene)
    signal = match[2] or ""
    cause = {
        "Killed": "the system killed it, as when memory runs out",
        "Bus error": "shared memory (/dev/shm) is full",
        "Segmentation fault": "native code crashed in the worker",
    }.get(signal.partition(" (")[0], "")
    cause = cause or (
        "a worker hangs, for example on a lock held while forking"
        if "timed out" in match[0]
        else (
            "the worker could not start or was terminated: under spawn, a script without a "
            "__main__ guard or an object that cannot be unpickled"
        )
    )
    return scene.explain(
        code="worker-died",
        summary=f"a DataLoader worker reading {name} ended: {signal or scene.first_line}"[:160],
        observed=scene.first_line,
        cause=cause,
        fix="run once with num_workers=0 to see the error in this process"
        + ("; lower num_workers or the batch size" if "memory" in cause else ""),
        culprits=(Culprit("dataset", name, location=getitem),),
        location=getitem,
    )


@entry(r"num_samples should be a positive integer value, but got num_samples=0")
def empty(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A dataset without samples."""
    place = scene.location
    return scene.explain(
        code="dataset-empty",
        summary="the dataset is empty",
        observed="len(dataset) = 0",
        cause="no sample was found: a wrong path, pattern or split",
        fix=f"check what the dataset reads{scene.on_line}",
        culprits=(Culprit("dataset", "dataset", location=place),),
    )

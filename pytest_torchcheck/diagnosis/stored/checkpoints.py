"""What a checkpoint restores and what it loses, what the pickle in a file names, and checkpoints of released versions."""

from __future__ import annotations

import io
import math
import os
import pickle
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Self

import torch

from ... import sources
from ...change import snapshot
from ...change.state import compare_state
from ...explanation import listed, on_line
from ...findings import Culprit, Finding
from ...loop.loads import lacking_load
from ...probes.holding.held_by_models import given_to_init
from ...runs.hidden import hidden
from ...runs.portability import Portability
from ...verdicts import suspicious, violated
from .loading import leaving_line, losing_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...promises import Loads
    from ...runs.saving import Lost
    from ...subject import Subject


_DEPTH = 6
_MOST_BYTES = 64 * 2**20


class _Stand:
    """Takes the place of an object of the file: it knows the name of what would have made it."""

    made_by = ""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def append(self, _: Any) -> None:
        """Take an item of a list."""

    def extend(self, _: Any) -> None:
        """Take items of a list."""


class _Reader(pickle.Unpickler):
    """Reads the containers of a file, with a stand-in for everything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for every class and function but that of ordered dicts."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        return type("Stand", (_Stand,), {"made_by": f"{module}.{name}"})

    def persistent_load(self, _: Any) -> None:
        """Leave out the storages."""


def paths_of(file: object, kind: str) -> list[str]:
    """Return the keys of the entries of a file that are, or hold, objects made by a class or function.

    Args:
        file: A path or an open file in torch's zip format; empty for all else.
        kind: Full name, such as ``numpy._core.multiarray.scalar``.
    """
    position = file.tell() if isinstance(file, io.IOBase) and file.seekable() else None
    try:
        content = _pickle_of(file)
        held = _Reader(io.BytesIO(content)).load() if content is not None else None
    except (
        Exception
    ):  # the file is of another format or broken: then nothing can be said of its entries
        return []
    finally:
        if position is not None and isinstance(file, io.IOBase):
            file.seek(position)
    return (
        [str(key) for key, value in held.items() if _holds(value, kind)]
        if isinstance(held, dict)
        else []
    )


def _pickle_of(file: object) -> bytes | None:
    if isinstance(file, io.IOBase):
        file.seek(0)
    elif not isinstance(file, str | os.PathLike):
        return None
    with zipfile.ZipFile(file) as archive:
        name = next((n for n in archive.namelist() if n.endswith("data.pkl")), None)
        if name is None or archive.getinfo(name).file_size > _MOST_BYTES:
            return None
        return archive.read(name)


def _holds(value: Any, kind: str, depth: int = _DEPTH) -> bool:
    if isinstance(value, _Stand):
        return value.made_by == kind
    if depth and isinstance(value, dict):
        return any(_holds(v, kind, depth - 1) for v in value.values())
    return (
        bool(depth)
        and isinstance(value, list | tuple)
        and any(_holds(v, kind, depth - 1) for v in value)
    )


def explain_lost(
    subject: Subject, lost: list[Lost], difference: tuple[str, float], *, confirmed: bool
) -> Finding:
    """Explain outputs that differ after a strict load into another instance."""
    path, distance = difference
    observed = (
        f"{path} differs by {distance:.3g} after state_dict was saved and loaded with strict=True"
    )
    if not lost:
        return violated(
            "state-lost",
            f"a loaded checkpoint does not restore the outputs of {type(subject.model).__name__}",
            location=sources.of_object(type(subject.model).forward),
            observed=observed,
            cause="the output depends on a value that is not a parameter, buffer or attribute",
            because="two instances with equal state dicts give different outputs for equal inputs and seeds",
            fix="keep every random or learned value in a parameter or a persistent buffer",
        )
    return _loses(lost, confirmed, subject, observed, distance)


def _loses(
    lost: list[Lost], confirmed: bool, subject: Subject, observed: str, distance: float
) -> Finding:
    """Explain what a checkpoint loses, by name."""
    lost = list({each.name: each for each in lost}.values())
    first = lost[0]
    names = listed([each.name for each in lost])
    word = first.name.rpartition(".")[2]
    cause, fix = _cause(first)
    because = (
        f"with {names} copied too, the outputs are equal"
        if confirmed
        else f"{names} differ{'s' * (len(lost) == 1)} after loading from what was saved"
        if first.kind in ("unsaved", "unloaded")
        else f"the two instances differ in {names}, and state_dict() does not hold it"
    )
    place, loading = None, None
    if first.kind in ("unsaved", "unloaded"):
        loading = losing_line(subject, first.name)
    if first.kind == "unsaved" and loading is None:
        place = leaving_line(subject, first.name)
    if first.kind == "unloaded" and loading is None:
        with subject.pristine() as model:
            load = lacking_load(model, first.name)
        if load is not None:
            place, keys = load.location, ", ".join(load.given)
            cause += f": {load.kind} is given the keys {keys}, ..."
    line = on_line(place or first.location)
    if loading is not None:
        cause, fix, line = loading.cause, loading.fix, ""
    trained = {holding.path for holding in hidden(subject).trained.values()}
    # a module hidden in a list that gets no gradient is hidden on purpose, and has a checkpoint of
    # its own
    meant = all(each.kind == "parameter" and each.name not in trained for each in lost)
    if given := all(given_to_init(subject.model, each.name) for each in lost):
        cause = f"{first.name} is an argument of __init__ that differs between the two instances"
        fix = f"build the model with the same {word} before loading; or {fix}"
    made = suspicious if meant or given else violated
    return made(
        "state-lost",
        f"a checkpoint loses {names}",
        culprits=[
            Culprit(
                "buffer" if each.kind == "buffer" else "tensor",
                each.name,
                each.detail,
                place or each.location,
            )
            for each in lost[:6]
        ]
        + ([] if loading is None else loading.culprits()),
        location=place if loading is None else loading.location,
        observed=observed,
        cause=cause,
        because=because,
        fix=f"{fix}{line}",
        root=_root(subject, [each.name for each in lost]),
        evidence={"difference": distance, "lost": [each.name for each in lost]},
    )


def _cause(lost: Lost) -> tuple[str, str]:
    """Return why a checkpoint loses a piece of state, and what to do, by its kind."""
    word = lost.name.rpartition(".")[2]
    return {
        "buffer": (
            f"{lost.name} is a buffer with persistent=False, and its values differ between instances",
            f'register_buffer("{word}", ..., persistent=True)',
        ),
        "tensor": (
            f"{lost.name} is a plain tensor, neither parameter nor buffer, and its values differ between instances",
            f'write self.register_buffer("{word}", ...)',
        ),
        "parameter": (
            f"{lost.name} is not registered, so state_dict() does not hold it",
            "hold it in an nn.ModuleList, ModuleDict, ParameterList or an attribute of its own",
        ),
        "attribute": (
            f"{lost.name} is a plain attribute that differs between instances ({lost.detail})",
            f"derive {word} from the arguments of __init__, or save it by get_extra_state",
        ),
        "unsaved": (
            f"{lost.name} is registered, and state_dict() returns no entry for it",
            "return every entry that nn.Module's own state_dict() has",
        ),
        "unloaded": (
            f"state_dict() holds {lost.name}, and load_state_dict() does not put it back",
            "load every entry that nn.Module's own load_state_dict() loads",
        ),
    }[lost.kind]


def _root(subject: Subject, names: list[str]) -> str | None:
    """Return the finding of another check that has already named the same attributes."""
    trained = hidden(subject).trained
    for holding in trained.values():
        if any(name.startswith(holding.path) for name in names):
            return f"registration/{'module' if holding.kind == 'module' else 'parameter'}-hidden"
    seen = subject.cache.get("portability")
    if isinstance(seen, Portability):
        strays = {m.stray.name for m in seen.pretended.mixtures if m.stray is not None}
        if strays & set(names):
            return "device-portability/cpu-tensor"
    return None


_MOST = 4


def old_checkpoint_unreadable(subject: Subject, promise: Loads, told: str) -> Finding:
    """Explain a file that cannot be used."""
    return violated(
        "old-checkpoint-unreadable",
        f"the checkpoint {promise.shown} cannot be used: {told}",
        culprits=[Culprit("promise", "Loads")],
        location=subject.contract.location,
        observed=told,
        cause="the path or key is another one, or the file was not fetched or not written by torch.save",
        because="it was opened from the folder of the file that declares the contract",
        fix="give Loads the path of the released file, and key= where it holds more than the state dict",
    )


def old_checkpoint_not_loaded(
    subject: Subject, promise: Loads, state: Mapping[str, Any], error: str
) -> Finding:
    """Explain a checkpoint that does not load strictly by the entries that do not fit."""
    old = {
        name: {
            "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch."),
            "digest": f"of {name}",
        }
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }  # fmt: skip
    change = compare_state(old, snapshot.state_of(subject.model))
    lines = change.lines() or [error.strip().splitlines()[-1].strip()]
    names = [*change.renames.values(), *change.added, *change.reshaped, *change.removed]
    place = next(filter(None, (sources.of_parameter(subject.model, n) for n in names)), None)
    more = f" and {len(lines) - _MOST} more" if len(lines) > _MOST else ""
    fix = "map the old entries in _load_from_state_dict, or give the layers their old names and shapes"
    if change.complete:
        fix = f"map the old names in load_state_dict: {dict(list(change.renames.items())[:_MOST])}"
    return violated(
        "old-checkpoint-not-loaded",
        f"the checkpoint {promise.shown} does not load strictly: {lines[0]}",
        culprits=[Culprit("parameter", n, location=place) for n in dict.fromkeys(names[:_MOST])],
        observed=f"{'; '.join(lines[:_MOST])}{more}",
        cause="the layers were renamed, added, removed or resized since it was written",
        because=f"load_state_dict raised; {len(old) - len(change.removed)} of {len(old)} entries are still there",
        fix=fix,
        evidence={"torch said": error, "renames": dict(change.renames)},
    )


def old_checkpoint_differs(
    subject: Subject,
    promise: Loads,
    gap: float,
    allowed: float,
    unlike: tuple[list[Any], list[Any]] | None,
) -> Finding:
    """Explain an output that is not the recorded one."""
    observed = f"it differs by {gap:.2g} of its largest magnitude; rounding explains {allowed:.1g}"
    if unlike is not None:
        observed = f"recorded is {unlike[0]}, the model gives {unlike[1]}"
    elif not math.isfinite(gap):
        observed = "whole numbers differ, or one output is not finite where the other is"
    return violated(
        "old-checkpoint-differs",
        f"with the checkpoint {promise.shown} the model no longer gives what it gave",
        culprits=[Culprit("output", "output")],
        location=sources.of_own_class(subject.model),
        observed=observed,
        cause="the forward computes something else than the version that wrote the checkpoint",
        because="the checkpoint loads strictly, so that the weights are the same",
        fix="restore the old computation, or make the new one a choice that old checkpoints do not take",
        evidence={"largest relative difference": gap, "allowed": allowed},
    )

"""A record: what a contract's model gave once, as a small text file that is kept beside the code."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ..objects import trees
from ..state import has_drawn, random_states
from ..storage.files import write_whole
from ..subject.errors import SubjectError
from .little import line_of, little, sketch_of, start_of, weights
from .running import SEEDS, Outcome, Way, batch_for, noise, prepared, run, watched
from .snapshot import batches, costs, loading

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..batches import Batch
    from ..subject import Subject
    from .running import Load
    from .sketch import Sketch

FORMAT: Final = 1
_EVALUATION: Final = ("outputs", "loss", "gradients", "updates", "modules")
_TRAINING: Final = ("outputs", "loss", "buffers")
_SECTIONS: Final = (
    "torchcheck record", "contract", "made", "rounding", "costs", "growth", "inputs", "state", "start",
    "buffers", "evaluation", "training", "drawn",
)  # fmt: skip


class RecordError(ValueError):
    """A file is no record that can be compared; the message says why, as a clause."""


def make(subject: Subject, name: str) -> dict[str, Any]:
    """Return the record of a contract's model, as plain data.

    Weights are drawn by whole-number arithmetic from the names of the parameters, their initial means and
    deviations, so that they are the same on every machine. With them the model runs in float64, which is
    the reference, and in its own precision, whose distance from the reference is kept as ``rounding``.

    Args:
        subject: The model.
        name: What the contract is called.

    Raises:
        SubjectError: The model cannot be built or run.
    """
    model = subject.model
    state = _state(model)
    start = {n: s for n, p in model.named_parameters() if (s := start_of(p)) is not None}
    load = loading(weights(state, start, model))
    batch, *more = batches(subject)
    double = True
    evaluation = observe(subject, batch, load, Way(double=True))
    own = observe(subject, batch, load, Way())
    if evaluation.error and not own.error:
        double, evaluation = False, own
    if evaluation.error:
        raise SubjectError("forward", RuntimeError(evaluation.error))
    training, spread = steady(subject, batch, load, Way(train=True, double=double))
    measured = costs(subject)
    return {
        "torchcheck record": FORMAT,
        "contract": name,
        "made": surroundings(subject),
        "rounding": rounding(evaluation, own) if double else None,
        "costs": measured["counts"],
        "growth": measured["growth"],
        "inputs": {path: _lines(leaf) for path, leaf in batch.leaves()},
        "state": state,
        "start": start,
        "buffers": {n: line_of(little(b)) for n, b in model.named_buffers()},
        "evaluation": {
            "dtypes": {path: one.dtype for path, one in own.outputs.items()},
            **_plain(evaluation, _EVALUATION),
        },
        "training": None
        if training.error
        else {"noise": _short(spread), **_plain(training, _TRAINING)},
        "drawn": {str(i): _drawn(subject, drawn, load, double) for i, drawn in enumerate(more, 1)},
    }


def _drawn(subject: Subject, batch: Batch, load: Load, double: bool) -> dict[str, Any]:
    """Return outputs and loss of a batch of other sizes, with its inputs."""
    outcome = run(subject, batch, load, Way(double=double), seed=subject.seed, describe=little)
    inputs = {path: _lines(leaf) for path, leaf in batch.leaves()}
    return {"inputs": inputs, "error": outcome.error, **_plain(outcome, ("outputs", "loss"))}


def _short(spread: Mapping[str, list[float]]) -> dict[str, list[float]]:
    return {name: [float(f"{value:.6g}") for value in pair] for name, pair in spread.items()}


def surroundings(subject: Subject) -> dict[str, Any]:
    """Return where a record is made."""
    dtype = None if subject.dtype is None else str(subject.dtype).removeprefix("torch.")
    return {
        "seed": subject.seed, "device": subject.device.type, "dtype": dtype,
        "torch": str(torch.__version__).partition("+")[0], "python": platform.python_version(),
        "machine": platform.machine(), "threads": torch.get_num_threads(),
    }  # fmt: skip


def _state(model: nn.Module) -> dict[str, str]:
    """Return dtype and shape of each entry of the state dict, and the parameter that it is tied to."""
    first = {id(p): name for name, p in model.named_parameters()}
    tied = {
        name: first[id(p)]
        for name, p in model.named_parameters(remove_duplicate=False)
        if id(p) in first and first[id(p)] != name
    }
    found = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            found[name] = type(value).__name__
            continue
        kind = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        found[name] = f"{kind} = {tied[name]}" if name in tied else kind
    return found


def _lines(leaf: Any) -> Any:
    return line_of(little(leaf)) if isinstance(leaf, torch.Tensor) else type(leaf).__name__


def steady(
    subject: Subject, batch: Batch, load: Load, way: Way
) -> tuple[Outcome, dict[str, list[float]]]:
    """Run a model in training mode and leave out what random numbers decide.

    Returns:
        The outcome, and how far each module is from evaluation mode; see :func:`~.running.noise`.
    """
    one = run(subject, batch, load, way, seed=subject.seed, describe=little)
    if one.error:
        return one, {}
    spread = noise(subject, batch, load, double=way.double, seeds=SEEDS if one.drew else 1)
    if not one.drew:
        return one, spread
    two = run(subject, batch, load, way, seed=subject.seed + 1, describe=little)

    def both(part: str) -> dict[str, Sketch]:
        found, again = getattr(one, part), getattr(two, part)
        return {name: s for name, s in found.items() if name in again and s.same(again[name])}

    same = one.loss is not None and two.loss is not None and one.loss.same(two.loss)
    left = dataclasses.replace(
        one, outputs=both("outputs"), buffers=both("buffers"), gradients={},
        loss=one.loss if same else None,
    )  # fmt: skip
    return left, spread


def observe(subject: Subject, batch: Batch, load: Load, way: Way) -> Outcome:
    """Run a model in one way and describe it in little, with what its modules return and a step adds."""
    modules: dict[str, Sketch] = {}
    with watched(subject.model, modules, little):
        outcome = run(subject, batch, load, way, seed=subject.seed, describe=little)
    updates = {} if way.train or outcome.error else _updates(subject, batch, load, way)
    return dataclasses.replace(outcome, modules=modules, updates=updates)


def _updates(subject: Subject, batch: Batch, load: Load, way: Way) -> dict[str, Sketch]:
    """Return what one training step adds to each parameter; nothing where it raises or draws random numbers."""
    if subject.contract.loss is None and subject.contract.train_step is None:
        return {}
    own = subject.contract.train_step is not None
    with prepared(subject, load, dataclasses.replace(way, train=own), subject.seed) as model:
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        drawn = random_states()
        try:
            subject.train_step(model, subject.make_optimizer(model), batch_for(batch, way))
        except SubjectError:
            return {}
        if has_drawn(drawn):
            return {}
        return {
            name: little(p.detach() - before[name])
            for name, p in model.named_parameters()
            if name in before and p.requires_grad and trees.computable(p.data)
        }


def rounding(reference: Outcome, own: Outcome) -> float:
    """Return how far outputs and loss in the model's own precision are from those in float64, relatively."""
    pairs = [(one, own.outputs.get(path)) for path, one in reference.outputs.items()]
    pairs += [] if reference.loss is None else [(reference.loss, own.loss)]
    gaps = [one.gap(as_wide(two, one)) for one, two in pairs if two is not None]
    return float(f"{max((gap for gap in gaps if math.isfinite(gap)), default=0.0):.2g}")


def as_wide(one: Sketch, reference: Sketch) -> Sketch:
    """Return what a model gave in its own precision under the dtype that a run in float64 gave, where that is wider."""
    narrow = one.dtype in ("float32", "float16", "bfloat16", "complex64")
    if not narrow or reference.dtype not in ("float64", "complex128"):
        return one
    return dataclasses.replace(one, dtype=reference.dtype, digest="own precision")


def _plain(outcome: Outcome, parts: tuple[str, ...]) -> dict[str, Any]:
    made: dict[str, Any] = {"other outputs": dict(outcome.others)}
    for part in parts:
        found = getattr(outcome, part)
        made[part] = (
            line_of(found)
            if part == "loss"
            else {name: line_of(one) for name, one in found.items()}
        )
    return made


def outcome_of(plain: Mapping[str, Any]) -> Outcome:
    """Rebuild the outcome of a way that a record holds.

    Raises:
        ValueError: A line has another form.
        KeyError: A part is missing.
    """
    parts = {
        part: {name: sketch_of(line) for name, line in plain.get(part, {}).items()}
        for part in ("outputs", "gradients", "buffers", "updates", "modules")
    }
    return Outcome(
        **parts,  # type: ignore[arg-type]
        others=plain["other outputs"], loss=sketch_of(plain["loss"]), randomness="", drew=False,
    )  # fmt: skip


def text_of(record: Mapping[str, Any]) -> str:
    """Return the text of a record's file: JSON with a line for each tensor, so that differences can be read."""
    return "{\n" + ",\n".join(_section(k, v, 1) for k, v in record.items()) + "\n}\n"


def _section(name: str, value: Any, depth: int) -> str:
    start = f"{' ' * depth}{json.dumps(name)}: "
    if (
        isinstance(value, dict)
        and name not in ("made", "costs", "growth", "other outputs", "dtypes")
        and value
    ):
        inner = ",\n".join(_section(k, v, depth + 1) for k, v in value.items())
        return f"{start}{{\n{inner}\n{' ' * depth}}}"
    return start + json.dumps(value)


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record's file, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    write_whole(path, text_of(record))


def read(path: Path) -> dict[str, Any] | None:
    """Return the record of a file, None where there is no such file.

    Raises:
        RecordError: It cannot be read, or is no record of this version.
    """
    shown = os.path.relpath(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{shown} cannot be read: {error}") from None
    if any(line.startswith("<<<<<<< ") for line in text.splitlines()):
        raise RecordError(f"{shown} holds a merge conflict")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{shown} is not JSON: {error}") from None
    version = found.get("torchcheck record") if isinstance(found, dict) else None
    if not isinstance(version, int):
        raise RecordError(f'{shown} is not a record: it does not begin with "torchcheck record"')
    if version != FORMAT:
        raise RecordError(f"{shown} is a record of format {version}; this version reads {FORMAT}")
    missing = [name for name in _SECTIONS if name not in found]
    if missing:
        raise RecordError(f"{shown} lacks {missing[0]!r}")
    for name in (
        "made",
        "costs",
        "growth",
        "inputs",
        "state",
        "start",
        "buffers",
        "evaluation",
        "drawn",
    ):
        if not isinstance(found[name], dict):
            raise RecordError(f"{name!r} of {shown} must be an object; it is {found[name]!r:.40}")
    return dict(found)

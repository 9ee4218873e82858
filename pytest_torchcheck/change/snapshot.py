"""What one version of a contract is: its state, its weights under a seed, batches, runs and costs, as plain data."""

from __future__ import annotations

import inspect
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import torch

from .. import sources
from ..measure.growth import grow, growth_sizes
from ..measure.steps import StepFailed, track
from ..objects import trees
from ..probes.memory.fake import Unmeasurable
from ..subject.errors import SubjectError
from ..text.printable import message_of
from .running import Way, line_of, move_weights, run
from .sketch import sketch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..batches import Batch
    from ..subject import Subject

DRAWN: Final = 3
"""Batches of other sizes, beside the base batch."""
_SIZES: Final = 4
"""Sizes of a symbol at which costs are measured: what a square is told by."""
_LONG_S: Final = 5.0
"""A step on fake tensors that takes longer on the processor is not repeated to find how its costs grow."""


def batches(subject: Subject) -> list[Batch]:
    """Return the base batch, and a few of other sizes where the contract declares ranges."""
    found = [subject.batch()]
    if subject.source.declared_sizes:
        drawn = (subject.source.draw(subject.seed + index) for index in range(1, DRAWN + 1))
        found += [subject.place(batch) for batch in drawn]
    return found


def ways(count: int) -> list[Way]:
    """Return how a model is run on so many batches, the cheapest explanation first."""
    return [Way(batch=index, train=train) for train in (False, True) for index in range(count)]


def state_of(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return shape, dtype and digest of every entry of the state dict, and the line that makes it."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            found[name] = {"shape": None, "dtype": type(value).__name__, "digest": "", "line": None}
            continue
        made = sketch(value)
        found[name] = {
            "shape": list(value.shape), "dtype": made.dtype, "digest": made.digest,
            "line": line_of(sources.of_parameter(model, name)),
        }  # fmt: skip
    return found


def initial(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the sketch of every saved real tensor after building, with mean and deviation in float64.

    A buffer that is not saved is not among them: outputs show its change.
    """
    found = {}
    saved = model.state_dict()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name not in saved or not tensor.numel() or not trees.computable(tensor.data):
            continue
        if tensor.is_complex():
            continue
        wide = tensor.detach().double()
        spread = float(wide.std(correction=0))
        found[name] = {**sketch(tensor).plain(), "mean": float(wide.mean()), "std": spread}
    return found


def weights(subject: Subject) -> dict[str, torch.Tensor]:
    """Return a state dict with which versions are compared: that of the model, its weights moved a little."""
    with subject.pristine(steps=True) as model:
        move_weights(model, subject.seed)
        return {
            name: value.detach().cpu().clone()
            for name, value in model.state_dict().items()
            if isinstance(value, torch.Tensor)
        }


def loading(state: dict[str, torch.Tensor], strict: bool = True) -> Callable[[nn.Module], None]:
    """Return what loads a state dict into a model."""

    def load(model: nn.Module) -> None:
        model.load_state_dict({k: v.clone() for k, v in state.items()}, strict=strict)

    return load


def costs(subject: Subject) -> dict[str, Any]:
    """Return what a training step costs at the base batch, and how that grows.

    Returns:
        ``counts``: parameters, FLOPs and peak bytes, those of each phase too; ``growth``: the powers of
        each symbol by which FLOPs and peak bytes grow; ``lines``: those that hold memory at the peak; and
        ``error``: why all but the parameters could not be measured, else empty.
    """
    parameters = sum(p.numel() for p in subject.model.parameters())
    found: dict[str, Any] = {
        "counts": {"parameters": parameters}, "growth": {}, "lines": [], "error": "",
    }  # fmt: skip
    start = time.process_time()
    try:
        measured = track(subject, fake=True, step="training", repeats=1, flops=True)
    except (StepFailed, Unmeasurable, SubjectError) as error:
        return {**found, "error": message_of(error)}
    took = time.process_time() - start
    profile = measured.profile
    found["counts"] |= {"FLOPs": measured.flops, "peak bytes": profile.peak_bytes}
    found["counts"] |= {f"{name} peak bytes": size for name, size in profile.by_phase.items()}
    lines = sorted(profile.by_line.items(), key=lambda pair: -pair[1])[:40]
    found["lines"] = [{**asdict(place), "bytes": n} for place, n in lines if place.line]
    return found if took > _LONG_S else {**found, "growth": _growth(subject)}


def _growth(subject: Subject) -> dict[str, float]:
    """Return the powers by which FLOPs and memory grow, at a few sizes of each symbol that has a range."""
    found = {}
    known = subject.contract.source
    for symbol in known.symbols if known is not None else ():
        sizes = growth_sizes(subject.contract, symbol)[-_SIZES:]
        if len(sizes) < _SIZES:
            continue
        try:
            law = grow(subject, symbol, sizes=sizes)
        except (StepFailed, Unmeasurable, SubjectError):
            continue
        found[f"FLOPs with {symbol}"] = round(law.flops_power, 1)
        found[f"peak bytes with {symbol}"] = round(law.power, 1)
    return found


def describe(subject: Subject) -> dict[str, Any]:
    """Return everything of a version that is compared in any case."""
    state = weights(subject)
    drawn = batches(subject)
    load = loading(state)
    return {
        "state": state_of(subject.model),
        "initial": initial(subject.model) if subject.contract.is_factory else {},
        "weights": state,
        "batches": [plain_batch(batch) for batch in drawn],
        "runs": [
            run(subject, drawn[way.batch], load, way, seed=subject.seed).plain()
            for way in ways(len(drawn))
        ],
        "costs": costs(subject),
    }


def files_of(model: nn.Module) -> list[str]:
    """Return the files that define the classes of a model's modules, torch's own apart."""
    found = set()
    for module in model.modules():
        for cls in type(module).__mro__[:-1]:
            try:
                file = inspect.getsourcefile(cls)
            except (TypeError, OSError):
                continue
            if file is not None and sources.rank(file):
                found.add(file)
    return sorted(found)


def plain_batch(batch: Batch) -> dict[str, Any]:
    """Return a batch as plain data: the digest of every leaf, and the trees where they hold nothing but plain types."""
    digests = {
        path: sketch(leaf).digest if isinstance(leaf, torch.Tensor) else repr(type(leaf))
        for path, leaf in batch.leaves()
    }
    sent = {"args": list(batch.args), "kwargs": dict(batch.kwargs), "targets": batch.targets}
    plain = all(is_plain(tree) for tree in sent.values())
    return {"digests": digests, "trees": sent if plain else None, "sizes": dict(batch.sizes)}


def is_plain(value: Any) -> bool:
    """Say whether a tree holds nothing but tensors, numbers, texts, lists, tuples and dicts."""
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(isinstance(k, str) and is_plain(item) for k, item in value.items())
    if isinstance(value, torch.Tensor):
        return type(value) is torch.Tensor and not value.is_nested
    return value is None or isinstance(value, bool | int | float | str)

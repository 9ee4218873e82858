"""Where a model parts from its reference, explained."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import listed
from ...findings import Culprit
from ...probes.recorded.bisection import apart
from ...probes.recorded.divergence import record
from ...verdicts import violated
from ..lines.layer_sizes import building_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from ...findings import Finding, Location
    from ...probes.recorded.bisection import Pair
    from ...probes.recorded.operations import Step, Trace
    from ...subject import Subject


def unlike(
    subject: Subject, ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]
) -> Finding | None:
    """Explain weights that do not fit the reference; None where they do."""
    missing, more = sorted(theirs.keys() - ours.keys()), sorted(ours.keys() - theirs.keys())
    sizes = [name for name in ours if name in theirs and ours[name].shape != theirs[name].shape]
    if not (missing or more or sizes):
        return None
    told = [
        *((f"{name} is {list(ours[name].shape)} here and {list(theirs[name].shape)} in the "
            "reference") for name in sizes[:3]),
        *([f"only here: {listed(more)}"] if more else []),
        *([f"only in the reference: {listed(missing)}"] if missing else []),
    ]  # fmt: skip
    name = (sizes or more or missing)[0]
    path, _, layer = name.rpartition(".")[0].rpartition(".")
    try:
        place = sources.of_assignment(subject.model.get_submodule(path), layer) if layer else None
    except AttributeError:  # only the reference has it
        place = None
    return violated(
        "reference-unlike",
        "the weights do not match the reference: " + told[0],
        culprits=[Culprit("parameter", name, "differs from the reference", place)],
        observed="; ".join(told),
        cause="the two versions have different layers or layer names",
        because="the state_dicts were compared by name and shape",
        fix=("make the layers equal, or give Matches(rename=) that maps the model's names to "
            "the reference's"),
    )  # fmt: skip


def differs(
    subject: Subject,
    other: nn.Module,
    pairs: tuple[Pair, ...],
    parting: Pair | None,
    allowed: float,
) -> Finding:
    """Explain other outputs by the submodule in which they begin."""
    evidence = {"layers": [_row(pair) for pair in pairs[:200]]}
    if parting is None:
        place = sources.of_object(type(subject.model).forward)
        return violated(
            "reference-differs",
            f"the outputs differ from those of {type(other).__name__} with the same weights",
            culprits=[Culprit("module", type(subject.model).__name__, location=place)],
            observed="no submodule of both versions receives the same inputs and gives a "
            "different output",
            cause="the code between the submodules differs, or a submodule has another name",
            because="outputs in eval mode were compared with the same weights and inputs",
            fix="compare the code of the two versions between the submodules of the table (-v)",
            evidence=evidence,
        )
    call = parting.ours
    name = call.module or type(subject.model).__name__
    place, word = _line(subject, other, parting, allowed)
    return violated(
        "reference-differs",
        f"the outputs begin to differ from those of {type(other).__name__} in {name} ({call.kind})"
        if call.module
        else f"the outputs begin to differ from those of {type(other).__name__} in {name}.forward",
        culprits=[Culprit("module", name, _gap(parting), place)],
        observed=f"with equal inputs {_shapes(call.given)}, {name} gives {_shapes(call.gave)}, the "
            f"reference {_shapes(parting.theirs.gave)}; {_gap(parting)}",
        cause=f"{name} does not compute the same as in the reference" + (f": {word}" if word else ""),
        because=f"both versions ran on one batch with the same weights: the inputs of {name} "
            "agree, "
            "and so does every submodule before it",
        fix=f"compare {name} with the reference's" + (f", line {place.line}: {place.text}" if place else ""),
        evidence=evidence,
    )  # fmt: skip


def _line(
    subject: Subject, other: nn.Module, parting: Pair, allowed: float
) -> tuple[Location | None, str]:
    """Return the line of the first operation that parts, else that of the setting or of the forward."""
    name = parting.ours.module
    ours, theirs = (
        model.get_submodule(name) if name else model for model in (subject.model, other)
    )
    if sources.rank(getattr(sources.of_object(type(ours)), "file", "")) < 2:  # a layer of torch's
        unlike = [
            key for key, value in vars(ours).items()
            if isinstance(value, bool | int | float | str | tuple) and key != "training"
            and vars(theirs).get(key, value) != value
        ]  # fmt: skip
        told = ", ".join(
            f"{key} is {getattr(ours, key)}, not {getattr(theirs, key)}" for key in unlike[:3]
        )
        return building_line(subject.model, name), told
    place = sources.of_object(type(ours).forward)
    try:
        with subject.pristine() as model, torch.no_grad():
            model.eval()
            own = model.get_submodule(name) if name else model
            dtype = next((p.dtype for p in own.parameters()), None)
            given = [
                t.to(dtype) if dtype is not None and t.is_floating_point() else t
                for t in parting.ours.given
            ]
            beside = subject.convert(theirs, dtype) if dtype is not None else theirs
            mine, its = (_recorded(one, given) for one in (own, beside))
    except (TypeError, RuntimeError):  # it takes more than tensors by position
        return place, ""
    step = _first_of_its_own(mine, its, max(allowed, 1e-5))
    if step is None or step.op.location is None:
        return place, ""
    return (
        step.op.location,
        f"{step.op.name} gives the first value that the reference does not compute",
    )


def _first_of_its_own(ours: Trace, theirs: Trace, allowed: float) -> Step | None:
    """Return the first operation whose result no operation of the other run gave: lines and calls may differ."""
    known = [value.values for value in theirs.values if value.values is not None]
    for step in ours.steps:
        for place in step.results:
            made = ours.values[place].values
            if made is not None and not any(
                other.shape == made.shape and apart((made,), (other,)) <= allowed for other in known
            ):
                return step
    return None


def _recorded(module: nn.Module, given: list[torch.Tensor]) -> Trace:
    return record(lambda: module(*(t.clone() for t in given)), module)


def _row(pair: Pair) -> dict[str, Any]:
    return {
        "module": pair.ours.module or "the model",
        "kind": pair.ours.kind,
        "shape": _shapes(pair.ours.gave),
        "reference": _shapes(pair.theirs.gave),
        "given apart": pair.given,
        "gave apart": pair.gave,
    }


def _gap(pair: Pair) -> str:
    return "other shapes" if math.isinf(pair.gave) else f"relative difference {pair.gave:.2g}"


def _shapes(tensors: tuple[torch.Tensor, ...]) -> str:
    return ", ".join(str(list(t.shape)) for t in tensors[:3]) or "no tensor"

"""Layers that take dimension 0 for the sequence; entries and samples that are not in their order."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from ... import sources
from ...explanation import on_line
from ...findings import Culprit
from ...subject.errors import SubjectError
from ..crashes.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...findings import Location
    from ...probes.positions.rereading import Reread
    from ...probes.recorded.operations import Step, Trace

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def built_for_time_first(
    place: Place | None, model: nn.Module, mixes: Callable[[], bool]
) -> Place | None:
    """Return the place with its cause where the samples keep to themselves once the layer reads batches first.

    Args:
        place: The operation that mixes samples.
        model: The root module.
        mixes: Runs the model; says whether its samples come together.
    """
    if place is None or place.cause or not place.module:
        return None
    owner = _outermost(model, place.module)
    flagged = [] if owner is None else [m for m in owner.modules() if _time_first(m)]
    if owner is None or not flagged:
        return None
    with contextlib.ExitStack() as stack:
        for module in flagged:
            stack.callback(setattr, module, "batch_first", False)
            module.batch_first = True  # type: ignore[assignment]
        try:
            if mixes():
                return None
        except SubjectError:
            return None
    taking = next((m for m in owner.modules() if _takes(m)), flagged[0])
    cls = type(taking).__name__
    line = _constructing(place.built, cls) or place.constructed or place.built
    return replace(
        place,
        location=line or place.location,
        built=line,
        cause=f"{cls} reads dimension 0 as the sequence, where the samples stand: it is built without "
        "batch_first=True",
        fact=f"{place.fact}; with batch_first=True none of the outputs depends on two samples",
        fix=f"pass batch_first=True to {cls}{on_line(line)}, or give it the sequence first",
    )


def _time_first(module: nn.Module) -> bool:
    own = type(module).__module__.startswith("torch.nn.")
    return own and getattr(module, "batch_first", None) is False


def _takes(module: nn.Module) -> bool:
    """Say whether the constructor of a module takes ``batch_first``; a recurrent one hands on what it is given."""
    known = {*inspect.signature(type(module).__init__).parameters}
    return "batch_first" in known or isinstance(module, nn.RNNBase)


def _outermost(model: nn.Module, name: str) -> nn.Module | None:
    """Return the outermost of torch's layers around a module: the one that the user built."""
    parts = name.split(".")
    around = (model.get_submodule(".".join(parts[:n])) for n in range(1, len(parts) + 1))
    return next(
        (
            module
            for module in around
            if type(module).__module__.startswith("torch.nn.") and type(module) not in _CONTAINERS
        ),
        None,
    )


def _constructing(built: Location | None, cls: str) -> Location | None:
    """Return the call that constructs the class, within a statement or behind a variable that it reads.

    A call that passes ``batch_first=True`` is that of another branch. None where several could be.
    """
    statement = None if built is None else sources.statement(built.file, built.line)
    if built is None or statement is None:
        return None
    names = set(sources.names_read(built.file, built.line))
    scope = sources.function_around(built.file, built.line)
    given = [
        node
        for node in sources.own_nodes(scope)
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") in names for t in node.targets)
    ]
    found = {call.lineno for each in (statement, *given) for call in _calls(each, cls)}
    return sources.of_line(built.file, found.pop(), built.function) if len(found) == 1 else None


def _calls(node: ast.AST, cls: str) -> Iterator[ast.Call]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and sources.called(call) == cls:
            flags = [k.value for k in call.keywords if k.arg == "batch_first"]
            if not any(isinstance(flag, ast.Constant) and flag.value for flag in flags):
                yield call


def extended(place: Place, step: Step, many: int, others: int) -> Place:
    """Return the line that puts entries behind others which they are not behind in what they are combined with."""
    return Place(
        op=step.op.name,
        location=step.op.location,
        module=step.op.module,
        module_class=step.op.module_class,
        settings=(Culprit("call", place.op, "reads both", place.location),),
        cause=f"{step.op.name} puts the entries behind {many} others, but {place.op}"
        f"{on_line(place.location)} combines them with values that stand behind {others}",
        fact=f"when the input entries are permuted, the result of {step.op.name} is permuted from place {many} "
        f"on, what {place.op} combines it with from place {others} on",
        fix=f"put the {many} others on the other side of the entries{on_line(step.op.location)}, as in the values "
        "they are combined with",
    )


def sorted_alone(step: Step, meeting: Step) -> Place:
    """Return the line that puts entries in one order, which what they are combined with does not get."""
    called = Culprit("call", step.op.name, "is reached from here", next(iter(step.callers), None))
    meets = Culprit("call", meeting.op.name, "reads both", meeting.op.location)
    return Place(
        op=step.op.name,
        location=step.op.location,
        module=step.op.module,
        module_class=step.op.module_class,
        settings=tuple(
            one for one in (called, meets) if one.location not in (None, step.op.location)
        ),
        cause=f"{step.op.name} sorts the entries, but {meeting.op.name}{on_line(meeting.op.location)} combines them "
        "with values in the order in which they came",
        fact=f"when the input entries are permuted, the result of {step.op.name} stays as it was, and "
        f"{meeting.op.name} reads it together with values that are permuted",
        fix=f"sort what belongs to the entries in the same way{on_line(step.op.location)}",
    )


def left_sorted(step: Step, meeting: Step) -> Place:
    """Return the line that reads samples in their own order together with what stays in the order of a sort."""
    name, sorting = meeting.op.name, step.op.location
    text = "" if sorting is None else sorting.text.partition("#")[0].strip()
    text = f" ({text})" if 0 < len(text) <= _SHORT else ""
    return Place(
        op=name,
        location=meeting.op.location,
        module=meeting.op.module,
        module_class=meeting.op.module_class,
        settings=(Culprit("call", step.op.name, "is in the order of a sort", sorting),)
        if sorting not in (None, meeting.op.location)
        else (),
        cause=f"{name} combines the samples in the order in which they came with the result of {step.op.name}"
        f"{on_line(sorting)}, which is in the order of a sort{text}",
        fact=f"when the samples change places, one operand of {name} is permuted with them, and the result of "
        f"{step.op.name}{on_line(sorting)} stays as it was",
        fix=f"read the values in the order in which the samples came{on_line(meeting.op.location)}, or undo the sort "
        "of both",
    )


_SHORT = 60


def reordered(place: Place, step: Step, trace: Trace) -> Place:
    """Return the line that puts entries in an order of their own, before a place that reads two orders together."""
    same = [other for other in trace.steps if other.op.location == step.op.location]
    callers = {other.callers[0] for other in same if other.callers}
    # a helper that several lines call does for each what it is told
    line = step.callers[0] if len(callers) > 1 and step.callers else step.op.location
    named = [
        (step.op.name, "moves the entries", step.op.location),
        (place.op, "reads both", place.location),
    ]
    return Place(
        op=step.op.name,
        location=line,
        module=step.op.module,
        module_class=step.op.module_class,
        settings=tuple(Culprit("call", op, what, at) for op, what, at in named if at != line),
        cause=f"{step.op.name} puts the entries in another order than that of the values with which "
        f"{place.op}{on_line(place.location)} combines them",
        fact=f"when the input entries are permuted, the result of {step.op.name} is neither unchanged nor "
        f"permuted in the same way; {place.fact}",
        fix=f"restore the original order of the entries{on_line(line)}: gather with the argsort of the order in which "
        "they were taken, its inverse",
    )


def exchanged(step: Step, trace: Trace) -> Place:
    """Return the line that gives each sample the values of another one."""
    line, name = on_line(step.op.location), step.op.name
    copies = trace.makers.get(step.operands[0]) if step.operands else None
    location = step.op.location
    settings: tuple[Culprit, ...] = ()
    if len(step.operands) > 1:
        fix = f"gather with the argsort of the order in which the samples were taken, its inverse{line}"
    elif name.rpartition(".")[2] not in _SPLITS:
        fix = f"let {name} give each sample its own rows{line}"
    elif copies is None or not copies.op.name.endswith(".repeat") or copies.op.location is None:
        fix = f"move the dimension of the samples to the front before {name.rpartition('.')[2]} splits it{line}"
    else:
        location, settings = (
            copies.op.location,
            (Culprit("call", name, "splits the copies", step.op.location),),
        )
        fix = _kept_together(location)
    return Place(
        op=name,
        location=location,
        module=step.op.module,
        module_class=step.op.module_class,
        settings=settings if location != step.op.location else (),
        cause=f"{name}{line} returns the samples in an order of its own: rows are those of other samples",
        fact=f"when the samples change places, the rows of {name} stay the same, but stand neither where they "
        "stood nor where their samples are; what it reads stands in the order of the samples or in a fixed one",
        fix=fix,
    )


def in_rows(view: Reread, what: str) -> str:
    """Say how a view is written that does not take ``what`` (samples, positions) out of their rows."""
    if view.copied is not None:
        return _kept_together(view.copied)
    name = view.op.name.rpartition(".")[2]
    mend = (
        f"use {view.instead} instead of this {name}"
        if view.instead
        else f"{name} with the dimensions in their order, and transpose or permute them afterwards"
    )
    if view.grouped > 1:
        mend += f" (if grouping {view.grouped} {what} is intended, no later operation may read within a group)"
    return mend


_SPLITS = ("view", "reshape", "unflatten", "flatten", "view_as", "reshape_as")


def _kept_together(place: Location) -> str:
    """Say how ``repeat`` is written so that the copies of a sample stand next to each other."""
    call = re.search(r"\.repeat\(([^()]*)\)", place.text)
    counts = [one.strip() for one in call[1].split(",")] if call else []
    several = [(at, count) for at, count in enumerate(counts) if count != "1"]
    if call is None or len(several) != 1:
        return f"use repeat_interleave in place of repeat{on_line(place)}: it keeps the copies of a sample together"
    ((at, count),) = several
    return f"write .repeat_interleave({count}, {at}) instead of {call[0]}{on_line(place)}"

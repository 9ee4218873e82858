"""Masks that a forward makes or is given, that do not hide what they should, and the line that mixes what they hide."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from ... import sources
from ...explanation import on_line
from ...findings import Culprit
from ...probes.holding.holders import lines_run
from ...probes.positions.hiding import find_hiding
from ...probes.recorded.divergence import (
    first_spread,
)
from ...subject.errors import SubjectError
from ..crashes.place import Place
from ..lines.conditions import assigned_for
from ..lines.handed_in import blamed, handed_in
from .places import recorded, told_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...batches import Batch
    from ...findings import Location
    from ...probes.positions.hiding import Hiding
    from ...probes.recorded.operations import Trace
    from ...probes.recorded.watch import Op
    from ...subject import Subject


def leaking_line(
    subject: Subject,
    batch: Batch,
    changed: Mapping[int, Batch],
    *,
    length: int,
    side: Literal["right", "left"] = "right",
    what: Literal["later", "padded"] = "later",
) -> Place | None:
    """Return the operation through which changed positions reach those that were kept.

    Args:
        subject: The model.
        batch: The unchanged batch.
        changed: By number of kept positions, the batch with all later (or earlier) ones changed.
        length: Length of the sequence.
        side: Which side changed.
        what: Which positions these are.
    """
    (base, *runs), allowed = recorded(subject, [batch, *changed.values()])
    found = first_spread(
        base, dict(zip(changed, runs, strict=True)), length, side=side, allowed=allowed
    )
    place = told_by(found, subject.model, "positions")
    if place is None or found is None or place.cause:
        return place
    masked = not_hidden(subject, base, found.op, place, kept=found.kept, length=length, side=side)
    if masked is not None:
        return masked
    if (index := _index_maker(base, found.op)) is not None and side == "right":
        name = sources.assigned_name(index.location) if index.location is not None else ""
        return replace(
            place,
            location=index.location,
            cause=f"the index {name or index.name} selects a position that must not be read",
            settings=(Culprit("call", found.op.name, "selects by it", found.op.location),),
            fix="keep the index in front of it: the last real position of a sample is length - 1",
        )
    square = length if what == "later" else 0
    if (handed := blamed(base, found.op, place, what=what, square=square)) is not None:
        return handed
    settings = (*place.settings, *masks_of(base, found.op, subject.model))
    place = replace(place, settings=settings)
    for operand in reversed(found.operands):
        if operand.location is not None and operand.name.rpartition(".")[2] in _SHAPERS:
            # the operation itself is innocent: what was prepared for it lets the change through
            fact = f"{place.fact}; it read the result of {operand.name}"
            reading = Culprit("call", found.op.name, "reads it", found.op.location)
            settings += (*given_masks(base, operand), *([reading] if reading.location else []))
            return Place(
                op=operand.name,
                location=operand.location,
                module=operand.module or place.module,
                module_class=operand.module_class if operand.module else place.module_class,
                fact=fact,
                settings=settings,
            )
    return place


def switched_off(
    subject: Subject, place: Place | None, leaks: Callable[[Callable[[], None]], bool]
) -> Place | None:
    """Return the line that builds the module of a place, where an argument of it that is False, set to True, stops a leak.

    Only arguments of the user's own constructors count: one of torch's layers, such as ``batch_first``, may stop a
    leak by reading other dimensions.

    Args:
        subject: The model.
        place: The operation that lets positions through.
        leaks: Runs the model, after what it is given, for each run; says whether positions come through.
    """
    modules = dict(subject.model.named_modules())
    module = None if place is None or not place.module else modules.get(place.module)
    if place is None or module is None or type(module).__module__.startswith("torch."):
        return None
    line = place.constructed or place.built or sources.of_parameter(subject.model, place.module)
    if line is None:
        return None
    kind, last = type(module), place.module.rpartition(".")[2]
    alike = [m for n, m in modules.items() if n.rpartition(".")[2] == last and type(m) is kind]
    taken = inspect.signature(kind.__init__).parameters
    for flag in [name for name in taken if vars(module).get(name) is False]:

        def switch(flag: str = flag) -> None:
            for one in alike:
                setattr(one, flag, True)

        try:
            if leaks(switch):
                continue
        except SubjectError:
            continue  # it does not run so: nothing is shown
        reading = Culprit("call", place.op, "lets them through", place.location)
        return replace(
            place,
            location=line,
            settings=(*place.settings, reading),
            cause=f"{kind.__name__} is built with {flag}=False{on_line(line)}",
            fact=f"{place.fact}; with {flag}=True the outputs do not depend on later positions",
            fix=f"pass {flag}=True to {kind.__name__}{on_line(line)}",
        )
    return None


_SELECTING = ("__getitem__", "gather", "index_select", "take_along_dim")


def _index_maker(trace: Trace, op: Op) -> Op | None:
    """Return what computed the index, from an input, by which an operation selects; a range that counts samples is none."""
    if op.name.rpartition(".")[2] not in _SELECTING:
        return None
    step = next((step for step in trace.steps if step.op is op), None)
    for place in reversed(step.operands if step is not None else ()):
        values, maker = trace.values[place].values, trace.makers.get(place)
        if values is None or maker is None or values.dtype != torch.int64:
            continue
        if maker.operands and maker.op.location not in (None, op.location):
            return maker.op
    return None


def masks_of(trace: Trace, op: Op, model: torch.nn.Module) -> tuple[Culprit, ...]:
    """Return what makes the mask that an operation, or what it read, was given.

    A value that depends on no input and no parameter is a constant of the forward; one that equals a
    buffer (or the corner of one) was made where the buffer is.
    """
    step = next((step for step in trace.steps if step.op is op), None)
    if step is None:
        return ()
    near = [step, *(trace.makers[p] for p in step.operands if p in trace.makers)]
    places = [p for each in near for p in each.operands]
    found: dict[str, Culprit] = {}
    for place in places:
        maker = _mask_maker(trace, place)
        if maker is not None and maker.location is not None:
            found.setdefault(
                str(maker.location),
                Culprit("call", maker.name, "the mask", maker.location),
            )
            continue
        values = _unmade(trace, place)
        for name, buffer in model.named_buffers():
            if values is not None and _is_corner(values, buffer):
                line = sources.of_parameter(model, name)
                found.setdefault(name, Culprit("buffer", name, "the mask", line))
    return tuple(found.values())[:2]


def given_masks(trace: Trace, op: Op) -> tuple[Culprit, ...]:
    """Return what made the masks, of truth values, that an operation was given."""
    step = next((step for step in trace.steps if step.op is op), None)
    makers = [
        trace.makers[p].op
        for p in (step.operands if step is not None else ())
        if p in trace.makers and _is_mask(trace.values[p].values)
    ]
    return tuple(
        Culprit("call", made.name, "the mask", made.location)
        for made in makers[:1]
        if made.location is not None
    )


def _is_mask(values: torch.Tensor | None) -> bool:
    return values is not None and values.dtype == torch.bool


def _mask_maker(trace: Trace, place: int) -> Op | None:
    """Return the triangle (or comparison) that a constant value comes from, or None if it is no constant."""
    ops: list[Op] = []
    seen, stack = {place}, [place]
    while stack:
        step = trace.makers.get(stack.pop())
        if step is None or len(seen) > 64:
            return None  # an input, a parameter or a buffer
        ops.append(step.op)
        for operand in step.operands:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    for wanted in (("tril", "triu", "tril_", "triu_"), ("lt", "le", "gt", "ge", "eq", "ne")):
        for made in ops:
            if made.name.rpartition(".")[2].strip("_") in {w.strip("_") for w in wanted}:
                return made
    return None


def _unmade(trace: Trace, place: int) -> torch.Tensor | None:
    """Return the only value that no operation made behind a place, such as a buffer that was cut to size."""
    seen, stack, given = {place}, [place], set()
    while stack and len(seen) <= 64:
        at = stack.pop()
        step = trace.makers.get(at)
        if step is None:
            given.add(at)
            continue
        for operand in step.operands:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return trace.values[given.pop()].values if len(given) == 1 else None


def _is_corner(values: torch.Tensor, buffer: torch.Tensor) -> bool:
    """Say whether a value is a buffer of a mask's shape: square in its last two dimensions."""
    return (
        buffer.dim() >= 2
        and buffer.shape[-1] == buffer.shape[-2] > 1
        and values.shape == buffer.shape
        and values.dtype.is_floating_point == buffer.dtype.is_floating_point
        and bool(torch.equal(values, buffer.to(values.dtype)))
    )


_SHAPERS = (
    "pad",
    "roll",
    "flip",
    "tril",
    "triu",
    "masked_fill",
    "masked_fill_",
    "cat",
    "constant_pad_nd",
)


def _number_line(subject: Subject, mask: Op | None) -> Location | None:
    """Return the line of the one variable that gives a mask its number, where a run assigns it a plain one."""
    if mask is None or mask.location is None:
        return None
    with lines_run() as ran:
        subject.forward()
    given = [
        (name, at)
        for name, at in assigned_for(mask.location)
        if (at.file, at.line) in ran and _is_number(at)
    ]
    return given[0][1] if len(given) == 1 else None


def _is_number(place: Location) -> bool:
    """Say whether a statement assigns a plain number: a literal, or a limit of a dtype."""
    statement = sources.statement(place.file, place.line)
    value = statement.value if isinstance(statement, ast.Assign) else None
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    limit = isinstance(value, ast.Attribute) and "info(" in ast.unparse(value)
    return limit or isinstance(value, ast.Constant)


def _unhidden(found: Hiding, number: Location | None) -> tuple[str, str, str]:
    """Return cause, fact and fix of a mask that does not hide; ``number`` is the line of a number that is too weak."""
    line, name = on_line(found.op.location), found.op.name
    share = f"{100 * found.weight:.2g} %"
    weighs = f"the softmax gives the masked positions {share} of the weight"
    if found.kind == "weak":
        others = f"the unmasked scores range from {found.low:.3g} to {found.high:.3g}"
        does = _DOING.get(name.rpartition(".")[2].strip("_"), "fills in")
        return (
            f"{name}{line} does not mask: it {does} {found.value:.3g}",
            f"{does} {found.value:.3g}, {others}: {weighs}",
            f'fill the scores with float("-inf") or torch.finfo(dtype).min{line}'
            if number is None
            else f"add torch.finfo(dtype).min at the positions to hide{on_line(number)}",
        )
    if found.kind == "opposite":
        return (
            f"{name}{line} masks the positions to be kept, and none of the others",
            weighs,
            f"invert the mask of {name}{line}: it must be True at the positions to hide",
        )
    first, second = found.numbers
    if found.kind == "partly":
        return (
            f"{name}{line} masks a part of the positions to be hidden, and leaves the others",
            f"{first} of {second} entries of a sample that must be hidden are left, with {share} of the weight",
            f"let the mask of {name}{line} hide every position that must not be read",
        )
    if found.kind == "across":
        return (
            f"{name}{line} masks along dimension {first}, and the softmax runs over dimension {second}",
            f"along dimension {first} all positions to be hidden are masked; along {second} they get {share} of the weight",
            f"take the softmax over dim={first}, or transpose the mask of {name}{line}",
        )
    return (
        f"{name}{line} is applied after the softmax, which has normalised over the masked positions",
        f"the softmax gives them up to {share} of the weight before they are set to 0",
        'mask the scores with float("-inf") before the softmax',
    )


def not_hidden(
    subject: Subject,
    trace: Trace,
    op: Op,
    place: Place,
    *,
    kept: int,
    length: int,
    side: Literal["right", "left"],
) -> Place | None:
    """Return the line of a mask that does not hide positions from an operation, where that is how they get in.

    Of a mask that is too weak it is the line that gives it its number, where another line adds it.

    Args:
        subject: The model.
        trace: The run.
        op: The operation at which they were first seen to count.
        place: It, as a place.
        kept: How many positions must not depend on the others.
        length: Number of positions.
        side: Where those others stand.
    """
    found = find_hiding(trace, op, kept=kept, length=length, side=side)
    if found is None or found.op.location is None:
        return None
    name = found.op.name
    added = name.rpartition(".")[2].strip("_") in ("add", "iadd", "radd", "sub")
    number = _number_line(subject, found.mask) if found.kind == "weak" and added else None
    handed = handed_in(trace, found.op) if found.kind == "partly" else None
    at = number or (handed and handed.op.location) or found.op.location
    cause, fact, fix = _unhidden(found, number)
    if handed is not None:
        cause += f": the mask is made{on_line(at)}"
        fix = f"let the mask that is made{on_line(at)} hide every position that must not be read"
    moved = number is not None or handed is not None
    other = (found.op, "applies it") if moved else (found.mask, "the mask")
    settings = [
        Culprit("call", one.name, detail, one.location)
        for one, detail in (other, (op, "reads it"))
        if one is not None and one.location not in (None, at)
    ]
    if found.kind in ("partly", "across"):
        settings += masks_of(trace, op, subject.model)
    return replace(
        place,
        op=name,
        location=at,
        module=found.op.module or place.module,
        module_class=found.op.module_class if found.op.module else place.module_class,
        built=None,
        fact=fact,
        cause=cause,
        fix=fix,
        settings=tuple(settings),
    )


_DOING = {
    "add": "adds",
    "iadd": "adds",
    "radd": "adds",
    "sub": "subtracts",
    "mul": "multiplies by",
    "imul": "multiplies by",
    "rmul": "multiplies by",
}

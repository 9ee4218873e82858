"""Ask the probes where two runs part, who drew random numbers, and who wrote to a tensor."""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch

from ... import sources
from ...findings import Culprit
from ...probes.randomness import find_draws
from ...probes.recorded.divergence import (
    Divergence,
    first_divergence,
    first_mixing,
    first_place_dependence,
    first_spread,
    record,
)
from ...probes.recorded.operations import narrow
from ...probes.recorded.watch import Watch, name_of, tensors_in
from ...record.tracing import find_line, line_of
from ...runs.rows import floating_from
from ...state import seed_everything
from ...subject import SubjectError
from ..crashes.place import Place
from .mask_hiding import not_hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType

    from ...batches import Batch
    from ...findings import Location
    from ...probes.positions.row_indices import Unshifted
    from ...probes.positions.spread import Spread
    from ...probes.randomness import Draw
    from ...probes.recorded.operations import Trace
    from ...probes.recorded.watch import Op
    from ...subject import Subject


def eval_run(
    subject: Subject, batch: Batch, *, seed: int = 0, train: bool = False
) -> Callable[[], Any]:
    """Return a function that runs one forward, for probes; call it inside ``pristine``."""

    def run() -> Any:
        copy = batch.clone()
        seed_everything(subject.seed + seed)
        with torch.no_grad():
            subject.model.train(train)
            return subject.call(subject.model, copy)

    return run


def _draws(subject: Subject, *, train: bool) -> tuple[Draw, ...]:
    """List what one forward draws and seeds; the seeding before it is not part of it."""
    copy = subject.batch().clone()
    with subject.pristine() as model, torch.no_grad():
        model.train(train)
        seed_everything(
            subject.seed + 12345
        )  # a seed that no forward sets by itself, so that setting one shows
        return find_draws(lambda: subject.call(model, copy), model)


def drawing_line(
    subject: Subject, *, train: bool = False, global_only: bool = False
) -> Place | None:
    """Return the first line of the forward that draws random numbers.

    Args:
        subject: The model.
        train: Mode of the model.
        global_only: Only draws from the generators of numpy and random count.
    """
    for draw in _draws(subject, train=train):
        if draw.kind != "draw" or (global_only and draw.generator not in ("numpy", "random")):
            continue
        return Place(
            op=draw.op,
            location=draw.location,
            module=draw.module,
            fact=f"this line draws from {_GENERATORS.get(draw.generator, draw.generator)}",
        )
    return None


def seeding_line(subject: Subject) -> Place | None:
    """Return the first line of a training forward that seeds a generator, or None."""
    for draw in _draws(subject, train=True):
        if draw.kind == "reseed":
            fact = f"this line seeds {_GENERATORS.get(draw.generator, draw.generator)}"
            return Place(op=draw.op, location=draw.location, module=draw.module, fact=fact)
    return None


_GENERATORS = {
    "torch": "torch's generator",
    "numpy": "numpy's global generator",
    "random": "Python's random",
}


def writing_line(subject: Subject, name: str) -> Place | None:
    """Return the first line of an eval forward that changes a buffer or parameter."""
    with subject.pristine() as model:
        tensors = dict((*model.named_buffers(), *model.named_parameters()))
        target = tensors[name]
        before = target.detach().clone()
        owner_name, _, leaf = name.rpartition(".")
        owner = model.get_submodule(owner_name)
        found: list[Place] = []
        bound: list[bool] = []

        class Writer(Watch):
            def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
                if found or bound:
                    return
                if getattr(owner, leaf, target) is not target:
                    bound.append(True)  # by a statement that ran before this operation
                elif not torch.equal(target, before):
                    scope = self.scopes[-1].name if self.scopes else ""
                    found.append(
                        Place(
                            op=name_of(func),
                            location=self.locate(),
                            module=scope,
                            fact=f"{name} differs after this line",
                            settings=_callers(self.frames()),
                        )
                    )

        try:
            with Writer(model):
                eval_run(subject, subject.batch())()
        except SubjectError:
            return None
    if bound and (line := _binding_line(subject, name)) is not None:
        fact = f"this line puts another tensor in the place of {name}"
        return Place(op="", location=line, module="", fact=fact)
    return found[0] if found else None


def _binding_line(subject: Subject, name: str) -> Location | None:
    return next((c.location for c in keeping_lines(subject) if c.name == name), None)


def _callers(frames: Iterable[FrameType]) -> tuple[Culprit, ...]:
    """Return the lines, up to the module's forward, that call the helper which is running."""
    own = [f for f in frames if sources.rank(f.f_code.co_filename) == 2]
    depth = next((n for n, f in enumerate(own) if f.f_code.co_name == "forward"), 0)
    return tuple(
        Culprit(
            kind="call",
            name=inner.f_code.co_name,
            detail="called",
            location=sources.of_frame(outer),
        )
        for inner, outer in pairwise(own[: min(depth, 2) + 1])
    )


def regrouping_line(subject: Subject, batch: Batch, size: int, wrong: int) -> Place | None:
    """Return the operation that reads as many samples as the batch has and gives another number of them.

    Args:
        subject: Whose forward.
        batch: On which the output has a wrong number of samples.
        size: How many samples it has.
        wrong: How many the output has.
    """
    found: list[Place] = []

    class Regrouping(Watch):
        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            if found or not isinstance(result, torch.Tensor) or not self.scopes:
                return
            read = [t for t in tensors_in((args, kwargs)) if t.dim() and t.shape[0] == size]
            if read and result.dim() and result.shape[0] == wrong:
                before, after = list(read[0].shape), list(result.shape)
                found.append(
                    Place(
                        op=name_of(func),
                        location=self.locate(),
                        module=self.scopes[-1].name,
                        fact=f"{name_of(func)} makes {after} of {before}",
                    )
                )

    with subject.pristine() as model:
        try:
            with Regrouping(model):
                eval_run(subject, batch)()
        except SubjectError:
            return None
    return found[0] if found else None


def keeping_lines(subject: Subject, *, train: bool = False) -> list[Culprit]:
    """Return the attributes that a forward binds anew or lengthens, and the lines that do."""
    found: dict[str, Culprit] = {}
    with subject.pristine() as model:
        seen = _attributes(model)

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event == "call":
                return False
            for path, (value, size) in _attributes(model).items():
                known = seen.get(path)
                if known is None or known[0] is not value or known[1] != size:
                    seen[path] = (value, size)
                    found[path] = Culprit(
                        kind="tensor",
                        name=path,
                        detail="kept from one call to the next",
                        location=line_of(frame.f_code, line),
                    )
            return False

        run = eval_run(subject, subject.batch())
        find_line(functools.partial(_training, subject, model) if train else run, watcher)
    return list(found.values())


def _training(subject: Subject, model: torch.nn.Module) -> None:
    model.train()
    seed_everything(subject.seed)
    subject.call(model, subject.batch().clone())


_TORCHS_OWN = frozenset(vars(torch.nn.Module()))


def _attributes(model: torch.nn.Module) -> dict[str, tuple[Any, int]]:
    """Return every plain attribute and buffer of the modules by its path, with the length of containers."""
    found: dict[str, tuple[Any, int]] = {}
    for name, module in model.named_modules():
        own = {k: v for k, v in vars(module).items() if k not in _TORCHS_OWN} | dict(
            module._buffers
        )
        for key, value in own.items():
            size = len(value) if isinstance(value, list | dict | set | deque) else 0
            found[f"{name}.{key}" if name else key] = (value, size)
    return found


def first_difference(
    subject: Subject,
    run_a: Callable[[], Any],
    run_b: Callable[[], Any],
    *,
    allowed: float = 0.0,
    align: Literal["none", "prefix", "suffix"] = "none",
) -> Place | None:
    """Return the first operation whose output differs between two runs."""
    with subject.pristine() as model:
        return place_of(
            first_divergence(
                record(run_a, model), record(run_b, model), allowed=allowed, align=align
            ),
            model,
        )


def mixing_line(subject: Subject) -> Place | None:
    """Return the operation that first mixes samples of the base batch. Cached: two checks ask for it."""
    if "mixing-line" not in subject.cache:
        subject.cache["mixing-line"] = _mixing_line(subject)
    found: Place | None = subject.cache["mixing-line"]
    return found


def _mixing_line(subject: Subject) -> Place | None:
    batch, other = subject.batch(), subject.batch(1)
    size = batch.sizes[subject.source.batch_symbol or ""]
    axes = subject.source.axes(subject.source.batch_symbol or "")
    for others in (other, floating_from(batch, other)):
        changed = [with_entry(batch, others, axes, n) for n in range(min(size, _SAMPLES))]
        try:
            (base, *runs), allowed = recorded(subject, [batch, *changed])
            break
        except SubjectError:
            continue  # sizes or an order among the samples that the model relies on
    else:
        return None
    found = first_mixing(base, dict(enumerate(runs)), size, allowed=allowed)
    return _told(found, subject.model, "samples")


def with_entry(batch: Batch, other: Batch, axes: Mapping[str, int], entry: int) -> Batch:
    """Return a batch with one sample, or one entry of a set, as it is in another batch.

    Args:
        batch: The batch.
        other: Another of the same shapes.
        axes: By path, the dimension along which the entries stand.
        entry: Which one.
    """
    fresh = other.tensors()

    def change(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or path not in axes:
            return leaf
        index = torch.arange(leaf.shape[axes[path]], device=leaf.device) == entry
        shape = [1] * leaf.dim()
        shape[axes[path]] = -1
        return torch.where(
            index.view(shape), fresh[path].to(leaf.device, leaf.dtype), leaf.detach()
        )

    return batch.map(change)


def _told(
    found: Divergence | Spread | None,
    model: torch.nn.Module,
    what: Literal["samples", "positions", "entries"],
) -> Place | None:
    """Return what was found as a place: the view that reads memory under other dimensions, where that is the cause."""
    place = place_of(found, model)
    if place is None or found is None:
        return place
    if isinstance(found, Divergence) and found.unshifted is not None:
        return _unshifted(found.unshifted)
    if (view := found.reread) is None:
        return place
    name, dim = view.op.name.rpartition(".")[2], view.rows.dim
    read = f"{list(view.before)} as {list(view.after)}"
    mend = (
        f"write {view.instead} for this {name}"
        if view.instead
        else f"{name} by the dimensions in their order, and transpose or permute them afterwards"
    )
    if view.grouped > 1:
        mend += f" (if {view.grouped} {what} are meant to stand together, let nothing after it read within them)"
    culprit = Culprit(
        kind="call", name=found.op.name, detail="reads it", location=found.op.location
    )
    return Place(
        op=view.op.name,
        location=view.op.location,
        module=view.op.module,
        fact=view.shown,
        settings=(culprit,) if culprit.location not in (None, view.op.location) else (),
        cause=(
            f"{view.op.name} reads {read} in the order of memory: it moves no dimension, and "
            f"scatters the {what} of dimension {dim}"
        ),
        fix=mend,
    )


def _unshifted(found: Unshifted) -> Place:
    made = found.maker.location if found.maker is not None else None
    named = sources.assigned_name(made) if made is not None else ""
    merged = (
        f" where {found.maker.name} on line {made.line} merges the samples"
        if found.maker and made
        else ""
    )
    return Place(
        op=found.op.name,
        location=found.op.location,
        module=found.op.module,
        fact=(
            f"the {found.indices} indices are at most {found.largest}, and {found.op.name} has "
            f"{found.rows} rows, {found.block} of each sample"
        ),
        settings=(
            Culprit(
                kind="tensor",
                name=named or "the indices",
                detail="not shifted by sample",
                location=made,
            ),
        )
        if made
        else (),
        cause=f"the indices{f' {named}' if named else ''} of every sample point to the rows of the first one",
        fix=f"add i * {found.block} to the indices of sample i{merged}",
    )


def place_dependence(
    subject: Subject, batch: Batch, turned: Batch, axes: Mapping[str, int] | None = None
) -> Place | None:
    """Return the first operation whose output, as a set of values, differs between two orders of the samples.

    Args:
        subject: The model.
        batch: The batch.
        turned: The same in another order.
        axes: For entries of sets in place of samples, by path, the dimension along which they
            stand: a view that
            scatters them is told then.
    """
    size = next((batch.tensors()[path].shape[dim] for path, dim in (axes or {}).items()), 0)
    changed = [with_entry(batch, turned, axes or {}, n) for n in range(min(size, _SAMPLES))]
    (base, permuted, *runs), allowed = recorded(subject, [batch, turned, *changed])
    found = first_place_dependence(
        base, permuted, allowed=allowed or 1e-5, perturbed=dict(enumerate(runs)), size=size
    )
    return _told(found, subject.model, "entries")


def leaking_line(
    subject: Subject,
    batch: Batch,
    changed: Mapping[int, Batch],
    *,
    length: int,
    side: Literal["right", "left"] = "right",
) -> Place | None:
    """Return the operation through which changed positions reach those that were kept.

    Args:
        subject: The model.
        batch: The unchanged batch.
        changed: By number of kept positions, the batch with all later (or earlier) ones changed.
        length: Length of the sequence.
        side: Which side changed.
    """
    (base, *runs), allowed = recorded(subject, [batch, *changed.values()])
    found = first_spread(
        base, dict(zip(changed, runs, strict=True)), length, side=side, allowed=allowed
    )
    place = _told(found, subject.model, "positions")
    if place is None or found is None or place.cause:
        return place
    masked = not_hidden(base, found.op, place, kept=found.kept, length=length, side=side)
    if masked is not None:
        return masked
    settings = _masks(base, found.op, subject.model)
    place = replace(place, settings=settings)
    for operand in reversed(found.operands):
        if operand.location is not None and operand.name.rpartition(".")[2] in _SHAPERS:
            # the operation itself is innocent: what was prepared for it lets the change through
            fact = f"{place.fact}; it read what {operand.name} made"
            reading = Culprit(
                kind="call", name=found.op.name, detail="reads it", location=found.op.location
            )
            settings += (*_given_masks(base, operand), *([reading] if reading.location else []))
            cause, fix = _either(found.op.name, operand.name)
            return Place(
                cause=cause,
                fix=fix,
                op=operand.name,
                location=operand.location,
                module=operand.module or place.module,
                module_class=operand.module_class if operand.module else place.module_class,
                fact=fact,
                settings=settings,
            )
    return place


def recorded(subject: Subject, batches: list[Batch]) -> tuple[list[Trace], float]:
    """Record an eval forward on each batch, in float64 where the model runs in it.

    Returns:
        The traces, and the relative difference that is rounding: 0.0 where they are in the model's
            own dtype.
    """
    try:
        with subject.in_double() as model:
            wide = [batch.to(dtype=torch.float64) for batch in batches]
            traces = [record(eval_run(subject, batch), model) for batch in wide]
        return traces, _ROUNDED_NARROW if any(map(narrow, traces)) else _ROUNDED
    except SubjectError:
        with subject.pristine() as model:
            return [record(eval_run(subject, batch), model) for batch in batches], 0.0


def computes_narrow(subject: Subject, batch: Batch) -> bool:
    """Say whether the forward in float64 computes in a narrower dtype in between, so that its outputs are rounded to that."""
    return recorded(subject, [batch])[1] != _ROUNDED


_ROUNDED_NARROW = 1e-5
"""The same where the forward computes in float32 in between."""
_ROUNDED = 1e-11
"""Relative difference of single values in float64 that is rounding: above what sums in another order make of it."""


def _masks(trace: Trace, op: Op, model: torch.nn.Module) -> tuple[Culprit, ...]:
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
                Culprit(kind="call", name=maker.name, detail="the mask", location=maker.location),
            )
            continue
        values = _unmade(trace, place)
        for name, buffer in model.named_buffers():
            if values is not None and _is_corner(values, buffer):
                line = sources.of_parameter(model, name)
                found.setdefault(
                    name, Culprit(kind="buffer", name=name, detail="the mask", location=line)
                )
    return tuple(found.values())[:2]


def _given_masks(trace: Trace, op: Op) -> tuple[Culprit, ...]:
    """Return what made the masks, of truth values, that an operation was given."""
    step = next((step for step in trace.steps if step.op is op), None)
    makers = [
        trace.makers[p].op
        for p in (step.operands if step is not None else ())
        if p in trace.makers and _is_mask(trace.values[p].values)
    ]
    return tuple(
        Culprit(kind="call", name=made.name, detail="the mask", location=made.location)
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


def _either(op: str, prepared: str) -> tuple[str, str]:
    """Return cause and edit where a mask before a softmax or the softmax itself may be wrong: both fit what was seen."""
    if "softmax" not in op or "masked_fill" not in prepared:
        return "", ""
    cause = (
        f"{op} reads positions that are to be hidden: {prepared} leaves them visible, or the softmax runs over "
        "another dimension than the mask hides"
    )
    return (
        cause,
        "compare the dim of the softmax with the dimension of the keys, and the mask with a lower triangle",
    )


_SAMPLES = 6
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


def place_of(found: Any, model: torch.nn.Module | None = None) -> Place | None:
    """Return what a probe found as a place."""
    if found is None:
        return None
    op = getattr(found, "op", None)
    name = getattr(found, "module", "") or (op.module if op is not None else "")
    built = None
    if name and model is not None and _is_torchs_own(model, name):
        built = sources.of_parameter(model, name)
    return Place(
        built=built,
        op=op.name if op is not None else "",
        location=getattr(found, "location", None) or (op.location if op is not None else None),
        module=name,
        module_class=op.module_class if op is not None and op.module == name else "",
        fact=getattr(found, "fact", ""),
    )


def _is_torchs_own(model: torch.nn.Module, name: str) -> bool:
    """Say whether a module is one of torch's layers, of which the user writes the arguments only."""
    modules = dict(model.named_modules())
    return name in modules and type(modules[name]).__module__.startswith("torch.nn.")

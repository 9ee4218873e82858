"""Ask the probes where two runs part, who drew random numbers, and who wrote to a tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from ... import sources
from ...batches.rows import choose_rows
from ...explanation import on_line
from ...findings import Culprit
from ...probes.holding.holders import lines_run
from ...probes.recorded.divergence import (
    Divergence,
    first_divergence,
    first_mixing,
    first_place_dependence,
    record,
)
from ...probes.recorded.operations import narrow
from ...probes.recorded.orders import (
    joined,
    paired,
    reordering,
    rows_moved,
    scrambled,
    settled,
    sorted_beside,
)
from ...runs.outputs import floating_from
from ...runs.variants.orders import another_first
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from ...verdicts import violated
from ..crashes.place import Place
from ..lines.conditions import assigned_for, choosing_dimensions, dimensions_of_owner
from . import batch_first
from .eval_lines import eval_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...batches import Batch
    from ...findings import Finding, Location
    from ...probes.positions.spread import Spread
    from ...probes.recorded.operations import Trace
    from ...probes.recorded.watch import Op
    from ...subject import Subject


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


@remembered("mixing-line")
def mixing_line(subject: Subject) -> Place | None:
    """Return the operation that first mixes samples of the base batch. Cached: two checks ask for it."""
    try:
        if (place := _scrambling(subject)) is not None:
            return place
        place = told_by(_mixing(subject), subject.model, "samples")
    except SubjectError:
        return None  # sizes or an order among the samples that the model relies on
    model = subject.model
    return (
        batch_first.built_for_time_first(place, model, lambda: _mixing(subject) is not None)
        or place
    )


def _scrambling(subject: Subject) -> Place | None:
    """Return the operation that gives each sample values of another one: its rows, or what a sort has left in place."""
    batch = subject.batch()
    order = another_first(subject, batch, batch.sizes[subject.source.batch_symbol or ""])
    (base, turned), _ = recorded(subject, [batch, subject.source.rows(batch, order)])
    step = scrambled(base, turned, order)
    if step is not None:
        return batch_first.exchanged(step, base)
    met = sorted_beside(base, turned, order)
    return None if met is None else batch_first.left_sorted(*met)


def _mixing(subject: Subject) -> Divergence | None:
    batch, other = subject.batch(), subject.batch(1)
    size = batch.sizes[subject.source.batch_symbol or ""]
    axes = subject.source.axes(subject.source.batch_symbol or "")

    def traces(others: Batch) -> tuple[list[Trace], float]:
        changed = [with_entry(batch, others, axes, n) for n in range(min(size, _SAMPLES))]
        return recorded(subject, [batch, *changed])

    try:
        (base, *runs), allowed = traces(other)
    except SubjectError:
        (base, *runs), allowed = traces(floating_from(batch, other))
    return first_mixing(base, dict(enumerate(runs)), size, allowed=allowed)


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
        axis = axes[path]
        keep = torch.arange(leaf.shape[axis]) != entry
        return choose_rows(keep, leaf, fresh[path].to(leaf.dtype), axis)

    return batch.map(change)


def told_by(
    found: Divergence | Spread | None,
    model: torch.nn.Module,
    what: Literal["samples", "positions", "entries"],
) -> Place | None:
    """Return what was found as a place: the view that reads memory under other dimensions, where that is the cause."""
    place = place_of(found, model)
    if place is None or found is None:
        return place
    if (view := found.reread) is None:
        index = getattr(found, "index", None)
        return place if index is None else _led_astray(place, index)
    dim = view.rows.dim
    read = f"{list(view.before)} as {list(view.after)}"
    culprit = Culprit("call", found.op.name, "reads it", found.op.location)
    return Place(
        op=view.op.name,
        location=view.copied or view.op.location,
        module=view.op.module,
        fact=view.shown,
        settings=(culprit,) if culprit.location not in (None, view.op.location) else (),
        cause=f"{view.op.name} reads {read} in memory order: it does not move dimensions, and "
        f"scatters the {what} of dimension {dim}",
        fix=batch_first.in_rows(view, what),
    )


def _led_astray(place: Place, index: Op) -> Place:
    """Return the operation that takes elements of other samples, with the line that made its index."""
    made = Culprit("call", index.name, "makes the index", index.location)
    read = assigned_for(index.location) if index.location is not None else []
    parts = [Culprit("call", name, "is part of the index", at) for name, at in read]
    return replace(
        place,
        settings=(made, *parts, *place.settings),
        cause=f"the index by which {place.ran} takes elements leads into other samples",
        fix=f"add the place where each sample begins to the index{on_line(index.location)}, or take elements "
        "per sample",
    )


def place_dependence(
    subject: Subject,
    batch: Batch,
    turned: Batch,
    axes: Mapping[str, int] | None = None,
    order: torch.Tensor | None = None,
) -> Place | None:
    """Return the first operation whose output, as a set of values, differs between two orders of the samples.

    Args:
        subject: The model.
        batch: The batch.
        turned: The same in another order.
        axes: For entries of sets in place of samples, by path, the dimension along which they
            stand: a view that scatters them is told then.
        order: The sample, or entry, of ``batch`` at each place of ``turned``. The place says by its cause
            whether entries are combined with others.
    """
    size = next((batch.tensors()[path].shape[dim] for path, dim in (axes or {}).items()), 0)
    changed = [with_entry(batch, turned, axes or {}, n) for n in range(min(size, _SAMPLES))]
    (base, permuted, *runs), allowed = recorded(subject, [batch, turned, *changed])
    found = first_place_dependence(
        base,
        permuted,
        allowed=allowed or 1e-5,
        perturbed=dict(enumerate(runs)),
        size=size,
        order=order,
    )
    place = told_by(found, subject.model, "entries")
    if place is None or found is None or found.reread is not None or not axes:
        return place
    told = (rows_moved(batch.tensors()[p], turned.tensors()[p], dim) for p, dim in axes.items())
    known = None if order is not None else next((one for one in told if one is not None), None)
    moved = order if known is None else known[0]
    if moved is not None and (longer := joined(base, permuted, found.op, moved)) is not None:
        return batch_first.extended(place, *longer)
    if moved is not None and (met := settled(base, permuted, found.op, moved)) is not None:
        return batch_first.sorted_alone(*met)
    step = None if moved is None else reordering(base, permuted, found.op, moved)
    if step is None and order is not None and paired(base, permuted, found.op):
        cause = f"{place.op} combines two values in which the entries stand in different orders"
        return replace(place, cause=cause)
    return place if step is None else batch_first.reordered(place, step, base)


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


def finding_at(
    place: Place | None,
    subject: Subject,
    code: str,
    summary: str,
    *,
    made: Callable[..., Finding] = violated,
    instead: Culprit,
    cause: str,
    because: str,
    fix: str,
    **fields: Any,
) -> Finding:
    """Report an operation that breaks a promise of behaviour, with what is known of it.

    Args:
        place: The operation; None where none was found.
        subject: The model.
        code: The symptom.
        summary: One sentence.
        made: The verdict.
        instead: What is named where no operation was found.
        cause: What operations of this kind do, where the place does not say more.
        because: What was measured, where the place says nothing of it.
        fix: The edit, where the place has none.
        fields: Others of the finding.
    """
    place = _with_alias(subject, _with_what_ran(subject, place))
    line = place.location if place else sources.of_object(type(subject.model).forward)
    where = f" ({place.ran})" if place is not None and place.op else ""
    return made(
        code,
        summary,
        culprits=place.culprits() if place else [replace(instead, location=line)],
        location=line,
        cause=(place.cause if place else "") or cause + where,
        because=((place.fact if place else "") or because) + _setting(place),
        fix=(place.fix if place else "") or fix,
        **fields,
    )


def _setting(place: Place | None) -> str:
    """Say on which line the dimensions of an operation are set, and where its function is called."""
    said = place.settings if place else ()
    words = {_CHOSEN: " is set", _CALLED: " is called", _AS_IT_IS: ""}
    first = {one.detail: one for one in reversed(said) if one.detail in words}
    return "".join(
        f"; {first[detail].name}{word}{on_line(first[detail].location)}"
        for detail, word in words.items()
        if detail in first
    )


def _with_what_ran(subject: Subject, place: Place | None) -> Place | None:
    """Return a place without the lines of branches not taken, among those that choose its dimensions."""
    if place is None or sum(one.detail == _CHOSEN for one in place.settings) < 2:
        return place
    ran = _lines(subject)
    kept = [
        one
        for one in place.settings
        if one.detail != _CHOSEN
        or one.location is None
        or (one.location.file, one.location.line) in ran
    ]
    return replace(place, settings=tuple(kept))


def _with_alias(subject: Subject, place: Place | None) -> Place | None:
    """Return a place with the statement that gave what it reads another name only, where that ran."""
    made = [] if place is None or place.location is None else sources.aliases_above(place.location)
    ran = _lines(subject) if made else set()
    made = [one for one in made if (one.file, one.line) in ran]
    if place is None or len(made) != 1:
        return place
    name, _, other = made[0].text.partition("#")[0].partition("=")
    alias = Culprit(
        "tensor", f"{name.strip()} is another name for {other.strip()}", _AS_IT_IS, made[0]
    )
    return replace(place, settings=(*place.settings, alias))


def _lines(subject: Subject) -> set[tuple[str, int]]:
    with subject.pristine(), torch.no_grad(), lines_run() as ran:
        eval_run(subject, subject.batch())()
    return ran


_CHOSEN = "the dimensions are chosen here"
_CALLED = "is called here"
_AS_IT_IS = "has another name from here on"
_ROUNDED_NARROW = 1e-5
"""The same where the forward computes in float32 in between."""
_ROUNDED = 1e-11
"""Relative difference of single values in float64 that rounding explains, also for sums in another
order."""


_SAMPLES = 6


def place_of(found: Any, model: torch.nn.Module | None = None) -> Place | None:
    """Return what a probe found as a place."""
    if found is None:
        return None
    op = getattr(found, "op", None)
    name = getattr(found, "module", "") or (op.module if op is not None else "")
    built = within = None
    if name and model is not None and _is_torchs_own(model, name):
        built = sources.of_parameter(model, name)
        made = model.get_submodule(name)
        within = sources.constructed(built, made) if built is not None else None
    return Place(
        built=built,
        constructed=within,
        op=op.name if op is not None else "",
        location=getattr(found, "location", None) or (op.location if op is not None else None),
        module=name,
        module_class=op.module_class if op is not None and op.module == name else "",
        fact=getattr(found, "fact", ""),
        settings=(
            *(Culprit("call", name, _CHOSEN, at) for name, at in _dimensions(found, name, model)),
            *_called(found),
            *_instead(found),
        ),
    )


def _called(found: Any) -> list[Culprit]:
    """Return where a helper is called in which an operation stands: what it is given may be the mistake."""
    place, caller = getattr(found, "location", None), getattr(found, "caller", None)
    function = "" if place is None else place.function.rpartition(".")[2]
    if caller is None or function in ("", "forward", "__call__") or function.startswith("<"):
        return []
    return [Culprit("call", function, _CALLED, caller)]


def _instead(found: Any) -> list[Culprit]:
    op = getattr(found, "instead", None)
    return [] if op is None else [Culprit("call", op.name, "is called instead", op.location)]


def _dimensions(found: Any, name: str, model: torch.nn.Module | None) -> list[tuple[str, Location]]:
    place = getattr(found, "location", None)
    owner = None if model is None else dict(model.named_modules()).get(name)
    return choosing_dimensions(place) + ([] if owner is None else dimensions_of_owner(place, owner))


def _is_torchs_own(model: torch.nn.Module, name: str) -> bool:
    """Say whether a module is one of torch's layers, of which the user writes the arguments only."""
    modules = dict(model.named_modules())
    return name in modules and type(modules[name]).__module__.startswith("torch.nn.")

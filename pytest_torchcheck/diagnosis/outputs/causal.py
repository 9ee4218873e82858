"""Causal models: steps with a cache that part from one call, and positions that nothing after them reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import by_forward, on_line
from ...findings import Culprit
from ...probes.recorded.divergence import first_divergence, first_hiding, first_mixing
from ...probes.recorded.operations import Step, aligned, record
from ...runs.variants.cached import last_step
from ...runs.variants.settling import Quiet, quiet
from ...state import seed_everything
from ...verdicts import violated
from .mask_lines import masks_of
from .places import finding_at, place_of, recorded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from ...batches import Batch
    from ...findings import Finding
    from ...probes.recorded.divergence import Divergence
    from ...probes.recorded.operations import Trace
    from ...promises import Causal
    from ...runs.liveness.carried import Uncarried
    from ...runs.variants.cached import Way
    from ...subject import Subject
    from ..crashes.place import Place

_ROUNDED = 1e-4


def differs(
    subject: Subject, promise: Causal, batch: Batch, path: str, way: Way, gap: float
) -> Finding:
    """Explain a cached step whose output is not that of one call."""
    with torch.no_grad():
        place = _parting(subject, promise, batch, path, way)
    line = place.location if place else sources.of_object(type(subject.model).forward)
    given = Culprit("input", way.name, "takes the cache", line)
    return violated(
        "cache-differs",
        f"with {way.name}, the last position gets another output than in one call",
        culprits=[*(place.culprits() if place else ()), given],
        location=line,
        observed=f"the last of {batch.tensors()[path].shape[promise.dim]} positions, given alone with the cache of "
        f"those before: its output differs by {gap:.3g} (relative)",
        cause="a step does not continue where the cache ends: its position, its mask or what it appends",
        because=(place.fact if place and place.fact else "")
        or "only the number of calls differed between two eval forwards",
        fix=f"count positions from the length of {way.name}, and let the new ones see all that it holds",
        evidence={"gap": gap, "argument": way.name},
    )


def _parting(subject: Subject, promise: Causal, batch: Batch, path: str, way: Way) -> Place | None:
    """Return the first operation of the last step whose result is not the end of the one call's."""
    copy = batch.clone()
    with subject.pristine(train=False) as model:
        whole = record(lambda: subject.call(model, copy), model)
    with subject.pristine(train=False) as model:
        step = record(last_step(subject, model, batch, path, promise.dim, way), model)
        found = first_divergence(whole, step, allowed=_ROUNDED, align="suffix")
        return place_of(found, model)


def steps_differ(subject: Subject, promise: Causal, module: str, gap: float) -> Finding:
    """Explain a model whose own steps in eval mode part from its one call in train mode."""
    traces = []
    for train in (True, False):
        batch = subject.batch().clone()
        with subject.pristine() as model, torch.no_grad(), Quiet():
            quiet(model) if train else model.eval()
            seed_everything(subject.seed)
            traces.append(record(partial(subject.call, model, batch), model))
    whole, steps = traces
    with subject.pristine() as model:
        keys = [step.key for step in steps.steps]
        seen = Counter(keys)
        often = next((key for key in keys if seen[key] > 1), keys[0])
        last = len(keys) - 1 - keys[::-1].index(often)
        steps = replace(steps, steps=steps.steps[last:])
        # what only one of them calls, such as the loop or the joining of the cache, shows nothing by itself
        place = _parting_of_steps(whole, steps, model)
    return finding_at(
        place,
        subject,
        "cache-differs",
        "step by step, as it runs in eval mode, the model gives other outputs than in one call",
        instead=Culprit("module", module, "is called for each position"),
        observed=f"the first position is the same in train and in eval mode; the last differs by {gap:.3g} (relative)",
        cause="a step does not continue where the cache ends: its position, its mask or what it appends",
        because=f"train mode calls {module} once, eval mode for each position",
        fix="count positions from the length of the cache, and let the new ones see all that it holds",
        evidence={"gap": gap, "module": module},
    )


def _parting_of_steps(whole: Trace, steps: Trace, model: nn.Module) -> Place | None:
    """Return where one step parts from the one call: the first operation of both, or another one called before it."""
    both = [(a, b) for a, b in aligned(whole, steps) if a is not None and b is not None]
    of_both = replace(whole, steps=[a for a, _ in both]), replace(steps, steps=[b for _, b in both])
    found = first_divergence(*of_both, allowed=_ROUNDED, align="suffix")
    place = place_of(found, model)
    a, b = next(((a, b) for a, b in both if found and a.op is found.op), (None, None))
    if found is None or a is None or b is None:
        return place
    common, last = {id(step) for pair in both for step in pair}, set(map(id, steps.steps))
    for one, other in zip(a.operands, b.operands, strict=True):
        made, instead = whole.makers.get(one), steps.makers.get(other)
        if made is None or instead is None or {id(made), id(instead)} & common:
            continue
        read = (Step(found.op, (), (one,)), Step(found.op, (), (other,)))
        ends = replace(whole, steps=[read[0]]), replace(steps, steps=[read[1]])
        differs = first_divergence(*ends, allowed=_ROUNDED, align="suffix")
        if id(instead) in last and differs is not None:
            return _another_way(found, made, instead, model)
    return place


def _another_way(found: Divergence, made: Step, instead: Step, model: nn.Module) -> Place | None:
    """Return the operation by which a step computes what the one call computes by another."""
    taken = replace(
        found,
        op=instead.op,
        location=instead.op.location,
        module=instead.op.module,
        instead=made.op,
        caller=next(iter(instead.callers), None),
    )
    place, line = place_of(taken, model), on_line(made.op.location)
    return place and replace(
        place,
        cause=f"a step calls {instead.op.name} where the one call has {made.op.name}{line}, and gets something else",
        fact=f"what both give to {found.op.name} is the first that differs: {found.fact}",
        fix=f"compute for the last position what {made.op.name}{line} gives there: with its mask, window and scale",
    )


def past_unread(
    subject: Subject,
    promise: Causal,
    path: str,
    lag: int,
    lost: Sequence[int],
    batch: Batch,
    changed: Mapping[int, Batch],
) -> Finding:
    """Explain positions that change no later output.

    Args:
        subject: The model.
        promise: What was promised.
        path: Path of the input.
        lag: How far after position 0 the first output stands that changes with it.
        lost: The positions.
        batch: The unchanged batch.
        changed: By position, the batch with other values there alone: the first two, and two lost ones.
    """
    place = _mixing(subject, batch, changed)
    length = batch.tensors()[path].shape[promise.dim]
    names = f"{lost[0]} to {lost[-1]}"
    return finding_at(
        place,
        subject,
        "past-unread",
        f"no later output depends on {by_forward(subject, path)} at positions {names}",
        instead=Culprit("input", by_forward(subject, path), "is not read"),
        observed=f"position 0 changes the output at position {lag}; positions {names} of {length}, "
        "each changed alone, change no output after them",
        cause="the operation that reads earlier positions does not reach these",
        because="only one position differed between two eval forwards, and all later outputs kept their bits",
        fix="let every position read all positions before it: compare the mask, the cache or the "
        "state with the positions that the call is given",
        evidence={"lag": lag, "positions": [*lost]},
    )


def state_not_carried(found: Uncarried, path: str) -> Finding:
    """Explain steps of which none begins with what the one before it computed.

    Args:
        found: The steps.
        path: Of the input that they read.
    """
    name, line = found.argument, found.location.line
    return violated(
        "past-unread",
        f"no later output depends on {path} at any position: {name} is zero in each step",
        culprits=[
            Culprit("call", found.function, f"is given zeros as {name}", found.location),
            Culprit("input", path, "is not read by later positions"),
        ],
        location=found.location,
        observed=f"line {line} calls {found.function} {found.calls} times; {name} is all zeros in each of the calls, "
        "which return a tensor of its shape that is not",
        cause="the state that a step returns is not passed to the next one",
        because=f"other values of {path} at positions 0, 1 and in the middle, each changed alone, leave all later "
        "outputs bit-equal",
        fix=f"give {name} on line {line} what the step before it returned",
    )


def _mixing(subject: Subject, batch: Batch, changed: Mapping[int, Batch]) -> Place | None:
    """Return the mask that hides the lost positions, or the operation at which the first two come together."""
    (base, *runs), allowed = recorded(subject, [batch, *changed.values()])
    traces = dict(zip(changed, runs, strict=True))
    lost = {p: trace for p, trace in traces.items() if p > 1}
    hidden = first_hiding(base, lost, allowed=allowed)
    hiding = place_of(hidden, subject.model)
    if hidden is not None and hiding is not None:
        cause = f"{hiding.op} hides these positions from all later ones"
        masks = masks_of(base, hidden.op, subject.model)
        return replace(hiding, cause=cause, settings=masks)
    found = first_mixing(base, {p: traces[p] for p in (0, 1)}, allowed=allowed)
    place = place_of(found, subject.model)
    if place is None:
        return None
    assert found is not None
    place = replace(
        place,
        settings=place.settings or masks_of(base, found.op, subject.model),
        fact=f"positions 0 and 1 come together in {place.op}, later ones do not",
    )
    return _from_first_key(base, place) or place


def _from_first_key(trace: Trace, place: Place) -> Place | None:
    """Return the place with its cause where attention has more keys than queries, and counts both from the first.

    So does a mask that is a lower triangle from its first corner, and ``is_causal``, which lets query i see
    the keys 0 to i, counted from the first key. Queries that continue
    a cache are the last positions, not the first.
    """
    for step in trace.steps:
        if step.op.location != place.location or "scaled_dot_product" not in step.op.name:
            continue
        shapes = [trace.values[operand].shape for operand in step.operands]
        if len(shapes) not in (3, 4) or min(map(len, shapes)) < 2:
            continue
        queries, keys = shapes[0][-2], shapes[1][-2]
        if len(shapes) == 4 and 1 < queries < keys and _from_corner(trace, step.operands[3]):
            return _mask_from_corner(place, step.op.name, queries, keys)
        if len(shapes) == 3 and 1 < queries < keys:
            return replace(
                place,
                cause="is_causal=True counts queries and keys from the first key, but these queries "
                "continue the keys of a cache",
                fact=f"{step.op.name} is given {queries} queries and {keys} keys without a mask: "
                f"query 0 sees key 0 only, although it is position {keys - queries}",
                fix="pass attn_mask=torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) "
                "instead of is_causal=True",
            )
    return None


def _from_corner(trace: Trace, operand: int) -> bool:
    """Say whether a mask of truth values is a lower triangle counted from its first query and key."""
    values = trace.values[operand].values
    if values is None or values.dtype != torch.bool or values.dim() < 2:
        return False
    return torch.equal(values, torch.ones_like(values).tril())


def _mask_from_corner(place: Place, name: str, queries: int, keys: int) -> Place:
    """Return the line that makes a mask which counts queries and keys from the first."""
    made = next((one for one in place.settings if one.location is not None), None)
    reading = Culprit("call", name, "reads it", place.location)
    return replace(
        place,
        location=place.location if made is None else made.location,
        settings=(*place.settings, *(() if made is None else (reading,))),
        cause="the mask counts queries and keys from the first key, but these queries continue the "
        "keys of a cache",
        fact=f"{name} is given {queries} queries, {keys} keys and a lower triangle as its mask: query 0 "
        f"sees key 0 only, although it is position {keys - queries}",
        fix="shift the triangle to the last keys: .tril(keys - queries)",
    )

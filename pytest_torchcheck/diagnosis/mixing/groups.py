"""Why groups of entries that an index tells apart, as the graphs of one batch, depend on each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...batches.groups import moved
from ...explanation import on_line
from ...findings import Culprit
from ...probes.positions.hiding import find_late
from ...probes.positions.spread import origin
from ...probes.recorded.divergence import Divergence, first_mixing
from ...probes.recorded.operations import Snapshot, aligned, changed
from ...subject.errors import SubjectError
from ...text.wording import names_text
from ...verdicts import suspicious, violated
from ..outputs import places

if TYPE_CHECKING:
    from ...batches import Batch
    from ...batches.groups import Groups
    from ...findings import Finding
    from ...probes.positions.hiding import Hiding
    from ...probes.recorded.operations import Step, Trace
    from ...subject import Subject
    from ..crashes.place import Place

_MOST = 8  # groups that are moved one by one


def mixed(subject: Subject, groups: Groups, gaps: dict[str, float], fewer: Batch | None) -> Finding:
    """Explain outputs of a group that change with other groups.

    It is a violation where pairs of entries are given of which none joins two groups, where every group moves
    every other one, and where they meet as entries; and where the weights between groups are zeroed after a softmax
    has normalised over all entries. Groups that meet in twos, or once each is one row, may be
    compared on purpose, and what has an index and no pairs may be the parts of one sample, as words of tokens.

    Args:
        subject: The model.
        groups: The groups of its base batch.
        gaps: How far outputs moved, by path.
        fewer: The batch with fewer entries in its last group, where that moved them.
    """
    path, gap = max(gaps.items(), key=lambda item: item[1])
    try:
        place, certain = (
            _by_features(subject, groups) if fewer is None else _by_number(subject, groups, fewer)
        )
    except SubjectError:
        place, certain = None, False
    return places.finding_at(
        place,
        subject,
        "samples-mixed",
        f"{path} of a group ({groups.path}) depends on "
        + ("the other groups" if fewer is None else "how many entries the other groups have"),
        made=violated if certain else suspicious,
        instead=Culprit("output", path, "mixed"),
        observed=(
            "entries of other groups changed"
            if fewer is None
            else "the last group lost half of its entries"
        )
        + f", and {path} of the rest moved by {gap:.3g} (relative); {_sorted(groups)}",
        cause="an operation combines the entries of all groups"
        if fewer is None
        else "an operation uses the number of entries of the whole batch",
        because="same seed, eval mode: the groups that are compared kept their inputs",
        fix=_fix(groups, place, by_number=fewer is not None)
        + ("" if certain else "; if groups are meant to meet, skip the check with this reason"),
        evidence={"gaps": dict(gaps)},
    )  # fmt: skip


def _sorted(groups: Groups) -> str:
    """Say what the groups are."""
    named = f"; {names_text(list(groups.pairs))} joins no two of them" if groups.linked else ""
    return f"{groups.path} sorts {len(groups.index)} entries into {groups.count} groups{named}"


def _fix(groups: Groups, place: Place | None, *, by_number: bool) -> str:
    """Say how the same is done for each group."""
    if by_number:
        return f"use the number of entries of each group: torch.bincount({groups.path})"
    if place is not None and "softmax" in place.op:
        return (
            f"normalise within each group: divide exp(score) by its index_add along {groups.path}"
        )
    return (
        f"combine the entries of each group alone: index_add or scatter_reduce along {groups.path}"
    )


def _by_features(subject: Subject, groups: Groups) -> tuple[Place | None, bool]:
    """Return where entries of two groups first meet, and whether every group moves every other one there."""
    batch = subject.batch()
    others = ((n, moved(batch, groups, [n])) for n in range(min(groups.count, _MOST)))
    known = {n: other for n, other in others if other is not None}
    (base, *runs), allowed = places.recorded(subject, [batch, *known.values()])
    traces = dict(zip(known, runs, strict=True))
    found = first_mixing(base, traces, allowed=allowed)
    place = places.told_by(found, subject.model, "samples")
    if place is None or found is None:
        return place, False
    if (late := find_late(base, groups.index)) is not None:
        return _masked_late(place, late, groups), True
    step = next(step for step in base.steps if step.op == found.op)
    certain = groups.linked and groups.count > 2 and _meet_as_entries(base, step, groups)
    return place, certain and all(
        _moves_all(base, trace, groups.others(n), groups.count, allowed)
        for n, trace in traces.items()
    )


def _masked_late(place: Place, late: Hiding, groups: Groups) -> Place:
    """Return the line of a mask between groups that comes after the softmax."""
    line = on_line(late.op.location)
    made = late.mask
    return replace(
        place,
        op=late.op.name,
        location=late.op.location or place.location,
        module=late.op.module or place.module,
        module_class=late.op.module_class if late.op.module else place.module_class,
        settings=(Culprit("call", made.name, "the mask", made.location),) if made else (),
        cause=f"{late.op.name}{line} zeroes the weights between groups of {groups.path} after the softmax, which "
        "has normalised over the entries of all of them",
        fact=f"the softmax gives entries of other groups up to {late.weight:.3g} of the weight before they are "
        "set to 0",
        fix=f'mask the scores with float("-inf") before the softmax, not its weights{line}',
    )


def _moves_all(base: Trace, other: Trace, of: torch.Tensor, count: int, allowed: float) -> bool:
    """Say whether the rows of all these groups differ between two runs in one of the outputs."""
    for mine, theirs in zip(base.outputs, other.outputs, strict=True):
        mask = changed(base.values[mine], other.values[theirs], allowed)
        if not isinstance(mask, torch.Tensor) or not mask.dim() or len(mask) != count:
            continue
        if bool(mask.reshape(count, -1).any(1).cpu()[of].all()):
            return True
    return False


def _meet_as_entries(trace: Trace, step: Step, groups: Groups) -> bool:
    """Say whether an operation reads entries, or values of their pairs, rather than one row for each group."""
    shapes = [trace.values[place].shape for place in step.operands if place in trace.makers]
    rows = [shape[:-1] or shape for shape in shapes]  # as many features may be as many entries
    return any(len(groups.index) in r for r in rows) or not any(groups.count in r for r in rows)


def _by_number(subject: Subject, groups: Groups, fewer: Batch) -> tuple[Place | None, bool]:
    """Return the operation that first gives the other groups other values, and whether outputs of all of them moved."""
    (base, other), allowed = places.recorded(subject, [subject.batch(), fewer])
    masks: dict[int, torch.Tensor] = {}
    for a, b in aligned(base, other):
        if a is None or b is None:
            continue
        pairs = zip((*a.operands, *a.results), (*b.operands, *b.results), strict=True)
        for mine, theirs in pairs:
            mask = _differing(base.values[mine], other.values[theirs], groups, allowed)
            if mask is not None:
                masks.setdefault(mine, mask)

    def moves(place: int) -> bool:
        return place in masks and bool(masks[place].any())

    outputs = [place for place in base.outputs if moves(place)]
    every = groups.linked and groups.count > 2
    every &= any(bool(masks[p].reshape(groups.count - 1, -1).any(1).all()) for p in outputs)
    step = origin(base, outputs[0], moves)[0] if outputs else None
    if step is None or not masks.keys() >= set(step.operands):
        return None, every
    fact = f"{step.op.name} gave the other groups other values, and read none of theirs that differ"
    found = Divergence(
        kind="value", op=step.op, location=step.op.location, module=step.op.module, fact=fact
    )
    return places.place_of(found, subject.model), every


def _differing(one: Snapshot, two: Snapshot, groups: Groups, allowed: float) -> torch.Tensor | None:
    """Say which elements differ between two values, without those of the last group; None where it is not known."""
    if one.values is None or two.values is None or one.shape[1:] != two.shape[1:]:
        return None
    if one.shape and one.shape[0] == groups.count:
        rows = groups.count - 1
    elif one.shape and one.shape[0] == len(groups.index):
        rows = int((groups.index < groups.count - 1).sum())
    elif one.shape == two.shape:
        rows = one.shape[0] if one.shape else 0
    else:
        return None
    first, second = (v[:rows] if v.dim() else v for v in (one.values, two.values))
    mask = changed(
        Snapshot(tuple(first.shape), first.dtype, first),
        Snapshot(tuple(second.shape), second.dtype, second),
        allowed,
    )
    return mask if isinstance(mask, torch.Tensor) else None

"""A loss at the edge: single samples, targets of one class alone, and outputs that are sure of their targets."""

from __future__ import annotations

import linecache
import math
from traceback import walk_tb
from typing import TYPE_CHECKING, Final

import torch

from ...codes import loss as explain
from ...explanation import listed
from ...probes.loss.pulls import SAMPLES
from ...runs.losses.consumption import loss_calls
from ...specs import Labels
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, not_applicable, passed
from .comparing import compares, slopes_of, two_groups
from .targets import base_slopes, loss_of_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding, Status
    from ...probes.loss.slopes import LossOfOutput, Slopes
    from ...subject import Subject

    _Edge = tuple[str, LossOfOutput, Slopes, Status]
    """Which case it is, its loss, what that gave, and what it means."""

_CLASSES: Final = 4
"""How many classes are tried as the only one of a batch."""
_MILD, _SURE = 3.0, 60.0
"""A score of a fair probability, and one at which the probabilities of all others are rounded away."""
_NEARLY: Final = 1e-12
"""A probability that is not zero, whatever its logarithm is multiplied with."""
_CERTAIN: Final = "outputs that are certain, and right"
_VALUES: Final = 3
"""How many values of a target are tried for which a sample stands further on in the batch."""
_POINTERS: Final = 4
"""Labels that reach a quarter of the samples may be places of these: they point elsewhere in a batch of one."""


def edge_targets(subject: Subject) -> Iterator[Finding]:
    """Call the loss with one sample at a time, with targets that are all of one class, and with outputs that are right.

    Scores and probabilities that are as sure of the targets as rounding allows are what training leads to: the
    loss and its gradient must be finite there. Where a batch of one is declared, a loss that takes samples of one
    label must not raise for samples of another.
    """
    loss = loss_of_output(subject)
    if isinstance(loss, str):
        yield not_applicable(loss)
        return
    base = base_slopes(subject, loss)
    if base is None or not base.finite:
        yield inconclusive("the loss of the whole batch already has no finite gradient")
        return
    tried = 0
    taken: list[LossOfOutput] = []
    refused: list[LossOfOutput] = []
    axis = subject.contract.batch_dim or 0
    doubt, comparing = None, False
    ignored = _ignored(subject, loss, base)
    alone = _alone(subject, loss, ignored, finite=base.plain is not None)
    for what, case, status in (*alone, *_one_class(subject, loss, ignored)):
        if case is None:
            tried += 1
            continue
        single = case.samples(axis) != loss.samples(axis)
        try:
            found = case.slopes()
        except SubjectError:  # batch-sizes and label-range judge what it refuses in general
            if single and status == "violated":
                refused.append(case)
            continue
        tried += 1
        if single:
            taken.append(case)
        if found is not None and not found.finite and not (single and comparing):
            worst = _judged(subject, loss, base, (what, case, found, status))
            if worst is not None and worst[-1] == "violated":
                yield explain.not_finite(subject, *worst)
                return
            doubt = doubt or worst
            comparing |= single
    sure = list(_sure(loss))
    tried += len(sure)
    lost = next(((case, found) for case, found in sure if not found.finite), None)
    if lost is not None and compares(loss, base, axis) is None:
        yield explain.not_finite(subject, _CERTAIN, *lost, "violated")
        return
    if (path := _by_target(subject, loss, taken, refused)) is not None:
        yield explain.refuses_target(subject, path, refused[0], taken[0])
    elif doubt is not None:
        yield explain.not_finite(subject, *doubt)
    elif tried:
        yield passed(f"the loss and its gradient are finite in {tried} edge cases")
    else:
        yield not_applicable("neither samples nor classes of the targets can be distinguished")


def _sure(loss: LossOfOutput) -> Iterator[tuple[LossOfOutput, Slopes]]:
    """Iterate over what a loss gives for outputs that are as sure of the targets as rounding allows."""
    for mild, case in _certain(loss):
        fair, found = slopes_of(mild), slopes_of(case)
        if fair is None or found is None or not fair.finite:
            continue  # it asks for something else of its outputs: angles, say
        if not math.isinf(found.value):  # as an exponential of the output may be
            yield case, found


def _judged(subject: Subject, loss: LossOfOutput, base: Slopes, edge: _Edge) -> _Edge | None:
    """Return what is wrong with a case that is not finite; None where it asks too much of a loss that compares samples.

    Such a loss is undefined for some samples alone. Where it is also undefined for all of these together, such as
    patients without an event, a batch of them is worth a suspicion.
    """
    what, case, found, _ = edge
    axis = subject.contract.batch_dim or 0
    if two_groups(loss, axis):
        return what, case, found, "suspicious"
    compared = compares(loss, base, axis)
    if compared is None:
        return edge
    single = case.samples(axis) != loss.samples(axis)
    if not single or not compared.kept or len(compared.lost) < 2:
        return what, case, found, "suspicious"
    together = loss.cut(torch.tensor(compared.lost), axis)
    all_of_them = slopes_of(together)
    if all_of_them is None or all_of_them.finite:
        return None
    names = f"samples {listed([str(s) for s in compared.lost])}"
    return f"a batch of {names}", together, all_of_them, "suspicious"


def _certain(loss: LossOfOutput) -> Iterator[tuple[LossOfOutput, LossOfOutput]]:
    """Yield the one output where it is fairly sure of its targets, and as sure as can be.

    It has scores of classes, or a score or probability for each flag.
    """
    if len(loss.outputs) != 1:
        return
    ((path, output),) = loss.outputs.items()
    if not output.numel() or output.is_sparse or output.is_complex():
        return
    unit = float(output.detach().min()) >= 0 and float(output.detach().max()) <= 1
    for target in loss.targets().values():
        if target.is_complex() or not target.numel():
            continue
        if target.shape == output.shape and bool(((target == 0) | (target == 1)).all()):
            ends = ((0.9, 0.1), (1.0, _NEARLY)) if unit else ((_MILD, -_MILD), (_SURE, -_SURE))
            mild, sure = (torch.where(target.bool(), *both) for both in ends)
        elif not unit and _is_whole(target) and (axis := _class_axis(target, output)) is not None:
            known = target.clamp(0, output.shape[axis] - 1).unsqueeze(axis).long()
            flat = torch.zeros_like(output.detach())
            mild, sure = (flat.scatter(axis, known, score) for score in (_MILD, _SURE))
        else:
            continue
        yield loss.at(path, mild), loss.at(path, sure)


def _class_axis(target: torch.Tensor, output: torch.Tensor) -> int | None:
    """Return the axis of an output along which it has a score for each class of a target."""
    if output.dim() != target.dim() + 1:
        return None
    fits = [
        a for a in (1, output.dim() - 1) if output.shape[:a] + output.shape[a + 1 :] == target.shape
    ]
    fits = [a for a in dict.fromkeys(fits) if output.shape[a] > int(target.max())]
    return fits[0] if len(fits) == 1 else None


def _alone(
    subject: Subject, loss: LossOfOutput, ignored: set[int], *, finite: bool
) -> Iterator[tuple[str, LossOfOutput | None, Status]]:
    """Yield each sample alone; a batch of one that is not declared only makes a loss suspicious.

    None in its place need not be tried: of a criterion and nothing else each term is finite where all are.
    """
    axis, symbol = subject.contract.batch_dim, subject.source.leading_symbol
    size = 0 if axis is None or symbol is None else loss.samples(axis)
    if axis is None or symbol is None or size < 2 or loss.batch.sizes.get(symbol) != size:
        return
    if len(loss.axes_of(size)) > 1:
        return  # a square batch: which axis holds the samples cannot be told
    span = subject.source.symbols[symbol]
    status: Status = "violated" if span.declared and span.low <= 1 else "suspicious"
    axes = subject.source.axes(symbol)
    labels = [
        target.movedim(axes[path], 0).flatten(1) if target.dim() > 1 else target[:, None]
        for path, target in loss.targets().items()
        if path in axes and _is_whole(target)
    ]
    out = torch.tensor(sorted(ignored), dtype=torch.int64)
    counts = [((rows >= 0) & ~torch.isin(rows, out.to(rows.device))).any(1) for rows in labels]
    for sample in dict.fromkeys((*range(min(size, SAMPLES)), *_further(labels))):
        if not all(bool(each[sample]) for each in counts):
            continue  # nothing of it counts: torch's own mean over nothing is NaN
        known = finite and status == "suspicious"
        case = None if known else loss.cut(torch.tensor([sample]), axis)
        yield f"sample {sample} alone", case, status


def _further(labels: list[torch.Tensor]) -> Iterator[int]:
    """Yield samples beyond those that are tried, of labels that none of these has."""
    for rows in labels:
        seen = {tuple(row) for row in rows[:SAMPLES].tolist()} if rows.shape[1] == 1 else set()
        for place, row in enumerate(rows.tolist() if seen else ()):
            if tuple(row) not in seen and len(seen) < _VALUES:
                seen.add(tuple(row))
                yield place


def _by_target(
    subject: Subject, loss: LossOfOutput, taken: list[LossOfOutput], refused: list[LossOfOutput]
) -> str | None:
    """Return the target by which the loss takes one sample and raises for another: exchanged, they change their parts.

    None where the user's code rejects it by a ``raise`` of its own, or where the target may point to other samples.
    """
    axes = subject.source.axes(subject.source.leading_symbol or "")
    if not (taken and refused) or not loss.targets().keys() <= axes.keys():
        return None
    no, yes = refused[0], taken[0]
    if _rejects(no):
        return None
    size = loss.samples(subject.contract.batch_dim or 0)
    for path, target in loss.targets().items():
        few = max(2, size // _POINTERS)
        if not _is_whole(target) or not target.numel() or size <= few or int(target.max()) >= few:
            continue
        bad, good = no.targets()[path], yes.targets()[path]
        if bad.shape != good.shape or torch.equal(bad, good):
            continue
        if _raises(yes.of(yes.with_targets(good, bad))) and not _raises(
            no.of(no.with_targets(bad, good))
        ):
            return path
    return None


def _raises(case: LossOfOutput) -> bool:
    try:
        case.slopes()
    except SubjectError:
        return True
    return False


def _rejects(case: LossOfOutput) -> bool:
    """Say whether a loss raises by a ``raise`` or an ``assert``, its own or that of a library: it means to."""
    try:
        case.slopes()
    except SubjectError as error:
        frames = list(walk_tb(error.error.__traceback__))
        lines = [linecache.getline(frame.f_code.co_filename, line) for frame, line in frames[-1:]]
        return any(line.lstrip().startswith(("raise ", "assert ")) for line in lines)
    return False


def _is_whole(target: torch.Tensor) -> bool:
    return not (target.is_floating_point() or target.is_complex() or target.dtype == torch.bool)


def _ignored(subject: Subject, loss: LossOfOutput, base: Slopes) -> set[int]:
    """Return the labels that do not count: of the specs, and of the calls of torch's loss functions."""
    specs = (subject.source.specs.get(path) for path in loss.targets())
    declared = {spec.ignore_index for spec in specs if isinstance(spec, Labels)}
    given = (
        {call.options.get("ignore_index") for call in loss_calls(subject, loss)}
        if base.plain is None
        else {base.plain.ignored}
    )
    return {int(value) for value in declared | given if value is not None}


def _one_class(
    subject: Subject, loss: LossOfOutput, ignored: set[int]
) -> Iterator[tuple[str, LossOfOutput, Status]]:
    """Yield batches whose targets are all of one class; of a spec any of these may be drawn."""
    for path, target in loss.targets().items():
        spec = subject.source.specs.get(path)
        if target.is_floating_point() or target.is_complex() or not target.numel():
            continue
        declared = isinstance(spec, Labels) and loss.batch.origin != "real"
        values = {int(v) for v in torch.unique(target).tolist()}
        known = sorted(v for v in values if v >= 0 and v not in ignored)
        if not declared and (target.dtype != torch.bool and known != [0, 1]):
            continue  # numbers of an unknown meaning: lengths, indices
        for value in dict.fromkeys(known[: _CLASSES - 1] + known[-1:]):
            other = torch.full_like(target, value)
            for mark in values - set(known):
                other[target == mark] = mark
            if not torch.equal(other, target):
                batch = loss.with_targets(target, other)
                status: Status = "violated" if declared else "suspicious"
                yield f"{path} that are all {value}", loss.of(batch), status

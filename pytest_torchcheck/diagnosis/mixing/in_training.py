"""Why outputs do not follow their own samples in training mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...findings import Culprit
from ...probes.randomness import find_draws
from ...probes.recorded.divergence import first_mixing, record
from ...runs.variants.settling import Quiet, quiet
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...verdicts import suspicious, violated
from ..crashes.place import Place
from ..outputs import places

if TYPE_CHECKING:
    from ...batches import Batch
    from ...findings import Finding
    from ...probes.recorded.operations import Trace
    from ...runs.variants.training_rows import Astray
    from ...subject import Subject

_QUIET = "torch's own dropout and norms were in eval mode, and every run had the same seed"


def astray(subject: Subject, seen: Astray) -> Finding:
    """Explain rows of an output that follow other samples than their own in training mode, or no input at all."""
    if seen.kind == "nothing":
        place = _drawing_line(subject)
        return places.finding_at(
            place,
            subject,
            "input-ignored",
            "no input has an influence on the output in train mode",
            instead=Culprit("output", "output", "follows no input in train mode"),
            observed="another batch leaves every output of a training forward bit-equal, under each of four seeds; "
            "in eval mode it changes them",
            cause="the branch for training replaces the inputs, or what is computed from them",
            because=_QUIET,
            fix="compute the output from the inputs in training too: add noise to a value, do not replace it",
        )
    place, sample = _line(subject, seen.batches), seen.sample
    rows = ", ".join(map(str, seen.moved))
    observed = (
        f"in train mode only sample {sample} changed, and {'row' if len(seen.moved) == 1 else 'rows'} {rows} of "
        f"{seen.path} moved; in eval mode each row follows its own sample"
    )
    if seen.kind == "others":
        return places.finding_at(
            place,
            subject,
            "sample-order",
            f"in train mode {seen.path} of a sample is that of another sample",
            made=suspicious if seen.told else violated,
            instead=Culprit("output", seen.path, "is in another order"),
            observed=observed,
            cause="the branch for training puts the samples in another order",
            because=_QUIET,
            fix="keep the order of the samples, undo it before returning, or return it, so that the targets follow",
        )
    return places.finding_at(
        place,
        subject,
        "samples-mixed",
        f"in train mode {seen.path} of a sample is computed from another sample too",
        made=suspicious,
        instead=Culprit("output", seen.path, "mixed"),
        observed=observed,
        cause="the branch for training mixes the samples, and nothing that it returns or keeps says how",
        because=_QUIET,
        fix="mix the targets as the inputs are mixed: return the factor and the partners; or skip this check with a "
        "reason",
    )


def _line(subject: Subject, batches: tuple[Batch, ...]) -> Place | None:
    """Return the operation that first brings samples of a training forward together, or the line that draws."""
    traces: list[Trace] = []
    try:
        for batch in batches:
            with subject.pristine() as model:
                traces.append(record(lambda given=batch: _run(subject, given), model))  # type: ignore[misc]
    except SubjectError:
        return None
    found = first_mixing(traces[0], dict(enumerate(traces[1:])))
    return places.place_of(found, subject.model) or _drawing_line(subject)


def _drawing_line(subject: Subject) -> Place | None:
    """Return the line of a training forward that draws numbers, where one alone does beside torch's layers."""
    with subject.pristine() as model:
        draws = find_draws(lambda: _run(subject, subject.batch()), model)
    made = {draw.location: draw for draw in draws if draw.kind == "draw"}
    if len(made) != 1:
        return None
    (location,), (draw,) = made, made.values()
    return Place(op=draw.op, location=location, module=draw.module)


def _run(subject: Subject, batch: Batch) -> object:
    copy = batch.clone()
    seed_everything(subject.seed)
    with torch.no_grad(), Quiet():
        quiet(subject.model)
        return subject.call(subject.model, copy)

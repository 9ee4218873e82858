"""Frames of a CTC loss that no sample is long enough to use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...findings import Culprit
from ...probes.recorded.operations import record
from ...verdicts import violated
from ..outputs.eval_lines import eval_run
from .consumed import declared_loss_line

if TYPE_CHECKING:
    from ...findings import Finding, Location
    from ...probes.loss.arguments import Alignable
    from ...runs.losses.consumption import Consumed
    from ...subject import Subject


def frames_unread(subject: Subject, used: Consumed, labels: Alignable) -> Finding:
    """Explain lengths of a CTC loss that end before the frames of the longest sample do."""
    made = _making(subject, labels.lengths)
    call = used.place or declared_loss_line(subject)
    place = made[0] if made else call
    most = max(labels.lengths)
    also = "".join(f", after line {line.line}" for line in made[1:2])
    return violated(
        "frames-unread",
        f"ctc_loss reads the first {most} of {labels.frames} frames at most, though the longest sample fills its input",
        culprits=[
            Culprit("loss", used.criterion or "ctc_loss", f"input_lengths up to {most}", call),
            *(Culprit("call", "lengths", "are computed here", line) for line in made),
        ],
        location=place,
        observed=f"input_lengths up to {most}; log_probs of {labels.frames} frames",
        cause="the lengths are shortened more than the sequence is"
        + (f": last on line {place.line}{also}" if made and place else ""),
        because="what comes after the last length has no part in the loss, and is never learnt",
        fix="compute each length as the layers change the length of the sequence, once for each stride",
    )


def _making(subject: Subject, lengths: tuple[int, ...]) -> list[Location]:
    """Return the lines of the forward that compute the lengths, the last one first; none where it does not."""
    with subject.pristine() as model:
        trace = record(eval_run(subject, subject.batch()), model)
    place = next((p for p in trace.outputs if _is(trace.values[p].values, lengths)), None)
    found: dict[Location, None] = {}
    while place is not None and (step := trace.makers.get(place)) is not None:
        if step.op.location is not None:
            found.setdefault(step.op.location)
        counts = (
            p for p in step.operands if p != place and trace.values[p].shape == (len(lengths),)
        )
        place = next(counts, None)
    return list(found)


def _is(values: object, lengths: tuple[int, ...]) -> bool:
    shape = getattr(values, "shape", None)
    return shape == (len(lengths),) and tuple(values.tolist()) == lengths  # type: ignore[attr-defined]

"""A loss that reads padded values of its targets beside the real ones, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...explanation import on_line
from ...findings import Culprit
from ...probes.recorded.operations import record
from ...verdicts import violated
from ..loss.consumed import culprit, declared_loss_line

if TYPE_CHECKING:
    from ...findings import Finding, Location
    from ...probes.loss.slopes import LossOfOutput
    from ...probes.positions.padded_targets import ReadPadding
    from ...subject import Subject


def padding_read(subject: Subject, loss: LossOfOutput, found: ReadPadding) -> Finding:
    """Explain a mask that is taken at other places than the values that it belongs to.

    Args:
        subject: Whose loss.
        loss: As a function of the output.
        found: The padded value that is read.
    """
    padded = found.padded
    line = _selecting_line(loss, loss.targets()[padded.marks]) or declared_loss_line(subject)
    away = found.place - found.at
    places = (
        "the first padded place" if found.reach == 1 else f"the first {found.reach} padded places"
    )
    beside = "one place" if found.reach == 1 else f"{found.reach} places"
    fix = (
        f"the value at t + {away} counts where the mask is set at t + {away}: slice {padded.marks} as "
        f"{padded.path} is sliced"
        if padded.kind == "mask" and away
        else f"exclude what lies at {padded.marks} and after it"
    )
    return violated(
        "mask-shifted",
        f"the loss trains {found.output} on padding of {padded.path}: {places} of each row",
        culprits=[
            Culprit("target", padded.marks, f"selects {beside} too far{on_line(line)}", line),
            culprit(subject, f"reads {padded.path} where it is padded", line),
        ],
        location=line,
        observed=f"in each of {found.rows} rows, a high value at {places} (such as {found.place}) pulls "
        f"{found.output} up at {found.at}, and a low one pulls it down, as at real places; padding further "
        "off has no influence",
        cause=f"the {padded.kind} {padded.marks} is read {beside} beside the values that it belongs to",
        because=f"{padded.path} holds one number wherever {padded.marks} excludes it; other numbers there "
        f"change the loss at {places} of a row, and at no later one",
        fix=fix,
        evidence={"place": found.place, "position": found.at, "reach": found.reach},
    )  # fmt: skip


def _selecting_line(loss: LossOfOutput, marks: torch.Tensor) -> Location | None:
    """Return the first line of the loss that slices the mask, or compares the lengths; else the first that reads it."""
    trace = record(lambda: loss.run()[0])
    own = {
        place
        for place, known in enumerate(trace.values)
        if known.values is not None
        and known.dtype == marks.dtype
        and known.shape == tuple(marks.shape)
        and torch.equal(known.values, marks)
        and place not in trace.makers
    }
    first: Location | None = None
    for step in trace.steps:
        if not own & set(step.operands):
            continue
        first = first or step.op.location
        shapes = [trace.values[place].shape for place in step.results]
        if any(shape[:2] != tuple(marks.shape)[:2] for shape in shapes):
            return step.op.location or first
        own |= set(step.results)
    return first

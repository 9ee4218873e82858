"""A loss that compares scores with the id that pads rows, explained by the mask that keeps them, where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import by_forward, on_line
from ...findings import Culprit, Finding
from ...probes.recorded.operations import record
from ...verdicts import suspicious, violated
from ..loss.consumed import declared_loss_line
from ..loss.targets import made_for_loss

if TYPE_CHECKING:
    import torch

    from ...probes.loss.slopes import LossOfOutput
    from ...probes.positions.padding import Padded
    from ...probes.recorded.operations import Step, Trace
    from ...subject import Subject


def trained(
    subject: Subject,
    loss: LossOfOutput | None,
    padded: Padded,
    path: str,
    counts: torch.Tensor,
    why: str,
) -> Finding:
    """Explain a loss that trains on padding which no promise declares.

    Args:
        subject: The subject.
        loss: Of the base batch; None where the model computes it.
        padded: Which id pads which positions.
        path: Of the output.
        counts: bool, which of the inner padded positions are compared with the id.
        why: What says that the id is padding; empty where only the rows look so.
    """
    mask = None if loss is None else _mask(loss, padded)
    place = mask.op.location if mask is not None else None
    name = (sources.assigned_name(place) if place is not None else "") or "the mask"
    where = place or (
        declared_loss_line(subject)
        if loss is None
        else made_for_loss(subject, loss, target_first=False)
    )
    ids = by_forward(subject, padded.path)
    rows, longest = sum(n > 0 for n in padded.runs), max(padded.runs)
    kept = [] if place is None else [Culprit("tensor", name, "keeps padded positions", place)]
    return (violated if why else suspicious)(
        "padding-counted",
        "the loss includes padded positions",
        culprits=[*kept, Culprit("loss", "loss", "counts padding", where)],
        location=where,
        observed=f"at {int(counts.sum())} of {len(counts)} padded positions the loss compares {path} with {padded.pad}; "
        "of each row the one next to the text is left out",
        cause=f"{name} is true at padded positions"
        if place is not None
        else "padded positions are averaged like real ones",
        because=f"{padded.pad} stands at one end of {rows} rows of {ids}, {longest} times at most, and nowhere "
        "else" + (f"; {why}" if why else ""),
        fix=(
            f"leave the padding out{on_line(place)}: & ({ids} != {padded.pad})"
            if place is not None
            else "mask the loss before the mean, or set padded targets to ignore_index"
        )
        + ("" if why else "; where the model must emit this id all along, nothing is wrong"),
    )


_READING = ("mul", "where", "masked_fill", "getitem", "masked_select", "imul", "rmul")
_PASSING = (
    "float", "to", "type", "type_as", "double", "half", "bool", "long", "int", "unsqueeze", "squeeze", "view",
    "reshape", "expand", "expand_as", "flatten", "contiguous", "getitem",
)  # fmt: skip
"""What leaves a mask as it is, but for its dtype and its shape."""


def _mask(loss: LossOfOutput, padded: Padded) -> Step | None:
    """Return what made the last mask by which the loss keeps padded positions, and leaves out others."""
    trace = record(lambda: loss.run()[0])
    for step in reversed(trace.steps):
        if _bare(step) not in _READING:
            continue
        for place in step.operands:
            if _keeps(trace.values[place].values, padded) and (made := _made(trace, place)):
                return made
    return None


def _bare(step: Step) -> str:
    return step.op.name.rpartition(".")[2].strip("_")


def _keeps(values: torch.Tensor | None, padded: Padded) -> bool:
    """Say whether a value is 1 at padded positions that are compared with the id, and 0 elsewhere."""
    if values is None or values.is_complex() or not bool((values == 0).any()):
        return False
    inner = padded.inner.to(values.device)
    there = next((at for at in (inner, inner[:, 1:]) if values.shape == at.shape), None)
    if there is None or not bool(((values == 0) | (values == 1)).all()):
        return False
    return bool((values[there] == 1).any())


def _made(trace: Trace, place: int) -> Step | None:
    """Return the step that made a mask, behind those that only change its dtype or its shape."""
    found: Step | None = None
    while (step := trace.makers.get(place)) is not None and step is not found:
        found = step
        if _bare(step) not in _PASSING or not step.operands:
            break
        place = step.operands[0]
    located = found is not None and found.op.location is not None
    return found if located else None

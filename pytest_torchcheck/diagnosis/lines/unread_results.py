"""Results that nothing reads: the statement that loses one, and what would have read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...findings import Culprit
from ...runs.again import forward_and_loss
from ...runs.liveness.takings import takings
from ...verdicts import suspicious, violated
from .parts import missed
from .passed_on import passed_by

if TYPE_CHECKING:
    from ...findings import Finding
    from ...runs.liveness.idle_rows import IdleRows
    from ...runs.liveness.unread import Unread
    from ...subject import Subject

_FIXES = {
    "dropped": "assign the result, as in h = {text}, or delete the statement",
    "bound": "use {name} where it was meant to be used, or delete the line",
    "overwritten": "let line {again} read {name}, or delete line {line}",
}


def result(subject: Subject, lost: Unread) -> Finding:
    """Explain a result that its function loses."""
    short = lost.text if len(lost.text) <= 60 else f"{lost.text[:57]}..."
    again = lost.again.line if lost.again is not None else 0
    slip = "" if lost.again is None else f"; line {again} reads its sibling once more"
    summary, cause = {
        "dropped": (
            f"the result of {short} is dropped",
            f"{lost.op} returns a new tensor and leaves its input as it is",
        ),
        "bound": (
            f"{lost.name} is computed and never read",
            f"no line of the function reads {lost.name}{slip}",
        ),
        "overwritten": (
            f"{lost.name} is computed and bound again before anything reads it",
            f"line {again} binds {lost.name} again, and no line between reads it",
        ),
    }[lost.kind]
    place = lost.location
    told = lost.name or lost.op
    culprits = [Culprit("tensor", told, "is never read", place)]
    if lost.again is not None:
        detail = "binds the name again" if lost.kind == "overwritten" else "reads its sibling again"
        culprits.append(Culprit("tensor", told, detail, lost.again))
    elif lost.kind == "bound":
        culprits += _past(subject, lost)
    return violated(
        "result-unread",
        summary,
        culprits=culprits,
        location=lost.again if lost.kind == "bound" and lost.again else place,
        observed=f"line {place.line} computes {short}",
        cause=cause,
        because=f"no operation of a forward was given the result of {lost.op}, in train mode or in eval mode",
        fix=_FIXES[lost.kind].format(text=short, name=lost.name, again=again, line=place.line),
    )


def _past(subject: Subject, lost: Unread) -> list[Culprit]:
    """Return the first line that reads what an unread result was computed from, as its only reader."""
    with subject.pristine():
        lines, _ = passed_by(lost.location, forward_and_loss(subject))
    detail = f"is read here; {lost.name}, which is computed from it, is not"
    return [Culprit("tensor", n, detail, line) for n, line in lines[:1]]


def rows(subject: Subject, idle: IdleRows) -> Finding:
    """Explain a part of a layer's outputs that reaches no output of the model."""
    module = idle.name.rpartition(".")[0] or "the model"
    taken = takings(subject, idle.name)
    with subject.pristine():
        lost = missed(taken, forward_and_loss(subject)) if taken else None
    summary = f"outputs {idle.text} of {module} go nowhere"
    because = (
        f"their gradients are exactly 0, and with other weights in these {idle.count} of {idle.total} "
        "rows every output is bit-equal"
    )
    culprit = Culprit("parameter", idle.name, f"rows {idle.text}")
    observed = f"{idle.name} has {idle.total} rows; no gradient comes to rows {idle.text}"
    if lost is None:
        return suspicious(
            "features-unread",
            summary,
            culprits=[culprit],
            location=taken[-1].place if taken else None,
            observed=observed,
            cause="what is computed from them reaches no output; another configuration may read it",
            because=because,
            fix=f"use them in the forward, or give {module} fewer outputs",
        )
    return violated(
        "features-unread",
        summary,
        culprits=[
            culprit,
            Culprit("tensor", lost.name, "is not read", lost.made),
        ],
        location=lost.place,
        observed=observed,
        cause=lost.cause,
        because=because,
        fix=f"{lost.fix or f'use {lost.name} where it was meant to be used'}, or give {module} fewer outputs",
    )

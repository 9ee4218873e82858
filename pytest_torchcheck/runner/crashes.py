"""What the runner says of an exception of the user's code: its explanation, and the line that stands for it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import outcomes, sources, verdicts
from ..blame import only_observed
from ..codes.errors import FURTHER, explain_error, own_loss_line
from ..declared.names import UnknownNameError
from ..explanation import PHASE_WORDS
from ..subject.errors import SubjectError

if TYPE_CHECKING:
    from ..contracts import Contract
    from ..explanation import Explanation
    from ..findings import Culprit, Finding, Location
    from ..subject import Subject


def seen_only_by_recorders(error: SubjectError, subject: Subject) -> bool:
    """Say whether the user's code raises under a recorder of ours and not without it."""
    if subject._model is None or isinstance(error.error, UnknownNameError):
        return False
    with subject.pristine(steps=True):
        return only_observed(error)


def refuses_rearranged(error: SubjectError, subject: Subject) -> str:
    """Return what is to be said where the user's batch runs and its samples in another order do not, or nothing.

    A Gaussian process is trained on its training inputs alone. Where no spec says what values there may be, the
    batch that was given is the only one that is known to be valid.
    """
    batch = error.batch
    if error.phase not in ("forward", "loss") or batch is None or batch.origin != "real":
        return ""
    own = subject.batch()
    if batch.sizes != own.sizes or batch.seed == own.seed or subject._model is None:
        return ""
    try:
        with subject.pristine(seeded=True, train=True) as model:
            given = own.clone()
            subject.compute_loss(subject.call(model, given), given)
    except SubjectError:
        return ""
    return (
        f"{PHASE_WORDS[error.phase]} runs for the batch that was given and raises {type(error.error).__name__} for the "
        "same samples in another order: declare inputs=... with the values that there may be"
    )


def explained_error(
    contract: Contract, error: SubjectError, subject: Subject, *, device: str, lost: bool
) -> Explanation:
    """Say what the user's exception means; it stands without an explanation where explaining fails."""
    cause, model = error.error, subject._model
    if isinstance(cause, UnknownNameError):
        return outcomes.misnamed(cause)
    # what is run again to explain the error may train and write: it is put back too
    kept = model is not None and not lost
    try:
        with subject.pristine(steps=True) if kept else contextlib.nullcontext():
            known = explain_error(
                cause,
                phase=error.phase,
                model=model,
                batch=error.batch,
                rerun=error.rerun,
                device=device,
            )
        return known.replace(culprits=_with_batch_line(contract, known.culprits))
    except Exception as failure:
        found = outcomes.unexplained(cause, error.phase, failure)
    return found.replace(location=sources.of_error(cause))


def crash_finding(
    contract: Contract, error: SubjectError, subject: Subject, *, device: str, lost: bool
) -> Finding:
    """Return the finding of an exception of the user's code, with its line and what more there is to say of it."""
    known = explained_error(contract, error, subject, device=device, lost=lost)
    place = known.location or next((c.location for c in known.culprits if c.location), None)
    finding = verdicts.explained(
        known,
        location=place or contract.location,
        evidence={**known.evidence, "phase": error.phase, "traceback": outcomes.told(error.error)},
    )
    try:  # what runs the model once more may raise again
        if place is None and (line := line_of_phase(contract, error.phase, subject)) is not None:
            finding = finding.replace(location=line)
        if (further := FURTHER.get(finding.code)) is not None:
            sizes = error.batch.sizes if error.batch is not None else {}
            finding = further(finding, subject, sizes)
    except Exception as failure:
        note = {"traceback of the explanation": outcomes.told(failure)}
        finding = finding.replace(evidence={**finding.evidence, **note})
    return finding


def _with_batch_line(contract: Contract, culprits: tuple[Culprit, ...]) -> tuple[Culprit, ...]:
    """Point targets that no line of the failing call makes to what the contract's own batch function returns."""
    batch = contract.batch
    if not callable(batch) or all(c.kind != "target" or c.location for c in culprits):
        return culprits
    returned = sources.matches(batch, r"^\s*return\b")
    place = returned[-1] if returned else sources.of_object(batch)
    return tuple(
        replace(c, location=place) if c.kind == "target" and c.location is None else c
        for c in culprits
    )


def line_of_phase(contract: Contract, phase: str, subject: Subject) -> Location | None:
    """Return the user's line that stands for a phase, for an error raised outside of their code."""
    if phase == "step":
        own = contract.train_step or contract.optimizer
        return None if own is None else sources.of_object(own)
    if subject._model is None or phase not in ("forward", "loss", "backward"):
        return None
    found = own_loss_line(subject) if phase != "forward" else None
    return found or sources.of_own_class(subject._model)

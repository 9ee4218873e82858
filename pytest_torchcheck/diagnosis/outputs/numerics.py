"""Inputs at the edge of their domain and in other layouts: how they are made, and what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...findings import Culprit, Finding
from ...probes.numbers.finiteness import find_overflow
from ...runs.numerics import Trouble, in_double, watched
from ...state import seed_everything
from ...verdicts import explained
from ..crashes.explain import explain_error
from ..gradient.non_finite import evidence_of, remedy, writers

if TYPE_CHECKING:
    from ...batches import Batch
    from ...findings import Location, Status
    from ...probes.numbers.nonfinite import NonFinite
    from ...subject import Subject
    from ...subject.errors import SubjectError


def overflowing(subject: Subject, batch: Batch) -> NonFinite | None:
    """Return what computes the first infinity of the forward in eval mode, where float64 computes none."""

    def first(model: torch.nn.Module, batch: Batch) -> NonFinite | None:
        model.eval()
        seed_everything(subject.seed)
        return find_overflow(lambda: subject.call(model, batch), model)

    with subject.pristine():
        found = first(subject.model, batch.clone())
    return found if found is not None and in_double(subject, first) is None else None


def place_of(found: NonFinite | None) -> tuple[str, Location | None]:
    """Return words for the operation and module, and the line."""
    if found is None:
        return "an operation", None
    inside = f" in {found.module}" if found.module else ""
    return f"{found.op.name}{inside}", found.location


def culprits_of(found: NonFinite | None, names: tuple[str, ...]) -> list[Culprit]:
    """Name the module and the operation, else the parameters."""
    made = writers(found)
    if found is not None and found.module:
        made.append(Culprit("module", found.module, found.fact, found.location))
    if found is not None:
        made.append(Culprit("call", found.op.name, found.fact, found.location))
    return made or [Culprit("parameter", name) for name in names[:4]]


def edge(subject: Subject, batch: Batch, what: str, trouble: Trouble, *, status: Status) -> Finding:
    """Explain a NaN at the edge of the domain.

    Args:
        subject: The model under test.
        batch: The batch that shows it.
        what: The edge in words, such as ``an input that is all zero``.
        trouble: What is not finite.
        status: ``violated`` where the contract declares the domain, else ``suspicious``.
    """
    found = watched(subject, batch)
    op, place = place_of(found)
    kind = found.kind if found is not None else "nan"
    word = "NaN" if kind == "nan" else "infinity"
    cause, fix = remedy(found, forward=found is None or found.phase == "forward")
    return Finding(
        status=status,
        code="edge-non-finite",
        summary=f"{trouble} {'become' if trouble.several else 'becomes'} NaN or inf for {what}",
        culprits=tuple(culprits_of(found, trouble.gradients)),
        location=place,
        observed=f"{batch.describe()[:200]}: {trouble} {'are' if trouble.several else 'is'} not "
        "finite; on an ordinary batch all are finite",
        cause=f"{op} makes the first {word}: {cause}"
        + (", in the backward" if found and found.phase == "backward" else ""),
        because=evidence_of(found),
        fix=fix,
    )


Outputs = dict[str, torch.Tensor]


def moved(subject: Subject, kind: str, error: SubjectError) -> Finding:
    """Report a crash that another memory layout of the input causes."""
    with subject.pristine():
        known = explain_error(
            error.error,
            phase="forward",
            model=subject.model,
            batch=error.batch,
            rerun=error.rerun,
            device=str(subject.device),
        )
    words = kind.replace("_", "-")
    return explained(
        known,
        "suspicious",
        code="layout-crash",
        summary=f"{words} inputs crash: {known.summary}",
        location=known.location or sources.of_error(error.error),
        because=f"the same values run in contiguous memory; {known.because}",
        fix=known.fix or "use reshape instead of view",
    )

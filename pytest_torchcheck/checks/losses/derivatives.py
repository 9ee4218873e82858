"""Derivatives that a step adds to its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...codes import loss as explain
from ...runs.losses.in_steps import mixed_into, penalised_in_parts

if TYPE_CHECKING:
    from ...findings import Finding
    from ...runs.losses.consumption import LossEvidence
    from ...subject import Subject


def of_derivatives(subject: Subject, seen: LossEvidence) -> list[Finding]:
    """Say that a penalty takes the norms of parts of a derivative, or a second derivative holds mixed ones."""
    parts = [
        explain.partial_norm(norm, over)
        for norm in seen.norms[:1]
        if (over := penalised_in_parts(subject, norm)) is not None
    ]
    return parts + [
        explain.mixed_into(one, *mixed)
        for one in seen.row_sums[:1]
        if (mixed := mixed_into(subject, one)) is not None
    ]

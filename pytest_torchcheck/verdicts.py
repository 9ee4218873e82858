"""The constructors of findings: one for each status, so that a verdict reads as a sentence where it is made."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from .findings import Culprit, Finding, Location, Plain, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .explanation import Explanation


def _finding(
    status: Status,
    code: str,
    summary: str,
    culprits: Iterable[Culprit] = (),
    location: Location | None = None,
    **fields: Any,
) -> Finding:
    culprits = tuple(culprits)
    if location is None:
        location = next((c.location for c in culprits if c.location is not None), None)
    return Finding(
        status=status, code=code, summary=summary, culprits=culprits, location=location, **fields
    )


def violated(code: str, summary: str, **fields: Any) -> Finding:
    """A broken promise. ``fields`` are those of :class:`Finding`; say observed, cause, because, fix."""
    return _finding("violated", code, summary, **fields)


def suspicious(code: str, summary: str, **fields: Any) -> Finding:
    """A likely mistake that a correct model might also show."""
    return _finding("suspicious", code, summary, **fields)


def explained(known: Explanation, status: Status = "violated", **changes: Any) -> Finding:
    """An exception of the user's code as a finding; ``changes`` replace fields of what is known of it."""
    known = known.replace(**changes)
    return _finding(status, **{f.name: getattr(known, f.name) for f in fields(known)})


def inconclusive(reason: str, code: str = "could-not-fail", **fields: Any) -> Finding:
    """The check could not have failed; the reason is a whole sentence."""
    return _finding("inconclusive", code, reason, **fields)


def passed(because: str, *, evidence: Mapping[str, Plain] | None = None) -> Finding:
    """The promise holds; ``because`` says what was measured."""
    return _finding("passed", "held", because, evidence=evidence or {})


def not_applicable(reason: str, *, evidence: Mapping[str, Plain] | None = None) -> Finding:
    """The check does not concern this subject."""
    return _finding("not-applicable", "not-applicable", reason, evidence=evidence or {})

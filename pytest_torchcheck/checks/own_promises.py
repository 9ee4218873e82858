"""The promises that a project wrote itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..findings import Finding
from ..verdicts import inconclusive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..subject import Subject


def own_promises(subject: Subject) -> Iterator[Finding]:
    """Run ``verify`` of every promise class that the project wrote itself.

    What it raises is the project's own error, and so is what it yields beside findings.
    """
    for promise in subject.contract.own_promises:
        name = f"{type(promise).__name__}.verify"
        with subject.phase("promise"):
            found = _findings_of(name, promise.verify(subject))
        if not found:
            yield inconclusive(f"{name} yielded no finding", code="no-verdict")
        for finding in found:
            yield replace(finding, check=finding.check or "own-promises")


def _findings_of(name: str, given: Any) -> list[Finding]:
    """Return what ``verify`` gave.

    Raises:
        TypeError: It is not an iterable of findings.
    """
    allowed = "yield findings from pytest_torchcheck.verdicts, such as passed(...) or violated(...)"
    if isinstance(given, Finding) or not isinstance(given, Iterable):
        raise TypeError(f"{name} returned {_called(given)}; {allowed}")
    found = list(given)
    for one in found:
        if not isinstance(one, Finding):
            raise TypeError(f"{name} yielded {_called(one)}; {allowed}")
    return found


def _called(value: object) -> str:
    return "nothing" if value is None else f"an object of type {type(value).__name__}"

"""The check of ``--torchcheck-against``: from a subject and its other version to findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import verdicts
from . import report
from .judge import judge
from .version import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..findings import Finding
    from ..subject import Subject
    from .version import Version


def against(subject: Subject, old: Version, *, allowed: Collection[str] = ()) -> Iterator[Finding]:
    """Compare the model with what it was; what cannot be compared is said, not guessed.

    Args:
        subject: The model as it is.
        old: The other version.
        allowed: Categories that may change in this run.

    Raises:
        SubjectError: The model as it is cannot be built, or its batches not made.
    """
    shown = old.tree.reference.shown
    declared = subject.contract.changes
    mapping = declared.get("state")
    try:
        found = judge(subject, old, mapping if callable(mapping) else None)
        beside = report.Beside.version(old)
        yield from report.findings(subject, beside, found, declared=declared, allowed=allowed)
    except UnavailableError as error:
        if error.code == "contract-new":
            yield verdicts.not_applicable(f"new: {error}")
            return
        yield verdicts.inconclusive(
            f"not compared with {shown}: {error}",
            code=error.code,
            cause="the code at the reference does not run in this environment",
            fix="compare with a reference whose code runs here, or install what it needs",
        )

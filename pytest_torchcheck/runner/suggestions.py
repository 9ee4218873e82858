"""Give findings the edit that their fix describes, and say whether the check passes with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from .. import trials
from ..sources import edits
from ..sources.rewriting import edit_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..findings import Edit, Finding
    from .running import Runner
    from .selection import Case

_SHORT: Final = 90


def with_edits(
    runner: Runner, case: Case, found: tuple[Finding, ...], seconds: float
) -> tuple[Finding, ...]:
    """Return the findings of a case with their edits, those that can be tried tried.

    Args:
        runner: Who ran the case.
        case: The case.
        found: What it found.
        seconds: What running it again would take of the processor.
    """
    made = []
    for finding in found:
        if finding.status not in ("violated", "suspicious"):
            made.append(finding)
            continue
        edit, fix = edit_of(finding), finding.fix
        if edit is not None:
            if seconds <= trials.MOST_SECONDS and case.device == "cpu" and runner.trials:
                edit = _tried(runner, case, found, finding, edit)
            fix += _said(edit, fix)
        else:
            fix = edits.clarified(fix, finding.location, _sizes(runner, case))
        made.append(finding.replace(edit=edit, fix=fix))
    return tuple(made)


def _sizes(runner: Runner, case: Case) -> Mapping[str, int]:
    """Return the sizes of the base batch, where there is one."""
    if runner.contract.model is None:
        return {}
    batch = runner.subject(case).cache.get(("batch", 0))
    return {} if batch is None else batch.sizes


def _said(edit: Edit, fix: str) -> str:
    """Return what to add to a fix, which may name more than the edit."""
    if not edit.tried:
        return "; likely: the edit was not tried"
    several = ", or " in fix or "; " in fix
    new = edit.new.strip()
    it = new if several and new != "pass" and len(new) <= _SHORT else "it"
    return (
        f"; tried: the check passes with {it}"
        if edit.tried == "passes"
        else f"; tried: the check does not pass with {it} alone"
    )


def _tried(
    runner: Runner, case: Case, found: tuple[Finding, ...], finding: Finding, edit: Edit
) -> Edit:
    """Run the check of a case again with an edit."""
    contract = runner.contract
    subject = None if contract.model is None else runner.subject(case)
    model = None if subject is None else subject._model
    with trials.edited(edit, contract, model) as runs:
        if not runs:
            return edit
        runner.trials -= 1
        again = type(runner)(
            contract,
            seed=runner.seed,
            examples=runner.examples,
            explain_seconds=trials.MOST_SECONDS,
            trials=0,
        )
        try:
            after = again.run(case)
        finally:
            again.close()
    return replace(edit, tried=trials.judged(found, finding, after))

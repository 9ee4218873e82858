"""What becomes of findings on their way to a report: skips, strictness, and failures of this package itself."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from .codes.explainer import INTERNAL
from .codes.undecided import NOT_PUT_BACK
from .explanation import PHASE_WORDS, Explanation, clipped
from .findings import Culprit, Finding
from .sources import rank
from .text.printable import message_of
from .verdicts import inconclusive, not_applicable, violated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .declared.names import UnknownNameError
    from .explanation import Phase

_ACTING = ("violated", "suspicious")
SKIP_STALE = "skip-stale"
DECLARED = frozenset({SKIP_STALE})
"""Codes of what the contract says, not the model: they point to its declaration."""


def internal(check: str, error: BaseException, found: Iterable[Finding] = ()) -> Finding:
    """Report that a check failed by itself: a defect of this package, and never of the user's code.

    Args:
        check: Its name.
        error: What it raised.
        found: What it had found before, which stays in the report.
    """
    reached = sum(finding.status in _ACTING for finding in found)
    before = "; what it had found before is reported beside this" if reached else ""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = bool(frames) and rank(frames[-1].filename) == 2
    return Finding(
        check=check,
        code=INTERNAL,
        status="error",
        summary=f"{check} itself failed with {type(error).__name__}: {clipped(_said(error), 140)}",
        observed=f"{_innermost(error)}{before}",
        cause=f"{frames[-1].name} of your own code raises where the check calls it, outside of a "
        "forward, loss and step: "
        "nothing is known of what this check promises"
        if theirs
        else "a defect of pytest-torchcheck, not of your model: nothing is known of what this check promises",
        fix=f"correct line {frames[-1].lineno} if it must not raise, or leave the check out: "
        f"--torchcheck-checks='!{check}'"
        if theirs
        else "report it to pytest-torchcheck with the traceback (-vv and --torchcheck-json show it) and the model if "
        f"you can; until it is fixed, --torchcheck-checks='!{check}' leaves the check out",
        evidence={"traceback": told(error)},
    )


def raised_once(finding: Finding, phase: Phase, *, drew: bool) -> Finding:
    """Say of the finding of an exception that it did not come again when the same call was made again.

    Args:
        finding: Of the exception.
        phase: Where it was raised.
        drew: Whether the call draws random numbers: they may be the reason, and the finding is suspicious.
    """
    what = PHASE_WORDS[phase]
    return finding.replace(
        status="suspicious" if drew else finding.status,
        cause=f"{what} raises for some of the random numbers that it draws"
        if drew
        else f"{what} keeps something from one call to the next, such as a counter or a cache",
        because="the same call, made once more, did not raise"
        + (", with other random numbers" if drew else ", and neither call drew random numbers"),
        fix="make it run whatever numbers it draws"
        if drew
        else "let a call depend only on its arguments and on the state dict",
        culprits=tuple(c for c in finding.culprits if c.kind in ("module", "call")),
    )


def told(error: BaseException) -> list[Any]:
    """Return the traceback of an error as plain lines, whatever the error does when it is printed."""
    try:
        lines = traceback.format_exception(error)
    except Exception as failure:  # the user's exception may raise anything from its __str__
        lines = [
            *traceback.format_tb(error.__traceback__),
            f"{type(error).__name__}, which cannot be printed ({type(failure).__name__})",
        ]
    return lines


def _said(error: BaseException) -> str:
    return message_of(error).strip().partition("\n")[0]


def _innermost(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "it yielded no finding"
    last = frames[-1]
    return f"raised in {last.name}, {last.filename}:{last.lineno}"


def unexplained(error: BaseException, phase: Phase, failure: BaseException) -> Explanation:
    """Say what is certain of the user's exception where explaining it failed.

    Args:
        error: The exception of the user's code.
        phase: Where in a training step.
        failure: What explaining it raised.
    """
    return Explanation(
        code="crash",
        summary=f"{PHASE_WORDS[phase]} raises {type(error).__name__}: {clipped(_said(error), 140)}",
        observed=f"explaining it failed with {type(failure).__name__}: {clipped(_said(failure), 140)}; "
        "that is a defect of pytest-torchcheck, the exception itself is not",
        because=f"the message is {_said(error)!r}" if _said(error) else "it has no message",
        fix="see the traceback in the report",
        evidence={
            "traceback of the explanation": told(failure),
        },
    )


def named(finding: Finding, promise: str) -> Finding:
    """Say what does not hold, where an explanation that took too long could not.

    Args:
        finding: Of a check.
        promise: What the check holds a model to, as a sentence.
    """
    told = finding.evidence.get("out of time") or finding.evidence.get("not explained")
    if told is None or finding.summary != told:
        return finding
    open_ = finding.status in ("inconclusive", "error")
    doubt = "could not be decided" if open_ else "does not hold"
    return finding.replace(summary=f"{doubt}: {promise.rstrip('.')!r}; {told}")


def misnamed(error: UnknownNameError) -> Explanation:
    """Say what a promise names and the model does not have."""
    return Explanation(
        code="unknown-name",
        summary=error.problem,
        observed=f"there are: {error.listed}",
        cause="the name is misspelt, or what it named has another name now",
        because="a promise that names nothing holds nothing, and would pass without a look",
        fix=f"write {error.near!r}" if error.near else "name one of those that there are",
        culprits=(Culprit("promise", error.given),),
    )


def skipped(found: tuple[Finding, ...], reason: str, check: str) -> tuple[Finding, ...]:
    """Turn the findings of a check that the contract skips into not-applicable, or a stale skip into a failure.

    A check that failed by itself has not shown that the skip is needed: its error stays as it is.
    """
    errors = tuple(finding for finding in found if finding.status == "error")
    acting = tuple(finding for finding in found if finding.status in _ACTING)
    if acting:
        return errors + tuple(
            not_applicable(f"skipped by the contract: {reason} ({finding.summary})")
            for finding in acting
        )
    if errors:
        return errors
    if any(finding.status == "passed" for finding in found):
        held = next(finding.summary for finding in found if finding.status == "passed")
        return (
            violated(
                SKIP_STALE,
                f"the skip of {check} is no longer needed: the check passes",
                observed=held,
                cause=f"the contract still skips it: {reason}",
                because="a skip is strict, so that it does not outlive its reason",
                fix="remove the entry from skip=",
            ),
        )
    return tuple(
        finding.replace(summary=f"{finding.summary} (skipped by the contract: {reason})")
        for finding in found
    )


def strictly(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Count ``suspicious`` and ``inconclusive`` as violated, but for what follows from another finding."""
    return tuple(
        f.replace(status="violated")
        if f.status in ("suspicious", "inconclusive") and f.root is None
        else f
        for f in findings
    )


def not_put_back(found: Mapping[str, str]) -> Finding:
    """Say what a model has changed that no check can put back for the next run.

    Args:
        found: What it is, such as ``a generator``, by its name in the model.
    """
    arrays = [name for name, kind in found.items() if kind.startswith("an array")]
    said = "; ".join(f"{name} is {kind}" for name, kind in found.items())
    return inconclusive(
        f"{said}: what a run changes of it is not put back for the next one",
        code=NOT_PUT_BACK,
        cause="an array of this size is not copied, so runs are not repeatable"
        if arrays
        else "Python cannot copy it nor set it back, so runs are not repeatable",
        fix="do not write to it in a forward, or hold a smaller one"
        if arrays
        else "hold a list, or an iterator over one, which can be copied",
    )

"""What the findings of one item come to, as an exception and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ...findings import ContractViolation, Finding
from ...lean import dataclass
from ...render.terminal import render_finding
from ...render.text import headline
from ..parts import TorchcheckWarning

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


TextRepr = Any  # pytest names the type of a failure's representation only privately


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an item's findings come to.

    Attributes:
        failing: Findings that fail it.
        warning: Findings that are shown as warnings.
        skipping: Reasons why it is shown as skipped; empty unless nothing fails.
        known: Headlines of known findings, for which it is shown as an expected failure; empty
            unless nothing fails.
    """

    failing: tuple[Finding, ...] = ()
    warning: tuple[Finding, ...] = ()
    skipping: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


def judge(findings: Sequence[Finding], *, strict: bool) -> Verdict:
    """Turn findings into an outcome.

    Args:
        findings: Those of one case; at least one.
        strict: Whether ``suspicious`` and ``inconclusive`` fail too. What is undecided only because
            something else is broken does not: its cause fails already.
    """
    hard = {"violated", "error"} | ({"suspicious", "inconclusive"} if strict else set())
    failing = tuple(
        f for f in findings if f.status in hard and not (f.status == "inconclusive" and f.root)
    )
    warning = tuple(f for f in findings if f.status == "suspicious" and f not in failing)
    if failing:
        return Verdict(failing=failing, warning=warning)
    expected = tuple(headline(f) for f in findings if f.status == "known")
    if expected:
        return Verdict(warning=warning, known=expected)
    undecided = [f"inconclusive: {f.summary}" for f in findings if f.status == "inconclusive"]
    idle = [f"not applicable: {f.summary}" for f in findings if f.status == "not-applicable"]
    held = any(f.status in ("passed", "suspicious") for f in findings)
    return Verdict(warning=warning, skipping=tuple(undecided or ([] if held else idle)))


def render_failure(findings: Iterable[Finding], *, verbosity: int = 0) -> str:
    """Return what a failed item shows: each cause in full, what follows from an earlier one in a line."""
    texts = []
    for finding in findings:
        if finding.root is None:
            texts.append(render_finding(finding, verbosity=verbosity))
        else:
            texts.append(
                f"{headline(finding)}\nfollows from {finding.root}, which is reported there"
            )
    return "\n\n".join(texts)


_Failed: Any = pytest.fail.Exception  # a class that pytest makes known under no other public name


class Explained(_Failed):  # type: ignore[misc]
    """A failure that this plugin adds to a test: its text is that of its findings, its frames are nobody's."""

    __module__ = "builtins"

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(render_failure(self.findings), pytrace=False)


def raise_verdict(verdict: Verdict, item: pytest.Item) -> None:
    """Warn, fail or skip."""
    for finding in verdict.warning:
        item.warn(TorchcheckWarning(render_failure([finding])))
    if verdict.failing:
        raise ContractViolation(verdict.failing)
    if verdict.known:
        pytest.xfail("; ".join(verdict.known))
    if verdict.skipping:
        pytest.skip("; ".join(verdict.skipping))


def represent(excinfo: pytest.ExceptionInfo[Any], *, verbosity: int = 0) -> TextRepr:
    """Represent a violated contract by its findings, and point to the user's line."""
    findings: tuple[Finding, ...] = excinfo.value.findings
    text = render_failure(findings, verbosity=verbosity)
    shown = excinfo.getrepr(style="value", chain=False)
    entry: Any
    for entry in shown.reprtraceback.reprentries:
        entry.lines = text.splitlines()
    crash = shown.reprcrash
    if crash is not None:
        crash.message = (
            text  # the summary then starts with what the user knows, not with a class of ours
        )
        location = next((f.location for f in findings if f.location is not None), None)
        if location is not None:
            crash.path, crash.lineno = location.file, location.line
    return shown

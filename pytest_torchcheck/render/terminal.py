"""Findings and reports as plain lines, for a terminal, an exception and a log.

A finding takes at most twelve lines, since CI logs print the message of an exception whole; what
does not fit stands in the report section, which grows with ``-v``.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from ..findings import STATUSES, Finding, Report, Status
from ..text.wording import counted
from .evidence import blocks
from .text import STATUS_WORDS, fields, headline, one_line, place, stale_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


MAX_LINES = 12
LABEL_WIDTH = 10
WIDTH = 100
_VERBATIM = frozenset({"where", "again"})  # a path and a command are copied whole, so never broken
_CUT_FIRST = ("observed", "because", "cause", "fix", "where", "again")


def _wrap(label: str, text: str, width: int) -> list[str]:
    """Return the lines of one field, without the label column."""
    if label in _VERBATIM:
        return [one_line(text)]
    lines: list[str] = []
    for paragraph in text.strip().splitlines():
        lines += textwrap.wrap(
            paragraph.rstrip(),
            width=width - LABEL_WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
            drop_whitespace=True,
        )
    return lines


def _shorten(parts: dict[str, list[str]], budget: int) -> None:
    """Cut the longest fields until all fit into ``budget`` lines; a cut line ends in an ellipsis."""
    while sum(map(len, parts.values())) > budget:
        longest = max(map(len, parts.values()))
        if longest == 1:  # more fields than lines: cannot happen with six fields and twelve lines
            return
        label = next(name for name in _CUT_FIRST if len(parts.get(name, ())) == longest)
        kept = parts[label][:-1]
        kept[-1] = kept[-1].removesuffix(" …") + " …"
        parts[label] = kept


def render_finding(
    finding: Finding, *, verbosity: int = 0, width: int = WIDTH, max_lines: int | None = MAX_LINES
) -> str:
    """Lay out one finding.

    Args:
        finding: What to show.
        verbosity: 0 shows the diagnosis alone; 1 adds the evidence as tables and curves; 2 adds
            every measurement and every culprit. Anything above 0 lifts the limit on lines.
        width: Columns at which text is wrapped. Paths and commands are never broken.
        max_lines: Most lines, at ``verbosity`` 0; None for no limit.

    Returns:
        Lines joined by newlines, the first of which stands alone: ``<summary> [code]``.
    """
    first = headline(finding)
    parts = {label: _wrap(label, text, width) for label, text in fields(finding)}
    if verbosity <= 0 and max_lines is not None:
        _shorten(parts, max_lines - 1)
    lines = [first]
    for label, texts in parts.items():
        lines.append(f"{label:<{LABEL_WIDTH}}{texts[0]}")
        lines += [" " * LABEL_WIDTH + text for text in texts[1:]]
    if verbosity > 0:
        lines += render_evidence(finding, verbosity=verbosity, width=width)
    return "\n".join(lines)


def render_evidence(finding: Finding, *, verbosity: int = 1, width: int = WIDTH) -> list[str]:
    """Return the measurements of a finding as lines: curves, tables, chains; empty if there are none."""
    lines: list[str] = []
    for block in blocks(finding, verbosity=verbosity):
        lines += ["", f"{block.title}:"]
        lines += ["  " + line for line in block.lines(width - 2)]
    return lines


def _count_line(check: str, findings: Sequence[Finding], width: int) -> str:
    counts = [
        f"{sum(f.status == status for f in findings)} {STATUS_WORDS[status]}"
        for status in STATUSES
        if any(f.status == status for f in findings)
    ]
    return f"  {check:<{width}}  {', '.join(counts)}"


def _by_check(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    grouped: dict[str, list[Finding]] = {}
    for finding in findings:
        grouped.setdefault(finding.check or finding.code, []).append(finding)
    return grouped


def _where_it_ran(finding: Finding) -> str:
    return "-".join(part for part in (finding.device, finding.dtype) if part)


def _tag(finding: Finding) -> str:
    """Return ``check[cpu-float32]``."""
    ran = _where_it_ran(finding)
    return f"{finding.check}[{ran}]" if ran else finding.check


def _title(report: Report) -> str:
    counts = report.counts()
    causes = len(report.causes)
    follow = counts["violated"] - causes
    parts = []
    if counts["violated"]:
        parts.append(counted(causes, "cause"))
    if follow:
        parts.append(f"{follow} more {'failure' if follow == 1 else 'failures'} of the same cause")
    if counts["error"]:
        parts.append(counted(counts["error"], "error"))
    rest: tuple[Status, ...] = ("suspicious", "inconclusive", "known", "passed", "not-applicable")
    parts += [f"{counts[status]} {STATUS_WORDS[status]}" for status in rest if counts[status]]
    seconds = f" in {report.seconds:.1f} s" if report.seconds else ""
    told = ", ".join(parts) or "no check ran"
    return f"{report.contract or 'contract'}: {report.verdict}; {told}{seconds}"


def followers(
    findings: Sequence[Finding], status: Status = "violated"
) -> tuple[tuple[Finding, tuple[Finding, ...]], ...]:
    """Return each cause of a status with the violated and suspicious findings that follow from it.

    ``root`` names a cause by check and code, which several causes may share (two parameters cut at
    two places): a follower then goes to the one that ran on the same device and dtype and shares the
    most culprits, else to the first.
    """
    causes = [f for f in findings if f.status == status and f.root is None]
    grouped: list[list[Finding]] = [[] for _ in causes]
    for finding in findings:
        if finding.status not in ("violated", "suspicious") or finding.root is None:
            continue
        names = {culprit.name for culprit in finding.culprits}
        ranked = [
            (
                (cause.device, cause.dtype) == (finding.device, finding.dtype),
                len(names & {culprit.name for culprit in cause.culprits}),
                -place,
            )
            for place, cause in enumerate(causes)
            if cause.key == finding.root
        ]
        if ranked:
            grouped[-max(ranked)[2]].append(finding)
    return tuple((cause, tuple(group)) for cause, group in zip(causes, grouped, strict=True))


def render_follower(finding: Finding) -> str:
    """Return the one line of a finding that follows from another one."""
    return f"also failing, same cause: {_tag(finding)}: {headline(finding)}"


def render_measured(report: Report, *, width: int = WIDTH) -> list[str]:
    """Return the curves and tables of what broke no promise as lines: what a reader may want to look at."""
    lines: list[str] = []
    for finding in report.with_status("passed", "not-applicable"):
        shown = render_evidence(finding.replace(culprits=()), verbosity=1, width=width)
        if shown:
            lines += ["", f"{_tag(finding)} measured", *shown[1:]]
    return lines


def render_report(report: Report, *, verbosity: int = 0, width: int = WIDTH) -> str:
    """Lay out a whole report: a line per check, the causes in full, then what could not be decided.

    Args:
        report: What to show.
        verbosity: -1 leaves out the line per check; 1 adds the evidence of each cause; 2 shows every
            measurement, what passed and why, what did not apply and why, and the tables of both.
        width: Columns at which text is wrapped.
    """
    lines = [_title(report)]
    if verbosity >= 0:
        grouped = _by_check(report.findings)
        column = max(map(len, grouped), default=0)
        lines += [_count_line(check, found, column) for check, found in grouped.items()]
    acting = (*report.with_status("violated"), *report.with_status("suspicious"))
    told = {finding.key for finding in acting if finding.root is None}
    for cause, group in followers(report.findings):
        lines += ["", render_finding(cause, verbosity=verbosity, width=width)]
        lines += map(render_follower, group)
    for finding in acting:
        if finding.root is not None and finding.root not in told:
            # its cause was found by another contract or process, so it is told in full here
            lines += ["", render_finding(finding, verbosity=verbosity, width=width)]
            lines.append(f"follows from {finding.root}")
    for finding in report.with_status("error"):
        lines += ["", render_finding(finding, verbosity=verbosity, width=width)]
    for finding, group in followers(report.findings, "suspicious"):
        lines += ["", render_finding(finding, verbosity=verbosity, width=width)]
        lines += [f"same cause: {_tag(f)}: {headline(f)}" for f in group]
    undecided = list(report.with_status("inconclusive"))
    if undecided:
        lines += ["", "inconclusive (these could not have failed):"]
        lines += [f"  {_tag(f)}: {one_line(f.summary)}" for f in undecided]
    if verbosity >= 2:
        for status in ("passed", "not-applicable"):
            found = [f for f in report.findings if f.status == status]
            if found:
                lines += ["", f"{STATUS_WORDS[found[0].status]}:"]
                lines += [f"  {_tag(f)}: {one_line(f.summary)}" for f in found]
        lines += render_measured(report, width=width)
        if report.environment:
            lines += ["", "environment:"]
            lines += [f"  {key}  {value}" for key, value in report.environment.items()]
    return "\n".join(lines)


_FIRST = 2
_SAID: tuple[Status, ...] = ("suspicious", "known", "inconclusive")


def summary_line(reports: Iterable[Report], *, gone: int = 0) -> str:
    """Return what a run came to: verdicts, the first causes with their lines, and how much else there is.

    Args:
        reports: One per contract.
        gone: How many known findings are gone, so that the run fails.

    Returns:
        One line that ends with a newline.
    """
    reports = list(reports)
    verdicts = Counter(report.verdict for report in reports)
    good = verdicts.pop("ok", 0)
    told = [f"{number} {verdict}" for verdict, number in verdicts.items()]
    said = f"{counted(len(reports), 'contract')} ok"
    if not reports:
        said = "no contract ran"
    elif told:
        said = f"{', '.join(told)}, {good} ok of {counted(len(reports), 'contract')}"
    causes = [
        (report.contract, one)
        for report in reports
        for one in (*report.causes, *report.with_status("error"))
    ]
    shown = "; ".join(_cause(contract, one) for contract, one in causes[:_FIRST])
    if len(causes) > _FIRST:
        shown += f"; and {len(causes) - _FIRST} more"
    counts = Counter(f.status for r in reports for f in r.findings if f.root is None)
    rest = ", ".join(f"{counts[status]} {status}" for status in _SAID if counts[status])
    stale = stale_lines(gone) if gone else ""
    parts = [f"**torchcheck**: {said}", stale, shown, rest]
    return " — ".join(part for part in parts if part) + "\n"


def _cause(contract: str, finding: Finding) -> str:
    where = f" (`{place(finding.location)}`)" if finding.location is not None else ""
    return f"{_plain(contract)}: {_plain(headline(finding))}{where}"


def _plain(text: str) -> str:
    """Return text in which nothing is markup."""
    return re.sub(r"([\\`*_<>\[\]|#~])", r"\\\1", text)

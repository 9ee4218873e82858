"""A run in one line of Markdown, for a pull request."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from ..text.wording import counted
from .text import headline, place, stale_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..findings import Finding, Report, Status

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

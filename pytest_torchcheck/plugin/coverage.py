"""The table of custom Functions and operators of a run: which contract checked each, and which none did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from ..codes.functions import NEVER
from ..findings import Location
from ..late import Late
from ..render.evidence import Table
from ..render.text import place
from . import options, tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..findings import Report
    from ..functions.coverage import CoverageRow
    from .options import Options

_table = Late("functions.coverage:table")

_MOST_ROWS = 40


class Ledger(Protocol):
    """What the contracts found, in this process and in others."""

    def reports(self) -> Iterable[tuple[str, Report]]:
        """Return the report of each contract with the id of its node."""


class Coverage:
    """Tells at the end of a run which custom Functions were checked.

    Args:
        config: The session's config.
        ledger: What the contracts found, in this process and in others.
    """

    def __init__(self, config: pytest.Config, ledger: Ledger) -> None:
        self.config = config
        self.settings: Options = config.stash[options.KEY]
        self.ledger = ledger
        self._rows: list[CoverageRow] | None = None

    def rows(self) -> list[CoverageRow]:
        """Return the Functions that contracts applied, and those that the named packages define besides."""
        if self._rows is None:
            reports = self.ledger.reports() if self.settings.enabled else ()
            found = [finding for _, report in reports for finding in report.findings]
            wanted = bool(self.settings.packages) and self.settings.enabled
            if not wanted and not any("coverage" in finding.evidence for finding in found):
                self._rows = []
            else:
                self._rows = _table(found, self.settings.packages if wanted else ())
        return self._rows

    def unchecked(self) -> list[CoverageRow]:
        """Return the Functions that no contract checked, in a run that left out none on purpose."""
        option = self.config.option
        partial = (
            any("::" in str(argument) for argument in self.config.args)
            or any(
                getattr(option, name, None) for name in ("keyword", "markexpr", "lf", "deselect")
            )
            or bool(self.settings.checks and "function-coverage" not in self.settings.checks)
            or self.settings.replay is not None
        )
        return [] if partial else [row for row in self.rows() if row.status == NEVER]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a strict run in which a Function of the named packages was never checked."""
        if self.config.getoption("collectonly", False) or not self.settings.strict:
            return
        if session.exitstatus == pytest.ExitCode.OK and self.rows() and self.unchecked():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table."""
        rows = self.rows() if not self.config.getoption("collectonly", False) else []
        if not rows:
            return
        if self.config.get_verbosity() >= 0:
            terminalreporter.section("torchcheck: custom Functions", sep="=")
            most = None if self.config.get_verbosity() else _MOST_ROWS
            for text, markup in lines(rows, most=most):
                terminalreporter.write_line(text, **markup)
        missing = self.unchecked()
        if missing and self.settings.strict:
            names = ", ".join(row.name for row in missing[:5]) + (" ..." if missing[5:] else "")
            terminalreporter.write_line(
                f"ERROR never checked: {names}; let a contract's model apply "
                f"{'it' if len(missing) == 1 else 'them'}, or declare functions= in a contract",
                red=True,
            )


def page_table(rows: Sequence[CoverageRow]) -> Table:
    """Lay out the whole table for the page, what needs attention first."""
    return Table(
        title="custom Functions",
        columns=("Function", "where", "verdict", "contracts"),
        rows=tuple(_cells(row) for row in _by_urgency(rows)),
    )


def _by_urgency(rows: Sequence[CoverageRow]) -> list[CoverageRow]:
    rank = ("violated", "error", NEVER, "inconclusive", "suspicious", "passed", "not-applicable")
    return sorted(rows, key=lambda row: rank.index(row.status) if row.status in rank else 0)


def _cells(row: CoverageRow) -> tuple[str, str, str, str]:
    where = place(Location(file=row.file, line=row.line)) if row.file else row.module
    return (row.name, where, row.status.replace("-", " "), ", ".join(row.contracts))


def lines(
    rows: Sequence[CoverageRow], *, most: int | None = None
) -> list[tuple[str, dict[str, bool]]]:
    """Lay out the table, what needs attention first.

    Args:
        rows: The Functions.
        most: How many are shown; those that passed are left out first.

    Returns:
        Lines with their markup.
    """
    order = _by_urgency(rows)
    shown = order if most is None else order[:most]
    cells = [_cells(row) for row in shown]
    widths = [max(len(cell[column]) for cell in cells) for column in range(3)]
    colours = {
        "violated": "red",
        "error": "red",
        NEVER: "yellow",
        "inconclusive": "yellow",
        "passed": "green",
    }
    made = []
    for row, cell in zip(shown, cells, strict=True):
        text = "  ".join(part.ljust(width) for part, width in zip(cell, widths, strict=False))
        colour = colours.get(row.status)
        made.append((f"{text}  {cell[3]}".rstrip(), {colour: True} if colour else {}))
    if len(shown) < len(order):
        made.append((f"and {len(order) - len(shown)} more (-v shows them)", {}))
    return made


def register(config: pytest.Config) -> None:
    """Show the table in the process that the user looks at."""
    if hasattr(config, "workerinput") or tasks.inside(config):
        return
    ledger = config.pluginmanager.get_plugin("torchcheck-reports")
    if ledger is not None:
        made = Coverage(config, ledger)
        ledger.coverage = made
        config.pluginmanager.register(made, "torchcheck-coverage")

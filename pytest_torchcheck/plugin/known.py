"""Known findings: they are shown and do not fail.

A new one fails, and one that is gone must leave the file.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import pytest

from ..findings import Finding
from ..storage import baseline
from ..storage.baseline import BaselineError, Known, known_of
from ..storage.files import write_whole
from . import markers, options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .options import Options

RECORD: Final = "torchcheck"
_FAILING: Final = ("violated", "suspicious", "inconclusive")

Key = tuple[str, str]  # contract's node id and check, with the kind of an accelerator


class Baseline:
    """The file of known findings, as this run reads it.

    Args:
        entries: Its findings with their lines.
        writes: Whether the run records what it finds, so that nothing fails for it.
    """

    def __init__(self, entries: dict[Known, int], *, writes: bool) -> None:
        self.entries = entries
        self.writes = writes

    def marked(
        self,
        node: str,
        findings: Sequence[Finding],
        failing: Iterable[Finding],
        selected: Iterable[str],
    ) -> tuple[Finding, ...]:
        """Return the findings of a case with those that are known marked so.

        Args:
            node: Node id of the contract.
            findings: What the case found.
            failing: Those of them that would fail it.
            selected: The checks of the contract that run in this session.
        """
        hard = {f.key for f in failing if f.status != "error"}
        return tuple(
            finding.replace(
                status="known", evidence={**finding.evidence, "known as": finding.status}
            )
            if finding.key in hard
            and finding.status in _FAILING
            and (
                self.writes
                or baseline.matches(self.entries, known_of(node, finding), selected=selected)
            )
            else finding
            for finding in findings
        )


KEY: Final = pytest.StashKey[Baseline]()


GONE: Final = pytest.StashKey[list[str]]()
"""Lines of the file whose finding is gone, as ``file:line``, at the end of the run."""


class _Stale:
    """What is said of a line to be removed, as pytest shows a failure."""

    def __init__(self, message: str) -> None:
        self.reprcrash, self.message = self, message

    def __str__(self) -> str:
        return self.message

    def toterminal(self, writer: Any) -> None:
        """Write it where pytest lists failures."""
        writer.line(self.message, red=True)


class _Ledger:
    """Compares what ran with the file, at the end, in the process that the user looks at."""

    def __init__(self, settings: Options, entries: dict[Known, int]) -> None:
        self.settings, self.entries = settings, entries
        self.ran: dict[Key, dict[str, bool]] = {}  # node ids of cases, and whether they decided
        self.alike: dict[Key, int] = {}
        self.found: dict[str, list[Known]] = {}
        self.seen: dict[str, list[Known]] = {}  # suspicions too, which fail under strict alone
        self.told: list[str] = []

    @property
    def shown(self) -> str:
        """The file's name as it is shown."""
        return os.path.relpath(str(self.settings.baseline))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which cases of a check ran, and what is known of them."""
        text = getattr(report, RECORD, None)
        if text is None:
            return
        record: dict[str, Any] = json.loads(text) if isinstance(text, str) else text
        if not record["case"] or not record["ran"]:
            return
        findings = [Finding.from_dict(found) for found in record["findings"]]
        first = known_of(record["node"], findings[0])
        key = (first.contract, first.check)
        decided = not any(f.status in ("inconclusive", "error") for f in findings)
        self.ran.setdefault(key, {})[report.nodeid] = decided
        self.alike[key] = record["alike"]
        self.found[report.nodeid] = [
            known_of(record["node"], f) for f in findings if f.status in ("known", "violated")
        ]
        self.seen[report.nodeid] = [
            known_of(record["node"], f) for f in findings if f.status in ("known", *_FAILING)
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, or fail the run for what is gone from it."""
        seen = {known for one in self.seen.values() for known in one}
        gone = [entry for entry in self.entries if self._settled(entry) and entry not in seen]
        gone = [e for e in gone if not any(baseline.matches({e: 0}, one) for one in seen)]
        if self.settings.write_baseline:
            self._write(set(self.entries) - set(gone), session)
            return
        if not gone:
            return
        gone.sort(key=self.entries.__getitem__)
        session.config.stash[GONE] = [f"{self.shown}:{self.entries[entry]}" for entry in gone]
        reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:  # pytest counts what stands there, and is red for it
            failed = reporter.stats.setdefault("failed", [])
            failed += [self._failure(entry) for entry in gone]
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _failure(self, entry: Known) -> pytest.TestReport:
        """Return what pytest shows of a line to be removed."""
        line = self.entries[entry]
        return pytest.TestReport(
            nodeid=f"{self.shown}:{line}",
            location=(self.shown, line - 1, f"{self.shown}:{line}"),
            keywords={},
            outcome="failed",
            longrepr=_Stale(f"this finding is gone; remove the line: {entry}"),  # type: ignore[arg-type]
            when="call",
        )

    def _settled(self, entry: Known) -> bool:
        """Say whether every case of an entry's check ran in this session, and came to a verdict."""
        key = (entry.contract, entry.check)
        cases = self.ran.get(key, {})
        return bool(cases) and len(cases) == self.alike[key] and all(cases.values())

    def _write(self, kept: set[Known], session: pytest.Session) -> None:
        found = {known for one in self.found.values() for known in one}
        path = self.settings.baseline
        assert path is not None
        try:
            write_whole(path, baseline.render(kept | found))
        except OSError as error:
            self.told.append(f"torchcheck: could not write {self.shown}: {error.strerror or error}")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return
        number = len(kept | found)
        self.told.append(
            f"torchcheck: wrote {number} known finding{'s' * (number != 1)} to {self.shown}"
        )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what was written, and which lines to remove."""
        for line in self.told:
            terminalreporter.write_line(line, red=not line.startswith("torchcheck: wrote"))


def register(config: pytest.Config) -> None:
    """Read the file of known findings, where one is given."""
    settings = config.stash[options.KEY]
    path = settings.baseline
    if path is None:
        if settings.write_baseline:
            told = "--torchcheck-write-baseline: give the file as well: --torchcheck-baseline=FILE"
            markers.usage_error(config, told)
        return
    entries: dict[Known, int] = {}
    if path.is_file():
        try:
            entries = baseline.parse(path.read_text(encoding="utf-8"), os.path.relpath(path))
        except (BaselineError, UnicodeDecodeError) as error:
            markers.usage_error(config, f"--torchcheck-baseline: {error}")
    elif not settings.write_baseline:
        markers.usage_error(
            config,
            f"--torchcheck-baseline: no such file: {path}; --torchcheck-write-baseline makes it",
        )
    config.stash[KEY] = Baseline(entries, writes=settings.write_baseline)
    if config.pluginmanager.has_plugin("torchcheck-reports"):  # the process that the user looks at
        config.pluginmanager.register(_Ledger(settings, entries), "torchcheck-known")

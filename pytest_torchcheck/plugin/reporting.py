"""Header, terminal summary, annotations and report files: all made from findings, in one process."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from .. import __version__
from ..codes import folding
from ..findings import Finding, Report, strict_json
from ..late import Late
from ..render.terminal import render_finding
from ..storage.files import write_whole
from ..text.printable import message_of, printable
from . import options, tasks
from .collection.records import RECORD, plain
from .coverage import page_table
from .kept import Kept
from .known import GONE
from .summary import Tally, is_red, slowest, standing, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from .coverage import Coverage
    from .options import Options

_render_html = Late("render.html:render_html")
_sarif = Late("render.sarif:sarif")
_summary_line = Late("render.terminal:summary_line")

_FORMAT: Final = 1


class Ledger:
    """Keeps what every item found, wherever it ran, and tells it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings: Options = config.stash[options.KEY]
        self.order: dict[str, int] = {}
        self.records = Kept()
        self.outcomes: dict[str, str] = {}
        # of items whose setup or teardown failed, what they came to before it
        self.before: dict[str, str] = {}
        self.bare: dict[str, None] = {}  # failed items that said nothing: their process died
        self.coverage: Coverage | None = None
        self.unwritten: dict[Path, str] = {}

    # -- what comes in ----------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the order of the items in a run of one process."""
        self._note_order(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note the order of the items as a worker collects them: that of a run of one process."""
        self._note_order(ids)

    def _note_order(self, ids: Iterable[str]) -> None:
        for nodeid in ids:
            self.order.setdefault(nodeid, len(self.order))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        """Keep an item's findings small once all have read them: pytest keeps every report to the end."""
        yield
        self._note(report)
        if hasattr(report, RECORD):
            delattr(report, RECORD)

    def _note(self, report: pytest.TestReport) -> None:
        """Keep an item's findings; a second attempt replaces the first."""
        record = getattr(report, RECORD, None)
        if report.failed and record is None:
            self.bare[report.nodeid] = None
        if record is None and not self.records:  # the way of every test that has nothing to say
            return
        if report.when == "setup":
            self.records.forget(report.nodeid)
            self.bare.pop(report.nodeid, None)
            self.outcomes.pop(report.nodeid, None)
            self.before.pop(report.nodeid, None)
        if record is not None:
            self.records.add(report.nodeid, str(report.when), record)
        if report.nodeid in self.records.ids and (report.when != "teardown" or report.failed):
            # pytest counts it as an error, beside what the call came to
            if report.when != "call" and report.failed:
                self.before[report.nodeid] = self.outcomes.get(report.nodeid, "")
            self.outcomes[report.nodeid] = report.outcome

    # -- what is made of it -----------------------------------------------------------------------

    def reports(self) -> _Reports:
        """Return a report per contract, with its node id."""
        return _Reports(self)

    def _spent(self) -> dict[str, tuple[float, float | None]]:
        """Return how long each check took and how long a plain step of its model takes, in seconds, by node id."""
        found = {}
        for _, records in self.records.by_node(self.order):
            for nodeid, record in records:
                if "spent" in record:
                    found[nodeid] = tuple(record["spent"])
        return found

    def tallies(self) -> dict[str, Tally]:
        """Return what pytest counts of every contract, by node id."""
        found = self.records.by_node(self.order)
        return {node: self._tally(node, records) for node, records in found}

    def _tally(self, node: str, records: Sequence[tuple[str, dict[str, Any]]]) -> Tally:
        ids = {nodeid: None for nodeid, _ in records}
        ids |= {one: None for one in self.bare if one.startswith(f"{node}::")}
        outcomes = [
            self.before.get(one, "failed" if one in self.bare else self.outcomes.get(one, ""))
            for one in ids
        ]
        ran = [record for _, record in records if record["ran"]]
        return Tally(
            passed=outcomes.count("passed"),
            failed=outcomes.count("failed"),
            skipped=outcomes.count("skipped"),
            errors=sum(one in self.before for one in ids),
            items=len(ids),
            whole=len(ran) == len(ids) == records[0][1]["of"],
            told=tuple(
                Finding.from_dict(found)
                for nodeid, record in records
                if self.outcomes.get(nodeid) == "failed"
                for found in record["findings"]
                if found["status"] in ("suspicious", "inconclusive") and not found["root"]
            ),
        )

    def document(self, reports: Iterable[tuple[str, Report]]) -> dict[str, Any]:
        """Return what the JSON file holds."""
        tallies, contracts = self.tallies(), []
        of = dict(self.records.by_node(self.order))
        for node, report in reports:
            cases = [
                {
                    "nodeid": nodeid,
                    "case": record["case"],
                    "outcome": self.outcomes.get(nodeid, ""),
                    "seconds": record["seconds"],
                }
                for nodeid, record in of[node]
            ]
            plain = {**json.loads(report.to_json()), "verdict": standing(report, tallies[node])}
            contracts.append({"node": node, "cases": cases, **plain})
        return {
            "format": _FORMAT,
            "torchcheck": __version__,
            "settings": _settings(self.settings),
            "ok": not self.gone
            and not any(is_red(report, tallies[node]) for node, report in reports),
            "contracts": contracts,
            "functions": []
            if self.coverage is None
            else [row.to_dict() for row in self.coverage.rows()],
        }

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Fail a run in which nothing was checked; write the reports, and keep the summary where that fails."""
        if self.settings.enabled:
            _spare_hypothesis(self.config)
        if session.exitstatus == pytest.ExitCode.OK and self.records:
            tallies = self.tallies()
            if any(is_red(report, tallies[node]) for node, report in self.reports()):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        try:
            yield
        except OSError as error:  # such as JUnit's on a full disk, which would end the run here
            if not self.records:
                raise
            self.unwritten[Path(error.filename or "a report of another plugin")] = str(error)
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        wanted, step = self._wanted(), _step_summary()
        if not wanted and step is None:
            return
        reports = self.reports()
        for path, make in wanted.items():
            self._write(path, functools.partial(make, reports))
        if step is not None and self.records:
            self._append(step, self._markdown(reports))

    @property
    def gone(self) -> Sequence[str]:
        """Lines of the file of known findings to be removed."""
        return self.config.stash.get(GONE, [])

    def _wanted(self) -> dict[Path, Callable[[Iterable[tuple[str, Report]]], str]]:
        """Return what makes each report file that was asked for."""
        makers = {
            self.settings.json: self._json,
            self.settings.html: self._html,
            self.settings.sarif: self._sarif,
            self.settings.markdown: self._markdown,
        }
        return {path: make for path, make in makers.items() if path is not None}

    def _json(self, reports: Iterable[tuple[str, Report]]) -> str:
        return strict_json(self.document(reports)) + "\n"

    def _html(self, reports: Iterable[tuple[str, Report]]) -> str:
        tables = []
        if self.coverage is not None and self.coverage.rows():
            tables.append(page_table(self.coverage.rows()))
        page: str = _render_html([report for _, report in reports], tables=tables)
        return page

    def _sarif(self, reports: Iterable[tuple[str, Report]]) -> str:
        root = Path(os.environ.get("GITHUB_WORKSPACE") or self.config.rootpath)
        return strict_json(_sarif(reports, root=root, version=__version__)) + "\n"

    def _markdown(self, reports: Iterable[tuple[str, Report]]) -> str:
        line: str = _summary_line((report for _, report in reports), gone=len(self.gone))
        return line

    def _append(self, path: Path, text: str) -> None:
        """Add to a file of the runner's, which other steps write to as well."""
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            self.unwritten[path] = error.strerror or message_of(error)

    def _write(self, path: Path, make: Callable[[], str]) -> None:
        """Write a report file; where that fails, the summary says so, and says what was found all the same."""
        try:
            write_whole(path, make())
        except OSError as error:
            self.unwritten[path] = error.strerror or message_of(error)
        except Exception as error:  # a defect of a report must not hide what all of them say
            self.unwritten[path] = f"{type(error).__name__}: {message_of(error)}"

    def pytest_report_header(self) -> str | None:
        """Say what the run was asked to do, and where that was said."""
        if not self.settings.used:
            return None
        told = options.header(self.settings)
        return f"torchcheck: {'contracts, ' if self.settings.enabled else ''}{told}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """List the contracts with their counts and causes; annotate the lines on GitHub."""
        reports = self.reports()
        if self.records and self.config.get_verbosity() >= 0:
            terminalreporter.section("torchcheck", sep="=")
            verbosity = self.config.get_verbosity()
            lines = summary(reports, self.tallies(), verbosity=verbosity, gone=len(self.gone))
            for text, markup in lines:
                terminalreporter.write_line(text, **markup)
        for text in slowest(self._spent(), self.settings.durations):
            terminalreporter.write_line(text)
        for path in self._wanted():
            if path not in self.unwritten:
                shown = printable(os.path.relpath(path))
                terminalreporter.write_line(f"torchcheck: wrote {shown}")
        for path, problem in self.unwritten.items():
            told = f"torchcheck: could not write {path}: {problem}"
            terminalreporter.write_line(printable(told), red=True)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in github_annotations(report for _, report in reports):
                terminalreporter.write_line(line)


class _Reports:
    """A report per contract with its node id, made anew for each that asks: all of them at once are large."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __iter__(self) -> Iterator[tuple[str, Report]]:
        ledger = self._ledger
        return ((node, _report(records)) for node, records in ledger.records.by_node(ledger.order))


def _spare_hypothesis(config: pytest.Config) -> None:
    """Leave out the summary of Hypothesis's plugin where nothing used it: it imports all of Hypothesis to say nothing.

    No hook of that plugin has anything to do after the summary. It stays where one of its options is given, and
    where a report carries something of it, as that of a worker of xdist does.
    """
    plugin = config.pluginmanager.get_plugin("hypothesispytest")
    if plugin is None or "hypothesis" in sys.modules:
        return
    if any(value for name, value in vars(config.option).items() if name.startswith("hypothesis")):
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = [] if reporter is None else [r for many in reporter.stats.values() for r in many]
    # other plugins count what they like there, such as strings
    names = (name for report in reports for name in getattr(report, "__dict__", ()))
    if any(name.startswith("_hypothesis") for name in names):
        return
    config.pluginmanager.unregister(plugin)


def _step_summary() -> Path | None:
    """Return the file in which GitHub Actions collects what a step has to say."""
    path = os.environ.get("GITHUB_STEP_SUMMARY", "")
    return Path(path) if path and os.environ.get("GITHUB_ACTIONS") == "true" else None


def _report(records: Sequence[tuple[str, dict[str, Any]]]) -> Report:
    found = [Finding.from_dict(entry) for _, record in records for entry in record["findings"]]
    if records[0][1]["case"]:
        found = list(folding.fold(found))
    return Report(
        contract=records[0][1]["contract"],
        findings=tuple(found),
        seconds=round(sum(record["seconds"] for _, record in records), 6),
        environment=next(
            (record["environment"] for _, record in records if record["environment"]), {}
        ),
    )


def _settings(settings: Options) -> dict[str, Any]:
    """Return the settings that decide a verdict."""
    names = ("strict", "seed", "examples", "devices", "checks")
    return {name: plain(getattr(settings, name)) for name in names}


def github_annotations(reports: Iterable[Report]) -> list[str]:
    """Return workflow commands of GitHub Actions: an error per cause and check that failed, a warning per suspicion."""
    lines = []
    for report in reports:
        for finding in (*report.causes, *report.with_status("error", "suspicious")):
            level = "warning" if finding.status == "suspicious" else "error"
            lines.append(_annotation(level, report.contract, finding))
    return lines


def _annotation(level: str, contract: str, finding: Finding) -> str:
    fields = [f"title={_escape(f'{contract}: {finding.check}', field=True)}"]
    if finding.location is not None:
        root = os.environ.get("GITHUB_WORKSPACE") or str(Path.cwd())
        path = os.path.relpath(finding.location.file, root)
        fields = [f"file={_escape(path, field=True)}", f"line={finding.location.line}", *fields]
    return f"::{level} {','.join(fields)}::{_escape(render_finding(finding))}"


def _escape(text: str, *, field: bool = False) -> str:
    """Escape what would end a workflow command.

    Source:
        actions/toolkit, ``core/src/command.ts``: ``escapeData`` and ``escapeProperty``.
    """
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if field else text


def register(config: pytest.Config) -> None:
    """Tell what was found, in the process that the user looks at."""
    if hasattr(config, "workerinput") or tasks.inside(config):
        return
    config.pluginmanager.register(Ledger(config), "torchcheck-reports")

"""``--torchcheck-cached``: a check that held is not run again until something changes; it is skipped, and says so.

Kept in pytest's cache directory. What was red, suspicious or inconclusive, or was run twice, is never kept. Workers
of xdist read the file; the controller writes it, from what each worker sends it at its end.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from ..catalogue import catalogue
from ..late import resolve
from ..sources import is_installed
from ..storage.files import write_whole
from ..storage.unchanged import (
    Basis,
    CacheError,
    Opened,
    Verdicts,
    digest_of,
    imported_files,
    modified,
    read_files,
    settings_digest,
    variables_of,
)
from ..text.wording import counted
from . import options, tasks
from .collection.items import CheckItem
from .collection.records import read_record

if TYPE_CHECKING:
    from pathlib import Path

    from .options import Options

_SENT: Final = "torchcheck_cached"  # what a worker sends, in its output
_NO_VERDICT: Final = frozenset(
    {"enabled", "json", "html", "sarif", "markdown", "artifacts", "durations", "checks", "cached", "sources",
     "min_gpu_tests", "require", "models", "write_baseline", "against", "allow", "record", "write_record", "benchmark",
     "profile"}
)  # fmt: skip
"""Settings that decide no verdict: what is selected, and where reports go."""
_ELSEWHERE: Final = ("dataset", "ranks", "speed", "trainer")
"""What contracts declare whose checks read files in other processes, or measure time."""
_OPENED: Final = pytest.StashKey[Opened]()


def watch(config: pytest.Config) -> None:
    """Note the files that are read from now on."""
    opened = config.stash[_OPENED] = Opened()
    opened.start()
    config.add_cleanup(opened.stop)


class _Cached:
    """Decides which items need not run, and keeps those that held."""

    def __init__(self, config: pytest.Config, settings: Options) -> None:
        self.config, self.settings = config, settings
        self.path: Path | None = None
        self.started = time.time_ns()
        self.problem, self.change = "", ""
        self.verdicts = Verdicts({}, {})
        self.before: dict[str, str] = {}  # the imported files when everything was collected
        self.digest = ""
        self.reused = 0
        self.green: dict[str, dict[str, bool]] = {}
        self.red: set[str] = set()
        self.sent: list[dict[str, Any]] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Read what is kept; pytest's cache is there by now."""
        cache = self.config.cache
        assert cache is not None
        self.path = cache.mkdir("torchcheck") / "verdicts.json"
        try:
            self.verdicts = Verdicts.parse(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError, CacheError) as error:
            self.problem = f"{self.path} is ignored, so every check runs: {error}"

    # -- before the run ----------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Compare what verdicts rest on with what is there now."""
        items = [item for item in session.items if isinstance(item, CheckItem)]
        if not items:
            return
        self.digest = self._settings_now()
        self.before = {path: digest_of(path) for path in self._imported()}
        changes = {
            key: basis.change(self.digest, self.before)
            for key, basis in self.verdicts.bases.items()
        }
        for item in items:
            kept = self.verdicts.cases.get(item.parent.nodeid, {}).get(item.case.id)
            if kept is None or not _may_be_kept(item):
                continue
            if change := changes[kept.basis]:
                self.change = change
            else:
                item.unchanged = kept.since

    def _settings_now(self) -> str:
        option = self.config.option
        decided = {k: v for k, v in self.settings._asdict().items() if k not in _NO_VERDICT}
        decided["warnings"] = getattr(option, "pythonwarnings", None)
        decided["overrides"] = getattr(option, "override_ini", None)
        surroundings = {
            **resolve("runner.surroundings:environment")(self.settings.seed),
            "threads": str(resolve("runner.surroundings:threads")()),
        }
        return settings_digest(decided, surroundings)

    def _imported(self) -> set[str]:
        found = imported_files(is_installed)
        known = (self.config.inipath, self.settings.baseline)
        return found | {str(path) for path in known if path is not None}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what need not run; the reason says since when it stands."""
        if isinstance(item, CheckItem) and item.unchanged:
            pytest.skip(f"not run: it passed, and nothing has changed since {item.unchanged}")

    # -- what is kept ------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what an item came to; a second attempt makes it neither green nor kept."""
        record = read_record(report)
        if record is None or not record["case"]:
            return
        node, case = record["node"], record["case"]
        found = {one["status"] for one in record["findings"]}
        codes = {one["code"] for one in record["findings"]}
        if report.failed or found & {"violated", "suspicious", "error", "known"}:
            self.red.add(node)
        if "unchanged" in codes:
            self.reused += 1
            return
        cases = self.green.setdefault(node, {})
        cases[case] = case not in cases and record["ran"] and "inconclusive" not in found

    def _told(self, session: pytest.Session) -> dict[str, Any]:
        """Return what this process saw, as plain data."""
        mine = {i.parent.nodeid: i for i in session.items if isinstance(i, CheckItem)}
        lasting = {
            (i.parent.nodeid, i.case.id)
            for i in session.items
            if isinstance(i, CheckItem) and _may_be_kept(i)
        }
        basis = self._basis()
        green = {
            node: [case for case, held in cases.items() if held and (node, case) in lasting]
            for node, cases in self.green.items()
        }
        gone = {
            node: [case for case, held in cases.items() if not held]
            for node, cases in self.green.items()
        }
        return {
            "basis": None if basis is None else basis.to_dict(),
            "green": green, "gone": gone, "red": sorted(self.red & mine.keys()),
        }  # fmt: skip

    def _basis(self) -> Basis | None:
        """Return what this run's verdicts rest on; None where a file changed while it ran."""
        opened = self.config.stash.get(_OPENED, Opened())
        assert self.path is not None
        folder = str(self.path.parent.parent.parent)
        paths = self._imported() | read_files(opened, is_installed, folder)
        paths |= opened.asked(str(self.config.rootpath), folder, is_installed)
        files = {path: digest_of(path) for path in sorted(paths)}
        for path, digest in files.items():
            if modified(path) > self.started or self.before.get(path, digest) != digest:
                self.problem = f"{path} changed during the run, so its verdicts are not kept"
                return None
        return Basis(settings=self.digest, files=files, variables=variables_of(files))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send what was seen to the controller, or write it."""
        if not getattr(self.config.option, "collectonly", False):
            told = self._told(session) if self.digest else None
            output = getattr(self.config, "workeroutput", None)
            if output is not None:
                output[_SENT] = json.dumps(told)
                return
            self._write([*self.sent, *([told] if told else [])])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker saw; one that died saw nothing that could be kept."""
        told = json.loads(getattr(node, "workeroutput", {}).get(_SENT) or "null")
        if told:
            self.sent.append(told)

    def _write(self, told: list[dict[str, Any]]) -> None:
        since = time.strftime("%Y-%m-%d %H:%M")
        for one in told:
            for node, cases in one["gone"].items():
                self.verdicts.drop(node, cases)
            if one["basis"] is not None:
                self.verdicts.update(Basis(**one["basis"]), one["green"], since)
        for node in self.red | {node for one in told for node in one["red"]}:
            self.verdicts.drop(node)
        if told and self.path is not None:
            try:
                write_whole(self.path, self.verdicts.text())
            except OSError as error:
                self.problem = f"{self.path} cannot be written: {error.strerror}"

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how many verdicts are earlier ones, and what could not be read or kept."""
        if self.reused:
            terminalreporter.write_line(
                f"torchcheck: {counted(self.reused, 'check')} passed before and "
                f"{'was' if self.reused == 1 else 'were'} "
                "not run again, since nothing has changed; --no-torchcheck-cached runs everything"
            )
        if self.change:
            terminalreporter.write_line(
                f"torchcheck: checks that passed before ran again, since this has changed: {self.change}"
            )
        if self.problem:
            terminalreporter.write_line(f"torchcheck: {self.problem}", yellow=True)


def _may_be_kept(item: CheckItem) -> bool:
    """Say whether a verdict rests on nothing but what is looked at: no other process, no clock, no git."""
    contract = item.parent.contract
    elsewhere = contract.loader is not None or any(map(contract.declares, _ELSEWHERE))
    return item.case.check.name in catalogue() and not elsewhere


def register(config: pytest.Config) -> None:
    """Reuse verdicts where that is asked for.

    Raises:
        pytest.UsageError: There is no cache directory.
    """
    settings = config.stash[options.KEY]
    if not settings.cached or settings.replay is not None or tasks.inside(config):
        return
    if not config.pluginmanager.hasplugin("cacheprovider"):
        raise pytest.UsageError(
            "--torchcheck-cached keeps verdicts in pytest's cache directory, which -p no:cacheprovider switches off"
        )
    if _OPENED not in config.stash:
        watch(config)
    config.pluginmanager.register(_Cached(config, settings), "torchcheck-cached")

"""Tests on accelerators: what they need, that they really ran there, and contexts that they lose."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

import pytest

from .. import hardware
from ..text.printable import message_of
from ..text.units import format_bytes
from . import alone, isolation, markers, options, tasks
from .collection.items import CheckItem
from .collection.verdict import Explained
from .device_notes import NOTE, NOTE_KEY, Note, lack_of, note_of
from .parts import TorchcheckWarning

if TYPE_CHECKING:
    from collections.abc import Generator

    from .markers import DeviceNeed
    from .options import Options


SHARE_ENV: Final = "TORCHCHECK_GPU_WORKERS"  # how many workers have this worker's GPU


class _Preparation:
    """Looks at what a test needs before its fixtures are made, and after its own marks for skipping."""

    def __init__(self, config: pytest.Config, watch: _Watch) -> None:
        self.config = config
        self.watch = watch
        self.is_worker = hasattr(config, "workerinput")

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what cannot run here, send elsewhere what needs another process, reserve the device."""
        if self.watch.lost_by:
            pytest.fail(
                f"not run: the device's context was lost by {self.watch.lost_by}", pytrace=False
            )
        need = markers.device_need(item)
        if need is None or tasks.replaying(self.config):
            return
        note = note_of(item)
        note.kind, note.min_gpus = need.kind, need.min_gpus
        wider = isolation.gpus_for(need)
        if wider or (need.isolated and not tasks.inside(self.config)):
            # the other process looks at its own devices; this one only keeps them free for it
            note.resources.enter_context(self._holding(wider or self._own(need), exclusive=True))
            isolation.divert(item, gpus=wider)
            return
        share = self._limit(need)
        note.lack, reason = lack_of(need, share=share)
        if note.lack:
            pytest.skip(reason)
        layer = hardware.layer()
        note.resources.enter_context(self._holding(self._own(need), exclusive=need.exclusive))
        layer.collect(workspaces=self.config.stash[options.KEY].leak is not None)
        note.baseline = (layer.allocations(), layer.held())

    def _own(self, need: DeviceNeed) -> tuple[str, ...]:
        seen = hardware.visible(os.environ.get("CUDA_VISIBLE_DEVICES"), ())
        return seen[: need.min_gpus] or tuple(
            f"{need.kind}{index}" for index in range(need.min_gpus)
        )

    def _holding(
        self, gpus: tuple[str, ...], *, exclusive: bool
    ) -> contextlib.AbstractContextManager[None]:
        if not self.is_worker:  # nobody else in this run
            return contextlib.nullcontext()
        run = self.config.workerinput["testrunuid"]  # type: ignore[attr-defined]
        return hardware.holding(gpus, run=run, exclusive=exclusive)

    def _limit(self, need: DeviceNeed) -> float:
        """Keep this worker to its part of a GPU that several share; a test alone on it may have all."""
        workers = int(os.environ.get(SHARE_ENV, "1"))
        layer = hardware.layer()
        if workers <= 1 or not self.is_worker or need.kind != "cuda" or not layer.count("cuda"):
            return 1.0
        try:
            share = hardware.memory_share(workers, layer.memory("cuda", 0).total)
        except ValueError as error:
            pytest.fail(f"{error}; start fewer workers (-n)", pytrace=False)
        layer.limit("cuda", 0, 1.0 if need.exclusive else share)
        return 1.0 if need.exclusive else share


class _Watch:
    """Watches every test that may touch an accelerator, and cleans up after it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings: Options = config.stash[options.KEY]
        self.lost_by = ""
        self.computed: set[tuple[int, str]] = set()  # contracts that have run on a device

    @pytest.hookimpl(tryfirst=True, hookwrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        """Charge a context that a fixture loses to the test that asked for it."""
        if item.stash.get(NOTE_KEY, None) is not None:
            del item.stash[NOTE_KEY]  # a second attempt at the same item starts anew
        outcome = yield
        if not self.lost_by:
            self._watch(item, outcome)

    @pytest.hookimpl(tryfirst=True, hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """Wait for the device at the end of the test, so that what it broke is charged to it."""
        outcome = yield
        self._watch(item, outcome)
        note = item.stash.get(NOTE_KEY, None)
        if note is None or not note.kind or isolation.is_diverted(item):
            return
        layer = hardware.layer()
        note.done = outcome.exception is None
        if not note.lost:
            # not only more: the test may have reset the statistics itself
            note.ran = layer.started() and layer.allocations() != note.baseline[0]
            if isinstance(item, CheckItem):  # one that reads what another of its contract has run
                place = (id(item.parent.contract), item.case.device)
                if note.ran:
                    self.computed.add(place)
                note.ran = place in self.computed
        if not note.lost and self._ran_out(item, outcome.exception):
            self._out_of_memory(item, note, outcome)

    @staticmethod
    def _ran_out(item: pytest.Item, error: BaseException | None) -> bool:
        if isinstance(item, CheckItem):
            return any(finding.code == "out-of-memory" for finding in item.findings)
        return error is not None and hardware.layer().is_out_of_memory(error)

    def _watch(self, item: pytest.Item, outcome: Any) -> None:
        layer = hardware.layer()
        if self.lost_by or not layer.started() or tasks.replaying(self.config):
            return
        if isinstance(outcome.exception, KeyboardInterrupt | pytest.exit.Exception):
            return  # the run ends, and must not wait for a device
        try:
            layer.synchronize()
        except Exception as error:  # whatever a lost context raises: libraries wrap it
            self._lose(item, outcome, error)

    def _lose(self, item: pytest.Item, outcome: Any, error: Exception) -> None:
        note = note_of(item)
        text = (message_of(error).strip().splitlines() or [""])[0]
        note.lost = f"{type(error).__name__}: {text}"
        own = outcome.exception
        if own is None and alone.saw_device_error(self.config):
            return  # the test expected the error: it ran in a process of its own and caught it there
        self.lost_by = item.nodeid
        note.fatal = not tasks.inside(self.config)
        failed = isinstance(own, Exception | pytest.fail.Exception)  # a skip must not hide the loss
        finding = isolation.explain_loss(item, note.lost, own if failed else None)
        if failed and finding.code == "context-lost":
            # the test's own failure says more than that its context is gone
            item.add_report_section("call", "torchcheck", str(finding))
        else:
            outcome.force_exception(Explained([finding]))

    def _out_of_memory(self, item: pytest.Item, note: Note, outcome: Any) -> None:
        """Say who holds the memory; where others do, try once more in a process of its own."""
        layer = hardware.layer()
        memory = layer.memory(note.kind, 0)
        told = (
            f"{note.kind}:0 has {format_bytes(memory.free)} free of {format_bytes(memory.total)}: "
            f"this process holds {format_bytes(memory.own)}, others {format_bytes(memory.others)}"
        )
        item.add_report_section("call", "torchcheck", told)
        if memory.others < memory.total * 0.05 or tasks.inside(self.config):
            return
        layer.collect()
        retried = isolation.run(item)
        again = retried.outcome
        item.add_report_section(
            "call",
            "torchcheck",
            f"other processes held memory, so it ran again in its own process: {again}",
        )
        if again == "passed":
            outcome.force_result(None)
            note.ran = True
            if isinstance(item, CheckItem):
                item.take_over(retried.findings_of("call"))

    @pytest.hookimpl(tryfirst=True, hookwrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Any:
        """Leave the device as the test found it, and say what the test left behind."""
        outcome = yield
        if self.lost_by:
            # what fails after the context is lost fails because of it; one bug is one failure
            if isinstance(outcome.exception, Exception):
                outcome.force_result(None)
        else:
            self._watch(item, outcome)
        note = item.stash.get(NOTE_KEY, None)
        if note is None:
            return
        try:
            if note.kind and not note.lost and not note.lack and not isolation.is_diverted(item):
                self._clean(item, note, outcome)
        finally:
            note.resources.close()

    def _clean(self, item: pytest.Item, note: Note, outcome: Any) -> None:
        layer = hardware.layer()
        layer.collect(workspaces=self.settings.leak is not None)
        checked = self.settings.require is not None or self.settings.min_gpu_tests > 0
        if checked and not note.ran and note.done:
            _warn(item, outcome, f"{item.nodeid} is marked {note.kind} but computed nothing there")
        limit = self.settings.leak
        if limit is None or outcome.exception is not None or isinstance(item, CheckItem):
            return
        left = layer.held() - note.baseline[1]
        for _ in range(3):
            if left <= limit:
                return
            layer.collect(workspaces=True)  # finalizers may free in several rounds
            left = layer.held() - note.baseline[1]
        if left > limit:
            told = (
                f"{item.nodeid} left {format_bytes(left)} of {note.kind} memory behind; allowed are "
                f"{format_bytes(limit)} (fixtures of a wider scope count when they are first used)"
            )
            if self.settings.strict:
                outcome.force_exception(pytest.fail.Exception(told, pytrace=False))
            else:
                _warn(item, outcome, told)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the note to the report."""
        report = yield
        note = item.stash.get(NOTE_KEY, None)
        if note is not None and (note.kind or note.lost):
            setattr(report, NOTE, note.plain())
        return report


def _warn(item: pytest.Item, outcome: Any, text: str) -> None:
    """Warn; where the project turns warnings into errors, fail the phase instead of the hook."""
    try:
        item.warn(TorchcheckWarning(text))
    except TorchcheckWarning:
        outcome.force_exception(pytest.fail.Exception(text, pytrace=False))


class _Enforcement:
    """Counts what really ran on devices; a skip cannot pass for a success where devices are required."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings: Options = config.stash[options.KEY]
        self.probe: hardware.Probe | None = None
        self.notes: dict[str, dict[str, Any]] = {}
        self.problems: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Probe the required devices before anything is collected."""
        require = self.settings.require
        if require is None or tasks.inside(self.config):
            return
        self.probe = hardware.layer().probe(require.device, self.settings.probe_timeout)
        count = len(self.probe.devices)
        if count < require.number:
            works = f"{count} of them work{'s' * (count == 1)}" if count else "none works"
            reason = f": {self.probe.reason}" if self.probe.reason else ""
            raise pytest.UsageError(
                f"{self.settings.sources['require']} requires {require.number} {require.device} "
                f"device{'s' * (require.number > 1)}, and {works}{reason}"
            )

    def pytest_report_header(self) -> list[str]:
        """Say which devices were found to work."""
        if self.probe is None:
            return []
        versions = ", ".join(f"{name} {version}" for name, version in self.probe.versions.items())
        lines = []
        for device in self.probe.devices:
            capability = f", capability {device.capability}" if device.capability else ""
            memory = (
                f", {format_bytes(device.free)} free of {format_bytes(device.total)}"
                if device.total
                else ""
            )
            lines.append(
                f"torchcheck: {device.kind}:{device.index} {device.name}{capability}{memory}; {versions}"
            )
        return lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what each test did with its device."""
        note = getattr(report, NOTE, None)
        if note is not None:
            known = self.notes.setdefault(report.nodeid, {})
            known.update(note, ran=note["ran"] or known.get("ran", False))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn a green run that missed its devices into a failed one; an empty run keeps its own status."""
        if self.config.getoption("collectonly", False):
            return
        require, notes = self.settings.require, self.notes
        if require is not None:
            # a test that asks for more than was required may be skipped for it
            wrong = {"none", "few", "busy"}
            missed = [
                nodeid
                for nodeid, note in notes.items()
                if note["kind"] == require.device
                and note["lack"] in wrong
                and (note["lack"] != "few" or note["min_gpus"] <= require.number)
            ]
            if missed:
                tests = "1 test was" if len(missed) == 1 else f"{len(missed)} tests were"
                self.problems.append(
                    f"{require} was required, yet {tests} skipped for lack of it: {', '.join(missed[:5])}"
                    + (" ..." if len(missed) > 5 else "")
                )
        ran = sum(note["ran"] for note in notes.values())
        if ran < self.settings.min_gpu_tests and session.testscollected:
            self.problems.append(
                f"{self.settings.sources['min_gpu_tests']}: {self.settings.min_gpu_tests} "
                f"test{'s' * (self.settings.min_gpu_tests > 1)} must compute on a GPU, and {ran} did"
            )
        if self.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say why the run failed, and what was lost."""
        lost = {nodeid: note["lost"] for nodeid, note in self.notes.items() if note["lost"]}
        if not self.problems and not lost:
            return
        terminalreporter.section("torchcheck: devices", sep="=")
        for problem in self.problems:
            terminalreporter.write_line(f"ERROR {problem}", red=True)
        for nodeid, text in lost.items():
            terminalreporter.write_line(f"context lost by {nodeid}: {text}")


def register(config: pytest.Config) -> None:
    """Watch devices in every process; enforce what is required in the one that decides the exit status."""
    watch = _Watch(config)
    config.pluginmanager.register(watch, "torchcheck-devices")
    config.pluginmanager.register(_Preparation(config, watch), "torchcheck-needs")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Enforcement(config), "torchcheck-enforcement")

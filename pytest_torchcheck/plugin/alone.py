"""Inside a process that was started for one test: what it records, and how it computes on the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .. import hardware, verdicts
from ..late import resolve
from ..storage.files import write_whole
from ..text.printable import message_of
from .collection.records import record
from .tasks import Task, task_of
from .tasks import inside as inside
from .tasks import replaying as replaying

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Recorder:
    """Writes down what happens to the one test of this process."""

    def __init__(self, config: pytest.Config, task: Task) -> None:
        self.config = config
        self.task = task
        self.reports: list[Any] = []
        self.findings: list[dict[str, Any]] = []

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report; the file is whole after each, for a process that dies later on."""
        if report.nodeid != self.task.nodeid:
            return
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.reports.append(data)
        record = {
            "token": self.task.token,
            "nodeid": self.task.nodeid,
            "reports": self.reports,
            "findings": self.findings,
        }
        write_whole(Path(self.task.record), json.dumps(record, default=str))


class _ErrorWatch:
    """Notes whether the test itself met an error of the device, as one that expects it does."""

    def __init__(self) -> None:
        self.seen = False

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self) -> Any:
        """Look at every error that an operation raises while the test runs."""
        with self._watching():
            yield

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        if "torch" not in sys.modules:
            yield
            return
        import torch

        from ..record.modes import Functions  # spares importing torch

        def noting(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            try:
                return func(*args, **kwargs)
            except RuntimeError as error:
                self.note(error)
                raise

        original = torch.cuda.synchronize

        def synchronize(device: Any = None) -> None:
            try:
                original(device)
            except RuntimeError as error:
                self.note(error)
                raise

        torch.cuda.synchronize = synchronize
        try:
            with Functions(noting):
                yield
        finally:
            torch.cuda.synchronize = original

    def note(self, error: BaseException) -> None:
        """Note an error of the device."""
        names = {cls.__name__ for cls in type(error).__mro__}
        self.seen = self.seen or "AcceleratorError" in names or "CUDA error" in message_of(error)


class _OnCpu:
    """Lets a test that asks for an accelerator compute on the CPU, where errors have their real message."""

    def __init__(self, recorder: _Recorder) -> None:
        self.recorder = recorder
        self.raised: list[Exception] = []
        """What operations raised here that a kernel on a GPU can only assert."""

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Any:
        """Redirect every device while the test's phases run."""
        with _devices_become_cpu(self.raised):
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Explain what the test raises here, where that can have lost a context.

        The test may fail here for reasons of its own: it looks at the device's name, reads what
        this process has not, or needs what no CPU can do.
        """
        outcome = yield
        if not self.raised or call.excinfo is None:
            return
        known = record(item, call, outcome.get_result())
        if known is not None:
            self.recorder.findings += known["findings"]
            return
        error = next(
            (e for e in _chain(call.excinfo.value) if any(e is r for r in self.raised)), None
        )
        if isinstance(error, Exception):
            found = resolve("diagnosis.crashes.explain:explain_error")(error, phase="step")
            self.recorder.findings.append(verdicts.explained(found).to_dict())


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Give an error, then those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def _devices_become_cpu(raised: list[Exception]) -> Iterator[None]:
    import torch

    from ..record.modes import Functions  # spares importing torch
    from ..state import is_range_error  # spares importing torch

    def on_cpu(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type in hardware.ACCELERATORS else value
        if isinstance(value, str) and value.partition(":")[0] in hardware.ACCELERATORS:
            return "cpu"
        return value

    stays = {
        getattr(torch.Tensor, kind) for kind in hardware.ACCELERATORS if hasattr(torch.Tensor, kind)
    }

    def redirected(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in stays:
            return args[0]
        named = {key: on_cpu(value) for key, value in kwargs.items()}
        try:
            return func(*map(on_cpu, args), **named)
        except Exception as error:
            if is_range_error(error) or func is torch._assert_async:
                raised.append(error)
            raise

    with Functions(redirected):
        yield


def _pretend_cuda() -> None:
    """Let tests that ask whether there is a GPU believe so; they compute on the CPU."""
    import torch

    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "set_device", "init"):
        setattr(cuda, name, lambda *_, **__: None)


class _SameWorker:
    """Gives the test the fixtures of xdist that it would have had on its worker."""

    @pytest.fixture(scope="session")
    def worker_id(self) -> str:
        """Return the name of the worker for which this process runs."""
        return os.environ["PYTEST_XDIST_WORKER"]

    @pytest.fixture(scope="session")
    def testrun_uid(self) -> str:
        """Return the name of the whole run."""
        return os.environ["PYTEST_XDIST_TESTRUNUID"]


def saw_device_error(config: pytest.Config) -> bool:
    """Say whether the running test met an error of the device itself."""
    watch = config.pluginmanager.get_plugin("torchcheck-errors")
    return watch is not None and watch.seen


def register(config: pytest.Config) -> None:
    """Record what happens in a process of its own."""
    task = task_of(config)
    if task is None:
        return
    recorder = _Recorder(config, task)
    config.pluginmanager.register(recorder, "torchcheck-recorder")
    if "PYTEST_XDIST_WORKER" in os.environ:
        config.pluginmanager.register(_SameWorker(), "torchcheck-same-worker")
    if task.mode == "replay":
        _pretend_cuda()
        config.pluginmanager.register(_OnCpu(recorder), "torchcheck-on-cpu")
    else:
        config.pluginmanager.register(_ErrorWatch(), "torchcheck-errors")

"""One test in a process of its own, which must prove that it ran; and the replay of a lost context on the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

from .. import hardware
from ..findings import Finding
from ..late import resolve
from ..printable import message_of
from . import options
from .collection import CheckItem, read_record, record
from .markers import DeviceNeed, relative_nodeid

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping


Mode = Literal["isolated", "replay"]

ENV: Final = "TORCHCHECK_TASK"
ALL_ENV: Final = "TORCHCHECK_GPUS"
"""Every GPU that the run may use, for tests of several; set for workers that see one of them."""
_REPLAY_SECONDS: Final = 120.0

# What a run of a single test must not do: distribute, select, write the report files of the whole run.
_SINGLE_RUN: Final[Mapping[str, Any]] = {
    "numprocesses": 0, "dist": "no", "tx": [], "distload": False, "looponfail": False, "usepdb": False,
    "keyword": "", "markexpr": "", "deselect": None, "lf": False, "failedfirst": False, "newfirst": False,
    "stepwise": False, "stepwise_skip": False, "maxfail": 0, "xmlpath": None, "htmlpath": None,
    "collectonly": False, "json_report": False, "report_log": None, "count": 1, "reruns": 0,
    "torchcheck_json": None, "torchcheck_html": None, "torchcheck_require": "", "torchcheck_min_gpu_tests": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a process of its own is to do.

    Attributes:
        nodeid: The test, as its reports call it.
        target: The same as an argument of pytest, with an absolute path.
        record: File for what happened.
        token: Proves that the record is of this run.
        mode: Whether the test runs on its devices, or on the CPU after its context was lost.
        contract: Whether the test is a case of a contract.
    """

    nodeid: str
    target: str
    record: str
    token: str
    mode: Mode = "isolated"
    contract: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came back.

    Attributes:
        outcome: ``passed``, ``failed`` or ``skipped``.
        reports: The test's own reports by phase; empty where it has not proved that it ran.
        problem: Why there is no proof.
        findings: What the replay found, as plain types.
    """

    outcome: Literal["passed", "failed", "skipped"]
    reports: Mapping[str, pytest.TestReport]
    problem: str = ""
    findings: tuple[dict[str, Any], ...] = ()

    def findings_of(self, phase: str) -> list[dict[str, Any]]:
        """Return the findings that a case of a contract reported, as plain types."""
        record = read_record(self.reports.get(phase)) or {"findings": []}
        found: list[dict[str, Any]] = record["findings"]
        return found


class _Elsewhere(Exception):  # not an error of its own: it stands for the other process's report
    """The test did not pass in its own process."""


TASK: Final = pytest.StashKey[Task]()
_RESULT: Final = pytest.StashKey[Result]()


def task_of(config: pytest.Config) -> Task | None:
    """Return what this process was started for, or None in an ordinary run."""
    return config.stash.get(TASK, None)


def enter(config: pytest.Config) -> None:
    """Prepare a process that was started for one test; does nothing in an ordinary run."""
    text = os.environ.pop(ENV, None)  # taken away: what the test starts itself is an ordinary run
    if text is None:
        return
    task = Task(**json.loads(text))
    config.stash[TASK] = task
    for name, value in _SINGLE_RUN.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    if task.mode == "replay" and task.contract:
        config.option.torchcheck_devices = "cpu"
    config.args[:] = [task.target]


def divert(item: pytest.Item, *, gpus: tuple[str, ...] = ()) -> None:
    """Let a test run in a process of its own instead of this one, its fixtures included.

    The test keeps its place in this process's run, so that its outcome is reported, counted and
    distributed as ever.
    """

    def setup() -> None:
        item.stash[_RESULT] = run(item, gpus=gpus)
        item.addfinalizer(lambda: _raise(item, "teardown"))
        _raise(item, "setup")

    manager = item.config.pluginmanager
    if not manager.has_plugin("torchcheck-results"):
        manager.register(_Results(), "torchcheck-results")
    setattr(item, "setup", setup)  # noqa: B010  # on this instance only
    setattr(item, "runtest", lambda: _raise(item, "call"))  # noqa: B010
    setattr(item, "teardown", lambda: None)  # noqa: B010


def is_diverted(item: pytest.Item) -> bool:
    """Say whether the test runs in a process of its own."""
    return _RESULT in item.stash


def _raise(item: pytest.Item, phase: str) -> None:
    __tracebackhide__ = True
    result = item.stash[_RESULT]
    if result.problem:
        if phase == "call":
            pytest.fail(result.problem, pytrace=False)
        return
    report = result.reports.get(phase)
    if report is not None and report.outcome != "passed":
        raise _Elsewhere(phase)


def gpus_for(need: DeviceNeed) -> tuple[str, ...]:
    """Return the GPUs for a test of several that this worker does not see; empty where it sees enough."""
    given = tuple(name for name in os.environ.get(ALL_ENV, "").split(",") if name)
    if need.kind != "cuda" or need.min_gpus <= 1 or need.min_gpus > len(given):
        return ()
    if hardware.layer().count("cuda") >= need.min_gpus:
        return ()
    return given[: need.min_gpus]


def run(item: pytest.Item, *, gpus: tuple[str, ...] = (), mode: Mode = "isolated") -> Result:
    """Run one test in a fresh process and wait for it.

    Args:
        item: The test.
        gpus: What ``CUDA_VISIBLE_DEVICES`` is there; as here where empty.
        mode: ``replay`` hides all GPUs and lets the test compute on the CPU.

    Returns:
        Its reports; a failure that says so where the process has not proved that it ran the test.
    """
    config = item.config
    limit = config.stash[options.KEY].isolated_timeout
    token = uuid.uuid4().hex
    rest = item.nodeid.partition("::")[2]
    nodeid = item.nodeid
    if mode == "replay" and isinstance(item, CheckItem):
        on_cpu = item.name.replace(f"[{item.case.device}", "[cpu")
        rest, nodeid = (text.removesuffix(item.name) + on_cpu for text in (rest, nodeid))
    with tempfile.TemporaryDirectory(prefix="torchcheck-", ignore_cleanup_errors=True) as folder:
        record = Path(folder) / "record.json"
        task = Task(
            nodeid=nodeid,
            target=f"{item.path}::{rest}",
            record=str(record),
            token=token,
            mode=mode,
            contract=isinstance(item, CheckItem),
        )
        # what xdist says of this worker stays: the test may read it there as here
        environment = {**os.environ, ENV: json.dumps(asdict(task)), "PYTHONUNBUFFERED": "1"}
        environment.pop("PYTEST_CURRENT_TEST", None)
        environment.pop(ALL_ENV, None)
        if mode == "replay":
            environment |= {"CUDA_VISIBLE_DEVICES": "", "TORCHCHECK_REQUIRE": ""}
            limit = min(limit, _REPLAY_SECONDS)
        elif gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        arguments = [str(argument) for argument in config.invocation_params.args]
        if config.pluginmanager.hasplugin("pytest_cov"):
            arguments.append("--no-cov")  # it would erase the data of the run that waits
        ended, output = _run(
            [sys.executable, "-m", "pytest", *arguments],
            environment,
            str(config.invocation_params.dir),
            limit,
        )
        return _read(config, task, ended, output)


def _run(
    command: list[str], environment: dict[str, str], folder: str, limit_s: float
) -> tuple[str, str]:
    """Run a command to its end or its deadline; return how it ended and the end of what it printed."""
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=os.name
        != "nt",  # so that what the test itself starts can be ended with it
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        code = process.returncode
        ended = (
            f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit status {code}"
        )
    except subprocess.TimeoutExpired:
        _kill(process)
        output, _ = process.communicate()
        ended = f"no answer in {limit_s:g} s"
    except BaseException:  # told on: an interrupt leaves no process behind either
        _kill(process)
        raise
    return ended, "\n".join(output.strip().splitlines()[-30:])


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if os.name == "nt":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


def _read(config: pytest.Config, task: Task, ended: str, output: str) -> Result:
    """Turn the record into reports; without a complete one the test counts as failed."""
    reports: dict[str, pytest.TestReport] = {}
    reason = "it left no record"
    try:
        data = json.loads(Path(task.record).read_text(encoding="utf-8"))
        if data["token"] != task.token or data["nodeid"] != task.nodeid:
            raise ValueError("the record is of another run")
        for entry in data["reports"]:
            report = config.hook.pytest_report_from_serializable(config=config, data=_tuples(entry))
            reports[report.when] = report
        setup = reports.get("setup")
        if setup is None or (setup.passed and "call" not in reports):
            reason = "its record holds no outcome of the test"
        elif ended.startswith(("signal", "no answer")):
            reason = "it ended before pytest did"
        else:
            reason = ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        if not isinstance(error, FileNotFoundError):
            reason = f"its record cannot be read: {error}"
    if reason:
        problem = f"the test's own process has not proved that it ran the test ({ended}; {reason})\n{output}"
        return Result(outcome="failed", reports={}, problem=problem.rstrip())
    outcome: Literal["passed", "failed", "skipped"] = "passed"
    for report in reports.values():
        if report.failed or (report.skipped and outcome == "passed"):
            outcome = "failed" if report.failed else "skipped"
    return Result(outcome=outcome, reports=reports, findings=tuple(data["findings"]))


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    """Make tuples again of what pytest holds as tuples and JSON as lists."""
    changed: dict[str, Any] = {
        name: [tuple(pair) for pair in entry.get(name) or ()]
        for name in ("sections", "user_properties")
    }
    for name in ("longrepr", "location"):
        if isinstance(entry.get(name), list):
            changed[name] = tuple(entry[name])
    return {**entry, **changed}


# -- inside the process of its own -----------------------------------------------------------------


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
        path = Path(self.task.record)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(record, default=str), encoding="utf-8")
        fresh.replace(path)


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

        from ..record.modes import Functions

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

        The test may fail here for reasons of its own: it looks at the device's name, reads what this process has
        not, or needs what no CPU can do.
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
            found = resolve("diagnosis.errors:explain_error")(error, phase="step")
            self.recorder.findings.append(
                Finding(
                    code=found.code,
                    status="violated",
                    summary=found.summary,
                    culprits=found.culprits,
                    location=found.location,
                    observed=found.observed,
                    cause=found.cause,
                    because=found.because,
                    fix=found.fix,
                ).to_dict()
            )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Give an error, then those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def _devices_become_cpu(raised: list[Exception]) -> Iterator[None]:
    import torch

    from ..record.modes import Functions
    from ..state import is_range_error

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


class _Results:
    """Gives the reports of a diverted test the outcome that it had in its own process."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Take over what the test's own report says."""
        report = yield
        result = item.stash.get(_RESULT, None)
        there = None if result is None else result.reports.get(call.when)
        if there is not None:
            for name, value in vars(there).items():
                if name not in ("_id", "nodeid", "location", "keywords", "start", "stop"):
                    setattr(report, name, value)
        return report


def inside(config: pytest.Config) -> bool:
    """Say whether this process was started for one test."""
    return task_of(config) is not None


def replaying(config: pytest.Config) -> bool:
    """Say whether this process lets its test compute on the CPU after the test's context was lost."""
    task = task_of(config)
    return task is not None and task.mode == "replay"


def saw_device_error(config: pytest.Config) -> bool:
    """Say whether the running test met an error of the device itself."""
    watch = config.pluginmanager.get_plugin("torchcheck-errors")
    return watch is not None and watch.seen


def explain_loss(item: pytest.Item, lost: str, error: BaseException | None) -> Finding:
    """Explain a lost context: by the same test on the CPU where it fails there too.

    Args:
        item: The test that lost it.
        lost: What synchronising raised.
        error: What the test raised by itself, or None.
    """
    config = item.config
    nodeid = relative_nodeid(config, item.nodeid)
    raised = "" if error is None else f"; the test raised {type(error).__name__}"
    again = f'CUDA_LAUNCH_BLOCKING=1 pytest "{nodeid}"'
    result = Result(outcome="passed", reports={}) if inside(config) else run(item, mode="replay")
    found = next((entry for entry in result.findings if entry["status"] == "violated"), None)
    if found is not None:
        told = Finding.from_dict(found)
        return told.replace(
            check=told.check or "device-context",
            observed=f"{told.observed}; on the device it lost the context: {lost}".removeprefix(
                "; "
            ),
            because=f"{told.because} (the same test on the CPU)",
            reproduce=told.reproduce or again,
            evidence={**told.evidence, "lost": lost},
        )
    on_cpu = (
        "it passes on the CPU"
        if result.reports and result.outcome == "passed"
        else "it tells nothing on the CPU"
    )
    return Finding(
        check="device-context",
        code="context-lost",
        status="violated",
        summary=f"{item.name} loses the device's context: {lost}",
        observed=f"synchronising at the end of the test raised {lost}{raised}",
        cause="a kernel that the test launched failed: an index out of range, an illegal address, or a failed assertion",
        because=f"the context still worked when the test began; {on_cpu}",
        fix="run it again with blocking launches, which names the call",
        reproduce=again,
        evidence={"lost": lost},
    )


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

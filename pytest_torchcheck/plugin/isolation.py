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
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

from .. import hardware
from ..findings import Finding
from ..lean import dataclass
from . import options
from .collection.items import CheckItem
from .collection.records import read_record
from .markers import DeviceNeed, relative_nodeid
from .tasks import ENV, Mode, Task, inside

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


ALL_ENV: Final = "TORCHCHECK_GPUS"
"""Every GPU that the run may use, for tests of several; set for workers that see one of them."""
_REPLAY_SECONDS: Final = 120.0


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


_RESULT: Final = pytest.StashKey[Result]()


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
        problem = (
            f"the separate process gave no proof that it ran the test ({ended}; {reason})\n{output}"
        )
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
        cause="a kernel that the test launched failed: an index out of range, an illegal "
        "address, or a failed assertion",
        because=f"the context still worked when the test began; {on_cpu}",
        fix="run it again with blocking launches, which names the call",
        reproduce=again,
        evidence={"lost": lost},
    )

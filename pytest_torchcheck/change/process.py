"""The process in which a reference's code runs: asked by a line of JSON, answering with a file of plain data."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ..lean import dataclass
from .running import Outcome, Way
from .traces import trace_of_plain
from .tree import ENV, Tree, environment_for
from .version import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..probes.recorded.operations import Trace

_DROPPED: Final = (
    "PYTEST_XDIST_WORKER",
    "PYTEST_XDIST_WORKER_COUNT",
    "PYTEST_XDIST_TESTRUNUID",
    "PYTEST_CURRENT_TEST",
)
_START: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from pytest_torchcheck.plugin.versions.reference import main; sys.exit(main(sys.argv[2]))"
)
_TAIL: Final = 15  # lines of the log that an error shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the process is started for.

    Attributes:
        arguments: Of pytest.
        path: Its ``sys.path``.
        folder: Its working directory.
        top: Top of the user's checkout, from which nothing may be imported.
        root: Top of the reference's tree.
    """

    arguments: list[str]
    path: list[str]
    folder: str
    top: str
    root: str


@dataclass(slots=True)
class Process:
    """A running process of a reference.

    Args:
        tree: The reference's files.
        task: What it is started for.
        timeout_s: Seconds that an answer may take.
    """

    tree: Tree
    task: Task
    timeout_s: float
    _child: subprocess.Popen[str] | None = None
    _hello: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        """Start it where it does not run, without waiting for it."""
        if self._child is not None and self._child.poll() is None:
            return
        self._hello = {}
        package = str(Path(__file__).resolve().parents[2])
        given = self.tree.folder / "task.json"
        task = {
            **asdict(self.task), "threads": torch.get_num_threads(), "parent": os.getpid(),
        }  # fmt: skip
        given.write_text(json.dumps(task), encoding="utf-8")
        variables = {k: v for k, v in os.environ.items() if k not in _DROPPED}
        with self._log.open("w", encoding="utf-8") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-c", _START, package, str(given)],
                env={**environment_for(self.tree, variables), ENV: "1"},
                cwd=self.task.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, encoding="utf-8", start_new_session=os.name != "nt",
            )  # fmt: skip

    def hello(self) -> Mapping[str, Any]:
        """Start it where it does not run, and return what it collected.

        Returns:
            ``nodes``, the contracts that it has; ``problems``, text by file that could not be
            imported; and ``leaks``, modules that come from the user's checkout all the same.

        Raises:
            UnavailableError: It ended before it had collected anything.
        """
        self.start()
        if not self._hello:
            self._hello = self._read()
        return self._hello

    def ask(self, what: str, **given: Any) -> Any:
        """Ask for something and return it.

        Raises:
            UnavailableError: It could not be made, or the process died.
        """
        self.hello()
        assert self._child is not None
        assert self._child.stdin is not None
        place = self.tree.folder / "answer.pt"
        place.unlink(missing_ok=True)
        request = {"ask": what, "file": str(place), **given}
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
        except OSError:
            raise UnavailableError(f"the process of the reference died{self._tail()}") from None
        reply = self._read()
        if (problem := reply.get("failed")) is not None:
            raise UnavailableError(problem)
        return torch.load(place, weights_only=True, map_location="cpu")

    def _read(self) -> dict[str, Any]:
        assert self._child is not None
        assert self._child.stdout is not None
        with self._deadline() as late:
            line = self._child.stdout.readline()
        if not line:
            self.end()
            why = f"did not answer in {self.timeout_s:g} s" if late else "died"
            raise UnavailableError(f"the process of the reference {why}{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[list[bool]]:
        late: list[bool] = []

        def stop() -> None:
            late.append(True)
            self.end()

        timer = threading.Timer(self.timeout_s, stop)
        timer.daemon = True
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()

    @property
    def _log(self) -> Path:
        return self.tree.folder / "log.txt"

    def _tail(self) -> str:
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        lines = [line for line in text.splitlines() if line.strip()][-_TAIL:]
        return ":\n" + "\n".join(lines) if lines else ""

    def end(self) -> None:
        """End the process and what it started."""
        if self._child is None or self._child.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "nt":
                self._child.kill()
            else:
                os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


@dataclass(slots=True)
class OldContract:
    """One contract of a reference; a :class:`~.version.Version`.

    Args:
        process: Where its code runs.
        node: How it is called: the file below the repository's top, and the names in it.
        file: Its file below the repository's top.
        where: Device, dtype and seed of the subject.
    """

    process: Process
    node: str
    file: str
    where: Mapping[str, Any]

    @property
    def tree(self) -> Tree:
        """The reference's files."""
        return self.process.tree

    def description(self) -> Mapping[str, Any]:
        """Return what the version is; see :class:`~.version.Version`."""
        there = self.process.hello()
        shown = self.tree.reference.shown
        if leaks := there["leaks"]:
            named = ", ".join(leaks[:3])
            raise UnavailableError(
                f"{named} came from the checkout, not from {shown}; put the project on sys.path by a folder, such as "
                "an editable install does"
            )
        if self.node not in there["nodes"]:
            if (problem := there["problems"].get(self.file)) is not None:
                raise UnavailableError(f"{self.file} cannot be imported at {shown}: {problem}")
            raise UnavailableError(f"there is no such contract at {shown}", code="contract-new")
        found: Mapping[str, Any] = self._ask("description")
        return found

    def outcome(self, way: Way) -> Outcome:
        """Run it in one way."""
        return Outcome.of_plain(self._ask("outcome", way=asdict(way)))

    def trace(self, way: Way) -> Trace:
        """Record one way of running it."""
        return trace_of_plain(self._ask("trace", way=asdict(way)))

    def noise(self) -> dict[str, list[float]]:
        """Return how far training mode is from evaluation mode."""
        found: dict[str, list[float]] = self._ask("noise")
        return found

    def _ask(self, what: str, **given: Any) -> Any:
        return self.process.ask(what, node=self.node, where=dict(self.where), **given)

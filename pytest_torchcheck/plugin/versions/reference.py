"""The process that runs a reference's code: pytest collects its contracts, and requests are answered, not tests run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import pytest
import torch

from ...change.serving import Served
from ...change.tree import is_installed
from ...subject.errors import SubjectError
from ...text.printable import message_of
from ..collection.items import ContractNode

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALONE: Final[Mapping[str, Any]] = {
    "numprocesses": 0, "dist": "no", "tx": [], "usepdb": False, "keyword": "", "markexpr": "", "deselect": None,
    "lf": False, "failedfirst": False, "stepwise": False, "maxfail": 0, "xmlpath": None, "htmlpath": None,
    "collectonly": False, "report_log": None, "torchcheck_json": None, "torchcheck_html": None,
    "torchcheck_require": "", "torchcheck_min_gpu_tests": 0, "torchcheck_checks": None, "torchcheck_replay": None,
    "torchcheck_against": None, "torchcheck_record": None, "torchcheck_write_record": None,
    "torchcheck_benchmark": None, "torchcheck_profile": None, "torchcheck_baseline": None, "torchcheck_write_baseline": None,
}  # fmt: skip
_LOOK_SECONDS: Final = 0.5


def main(task_file: str) -> int:
    """Collect the contracts of a task with pytest and answer requests until there are no more.

    Requests come in by the standard input and answers go out by the standard output, a line of JSON
    each; what the user's code prints goes to the log.
    """
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    threading.Thread(
        target=_end_with, args=(task["parent"], Path(task_file).parent), daemon=True
    ).start()
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.argv[:] = ["pytest", *task["arguments"]]
    sys.path[:] = task["path"]
    _map_editable(task["top"], task["root"])
    return int(pytest.main(task["arguments"], plugins=[Server(task, requests, answers)]))


def _end_with(parent: int, folder: Path) -> None:
    """End this process, and delete the reference's files, once the process that asks has died.

    A worker of xdist is killed after an interrupt, and lets go of nothing itself.
    """
    while os.name == "nt" or os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _map_editable(top: str, root: str) -> None:
    """Let the import hooks of editable installs find packages in the reference's tree."""
    for module in list(sys.modules.values()):
        mapping = getattr(module, "MAPPING", None)
        if not module.__name__.startswith("__editable__") or not isinstance(mapping, dict):
            continue
        for name, place in mapping.items():
            real = os.path.realpath(place)
            if name != "pytest_torchcheck" and (real == top or real.startswith(top + os.sep)):
                mapping[name] = os.path.join(root, os.path.relpath(real, top))


class Server:
    """Collects as pytest does, and answers requests in place of running tests."""

    def __init__(self, task: Mapping[str, Any], requests: IO[str], answers: IO[str]) -> None:
        self.task, self.requests, self.answers = task, requests, answers
        self.problems: dict[str, str] = {}
        self.nodes: dict[str, ContractNode] = {}
        self._served: tuple[str, Served] | None = None

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Any:
        """Switch off what distributes, selects and writes reports."""
        for name, value in _ALONE.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        yield

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep why a file could not be collected."""
        if report.failed:
            text = report.longreprtext.strip().splitlines()
            told = [line.removeprefix("E").strip() for line in text if line.startswith("E ")]
            self.problems[report.nodeid.partition("::")[0]] = "; ".join(told or text[-1:])

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Keep every contract."""
        node = item.parent
        if isinstance(node, ContractNode):
            self.nodes[self._name(node)] = node

    def _name(self, node: pytest.Collector) -> str:
        return "::".join((self._file(node.path), *node.nodeid.split("::")[1:]))

    def _file(self, path: Path) -> str:
        real = os.path.realpath(path)
        return os.path.relpath(real, self.task["root"]).replace(os.sep, "/")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Say what was collected, then answer."""
        torch.set_num_threads(self.task["threads"])
        root = session.config.rootpath
        problems = {self._file(root / name): text for name, text in self.problems.items()}
        hello = {"nodes": list(self.nodes), "problems": problems, "leaks": self._leaks()}
        self._send(hello)
        for line in self.requests:
            self._send(self._answer(json.loads(line)))
        return True

    def _send(self, answer: Mapping[str, Any]) -> None:
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()

    def _leaks(self) -> list[str]:
        """Return the modules that were imported from the user's checkout."""
        top, root = self.task["top"], self.task["root"]
        found = []
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or name.partition(".")[0] in (
                "pytest_torchcheck",
                "__main__",
            ):
                continue
            real = os.path.realpath(file)
            inside = real.startswith(top + os.sep) and not real.startswith(root + os.sep)
            if inside and not is_installed(file):
                found.append(name)
        return found

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        node = self.nodes[request["node"]]
        try:
            if self._served is None or self._served[0] != request["node"]:
                if self._served is not None:
                    self._served[1].close()
                self._served = (request["node"], Served(node.contract, request["where"]))
            torch.save(self._served[1].answer(request), request["file"])
        except SubjectError as error:
            cause = error.error
            return {
                "failed": f"its {error.phase} raises {type(cause).__name__}: {message_of(cause)}"
            }
        except Exception as error:  # told to the process that asked, which reports it
            return {"failed": f"{type(error).__name__}: {message_of(error)}"}
        return {"done": True}

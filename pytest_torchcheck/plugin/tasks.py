"""What a process that was started for one test is to do."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

from ..lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping


Mode = Literal["isolated", "replay"]


ENV: Final = "TORCHCHECK_TASK"


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


TASK: Final = pytest.StashKey[Task]()


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


def inside(config: pytest.Config) -> bool:
    """Say whether this process was started for one test."""
    return task_of(config) is not None


def replaying(config: pytest.Config) -> bool:
    """Say whether this process lets its test compute on the CPU after the test's context was lost."""
    task = task_of(config)
    return task is not None and task.mode == "replay"

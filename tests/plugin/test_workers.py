"""Shares of workers: decided for each machine, taken up before anything can start CUDA."""

from __future__ import annotations

import os
import types
from typing import TYPE_CHECKING, Any

import pytest

from pytest_torchcheck import hardware
from pytest_torchcheck.plugin import options, workers

if TYPE_CHECKING:
    from collections.abc import Iterator


def spec(name: str, **fields: Any) -> Any:
    known = {"popen": False, "ssh": None, "socket": None, "vagrant_ssh": None, **fields}
    return types.SimpleNamespace(
        id=name, env=dict(fields.get("env", {})), **{k: v for k, v in known.items() if k != "env"}
    )


def test_each_machine_counts_its_own_workers() -> None:
    specs = [
        spec("gw0", popen=True),
        spec("gw1", ssh="far"),
        spec("gw2", popen=True),
        spec("gw3", socket="10.0.0.1:8888"),
        spec("gw4", socket="10.0.0.1:8889"),
        spec("gw5", popen=True, env={"CUDA_VISIBLE_DEVICES": "9"}),
    ]
    mapping = workers.share_out(specs, ["GPU-a", "GPU-b"])
    assert [one.env[workers.SLOT_ENV] for one in specs] == [
        "0/3",
        "0/1",
        "1/3",
        "0/2",
        "1/2",
        "2/3",
    ]
    assert mapping == {"gw0": "GPU-a", "gw2": "GPU-b"}
    assert specs[0].env["TORCHCHECK_GPUS"] == "GPU-a,GPU-b"
    assert "TORCHCHECK_GPUS" not in specs[1].env
    assert specs[5].env["TORCHCHECK_GPUS"] == "-"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    before = dict(os.environ)
    for name in (
        *workers._THREADS,
        "CUDA_VISIBLE_DEVICES",
        "TORCHCHECK_GPUS",
        "TORCHCHECK_GPU_WORKERS",
    ):
        os.environ.pop(name, None)
    monkeypatch.setattr(hardware, "cores", lambda: 8)
    yield monkeypatch
    os.environ.clear()
    os.environ.update(before)


def test_a_remote_worker_asks_its_own_machine(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(hardware, "present_gpus", lambda: ("GPU-x", "GPU-y"))
    os.environ[workers.SLOT_ENV] = "3/4"
    workers.settle()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-y"
    assert os.environ["TORCHCHECK_GPUS"] == "GPU-x,GPU-y"
    assert os.environ["TORCHCHECK_GPU_WORKERS"] == "2"
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert workers.SLOT_ENV not in os.environ


def test_without_gpus_only_cores_are_shared(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(hardware, "present_gpus", tuple)
    os.environ[workers.SLOT_ENV] = "0/16"
    workers.settle()
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert os.environ["MKL_NUM_THREADS"] == "1"


def test_a_worker_that_has_just_left_can_be_sent_nothing_and_breaks_nothing() -> None:
    config = types.SimpleNamespace(stash={options.KEY: None})
    sent: list[tuple[str, Any]] = []

    def sendcommand(name: str, **fields: Any) -> None:
        sent.append((name, fields))
        raise OSError("cannot send (already closed?)")  # what execnet raises

    node = types.SimpleNamespace(sendcommand=sendcommand)
    workers._Controller(config).pytest_configure_node(node)  # type: ignore[arg-type]
    node.sendcommand("runtests", indices=[3])
    assert sent == [("runtests", {"indices": [3]})]


def test_nothing_happens_outside_of_workers(environment: pytest.MonkeyPatch) -> None:
    os.environ.pop(workers.SLOT_ENV, None)
    before = dict(os.environ)
    workers.settle()
    assert dict(os.environ) == before

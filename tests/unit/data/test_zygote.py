"""Workers are forked off one process, and are as fresh as new interpreters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import data_workers
import pytest

from pytest_torchcheck.data import delivery, zygote
from pytest_torchcheck.data.plan import parts

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not zygote.SUPPORTED, reason="only Linux forks workers off")
LOADER = {"batch_size": 4, "num_workers": 1}


@pytest.fixture(autouse=True, scope="module")
def _own() -> Iterator[None]:
    zygote.close()
    yield
    zygote.close()


def deliver() -> delivery.Delivery:
    (part,) = parts(data_workers.Plain(), LOADER)
    return delivery.deliver(part)


def test_one_process_serves_all_and_is_replaced_when_lost() -> None:
    delivery.expect({"train": LOADER, "eval": {"batch_size": 4}})
    (first,) = zygote._current
    assert deliver().outcome == "delivered"
    assert deliver().outcome == "delivered"
    assert zygote._current == [first]
    first.process.kill()
    first.process.wait()
    assert deliver().outcome == "delivered"
    assert zygote._current != [first]


def test_torch_is_imported_before_a_worker_is_forked() -> None:
    zygote.close()
    assert deliver().outcome == "delivered"
    (current,) = zygote._current
    mapped = Path(f"/proc/{current.process.pid}/maps").read_text()
    assert "libtorch" in mapped


def test_none_is_started_without_workers_or_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    zygote.close()
    delivery.expect({"batch_size": 4})
    delivery.expect(None)
    monkeypatch.setenv(delivery.IN_WORKER, "1")
    delivery.expect(LOADER)
    assert zygote._current == []


def test_without_a_zygote_a_worker_is_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote, "started", lambda *_: None)
    assert deliver().outcome == "delivered"


def test_another_process_does_not_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = zygote.started(delivery._search_path(), dict(os.environ))
    assert found is not None
    assert found.usable
    monkeypatch.setattr(found, "owner", -1)
    assert not found.usable

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from pytest_torchcheck import Contract
from pytest_torchcheck.checks.datasets import loading
from pytest_torchcheck.data.pickling import failure, unpicklable
from pytest_torchcheck.subject import Subject

if TYPE_CHECKING:
    from pathlib import Path


class Holder:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Keeper:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.zeros(1)


class Excused(Keeper):
    def __getstate__(self) -> dict[str, object]:
        return {}


def make_local() -> type:
    class Local:
        pass

    return Local


def test_lock_is_named_with_the_line_that_makes_it() -> None:
    (found,) = unpicklable(Keeper())
    assert (found.path, found.kind) == ("lock", "lock")
    assert found.location is not None
    assert found.location.text == "self.lock = threading.Lock()"


def test_getstate_is_respected() -> None:
    assert unpicklable(Excused()) == ()


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        ([0, {"fn": lambda x: x}], "a[1]['fn']", "lambda"),
        (functools.partial(lambda x, y: x, y=2), "a.func", "lambda"),
        (make_local()(), "a", "local class"),
        ((i for i in range(3)), "a", "generator"),
        (np, "a", "module"),
        (torch.nn.Sequential(torch.nn.Linear(2, 2)), None, None),
        (torch.ones(2, requires_grad=True) * 2, "a", "tensor with a graph"),
        (torch.ones(2, requires_grad=True), None, None),
    ],
)
def test_kinds_and_paths(value: object, path: str | None, kind: str | None) -> None:
    found = unpicklable(Holder(a=value))
    if path is None:
        assert found == ()
    else:
        assert [(one.path, one.kind) for one in found] == [(path, kind)]


def test_every_culprit_is_named() -> None:
    found = unpicklable(Holder(a=lambda: 0, b=[threading.Lock()], c=3))
    assert [one.path for one in found] == ["a", "b[0]"]


def test_cycles_end() -> None:
    holder = Holder(a=lambda: 0)
    holder.self = holder
    assert [one.path for one in unpicklable(holder)] == ["a"]


def test_tensors_stay_where_they_are() -> None:
    tensor = torch.zeros(1000)
    before = tensor.data_ptr()
    assert failure(Holder(a=tensor)) is None
    assert tensor.data_ptr() == before
    assert not tensor.is_shared()


class Reads:
    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((2,), float(i))


@pytest.mark.parametrize(
    ("loader", "status"),
    [
        ({"num_workers": 2}, "violated"),
        ({"num_workers": 2, "multiprocessing_context": "spawn"}, "violated"),
        ({"num_workers": 2, "multiprocessing_context": "fork"}, "suspicious"),
        ({"num_workers": 0}, "not-applicable"),
        (None, "suspicious"),
    ],
)
def test_severity_follows_the_loader(loader: dict[str, object] | None, status: str) -> None:
    subject = Subject(Contract(dataset=Reads(lambda: 0), loader=loader))
    (finding,) = loading.dataset_pickling(subject)
    assert finding.status == status


def test_forked_workers_share_an_open_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with (tmp_path / "data").open() as file:
        subject = Subject(
            Contract(
                dataset=Reads(file), loader={"num_workers": 2, "multiprocessing_context": "fork"}
            )
        )
        (finding,) = loading.dataset_pickling(subject)
    assert finding.status == "violated"
    assert [one.name for one in finding.culprits] == ["thing"]

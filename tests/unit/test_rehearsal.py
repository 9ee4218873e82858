"""What a GPU can only assert is tried on the CPU first: once for each set of indices, and seen by nobody."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Ints, Labels
from pytest_torchcheck.subject import Subject, rehearsal
from pytest_torchcheck.subject.errors import SubjectError


@pytest.fixture(autouse=True)
def _asserting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU stand for a device whose kernels assert."""
    monkeypatch.setattr(rehearsal, "_is_due", lambda _device: True)


class Net(nn.Module):
    """Counts the calls of this very module: copies have counts of their own."""

    def __init__(self, rows: int = 12) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(rows, 8), nn.Linear(8, 4)
        self.ran: list[int] = []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.ran.append(len(ids))
        return self.head(self.embed(ids).mean(1))


def declared(rows: int = 12, **fields: Any) -> Contract:
    return Contract(
        **{
            "model": lambda: Net(rows), "inputs": Ints("B T", low=0, high=12), "sizes": {"B": 6, "T": 5},
            "targets": Labels("B", classes=4), "loss": F.cross_entropy, **fields,
        }
    )  # fmt: skip


def test_an_index_out_of_range_never_reaches_the_model() -> None:
    subject = Subject(declared(rows=8))
    with subject.pristine() as model:
        with pytest.raises(SubjectError) as caught:
            subject.call(model, subject.batch().clone())
        assert model.ran == []
    assert isinstance(caught.value.error, IndexError)


def test_it_is_told_with_its_line() -> None:
    report = declared(rows=8).check()
    told = [f for f in report.findings if f.status in ("violated", "error") and f.root is None]
    assert [f.code for f in told] == ["embedding-range"], report
    assert told[0].location is not None
    assert "nn.Embedding(rows, 8)" in told[0].location.text


def test_labels_out_of_range_never_reach_the_loss() -> None:
    seen = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append(output.requires_grad)
        return F.cross_entropy(output, target)

    report = declared(targets=Labels("B", classes=5), loss=loss).check(["backward"])
    assert [f.code for f in report.findings] == ["label-range"]
    assert not any(seen), "the loss of an output with a graph was never asked for"


def test_each_set_of_indices_is_tried_once() -> None:
    subject = Subject(declared())
    ran = []

    def invoke(model: nn.Module, batch: Any) -> None:
        ran.append(model is subject.model)

    first, other = subject.batch(), subject.batch(1)
    moved = first.map(lambda _, leaf: leaf.flip(0))
    for batch in (first, first.clone(), other, other, moved):
        subject.rehearsal.forward(subject.model, batch, invoke)
    assert ran == [False] * 3


def test_no_watch_sees_it_and_no_generator_moves() -> None:
    subject = Subject(declared())
    seen: list[str] = []
    hook = nn.modules.module.register_module_forward_hook(
        lambda m, *_: seen.append(type(m).__name__)
    )
    before, tracer = torch.get_rng_state(), sys.gettrace()

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    batch = subject.batch()
    with hook, Mode():
        subject.rehearsal.forward(
            subject.model, batch, lambda m, b: torch.rand(3) + m(*b.args).sum()
        )
    assert seen == []
    assert sys.gettrace() is tracer
    assert torch.equal(torch.get_rng_state(), before)


def test_what_cannot_be_tried_is_run_as_it_is() -> None:
    """A model that refuses to be copied, and an error that a device raises too, are none of its business."""

    class Alone(Net):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("there is one of me")

    subject = Subject(declared(model=Alone))
    with subject.pristine() as model:
        assert subject.call(model, subject.batch().clone()).shape == (6, 4)
        assert model.ran == [6]


def test_every_check_holds_for_a_correct_model() -> None:
    report = declared().check()
    wrong = [f for f in report.findings if f.status in ("violated", "error")]
    assert not wrong, "\n\n".join(map(str, wrong))

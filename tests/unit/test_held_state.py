"""What a module holds beside tensors is put back, and a graph that was pending runs backward after a check."""

from __future__ import annotations

import array
import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.objects.held import copied, is_iterator
from pytest_torchcheck.state import ModuleState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(slots=True)
class Meter:
    """Slots only, one of them unset at first."""

    count: int
    held: list[int]
    order: Iterator[int]
    late: Any = None

    def __post_init__(self) -> None:
        del self.late


class Tagged(dict[str, int]):
    """A container with an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tag = 0


class Holder(nn.Module):
    """Uses and changes everything that it holds in each forward; the order that it reads decides nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.torchs = torch.Generator().manual_seed(1)
        self.bits = np.random.default_rng(2)
        self.legacy = np.random.RandomState(3)
        self.python = random.Random(4)
        self.table = np.arange(6.0).reshape(2, 3)
        self.objects = np.array([[1], {"a": 2}, None], dtype=object)
        self.raw = bytearray(b"abc")
        self.plain = array.array("i", [1, 2, 3])
        self.steps = itertools.count(5)
        self.alias = self.steps
        self.turns = [itertools.cycle(iter("xyz"))]
        self.meter = Meter(count=0, held=[], order=iter([7, 8, 9] * 9999))
        self.tagged = Tagged()
        self.fail: type[BaseException] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(3, generator=self.torchs).sum() + float(self.bits.normal())
        drawn += float(self.legacy.normal()) + self.python.gauss(0.0, 1.0)
        drawn += float(self.table.sum()) + self.raw[0] + self.plain[0] + next(self.steps)
        drawn += ord(next(self.turns[0])) + self.meter.count + next(self.meter.order)
        self.table *= 2
        self.objects[0].append(2)
        self.objects[1]["a"] += 1
        self.objects[2] = "new"
        self.raw.append(1)
        self.plain.append(1)
        self.meter.count += 1
        self.meter.held.append(1)
        self.meter.late = 3
        self.tagged.tag += 1
        self.tagged["n"] = 1
        if self.fail is not None and self.meter.count > 1:
            raise self.fail("on purpose")
        out: torch.Tensor = self.head(x) * drawn
        return out


def seen(model: Holder) -> list[Any]:
    """Return all that a holder's next forward would depend on."""
    state: Any = model.bits.bit_generator.state
    return [
        model.torchs.get_state().tolist(),
        repr(state),
        repr(model.legacy.get_state()),
        model.python.getstate(),
        model.table.tolist(),
        repr(model.objects.tolist()),
        bytes(model.raw),
        model.plain.tolist(),
        repr(model.steps),
        model.steps is model.alias,
        list(itertools.islice(copied(model.turns[0]), 4)),
        (model.meter.count, model.meter.held, hasattr(model.meter, "late")),
        list(itertools.islice(copied(model.meter.order), 4)),
        (model.tagged.tag, dict(model.tagged)),
    ]


def test_every_run_starts_from_what_was_held() -> None:
    model = Holder()
    x = torch.randn(2, 3)
    before, first = seen(model), None
    state = ModuleState(model)
    for _ in range(3):
        out = model(x)
        first = out if first is None else first
        assert torch.equal(out, first)
        assert seen(model) != before
        state.restore()
        assert seen(model) == before


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_check_leaves_what_a_module_holds(error: type[BaseException] | None) -> None:
    model = Holder()
    model.fail = error
    iterators = model.steps, model.turns[0], model.meter.order
    before = seen(model)
    contract = Contract(model=model, batch=(torch.randn(4, 3), torch.tensor([0, 1, 1, 0])))
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            contract.check(["backward", "seeding"])
    else:
        contract.check(["backward", "gradients-exist", "seeding", "eval-purity"])
    assert seen(model) == before
    assert all(
        a is b
        for a, b in zip(iterators, (model.steps, model.turns[0], model.meter.order), strict=True)
    )


class Streamed(nn.Module):
    def __init__(self, stream: Iterator[float]) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.stream = stream

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(x) + next(self.stream)
        return out


def test_what_cannot_be_put_back_is_said_once() -> None:
    batch = torch.randn(4, 3)
    report = Contract(model=Streamed(1.0 / n for n in range(1, 9999)), batch=batch).check(
        ["backward", "gradients-exist", "input-influence"]
    )
    (told,) = [one for one in report.findings if one.code == "not-put-back"]
    assert told.status == "inconclusive"
    assert told.summary.startswith("stream is a generator")
    for sound in (iter([0.5] * 9999), itertools.repeat(0.5)):
        report = Contract(model=Streamed(sound), batch=batch).check(["backward", "seeding"])
        assert [one.code for one in report.findings if one.code == "not-put-back"] == []
        assert report.ok


def test_a_generator_that_no_forward_reads_is_none_of_our_business() -> None:
    model = nn.Linear(3, 2)
    model.names = (name for name in "ab")  # type: ignore[assignment]
    report = Contract(model=model, batch=torch.randn(4, 3)).check(["backward"])
    assert [one.status for one in report.findings] == ["passed"]
    assert list(model.names) == ["a", "b"]  # type: ignore[arg-type]


ITERATORS: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter([1, 2, 3, 4, 5]),
    "reversed": lambda: reversed([1, 2, 3, 4]),
    "dict": lambda: iter({1: 2, 3: 4, 5: 6}),
    "zip": lambda: zip([1, 2, 3, 4], iter("abcd"), strict=True),
    "map": lambda: map(str, iter([1, 2, 3, 4])),
    "enumerate": lambda: enumerate(iter("abcd")),
    "count": lambda: itertools.count(3, 2),
    "cycle": lambda: itertools.cycle(iter([1, 2, 3])),
    "chain": lambda: itertools.chain([1, 2], iter([3, 4]), [5]),
    "islice": lambda: itertools.islice(itertools.count(), 1, 9, 2),
    "product": lambda: itertools.product([1, 2], [3, 4]),
    "tee": lambda: itertools.tee([1, 2, 3, 4])[1],
}


@pytest.mark.parametrize("kind", ITERATORS)
@pytest.mark.parametrize("read", [0, 2, 9])
def test_a_copied_iterator_gives_what_is_left_and_reads_nothing(kind: str, read: int) -> None:
    original, twin = ITERATORS[kind](), ITERATORS[kind]()
    assert is_iterator(original)
    for iterator in (original, twin):
        list(itertools.islice(iterator, read))
    left = list(itertools.islice(twin, 5))
    assert list(itertools.islice(copied(original), 5)) == left
    assert list(itertools.islice(original, 5)) == left


def test_no_copy_is_made_of_what_would_be_read_by_it() -> None:
    numbers = (n for n in range(3))
    assert copied(map(str, numbers)) is None
    assert list(numbers) == [0, 1, 2]


class Deep(nn.Module):
    """Saves weights and statistics for its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 5), nn.Linear(5, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)
        return out


@pytest.mark.parametrize("dtypes", [None, ["float32", "float64"]])
def test_a_pending_graph_runs_backward_after_a_check(dtypes: list[str] | None) -> None:
    torch.manual_seed(0)
    model, twin = Deep(), Deep()
    twin.load_state_dict(model.state_dict())
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    pending, expected = (F.cross_entropy(each(x), y) for each in (model, twin))
    versions = [tensor._version for tensor in model.state_dict(keep_vars=True).values()]
    fields: dict[str, Any] = {} if dtypes is None else {"dtypes": dtypes}
    contract = Contract(
        model=model,
        batch=(x, y),
        loss=F.cross_entropy,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        **fields,
    )
    report = contract.check()
    assert report.ok
    assert [t._version for t in model.state_dict(keep_vars=True).values()] == versions
    pending.backward()
    expected.backward()
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        assert torch.equal(parameter.grad, other.grad)


def test_a_write_of_the_users_still_ends_a_pending_graph() -> None:
    model = Deep()
    x = torch.randn(8, 4)
    pending = model(x).sum()
    Contract(model=model, batch=x).check(["backward", "gradients-exist"])
    with torch.no_grad():
        model.body[3].weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pending.backward()

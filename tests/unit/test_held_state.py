"""What a module holds beside tensors is put back, and a graph that was pending runs backward after a check."""

from __future__ import annotations

import array
import csv
import functools
import io
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
from pytest_torchcheck.objects import held as held_module
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
        self.view = memoryview(bytearray(8)).cast("i")
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
        self.view[1] += 1
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
        model.view.tolist(),
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


class Reads(nn.Module):
    """Adds what a function gives, which keeps its state somewhere else."""

    def __init__(self, give: Callable[[], float], *held: Any) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.give, self.held = give, held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(x) + self.give()
        return out


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def next(self) -> float:
        self.count += 1
        return float(self.count)


def counting() -> Callable[[], float]:
    count, past = 0, [0.0]

    def give() -> float:
        nonlocal count
        count += 1
        past.append(past[-1] + count)
        return past[-1]

    return give


def popping(items: list[float], scale: float) -> float:
    return items.pop() * scale


def in_a_file(path: Any) -> Callable[[], float]:
    path.write_bytes(bytes(range(200)))
    opened = path.open("rb")
    return lambda: float(opened.read(1)[0])


@pytest.mark.parametrize("kind", ["method", "closure", "partial", "file"])
def test_what_functions_hold_is_put_back(kind: str, tmp_path: Any) -> None:
    give: Callable[[], float] = {
        "method": lambda: Counter().next,
        "closure": counting,
        "partial": lambda: functools.partial(popping, [1.0, 2.0, 3.0], scale=2.0),
        "file": lambda: in_a_file(tmp_path / "numbers"),
    }[kind]()
    held = [cell.cell_contents for cell in getattr(give, "__closure__", None) or ()]
    model = Reads(give, *held)
    x = torch.randn(2, 3)
    state = ModuleState(model)
    first = model(x)
    assert not torch.equal(model(x), first)
    state.restore()
    assert torch.equal(model(x), first)
    state.restore()
    for one in held:
        if hasattr(one, "close"):
            one.close()


def uncopied(kind: str) -> Any:
    if kind == "map over a generator":
        return map(float, (n for n in range(9999)))
    if kind == "loader":
        return iter(torch.utils.data.DataLoader([float(n) for n in range(9999)], batch_size=None))
    return (float(row[0]) for row in csv.reader(str(n) for n in range(9999)))


@pytest.mark.parametrize("kind", ["map over a generator", "loader", "csv"])
def test_iterators_that_cannot_be_copied_are_named(kind: str) -> None:
    report = Contract(model=Streamed(uncopied(kind)), batch=torch.randn(4, 3)).check(
        ["backward", "eval-purity"]
    )
    told = [one for one in report.findings if one.code == "not-put-back"]
    assert len(told) == 1, report
    assert "is not put back" in told[0].summary


@pytest.mark.parametrize("writes", [True, False])
def test_a_large_array_that_is_written_to_is_named(
    monkeypatch: pytest.MonkeyPatch, *, writes: bool
) -> None:
    monkeypatch.setattr(held_module, "MOST_BYTES", 64)
    table = np.arange(60.0)

    def give() -> float:
        table[0] += writes
        return float(table.sum())

    model = Reads(give)
    model.table = table  # type: ignore[assignment]
    report = Contract(model=model, batch=torch.randn(4, 3)).check(["backward", "eval-purity"])
    told = [one.summary for one in report.findings if one.code == "not-put-back"]
    assert len(told) == writes
    assert all("table is an array of more than" in one for one in told)


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


class Notes(nn.Module):
    """Writes to files in memory in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.text, self.octets = io.StringIO("begun\n"), io.BytesIO(b"begun")
        self.text.seek(2)
        self.octets.seek(0, io.SEEK_END)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.text.write(f"{len(x)} samples\n")
        self.octets.write(b"more")
        return self.linear(x)


def test_files_in_memory_hold_what_they_held() -> None:
    model = Notes()
    contract = Contract(
        model=model, batch=((torch.randn(4, 3),), torch.randn(4, 2)), loss=F.mse_loss
    )
    contract.check(["eval-purity", "backward", "resume"])
    assert (model.text.getvalue(), model.text.tell()) == ("begun\n", 2)
    assert (model.octets.getvalue(), model.octets.tell()) == (b"begun", 5)


def test_a_closed_file_in_memory_stays_closed() -> None:
    model = Notes()
    state = ModuleState(model)
    model.text.close()
    state.restore()
    assert model.text.closed


def test_a_loss_of_one_element_is_a_number() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output, target).view(1)

    batch = (torch.randn(4, 3),), torch.randn(4, 2)
    report = Contract(model=lambda: nn.Linear(3, 2), batch=batch, loss=loss).check(
        ["descent", "overfit", "loss-sound", "backward"]
    )
    assert {f.check: f.status for f in report.findings} == dict.fromkeys(
        ("descent", "overfit", "loss-sound", "backward"), "passed"
    )

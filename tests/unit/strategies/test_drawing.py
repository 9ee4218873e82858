"""Strategies: what they draw, how they compose, and what their errors say."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import (
    HealthCheck,
    Phase,
    example,
    find,
    given,
    note,
    reproduce_failure,
    settings,
    target,
)
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from pytest_torchcheck.batches import Batch, BatchSource
from pytest_torchcheck.specs import Floats, Ints, Labels, SpecError, TensorSpec, Tokens
from pytest_torchcheck.strategies import batches, devices, dtypes, layouts, shapes, tensors

quick = settings(
    max_examples=60,
    database=None,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


def collect(strategy: st.SearchStrategy[Any], count: int = 100) -> list[Any]:
    drawn: list[Any] = []

    @settings(quick, max_examples=count)
    @given(strategy)
    def draw(value: Any) -> None:
        drawn.append(value)

    draw()
    return drawn


def test_batches_share_symbols() -> None:
    for batch in collect(batches(x="B T", y=Labels("B", classes=3), sizes={"T": (1, 128)})):
        assert batch.x.shape == (batch.sizes["B"], batch.sizes["T"])
        assert batch.y.shape == (batch.sizes["B"],)
        assert 1 <= batch.sizes["B"] <= 8
        assert 1 <= batch.sizes["T"] <= 128
        assert batch.y.max() < 3


def test_both_ends_of_every_range_are_drawn() -> None:
    drawn = collect(batches(x="B T", sizes={"B": (1, 32), "T": (3, 200, 7)}), 100)
    for name, low, top in (("B", 1, 32), ("T", 3, 199)):
        sizes = Counter(batch.sizes[name] for batch in drawn)
        assert sizes[low] >= 3
        assert sizes[top] >= 3
        assert len(sizes) > 15
        assert all(size % 7 == 3 for size in sizes) or name == "B"


def test_most_values_are_plain_and_some_are_edges() -> None:
    kinds = Counter()
    for batch in collect(batches(x="8 9"), 300):
        x = batch.x
        if (x == 0).all():
            kinds["negative zero" if torch.signbit(x).any() else "zero"] += 1
        elif x.unique().numel() == 1:
            kinds["constant"] += 1
        elif x.abs().max() > 100:
            kinds["large"] += 1
        elif x.abs().max() < 1e-4:
            kinds["tiny" if x.abs().max() > 1e-30 else "subnormal"] += 1
        else:
            kinds["plain"] += 1
        assert x.isfinite().all()
    assert set(kinds) == {
        "plain",
        "zero",
        "negative zero",
        "constant",
        "large",
        "tiny",
        "subnormal",
    }
    assert 0.6 * 300 < kinds["plain"] < 0.95 * 300
    assert all(
        (batch.x.unique().numel() > 1) for batch in collect(batches(x="8 9", edges=False), 100)[1:]
    )


def test_nan_and_infinity_come_on_request() -> None:
    drawn = collect(batches(x="8 9", allow_nan=True, allow_infinity=True), 200)
    assert any(batch.x.isnan().sum() == 1 for batch in drawn)
    assert any(batch.x.isinf().sum() == 1 for batch in drawn)


def test_the_first_example_is_the_simplest() -> None:
    first = collect(
        batches(
            x="B T",
            sizes={"B": (2, 9), "T": (3, 9)},
            layouts=("channels_last", "contiguous"),
            dtypes="floating",
        ),
        1,
    )[0]
    assert first.sizes == {"B": 2, "T": 3}
    assert (first.x == 0).all()
    assert first.x.dtype == torch.float32
    assert first.layout == "contiguous"


def test_dtypes_layouts_and_gradients_are_drawn() -> None:
    drawn = collect(
        batches(
            x="B 3 4 4",
            n=Ints("B", high=3, dtype="integer"),
            dtypes=("float32", "bfloat16"),
            layouts=("contiguous", "channels_last", "non_contiguous"),
            requires_grad=None,
        ),
        200,
    )
    assert {batch.x.dtype for batch in drawn} == {torch.float32, torch.bfloat16}
    assert {batch.layout for batch in drawn} == {"contiguous", "channels_last", "non_contiguous"}
    assert {batch.x.requires_grad for batch in drawn} == {True, False}
    assert {batch.n.dtype for batch in drawn} == {
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
    }


def test_parts() -> None:
    assert all(len(shape) == 3 and shape[1] == 3 for shape in collect(shapes("B 3 T"), 30))
    assert set(collect(shapes("H W", {"H": (1, 2), "W": "2*H"}), 20)) == {
        (1, 2),
        (2, 4),
    }
    assert set(collect(dtypes("floating", "int64"), 60)) == {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64,
    }  # fmt: skip
    assert set(collect(devices("cpu", "meta"), 20)) == {torch.device("cpu"), torch.device("meta")}
    assert set(collect(layouts(), 60)) == {
        "contiguous",
        "non_contiguous",
        "expanded",
        "offset",
        "channels_last",
    }
    assert all(x.device.type == "meta" for x in collect(tensors("B", devices="meta"), 5))


def test_parts_shrink_to_the_simplest() -> None:
    assert find(shapes("B 3 T", {"B": (2, 9), "T": (4, 9)}), lambda _: True) == (2, 3, 4)
    assert find(dtypes("integer", "floating"), lambda _: True) == torch.int64
    assert find(devices("cpu", "meta"), lambda _: True) == torch.device("cpu")
    assert find(layouts("offset", "contiguous"), lambda _: True) == "contiguous"


def test_tensors_of_one_spec() -> None:
    drawn = collect(tensors(Floats("B D", low=0.0, high=1.0), sizes={"B": (1, 3)}), 30)
    assert all(x.min() >= 0 and x.max() <= 1 for x in drawn)
    assert {x.dtype for x in collect(tensors("B", dtype=["float64", "int8"]), 30)} == {
        torch.float64,
        torch.int8,
    }
    assert {x.dtype for x in collect(tensors("B", dtype="complex"), 30)} == {
        torch.complex64,
        torch.complex128,
    }


def test_they_compose_with_other_strategies() -> None:
    @st.composite
    def pair(draw: st.DrawFn) -> tuple[int, torch.Tensor, Batch]:
        width = draw(st.integers(1, 5))
        x = draw(tensors(f"B {width}"))
        batch = draw(batches(x=f"{width}", y=Labels(f"{width}", classes=2)))
        return width, x, batch

    for width, x, batch in collect(pair(), 30):
        assert x.shape[1] == batch.x.shape[0] == batch.y.shape[0] == width
    chosen = st.sampled_from([2, 3]).flatmap(lambda n: tensors(f"{n} {n}"))
    assert {tuple(x.shape) for x in collect(chosen, 20)} == {(2, 2), (3, 3)}
    assert all(len(xs) <= 3 for xs in collect(st.lists(tensors("2"), max_size=3), 20))
    assert {type(x) for x in collect(st.one_of(st.none(), tensors("2")), 20)} == {
        type(None),
        torch.Tensor,
    }


def test_examples_targets_and_notes() -> None:
    seen: list[Batch] = []

    @settings(quick, phases=[Phase.explicit, Phase.generate, Phase.target])
    @example(batch=Batch(kwargs={"x": torch.full((1,), 7.0)}))
    @given(batch=batches(x="B", sizes={"B": (1, 9)}))
    def check(batch: Batch) -> None:
        seen.append(batch)
        note(batch.describe())
        target(float(batch.x.abs().sum()))

    check()
    assert seen[0].x.tolist() == [7.0]
    assert len(seen) > 20


def test_a_failure_is_shown_in_one_line_and_kept_in_the_database() -> None:
    database = InMemoryExampleDatabase()
    runs: list[str] = []

    @settings(
        database=database, max_examples=300, deadline=None, phases=set(Phase) - {Phase.explain}
    )
    @given(
        batch=batches(
            x="B 3 H W", sizes={"B": (1, 8), "H": (16, 64), "W": (16, 64)}, allow_infinity=True
        )
    )
    def check(batch: Batch) -> None:
        runs.append(batch.describe())
        assert batch.x.isfinite().all()

    with pytest.raises(AssertionError) as caught:
        check()
    text = "\n".join(caught.value.__notes__)
    assert "batch=Batch(x: float32[1, 3, 16, 16], all zero but x[" in text
    smallest = runs[-1]
    runs.clear()
    with pytest.raises(AssertionError):
        check()
    assert smallest in runs[:3]  # replayed, not found again


def test_a_printed_failure_can_be_reproduced() -> None:
    shown: list[str] = []

    @settings(database=None, deadline=None, print_blob=True, phases=[Phase.generate, Phase.shrink])
    @given(batch=batches(x="B T", sizes={"B": (1, 9), "T": (1, 9)}))
    def check(batch: Batch) -> None:
        shown.append(batch.describe())
        assert batch.sizes["T"] < 5

    with pytest.raises(AssertionError) as caught:
        check()
    notes = "\n".join(caught.value.__notes__)
    blob = re.search(r"reproduce_failure\('([^']+)', (b'[^']+')\)", notes)
    assert blob is not None
    smallest = shown[-1]
    shown.clear()
    again = reproduce_failure(blob[1], ast.literal_eval(blob[2]))(check)
    with pytest.raises(AssertionError):
        again()
    assert set(shown) == {smallest}


def test_the_same_choices_give_the_same_batch() -> None:
    strategy = batches(x="B T", n=Tokens("B T", vocab=9, pad=0), sizes={"T": (1, 30)})
    one, two = collect(strategy, 40), collect(strategy, 40)
    for a, b in zip(one, two, strict=True):
        assert a.describe() == b.describe()
        assert all(torch.equal(tensor, b.tensors()[path]) for path, tensor in a.tensors().items())


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    collect(batches(x="B T", y=Labels("B", classes=3)), 20)
    assert torch.equal(torch.get_rng_state(), before)


def test_real_data_keeps_its_domain() -> None:
    ids = torch.tensor([[5, 6, 7], [8, 9, 5]])
    drawn = collect(
        batches(inputs="B T", batch=(ids, torch.tensor([1, 2])), sizes={"B": (1, 4), "T": (1, 5)}),
        60,
    )
    assert {int(v) for batch in drawn for v in batch.x.unique()} <= {5, 6, 7, 8, 9}
    assert {batch.sizes["T"] for batch in drawn} == {1, 2, 3, 4, 5}
    assert all(len(batch.targets) == batch.sizes["B"] for batch in drawn)


def test_a_source_or_a_contract_is_drawn_from() -> None:
    source = BatchSource("B D", Labels("B", classes=2), {"D": 3})
    assert all(batch.x.shape[1] == 3 for batch in collect(batches(source), 10))

    class Declared:
        def __init__(self) -> None:
            self.source = source

    assert all(batch.x.shape[1] == 3 for batch in collect(batches(Declared()), 10))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: batches(), "nothing to draw"),
        (lambda: batches(x="B", inputs="B"), "not both"),
        (lambda: batches(BatchSource("B"), sizes={"B": 3}), "give nothing beside it"),
        (lambda: batches(3), "neither a source of batches nor a contract"),
        (lambda: batches(x="B !"), r"inputs\['x'\]: unexpected '!'"),
        (lambda: batches(x="B", layouts="diagonal"), "'diagonal' is no layout"),
        (lambda: batches(x="B", dtypes="float31"), "not a dtype"),
        (lambda: batches(x="B", devices="tpux"), "'tpux' is not a device"),
        (lambda: devices("cuda:77"), "there is no cuda:77"),
        (lambda: tensors(TensorSpec("B"), dtype="float64"), "has a dtype of its own"),
        (lambda: shapes("B ("), "something is missing"),
    ],
)
def test_errors_say_what_is_allowed(make: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


@pytest.fixture(scope="session")
def factory() -> Any:
    return lambda batch: batch.x.sum()


@given(batch=batches(x="B T"))
@settings(quick, max_examples=5)
def test_session_fixtures_work_beside_given(factory: Any, batch: Batch) -> None:
    assert factory(batch).shape == ()

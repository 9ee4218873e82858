"""What Hypothesis shows of a failure: the smallest batch that exists for it, and the one element that matters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from pytest_torchcheck.specs import Ints, Labels, UnitVectors
from pytest_torchcheck.strategies import batches, tensors
from tests.unit.strategies.shape_bugs import BUGS, ShapeBug

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchcheck.batches import Batch


def smallest(
    strategy: st.SearchStrategy[Any], fails: Callable[[Any], Any], number: int, examples: int = 100
) -> tuple[Any, float]:
    """What Hypothesis shrinks a failure to, and how long that took."""
    last: list[Any] = []

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
    )
    @given(strategy)
    def check(value: Any) -> None:
        if fails(value):
            last.append(value)
            raise AssertionError

    start = time.process_time()
    with pytest.raises(AssertionError):
        check()
    return last[-1], time.process_time() - start


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
@pytest.mark.parametrize("number", range(2))
def test_shape_bugs_shrink_to_the_smallest_batch(bug: ShapeBug, number: int) -> None:
    strategy = batches(bug.source(), layouts=bug.layouts)
    found, _ = smallest(strategy, bug.fails, number)
    assert found.sizes in bug.smallest
    floating = [tensor for tensor in found.tensors().values() if tensor.is_floating_point()]
    assert all((tensor == 0).all() for tensor in floating)


VALUE_BUGS: dict[str, tuple[st.SearchStrategy[Batch], Callable[[Batch], Any]]] = {
    "infinity": (batches(x="64 64", allow_infinity=True), lambda b: b.x.isinf().any()),
    "nan": (batches(x="64 64", allow_nan=True), lambda b: b.x.isnan().any()),
    "negative under a logarithm": (batches(x="64 64"), lambda b: (b.x < 0).any()),
    "id out of range": (batches(x=Ints("64 64", high=101)), lambda b: (b.x >= 100).any()),
    "one label": (batches(x="64 64", y=Labels("64", classes=7)), lambda b: (b.y == 5).any()),
}


@pytest.mark.parametrize("name", VALUE_BUGS)
@pytest.mark.parametrize("number", range(2))
def test_value_bugs_shrink_to_one_element(name: str, number: int) -> None:
    strategy, fails = VALUE_BUGS[name]
    found, seconds = smallest(strategy, fails, number, examples=500)
    odd = [int((tensor != 0).sum()) for tensor in found.tensors().values()]
    assert sorted(odd) == [0] * (len(odd) - 1) + [1]
    assert seconds < 4  # 2 s on a quiet machine, see benchmarks/bench_strategies.py


def test_a_zero_norm_shrinks_to_one_row_of_zeros() -> None:
    found, _ = smallest(
        batches(x="B 64", sizes={"B": (1, 64)}), lambda b: (b.x.norm(dim=-1) == 0).any(), 1
    )
    assert found.sizes == {"B": 1}
    assert (found.x == 0).all()


def test_values_keep_their_place_when_sizes_shrink() -> None:
    strategy = batches(x=Ints("B T", high=101), sizes={"B": (1, 64), "T": (1, 64)})
    found, _ = smallest(strategy, lambda b: (b.x >= 100).any(), 3)
    assert (found.x != 0).sum() == 1
    assert found.x.numel() <= 128


def test_rows_shrink_as_rows() -> None:
    found, _ = smallest(batches(x=UnitVectors("16 4")), lambda b: (b.x[:, 1] < 0).any(), 0)
    torch.testing.assert_close(found.x.norm(dim=1), torch.ones(16))
    assert (found.x[:, 0] != 1).sum() == 1


def test_layout_dtype_and_gradients_shrink_to_the_first() -> None:
    found, _ = smallest(
        batches(
            x="B 3 4 4",
            layouts=("contiguous", "channels_last"),
            dtypes=("float32", "float64"),
            requires_grad=None,
        ),
        lambda b: b.sizes["B"] > 2,
        0,
    )
    assert found.sizes == {"B": 3}
    assert found.layout == "contiguous"
    assert found.x.dtype == torch.float32
    assert not found.x.requires_grad
    kept, _ = smallest(tensors("B 4", dtype="floating"), lambda x: x.dtype == torch.float16, 0)
    assert kept.dtype == torch.float16
    assert kept.shape == (1, 4)

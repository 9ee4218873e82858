"""Edge-first examples and the stand-alone minimiser, on bugs whose smallest batch is known."""

from __future__ import annotations

import random

import pytest
import torch

from pytest_torchcheck.batches import Batch, BatchSource, relayout
from pytest_torchcheck.specs import Ints, Labels, Lengths, Mask, Packed, Tokens, UnitVectors
from pytest_torchcheck.strategies import examples
from pytest_torchcheck.strategies.minimise import Budget, minimise
from pytest_torchcheck.strategies.sequence import assignments
from tests.unit.strategies.shape_bugs import BUGS, ShapeBug

DEFAULT = 8
"""Examples that a check runs by default."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_seeded_bugs_are_found_by_the_default_number_of_examples_for_100_seeds(
    bug: ShapeBug,
) -> None:
    source = bug.source()
    for seed in range(100):
        drawn = examples(source, DEFAULT, seed, layouts=bug.layouts)
        assert any(bug.fails(batch) for batch in drawn), seed


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_failing_batch_is_reduced_to_the_smallest_one(bug: ShapeBug) -> None:
    source = bug.source()
    found = 0
    for seed in range(25):
        layout = bug.layouts[-1]
        start = source.draw(seed)
        start = start if layout == "contiguous" else relayout(start, layout)
        if bug.fails(start):
            found += 1
            smallest = minimise(source, bug.fails, start)
            assert bug.fails(smallest)
            assert smallest.sizes in bug.smallest, seed
    assert found >= 3


def test_the_first_examples_are_the_ends_and_odd_sizes() -> None:
    source = BatchSource("B 3 H W", sizes={"B": (1, 8), "H": (16, 64), "W": (16, 64)})
    first = list(assignments(source))[:10]
    assert first[0] == {"B": 1, "H": 16, "W": 16}
    assert all(size % 2 for size in first[1].values())
    assert len(set(first[1].values())) == 3
    assert first[2] == {"B": 8, "H": 64, "W": 64}
    base = source.base().sizes
    assert first[3] == {**base, "B": 1}
    assert first[4] == {**base, "H": 16}
    assert first[5] == {**base, "W": 16}
    assert first[6] == {**base, "B": 3}  # as many samples as channels
    assert first[7:] == [{**base, "B": 7}, {**base, "H": 64}, {**base, "W": 64}]


def test_examples_are_the_same_for_the_same_seed_and_all_different() -> None:
    source = BatchSource("B T", sizes={"B": (1, 8), "T": (1, 64)})
    one, two = (list(examples(source, 20, seed=3)) for _ in range(2))
    assert [batch.sizes for batch in one] == [batch.sizes for batch in two]
    assert all(torch.equal(a.x, b.x) for a, b in zip(one, two, strict=True))
    assert len({tuple(batch.sizes.items()) for batch in one}) == 20


def test_examples_end_where_there_are_no_more_sizes() -> None:
    assert [batch.sizes for batch in examples(BatchSource("B 3", sizes={"B": (1, 3)}), 99)] == [
        {"B": 1}, {"B": 3}, {"B": 2},
    ]  # fmt: skip
    assert len(list(examples(BatchSource("2 3"), 99))) == 1


def test_sizes_that_cost_too_much_are_left_out() -> None:
    source = BatchSource("B T T", sizes={"B": (1, 64), "T": (1, 4096)})
    for batch in examples(source, 12):
        assert batch.x.numel() <= 1 << 22


def test_real_targets_limit_the_examples() -> None:
    source = BatchSource("B T", sizes={"T": (1, 9)}, batch=(torch.zeros(4, 7), torch.zeros(4, 5)))
    found = list(examples(source, 6))
    assert found
    assert {batch.sizes["T"] for batch in found} == {7}
    assert len({batch.sizes["B"] for batch in found}) == len(found) > 2


def test_relations_and_variadic_axes_have_examples() -> None:
    source = BatchSource("*batch H W", sizes={"H": (3, 9), "W": "H-2", "batch": (1, 3)})
    ranks = {batch.sizes["*batch"] for batch in examples(source, 12)}
    assert ranks == {0, 1, 2}


# The minimiser


def minimal(source: BatchSource, fails: object, start: Batch, **budget: float) -> Batch:
    return minimise(source, fails, start, Budget(**budget) if budget else None)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_value_bugs_are_reduced_to_one_element(seed: int) -> None:
    source = BatchSource(
        {"x": "B T", "n": Labels("B", classes=3)}, sizes={"B": (1, 64), "T": (64, 64)}
    )
    start = source.at(seed, B=64)
    assert start is not None
    start.x[random.Random(seed).randrange(64), 5] = float("inf")
    found = minimal(source, lambda b: not b.x.isfinite().all(), start)
    assert found.describe().startswith("x: float32[")
    assert "all zero but x[" in found.describe()
    assert "= inf" in found.describe()
    assert (found.n == 0).all()
    negative = minimal(source, lambda b: bool((b.x < 0).any()), source.draw(seed))
    assert negative.sizes == {"B": 1, "T": 64}
    assert (negative.x != 0).sum() == 1
    assert negative.x.min() == -1.0  # the roundest number that fails


def test_two_elements_that_matter_are_both_kept() -> None:
    source = BatchSource("16 16")
    start = source.base(1)
    start.x.abs_()
    start.x[3, 4], start.x[12, 1] = -0.3, -0.4
    found = minimal(source, lambda b: bool((b.x < 0).sum() >= 2), start)
    assert found.x.nonzero().tolist() == [[3, 4], [12, 1]]


def test_a_sum_of_many_is_shown_as_a_constant() -> None:
    source = BatchSource("32 32")
    start = source.base(1)
    start.x.abs_()
    found = minimal(source, lambda b: bool(b.x.sum() > 200), start)
    assert found.x.unique().numel() == 1


def test_rows_are_replaced_whole() -> None:
    source = BatchSource(UnitVectors("B D"), sizes={"B": (1, 16), "D": (8, 8)})
    start = source.at(3, B=16)
    assert start is not None
    found = minimal(source, lambda b: bool((b.x[:, 0] < 0).any()), start)
    torch.testing.assert_close(found.x.norm(dim=1), torch.ones(found.sizes["B"]))
    assert found.sizes["B"] == 1


def test_tensors_that_follow_from_others_stay_true() -> None:
    source = BatchSource(
        {
            "ids": Tokens("B T", vocab=50, pad=0),
            "mask": Mask("B T", of="ids", pad=0),
            "n": Lengths("B", longest="T"),
            "packed": Packed("B T 2", lengths="n"),
        },
        sizes={"B": (1, 6), "T": (1, 12)},
    )
    found = minimal(
        source, lambda b: bool((b.ids > 20).any()) and b.sizes["T"] >= 3, source.draw(5)
    )
    assert torch.equal(found.mask, found.ids != 0)
    assert found.sizes == {"B": 1, "T": 3}
    assert found.n.max() == 3
    assert len(found.packed.batch_sizes) == 3


def test_a_real_batch_is_reduced_along_its_symbols() -> None:
    x = torch.randn(6, 20)
    x[4, 13] = float("nan")
    source = BatchSource("B T", sizes={"B": (1, 6), "T": (1, 20)}, batch=(x, torch.arange(6)))
    found = minimal(source, lambda b: bool(b.x.isnan().any()), source.real())
    assert found.x.isnan().sum() == 1
    assert found.x.nan_to_num(0).abs().sum() == 0
    assert found.sizes["T"] <= 14
    assert len(found.targets) == found.sizes["B"] <= 5


def test_integers_of_a_real_batch_stay_valid_ids() -> None:
    ids = torch.randint(5, 9, (4, 8))
    source = BatchSource(batch=(ids, None))
    found = minimal(source, lambda b: b.x.shape[0] >= 2, source.real())
    assert found.sizes == {"B": 2}
    assert set(found.x.unique().tolist()) <= set(ids.unique().tolist())


def test_the_budget_is_kept() -> None:
    source = BatchSource("B T", sizes={"B": (1, 99), "T": (1, 99)})
    calls = 0

    def fails(batch: Batch) -> bool:
        nonlocal calls
        calls += 1
        return bool((batch.x < 0).any())

    minimise(source, fails, source.draw(1), 7)
    assert calls == 7


def test_a_batch_that_does_not_fail_again_comes_back_as_it_was() -> None:
    source = BatchSource("B T")
    start = source.draw(1)
    assert minimise(source, lambda _: False, start) is start


def test_the_failing_check_cannot_change_the_batch() -> None:
    source = BatchSource("4 4")

    def fails(batch: Batch) -> bool:
        failed = bool((batch.x < 0).any())
        batch.x.fill_(-1)
        return failed

    found = minimise(source, fails, source.base())
    assert (found.x != 0).sum() == 1


def test_a_non_contiguous_batch_becomes_contiguous_unless_that_matters() -> None:
    source = BatchSource("B T", sizes={"B": (1, 4), "T": (2, 6)})
    start = relayout(source.draw(2), "non_contiguous")
    assert minimal(source, lambda b: bool((b.x < 0).any()), start).x.is_contiguous()
    found = minimal(source, lambda b: not b.x.is_contiguous(), start)
    assert found.sizes == {"B": 1, "T": 2}
    assert not found.x.is_contiguous()


def test_ids_out_of_range_are_found_and_reduced() -> None:
    source = BatchSource(Ints("B T", high=101), sizes={"B": (1, 64), "T": (1, 64)})
    fails = lambda b: bool((b.x >= 100).any())  # noqa: E731
    start = next(batch for seed in range(99) if fails(batch := source.draw(seed)))
    assert (
        minimal(source, fails, start).x.tolist() == [[100]]
        or minimal(source, fails, start).x.numel() <= 4
    )

"""Ranges of sizes: parsing, errors, and the sizes at which a model is first run."""

from __future__ import annotations

import pytest

from pytest_torchcheck.specs import SizeRange, SpecError, parse_sizes
from pytest_torchcheck.specs.sizes import comfortable, settle


def test_every_form_is_understood() -> None:
    sizes = parse_sizes({"B": 4, "H": (16, 64), "T": (16, 64, 16), "W": "2*H"})
    assert list(sizes["B"]) == [4]
    assert (sizes["H"].low, sizes["H"].top, len(sizes["H"])) == (16, 64, 49)
    assert list(sizes["T"]) == [16, 32, 48, 64]
    assert str(sizes["W"]) == "2*H"
    assert [str(span) for span in sizes.values()] == ["4", "16..64", "16..64 by 16", "2*H"]
    assert [span.fixed for span in sizes.values()] == [True, False, False, True]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (-1, "not negative"),
        ((4, 2), "empty"),
        ((1, 2, 0), "step"),
        ((1.5, 2), "whole numbers"),
        (True, "not a size"),
        (None, "not a size"),
        ((1, 2, 3, 4), "not a size"),
        ("H", "from itself"),
    ],
)
def test_errors_name_the_symbol_the_value_and_what_is_allowed(value: object, problem: str) -> None:
    with pytest.raises(SpecError, match=problem) as caught:
        parse_sizes({"H": value})  # type: ignore[dict-item]
    assert f"sizes['H'] = {value!r}" in str(caught.value)
    assert "allowed: a number" in str(caught.value)


def test_sizes_must_be_a_mapping() -> None:
    with pytest.raises(SpecError, match="must be a dict"):
        parse_sizes([("B", 2)])  # type: ignore[arg-type]


def test_relations_follow_each_other() -> None:
    ranges = parse_sizes({"H": (1, 9), "W": "2*H", "N": "H*W"})
    assert settle({"H": 3}, ranges) == {"H": 3, "W": 6, "N": 18}


def test_a_circle_of_relations_is_an_error() -> None:
    with pytest.raises(SpecError, match="cannot be worked out"):
        settle({}, parse_sizes({"H": "W", "W": "H"}))


@pytest.mark.parametrize(
    ("span", "size"),
    [
        ((1, 128), 17),
        ((2, 8), 5),
        ((16, 64), 17),
        ((16, 64, 16), 32),
        ((3, 3), 3),
        ((1, 2), 2),
        ((20, 24), 21),
    ],
)
def test_comfortable_sizes_are_small_and_no_edge(span: tuple[int, ...], size: int) -> None:
    assert comfortable(parse_sizes({"H": span})["H"]) == size  # type: ignore[dict-item]


def test_comfortable_sizes_differ_between_symbols() -> None:
    span = SizeRange(low=8, high=64)
    first = comfortable(span)
    assert comfortable(span, taken={first}) not in (first, span.low, span.top)


def test_a_batch_is_a_few_samples() -> None:
    assert comfortable(SizeRange(low=1, high=512), batch=True) == 5

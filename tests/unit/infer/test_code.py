"""Specs as code and back."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_torchcheck import specs
from pytest_torchcheck.infer.code import NAMES, code_of, parse_specs, specs_used
from pytest_torchcheck.specs import SpecError, as_spec_tree

WRITTEN = [
    'Tokens("B T", vocab=99)',
    'Tokens("B T", vocab=99, pad=0, special=(1, 2), side="left")',
    'Labels("B", classes=10)',
    'Labels("B T", classes=10, ignore_index=-100)',
    'Floats("B 3", low=0.0, high=1.0)',
    'Floats("B 3", mean=0.0, std=2.0)',
    'Ints("B", high=1000)',
    'Ints("B", low=3, high=9, dtype="int32")',
    'Lengths("B", longest="T", shortest=2)',
    'Positions("N", strict=False)',
    'Edges("2 E", nodes="N")',
    'Edges("2 E", nodes=20, self_loops=False)',
    'Mask("B T")',
    'Mask("B T", kind="right", of="ids", pad=1, dtype="int64")',
    'Images("B 3 H W", dtype="uint8")',
    'TensorSpec("B 3", dtype="float64")',
    'UnitVectors("B 8")',
    'Probabilities("B 8")',
    'OneHot("B 8")',
    '("B 3", {"mask": Mask("B T")})',
    '("B 3",)',
    '["B 3", "B 4"]',
]


@pytest.mark.parametrize("text", WRITTEN)
def test_code_is_what_makes_the_spec(text: str) -> None:
    names = {name: getattr(specs, name) for name in NAMES}
    made: Any = eval(text, names)
    assert code_of(made) == text
    assert parse_specs(text) == as_spec_tree(made, "inputs")
    assert code_of(parse_specs(text)) == text


def test_every_spec_that_may_be_named_is_written_in_the_list() -> None:
    assert {name for name in NAMES if not any(name in text for text in WRITTEN)} == set()


def test_a_shape_alone_is_written_as_a_string() -> None:
    assert code_of(specs.Floats("B 3 64 64")) == '"B 3 64 64"'
    assert code_of(parse_specs("B (H*W) 3")) == '"B (H*W) 3"'
    assert code_of(parse_specs("(H*W) 3")) == '"(H*W) 3"'
    assert specs_used((specs.Floats("B 3"), {"a": specs.Labels("B", classes=2)})) == {"Labels"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Token('B T', vocab=3)", "'Token' is not a spec; choose from"),
        ("Tokens('B T', vocab=size)", "'size' is not a literal"),
        ("Tokens('B T', vocabulary=3)", "unknown name 'vocabulary'"),
        ("{'x': open('f')}", "'open' is not a spec"),
        ("B 3 64 &", "character"),
    ],
)
def test_what_is_no_spec_is_refused(text: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        parse_specs(text)

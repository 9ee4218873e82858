from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from pytest_torchcheck.data.describing import (
    describe,
    describe_leaf,
    describe_sample,
    input_digest,
    join_digests,
    target_path,
)
from pytest_torchcheck.data.validity import spread


class Pair(NamedTuple):
    x: Any
    y: Any


def test_paths() -> None:
    sample = {"image": torch.zeros(2), "target": Pair(x=[1, 2.0], y="a")}
    assert [leaf.path for leaf in describe(sample)] == [
        "image",
        "target.x.0",
        "target.x.1",
        "target.y",
    ]


@pytest.mark.parametrize(
    ("value", "low", "high", "nan", "inf", "whole"),
    [
        (torch.tensor([1.0, float("nan"), 3.0]), 1.0, 3.0, 1, 0, True),
        (torch.tensor([float("inf"), -float("inf"), 0.5]), 0.5, 0.5, 0, 2, False),
        (torch.tensor([float("nan")]), None, None, 1, 0, False),
        (torch.tensor([True, False]), 0.0, 1.0, 0, 0, True),
        (np.array([[1, 2], [3, 4]], dtype=np.int16)[::-1], 1.0, 4.0, 0, 0, True),
        (3, 3.0, 3.0, 0, 0, True),
        (np.float32(0.5), 0.5, 0.5, 0, 0, False),
        (float("nan"), None, None, 1, 0, False),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), 1.0, 2.0, 0, 0, True),
    ],
)
def test_numbers(
    value: object, low: float | None, high: float | None, nan: int, inf: int, whole: bool
) -> None:
    leaf = describe_leaf("", value)
    assert (leaf.low, leaf.high, leaf.nan, leaf.inf, leaf.whole) == (low, high, nan, inf, whole)


def test_digest_tells_contents_dtype_and_shape_apart() -> None:
    base = torch.arange(4.0)
    same = describe_leaf("", base.clone()).digest
    assert describe_leaf("", base).digest == same
    for other in (base + 1, base.double(), base.reshape(2, 2), base.numpy() + 1):
        assert describe_leaf("", other).digest != same


def test_target_by_convention() -> None:
    assert target_path((1, 2, 3)) == "2"
    assert target_path({"x": 1, "label": 2}) == "label"
    assert target_path({"x": 1}) is None
    assert target_path(torch.zeros(2)) is None
    sample = describe_sample(0, (torch.zeros(2), {"a": 1}))
    assert [leaf.path for leaf in sample.targets] == ["1.a"]


def test_spread_has_both_ends() -> None:
    assert spread(5) == (0, 1, 2, 3, 4)
    places = spread(10_000, 64)
    assert len(places) == 64
    assert places[0] == 0
    assert places[-1] == 9_999


@pytest.mark.parametrize(
    "sample",
    [
        (torch.arange(6.0).view(2, 3).t(), 3),
        {"image": torch.zeros(2, dtype=torch.uint8), "name": "a", "label": torch.tensor(1)},
        [torch.eye(3).to_sparse(), torch.tensor(2.0), "target"],
        torch.ones(2),
        (object(), 1),
    ],
    ids=["tuple", "mapping", "sparse", "bare", "opaque"],
)
def test_the_digest_of_the_inputs_alone_is_that_of_the_description(sample) -> None:
    described = describe_sample(0, sample)
    assert input_digest(sample) == join_digests(leaf.digest for leaf in described.inputs)


def test_an_array_of_objects_is_what_it_holds() -> None:
    def made(text: str, last: float) -> Any:
        held = np.empty(3, dtype=object)
        held[0], held[1], held[2] = torch.arange(4), text, np.array([1.0, last])
        return held

    one, other = describe(made("a", 2.0))[0].digest, describe(made("a", 2.0))[0].digest
    assert one is not None
    assert one == other
    assert len({one, describe(made("b", 2.0))[0].digest, describe(made("a", 3.0))[0].digest}) == 3


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_the_parts_of_a_nested_tensor_are_leaves(layout: torch.layout) -> None:
    parts = [torch.ones(2), torch.arange(3.0)]
    sample = torch.nested.nested_tensor(parts, layout=layout), 1
    found = describe_sample(0, sample)
    assert [(leaf.path, leaf.shape) for leaf in found.leaves] == [
        ("0.0", (2,)),
        ("0.1", (3,)),
        ("1", ()),
    ]
    assert found.digest == describe_sample(0, (parts, 1)).digest

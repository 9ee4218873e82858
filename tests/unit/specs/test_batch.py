"""Batches: copies, casts, layouts, and the line that describes them."""

from __future__ import annotations

import collections
import copy
import dataclasses
import pickle
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from pytest_torchcheck.batches import LAYOUTS, Batch, relayout
from pytest_torchcheck.batches.batch import clone_tensor
from pytest_torchcheck.batches.describe import describe_tensor


@dataclasses.dataclass
class Graph:
    x: torch.Tensor
    edge_index: torch.Tensor
    name: str = "g"


class Plain:
    def __init__(self) -> None:
        self.image = torch.randn(2, 3)
        self.meta = {"scale": torch.ones(2)}


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def batch() -> Batch:
    return Batch(
        args=(torch.randn(2, 3), {"mask": torch.ones(2, 3, dtype=torch.bool)}),
        targets=[torch.arange(2)],
    )


def test_leaves_have_paths_as_python_spells_them() -> None:
    made = Batch(
        kwargs={
            "graph": Graph(torch.zeros(1), torch.zeros(2)),
            "pair": Pair(torch.zeros(1), torch.ones(1)),
            "n": 3,
        },
        targets={"boxes": [torch.zeros(1)]},
    )
    assert [path for path, _ in made.leaves()] == [
        "graph.x", "graph.edge_index", "graph.name", "pair.left", "pair.right", "n", "y['boxes'][0]",
    ]  # fmt: skip
    assert list(made.tensors()) == [
        "graph.x",
        "graph.edge_index",
        "pair.left",
        "pair.right",
        "y['boxes'][0]",
    ]


def test_inputs_are_attributes() -> None:
    one = Batch(args=(torch.zeros(1),), targets=torch.ones(1))
    assert one.inputs is one.args[0] is one.x
    assert one.y is one.targets
    named = Batch(kwargs={"ids": torch.zeros(1), "y": torch.ones(2)}, targets=torch.ones(3))
    assert named.ids is named.kwargs["ids"]
    assert named.y is named.kwargs["y"]
    assert "targets" in dict(named.leaves())
    two = Batch(args=(torch.zeros(1), torch.ones(1)), names=("left", "right"))
    assert two.right is two.args[1]
    assert Batch(args=two.args).x1 is two.args[1]
    with pytest.raises(AttributeError, match="no input named 'z'; there are: left, right"):
        _ = two.z


def test_a_batch_survives_copying_and_pickling() -> None:
    made = batch()
    for twin in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(twin.args[0], made.args[0])
        assert twin.sizes == made.sizes


@pytest.mark.parametrize(
    "value",
    [
        {"a": torch.randn(2), "b": [torch.randn(1), 5]},
        collections.OrderedDict(a=torch.randn(2)),
        collections.UserDict(a=torch.randn(2)),
        Pair(torch.randn(2), torch.randn(2)),
        Graph(torch.randn(2), torch.zeros(1)),
        Plain(),
        pack_sequence([torch.randn(3, 2), torch.randn(1, 2)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_clone_copies_every_tensor_of_any_container(value: Any) -> None:
    made = Batch(args=(value,), targets=torch.zeros(1))
    twin = made.clone()
    assert type(twin.args[0]) is type(value)
    before = {path: tensor.clone() for path, tensor in made.tensors().items()}
    for path, tensor in twin.tensors().items():
        assert torch.equal(tensor, before[path])
        tensor.add_(1)
    for path, tensor in made.tensors().items():
        assert torch.equal(tensor, before[path]), path


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(3, 1).expand(3, 4),
        torch.randn(6, 8)[1:4, ::2],
        torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(100_000)[::50_000],
        torch.randn(3, requires_grad=True),
        torch.eye(3).to_sparse(),
    ],
    ids=[
        "plain", "transposed", "expanded", "strided", "channels-last", "scalar", "empty", "conjugated", "sampled", "leaf", "sparse",
    ],
)  # fmt: skip
def test_clone_keeps_values_strides_and_requires_grad(tensor: torch.Tensor) -> None:
    twin = clone_tensor(tensor)
    assert torch.equal(twin.to_dense(), tensor.detach().to_dense())
    assert twin.requires_grad == tensor.requires_grad
    assert twin.is_leaf
    if tensor.layout == torch.strided:
        if tensor.numel() < 1000 and tensor.numel():
            assert twin.stride() == tensor.stride() or tensor.shape == (2,)
        assert (
            twin.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
            or not tensor.numel()
        )


def test_a_tensor_that_stands_twice_stays_one() -> None:
    x = torch.randn(3)
    twin = Batch(args=(x,), targets=x).clone()
    assert twin.x is twin.targets
    assert twin.x is not x


def test_casting_concerns_floats_and_complex_numbers_only() -> None:
    made = Batch(
        args=(
            torch.randn(2),
            torch.randn(2, dtype=torch.complex64),
            torch.arange(2),
            torch.ones(2).bool(),
        ),
        targets=torch.randn(2, requires_grad=True),
    ).to(dtype=torch.float64)
    assert [tensor.dtype for tensor in made.args] == [
        torch.float64,
        torch.complex128,
        torch.int64,
        torch.bool,
    ]
    assert made.targets.dtype == torch.float64
    assert made.targets.requires_grad
    assert made.targets.is_leaf
    assert made.to(device="meta").args[0].device.type == "meta"
    same = made.to(dtype=torch.float64)
    assert same.args[0] is made.args[0]


def test_packed_sequences_move_as_one() -> None:
    packed = pack_sequence([torch.randn(1, 2), torch.randn(3, 2)], enforce_sorted=False)
    moved = Batch(args=(packed,)).to(dtype=torch.float64).args[0]
    assert isinstance(moved, PackedSequence)
    assert moved.data.dtype == torch.float64
    assert torch.equal(moved.batch_sizes, packed.batch_sizes)
    assert moved.sorted_indices is not None


@pytest.mark.parametrize("kind", LAYOUTS)
def test_layouts_change_memory_and_no_values(kind: str) -> None:
    made = Batch(args=(torch.randn(3, 4, 5, 6), torch.randn(3, 7)), targets=torch.randn(3, 2))
    changed = relayout(made, kind)  # type: ignore[arg-type]
    image, rows = changed.args
    for before, after in zip(made.args, changed.args, strict=True):
        assert before.shape == after.shape
        assert before.data_ptr() != after.data_ptr()
        if kind == "expanded":
            assert torch.equal(after, before[:1].expand_as(before))
        else:
            assert torch.equal(before, after)
    assert changed.targets is made.targets
    expected = {
        "contiguous": image.is_contiguous() and rows.is_contiguous(),
        "non_contiguous": not image.is_contiguous()
        and not rows.is_contiguous()
        and rows.stride() == (14, 2),
        "expanded": image.stride(0) == rows.stride(0) == 0,
        "offset": image.is_contiguous() and image.storage_offset() == rows.storage_offset() == 3,
        "channels_last": image.is_contiguous(memory_format=torch.channels_last)
        and not image.is_contiguous(),
    }
    assert expected[kind]


def test_layouts_survive_casts_and_copies() -> None:
    laid = relayout(Batch(args=(torch.randn(3, 4),)), "non_contiguous")
    for made in (laid.to(dtype=torch.float64), laid.clone(), laid.to(device="meta")):
        assert made.x.stride() == (8, 2)
        assert made.layout == "non_contiguous"
    assert laid.to(dtype=torch.float32).x is laid.x


def test_an_unknown_layout_is_an_error() -> None:
    with pytest.raises(ValueError, match="allowed: contiguous"):
        relayout(batch(), "diagonal")  # type: ignore[arg-type]


def _odd(value: float) -> torch.Tensor:
    made = torch.zeros(1, 3, 17, 16)
    made[0, 0, 16, 0] = value
    return made


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (_odd(float("inf")), "float32[1, 3, 17, 16], all zero but x[0, 0, 16, 0] = inf"),
        (_odd(float("nan")), "float32[1, 3, 17, 16], all zero but x[0, 0, 16, 0] = nan"),
        (torch.tensor([[-3.14159, 2.9]]), "float32[1, 2] in [-3.14, 2.9]"),
        (torch.arange(10), "int64[10] in 0..9"),
        (torch.zeros(2, 3), "float32[2, 3], all zero"),
        (torch.zeros(2, dtype=torch.int64), "int64[2], all 0"),
        (torch.full((2, 3), -0.0), "float32[2, 3], all -0"),
        (torch.ones(4, dtype=torch.float16), "float16[4], all 1"),
        (torch.tensor(3.5), "float32[] = 3.5"),
        (torch.tensor([True, False] * 5), "bool[10], 5 of 10 true"),
        (torch.tensor([True] * 9 + [False]), "bool[10], all true but x[9] = false"),
        (
            torch.tensor([1.0, float("nan"), float("inf"), 2.0]),
            "float32[4] in [1, 2], 2 not finite",
        ),
        (torch.full((3,), float("nan")), "float32[3], all nan"),
        (torch.randn(0, 3), "float32[0, 3]"),
        (torch.full((3,), 1 + 2j), "complex64[3], all (1+2j)"),
        (torch.zeros(9).to(torch.float8_e4m3fn), "float8_e4m3fn[9], all zero"),
        (
            torch.cat([torch.ones(3), torch.zeros(4)]),
            "float32[7], all zero but x[0] = 1, x[1] = 1, x[2] = 1",
        ),
        (torch.tensor([3 + 4j, 0, 1j]), "complex64[3] of magnitude up to 5"),
        (torch.arange(6.0).view(2, 3).t(), "float32[3, 2] non-contiguous in [0, 5]"),
        (torch.arange(2.0).expand(3, 2), "float32[3, 2] expanded in [0, 1]"),
        (torch.arange(4.0)[1:], "float32[3] at offset 1 in [1, 3]"),
        (torch.empty(2, device="meta"), "float32[2] on meta"),
        (torch.eye(2).to_sparse(), "float32[2, 2] sparse_coo in [0, 1]"),
        (torch.ones(2, requires_grad=True), "float32[2], all 1, requires grad"),
    ],
    ids=str,
)
def test_one_line_says_what_a_tensor_is(tensor: torch.Tensor, text: str) -> None:
    assert describe_tensor(tensor, "x") == text


def test_single_elements_are_found_wherever_they_stand() -> None:
    for place in (0, 1, 499, 500, 998, 999):
        tensor = torch.full((1000,), 2.5)
        tensor[place] = float("nan")
        assert describe_tensor(tensor, "y") == f"float32[1000], all 2.5 but y[{place}] = nan"


def test_one_line_says_what_a_batch_is() -> None:
    made = Batch(args=(torch.tensor([[-3.14159, 2.9]]),), kwargs={"n": 3}, targets=torch.arange(10))
    assert made.describe() == "x: float32[1, 2] in [-3.14, 2.9]; n: 3; y: int64[10] in 0..9"
    assert repr(made) == f"Batch({made.describe()})"

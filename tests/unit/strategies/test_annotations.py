"""Specs from jaxtyping annotations, where jaxtyping is installed."""

# ruff: noqa: F722, F821, UP045 - the strings are shapes, and Optional is what users write
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.strategies._internal import types
from torch import Tensor, nn

from pytest_torchcheck.specs import SpecError, TensorSpec, Tokens
from pytest_torchcheck.strategies import batches, register, specs_from_signature
from pytest_torchcheck.strategies.annotations import spec_from_annotation

if TYPE_CHECKING:
    from collections.abc import Iterator

jaxtyping = pytest.importorskip("jaxtyping")
Float, Float64, Int, Bool, Shaped, UInt8 = (
    getattr(jaxtyping, name) for name in ("Float", "Float64", "Int", "Bool", "Shaped", "UInt8")
)

Image = Float[Tensor, "b 3 h w"]
Ids = Int[Tensor, "b t"]


class Annotated2(nn.Module):
    def forward(
        self, x: Image, ids: Ids, mask: Optional[Bool[Tensor, "b t"]] = None, flag: bool = True
    ) -> Float[Tensor, "b 10"]:  # type: ignore[valid-type]
        return x.new_zeros(len(x), 10)


@pytest.fixture
def registered() -> Iterator[None]:
    before = dict(types._global_extra_lookup)
    yield
    types._global_extra_lookup.clear()
    types._global_extra_lookup.update(before)


@pytest.mark.parametrize(
    ("annotation", "spec"),
    [
        (Image, TensorSpec("b 3 h w", dtype="float32")),
        (Float64[Tensor, "b"], TensorSpec("b", dtype="float64")),
        (Int[Tensor, ""], TensorSpec("", dtype="int64")),
        (UInt8[Tensor, "*batch 3"], TensorSpec("*batch 3", dtype="uint8")),
        (Shaped[Tensor, "... d"], TensorSpec("... d")),
        (Annotated[Image, "an image"], TensorSpec("b 3 h w", dtype="float32")),
        (Optional[Bool[Tensor, "t-1"]], TensorSpec("t-1", dtype="bool")),
        (Tensor, None),
        (int, None),
        (tuple[Image, Ids], None),
        (list[Image], None),
        (Image | None, TensorSpec("b 3 h w", dtype="float32")),
        (Annotated[Tensor, Tokens("B T", vocab=9)], Tokens("B T", vocab=9)),
        (Annotated[Ids, Tokens(vocab=9)], Tokens("b t", vocab=9)),
        (Annotated[Ids, Tokens("B S", vocab=9)], Tokens("B S", vocab=9)),
        (Optional[Annotated[Ids, Tokens(vocab=9)]], Tokens("b t", vocab=9)),
    ],
    ids=str,
)
def test_an_annotation_becomes_a_spec(annotation: Any, spec: TensorSpec | None) -> None:
    assert spec_from_annotation(annotation) == spec


def test_specs_come_from_forward() -> None:
    for source in (Annotated2, Annotated2(), Annotated2.forward, Annotated2().forward):
        signature = specs_from_signature(source)
        assert list(signature.inputs) == ["x", "ids", "mask"]
        assert signature.output == TensorSpec("b 10", dtype="floating")
    model = Annotated2()
    drawn = find(batches(inputs=dict(signature.inputs), sizes={"b": (2, 4)}), lambda b: True)
    assert model(**drawn.kwargs).shape == (2, 10)
    assert drawn.ids.shape[0] == drawn.x.shape[0]


def test_several_outputs() -> None:
    def forward(x: Image) -> tuple[Float[Tensor, "b 10"], Ids]: ...  # type: ignore[valid-type, empty-body]

    assert specs_from_signature(forward).output == (
        TensorSpec("b 10", dtype="floating"),
        TensorSpec("b t", dtype="integer"),
    )


def test_errors_name_the_parameter() -> None:
    def bare(x: Tensor) -> Tensor: ...  # type: ignore[empty-body]

    with pytest.raises(SpecError, match="bare: no parameter gives its shape"):
        specs_from_signature(bare)

    def wrong(x: Float[Tensor, "b {self.width}"]) -> None: ...

    with pytest.raises(SpecError, match=r"wrong\(x\)"):
        specs_from_signature(wrong)


def test_from_type_understands_every_annotation(registered: None) -> None:
    register(sizes={"b": (1, 4), "h": 8, "w": 8})

    @settings(max_examples=20, database=None)
    @given(st.from_type(Image), st.from_type(Ids), st.from_type(Optional[Ids]))
    def check(image: Tensor, ids: Tensor, maybe: Tensor | None) -> None:
        assert image.shape[1:] == (3, 8, 8)
        assert 1 <= len(image) <= 4
        assert ids.dtype == torch.int64
        assert maybe is None or maybe.dim() == 2

    check()


def test_named_annotations_are_registered_by_the_public_interface() -> None:
    one = Float[Tensor, "k 7"]
    register(one, sizes={"k": 2})
    assert find(st.from_type(one), lambda _: True).shape == (2, 7)
    with pytest.raises(SpecError, match="gives no shape"):
        register(Tensor)

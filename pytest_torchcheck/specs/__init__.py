"""What a tensor may be: shapes, sizes, dtypes and values."""

from __future__ import annotations

from pytest_torchcheck.specs.kinds import (
    Edges,
    Images,
    Lengths,
    OneHot,
    Positions,
    Probabilities,
    UnitVectors,
)
from pytest_torchcheck.specs.same import Same
from pytest_torchcheck.specs.shape_parsing import parse_shape
from pytest_torchcheck.specs.shapes import Shape, ShapeMismatch, SpecError
from pytest_torchcheck.specs.sizes import SizeRange, parse_sizes
from pytest_torchcheck.specs.structures import Nested, Packed, Sparse
from pytest_torchcheck.specs.tensors import Floats, Ints, Labels, Mask, TensorSpec, Tokens
from pytest_torchcheck.specs.trees import as_spec_tree

__all__ = [
    "Edges", "Floats", "Images", "Ints", "Labels", "Lengths", "Mask", "Nested", "OneHot", "Packed", "Positions",
    "Probabilities", "Same", "Shape", "ShapeMismatch", "SizeRange", "Sparse", "SpecError", "TensorSpec", "Tokens", "UnitVectors",
    "as_spec_tree", "parse_shape", "parse_sizes",
]  # fmt: skip

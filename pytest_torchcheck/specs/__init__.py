"""What a tensor may be: shapes, sizes, dtypes and values."""

from __future__ import annotations

from .kinds import (
    Edges,
    Images,
    Lengths,
    OneHot,
    Positions,
    Probabilities,
    UnitVectors,
)
from .same import Same
from .shape_parsing import parse_shape
from .shapes import Shape, ShapeMismatch, SpecError
from .sizes import SizeRange, parse_sizes
from .structures import Nested, Packed, Sparse
from .tensors import Floats, Ints, Labels, Mask, TensorSpec, Tokens
from .walk import as_spec_tree

__all__ = [
    "Edges", "Floats", "Images", "Ints", "Labels", "Lengths", "Mask", "Nested", "OneHot", "Packed", "Positions",
    "Probabilities", "Same", "Shape", "ShapeMismatch", "SizeRange", "Sparse", "SpecError", "TensorSpec", "Tokens", "UnitVectors",
    "as_spec_tree", "parse_shape", "parse_sizes",
]  # fmt: skip

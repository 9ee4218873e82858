"""Batches and tensors as strategies.

What Hypothesis draws is small: one integer per free size, one per choice of layout, dtype and
device, and one string of bytes for the values. The bytes hold what is special, a seed, and per
tensor whether anything is kept, and for every bit of an element's number whether only elements with
that bit are. Almost always all are kept; the others are the simplest of their domain. Drawing
therefore costs as much as filling, and making the numbers smaller makes the batch simpler: sizes go
to the bottom, then values to zero, or to the one element that matters, found bit by bit.

Hypothesis lowers bytes one at a time, sorts them, and lowers equal ones together. So every bit has
its own two bytes, whose meaning depends on no others: if one is above 1, as random ones are, the
bit is free; else it is set where the bytes are equal. Setting a bit either way is one step away
from anywhere.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from ..batches.recipe import FINITE_EDGES, Bits, Edge, Recipe
from ..batches.source import BatchSource
from ..lean import dataclass
from ..specs.shapes import SpecError
from ..specs.tensors import Floats, Ints, Labels, TensorSpec
from . import parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..batches.batch import Batch
    from ..batches.describe import Layout
    from ..specs.sizes import Size

_SEED_BYTES = 4
_ASKED = 4
"""What was asked for comes so many times as often as other edges."""
_LARGER = 4
"""A real batch may be wrapped around to sizes that have 16 times as many elements."""
_EDGE_SHARE = 8
"""Of 256 values of the first byte, so many stand for each kind of edge."""


def batches(
    source: Any = None,
    /,
    *,
    inputs: Any = None,
    targets: Any = None,
    sizes: Mapping[str, Size] | None = None,
    batch: Any = None,
    batch_dim: int | None = 0,
    layouts: Layout | Sequence[Layout] = "contiguous",
    dtypes: str | torch.dtype | Sequence[str | torch.dtype] | None = None,
    devices: str | Sequence[str] = "cpu",
    requires_grad: bool | None = False,
    edges: bool = True,
    allow_nan: bool = False,
    allow_infinity: bool = False,
    **named: Any,
) -> st.SearchStrategy[Batch]:
    """Draw batches whose tensors share symbols: ``batches(x="B T", y=Labels("B", classes=3), sizes={"T": (1, 128)})``.

    Args:
        source: A `BatchSource`, or a contract, instead of specs.
        inputs: Specs of the inputs; or give them by name, as ``x="B 3 H W"``.
        targets: Specs of the targets.
        sizes: Ranges of the symbols, see `parse_sizes`; 1..16 where there is none, 1..8 for the batch's.
        batch: Real data, whose values are kept where no domain is declared; see `BatchSource`.
        batch_dim: Where the batch's axis stands.
        layouts: How inputs may lie in memory.
        dtypes: Of floating tensors, in place of their specs' own.
        devices: Where batches may be.
        requires_grad: Whether floating inputs ask for a gradient; None draws either.
        edges: Whether some batches are zero, constant, large, tiny, subnormal or minus zero.
        allow_nan: Whether some batches have one element that is NaN.
        allow_infinity: Whether some batches have one element that is infinite.
        **named: Specs of inputs by name.

    Returns:
        A strategy. Failures shrink to small sizes, then to the first layout, dtype and device, then
        to zeros, and then to single elements.

    Raises:
        SpecError: A declaration is wrong.
    """
    source = _source_of(source, named, inputs, targets, sizes, batch, batch_dim)
    maker = _maker(
        source,
        layouts=layouts,
        dtypes=dtypes,
        devices=devices,
        requires_grad=requires_grad,
        edges=edges,
        allow_nan=allow_nan,
        allow_infinity=allow_infinity,
    )
    return maker.strategy()


def _source_of(
    source: Any,
    named: Any,
    inputs: Any,
    targets: Any,
    sizes: Mapping[str, Size] | None,
    batch: Any,
    batch_dim: int | None,
) -> BatchSource:
    """Return the source of batches that the arguments describe."""
    if source is None:
        if named and inputs is not None:
            raise SpecError("batches: give inputs=, or inputs by name, not both")
        source = BatchSource(named or inputs, targets, sizes, batch, batch_dim)
    elif named or any(part is not None for part in (inputs, targets, sizes, batch)):
        raise SpecError(
            "batches: a source or contract has its own specs, sizes and data; give nothing beside it"
        )
    else:
        source = getattr(source, "source", source)
    if not isinstance(source, BatchSource):
        raise SpecError(
            f"batches: {source!r} is neither a source of batches nor a contract with one"
        )
    if source.inputs is None and not source.has_real:
        raise SpecError(
            'batches: there is nothing to draw; allowed: specs by name, as in batches(x="B 3 H W")'
        )
    if any(type(spec) not in _FREE for spec in source.specs.values()) and not source.has_real:
        source.base()  # specs that name each other, or take certain shapes only, are wrong here and now
    return source


_FREE = (TensorSpec, Floats, Ints, Labels)
"""Specs that take any shape and look at no other."""


def tensors(
    spec: str | TensorSpec,
    *,
    sizes: Mapping[str, Size] | None = None,
    dtype: str | torch.dtype | Sequence[str | torch.dtype] | None = None,
    **options: Any,
) -> st.SearchStrategy[Tensor]:
    """Draw tensors of one spec: ``tensors("B 3 H W", sizes={"H": (16, 64)})``.

    Args:
        spec: A shape or a spec.
        sizes: Ranges of the symbols.
        dtype: A dtype or family for a shape; a spec has its own.
        **options: ``layouts``, ``devices``, ``requires_grad``, ``edges``, ``allow_nan`` and
            ``allow_infinity`` as in `batches`.

    Raises:
        SpecError: A declaration is wrong.
    """
    if isinstance(spec, TensorSpec):
        if dtype is not None:
            raise SpecError(f"tensors: {spec!r} has a dtype of its own")
    elif isinstance(dtype, (list, tuple)):
        return st.one_of([tensors(spec, sizes=sizes, dtype=one, **options) for one in dtype])
    else:
        spec = TensorSpec(spec, dtype=dtype)  # type: ignore[arg-type]
    return _maker(BatchSource((spec,), sizes=sizes), alone=True, **options).strategy()


def _maker(
    source: BatchSource,
    *,
    alone: bool = False,
    layouts: Layout | Sequence[Layout] = "contiguous",
    dtypes: str | torch.dtype | Sequence[str | torch.dtype] | None = None,
    devices: str | Sequence[str] = "cpu",
    requires_grad: bool | None = False,
    edges: bool = True,
    allow_nan: bool = False,
    allow_infinity: bool = False,
) -> _Maker:
    special: list[Edge] = [edge for edge in FINITE_EDGES if edges or edge == "plain"]
    special += ["nan"] * _ASKED if allow_nan else []
    special += ["infinity"] * _ASKED if allow_infinity else []
    return _Maker(
        source=source,
        sizes=[name for name, span in source.widest().items() if not span.fixed],
        families={p: spec.dtypes for p, spec in source.specs.items() if len(spec.dtypes) > 1},
        values=_ValueCode(bits=_bits(source), edges=tuple(special)),
        layouts=parts.layout_options(*_several(layouts)),
        dtypes=(None,) if dtypes is None else parts.dtype_options(*_several(dtypes)),
        devices=parts.device_options(*_several(devices)),
        grads=(False, True) if requires_grad is None else (requires_grad or None,),
        alone=alone,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ValueCode:
    """The bytes that stand for the values of a batch.

    Attributes:
        bits: Per tensor whose elements can be made simple on their own, how many bits number them.
        edges: What may be special, ``plain`` first.
    """

    bits: Mapping[str, int]
    edges: tuple[Edge, ...]

    @property
    def size(self) -> int:
        return 1 + sum(1 + 2 * count for count in self.bits.values()) + _SEED_BYTES

    def edge(self, code: bytes) -> Edge:
        kind = (code[0] + _EDGE_SHARE - 1) // _EDGE_SHARE
        return self.edges[kind] if kind < len(self.edges) else "plain"

    def seed(self, code: bytes) -> int:
        return int.from_bytes(code[-_SEED_BYTES:], "big")

    def keep(self, code: bytes) -> dict[str, Bits | None]:
        """The field of a `Recipe`."""
        found: dict[str, Bits | None] = {}
        place = 1
        for path, count in self.bits.items():
            end = place + 1 + 2 * count
            if not code[place]:
                found[path] = None
            elif min(map(max, code[place + 1 : end : 2], code[place + 2 : end : 2]), default=2) < 2:
                pairs = zip(code[place + 1 : end : 2], code[place + 2 : end : 2], strict=True)
                found[path] = tuple(
                    one == two if one < 2 and two < 2 else None for one, two in pairs
                )
            place = end
        return found


@dataclass(frozen=True, kw_only=True)
class _Maker:
    """Turns what Hypothesis drew into a batch."""

    source: BatchSource
    sizes: Sequence[str]
    families: Mapping[str, tuple[torch.dtype, ...]]
    values: _ValueCode
    layouts: tuple[Any, ...]
    dtypes: tuple[Any, ...]
    devices: tuple[Any, ...]
    grads: tuple[bool | None, ...]
    alone: bool

    def strategy(self) -> st.SearchStrategy[Any]:
        """Sizes first and values last: the order in which a failing batch is made simpler."""
        ranges = self.source.widest()
        drawn: list[st.SearchStrategy[Any]] = [
            parts.size_codes(ranges[name]) for name in self.sizes
        ]
        drawn += [
            st.integers(0, len(options) - 1) for options in self._options() if len(options) > 1
        ]
        values = st.binary(min_size=self.values.size, max_size=self.values.size)
        return st.tuples(*drawn, values).map(self.make) if drawn else values.map(self.make_values)

    def _options(self) -> tuple[tuple[Any, ...], ...]:
        return (self.layouts, self.dtypes, self.devices, self.grads, *self.families.values())

    def make_values(self, code: bytes) -> Any:
        """Make a batch of which only the values are drawn."""
        return self._make(code, self.first)

    def make(self, drawn: tuple[Any, ...]) -> Any:
        """Make the batch, or its only tensor, that these numbers stand for."""
        rest = iter(drawn)
        sizes = {name: next(rest) for name in self.sizes}
        chosen = [
            options[next(rest)] if len(options) > 1 else options[0] for options in self._options()
        ]
        return self._make(next(rest), self.fields(sizes, chosen))

    def _make(self, code: bytes, fields: Mapping[str, Any]) -> Any:
        values = self.values
        recipe = Recipe(
            seed=values.seed(code), edge=values.edge(code), keep=values.keep(code), **fields
        )
        batch = self.source.make(recipe)
        return batch.args[0] if self.alone else batch

    def fields(self, sizes: dict[str, int], chosen: Sequence[Any]) -> dict[str, Any]:
        """The fields of a recipe that do not concern values."""
        layout, dtype, device, requires_grad, *families = chosen
        return {
            "sizes": sizes,
            "layout": layout,
            "dtype": dtype,
            "device": str(device),
            "requires_grad": requires_grad,
            "dtypes": dict(zip(self.families, families, strict=True)),
        }

    @cached_property
    def first(self) -> dict[str, Any]:
        """The fields of a recipe where nothing but values is drawn."""
        return self.fields({}, [options[0] for options in self._options()])


def _bits(source: BatchSource) -> dict[str, int]:
    """How many bits number the units of every tensor whose units can be made simple on their own."""
    grids = source.grids
    if source.has_real:
        base = source.real()
        simple = {path: source.simplest(base, path) for path in base.tensors()}
        largest = {path: t.numel() << _LARGER for path, t in simple.items() if t is not None}
    else:
        shapes = {path: spec.shape for path, spec in source.specs.items() if spec.unit != "whole"}
        sizes = source.complete()
        largest = {p: math.prod(s.resolve(sizes)) for p, s in shapes.items() if s is not None}
    return {
        path: max(count, math.prod(grids.get(path, (0,)))).bit_length()
        for path, count in largest.items()
    }


def _several(given: Any) -> tuple[Any, ...]:
    return (given,) if isinstance(given, (str, torch.dtype)) else tuple(given)

"""Strategies of a batch's parts: shapes, dtypes, devices, layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hypothesis import strategies as st

from ..batches.describe import LAYOUTS
from ..batches.source import BatchSource
from ..specs.shape_parsing import parse_shape
from ..specs.shapes import SpecError
from ..specs.tensors import TensorSpec, parse_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..batches.describe import Layout
    from ..specs.sizes import Size, SizeRange


def size_codes(span: SizeRange) -> st.SearchStrategy[int]:
    """One size of a range, which shrinks to the bottom; both ends are drawn more often than others.

    Codes below the number of sizes stand for sizes in ascending order; the codes above stand for
    the ends once more, so that a failure at the top shrinks to the code of the top, and from there
    on downwards.
    """
    values = span.values
    extra = max(1, len(values) // 6) if len(values) > 2 else 0

    def decode(code: int) -> int:
        if code < len(values):
            return values[code]
        return values[-1] if code < len(values) + extra else values[0]

    return st.integers(0, len(values) - 1 + 2 * extra).map(decode)


def shapes(
    shape: str, sizes: Mapping[str, Size] | None = None
) -> st.SearchStrategy[tuple[int, ...]]:
    """Concrete shapes of a spec; they shrink to the bottom of every range.

    Args:
        shape: Such as ``"B 3 H W"``.
        sizes: Ranges of its symbols; 1..16 where there is none, 1..8 for the first axis.

    Raises:
        SpecError: A declaration is wrong.
    """
    parsed = parse_shape(shape)
    source = BatchSource(TensorSpec(shape), sizes=sizes)
    return sizes_of(source).map(lambda drawn: parsed.resolve(source.complete(drawn)))


def sizes_of(source: BatchSource) -> st.SearchStrategy[dict[str, int]]:
    """Sizes of the symbols of a source that are free."""
    free = {name: size_codes(span) for name, span in source.widest().items() if not span.fixed}
    return st.fixed_dictionaries(free)


def dtypes(*allowed: str | torch.dtype) -> st.SearchStrategy[torch.dtype]:
    """Dtypes; the first one is the simplest.

    Args:
        allowed: Dtypes, their names, or families (``floating``, ``integer``, ``bool``,
            ``complex``); ``floating`` where nothing is given.

    Raises:
        SpecError: One is no dtype.
    """
    return st.sampled_from(dtype_options(*allowed))


def dtype_options(*allowed: str | torch.dtype) -> tuple[torch.dtype, ...]:
    """What `dtypes` draws from, the simplest first."""
    found = (dtype for item in allowed or ("floating",) for dtype in parse_dtype(item, "dtypes"))
    return tuple(dict.fromkeys(found))


def devices(*allowed: str) -> st.SearchStrategy[torch.device]:
    """Devices; the first one is the simplest.

    Args:
        allowed: Such as ``"cpu"``, ``"cuda:1"`` or ``"meta"``; the CPU and every CUDA device where
            nothing is given.

    Raises:
        SpecError: One is no device, or is not there.
    """
    return st.sampled_from(device_options(*allowed))


def device_options(*allowed: str) -> tuple[torch.device, ...]:
    """What `devices` draws from, the simplest first."""
    present = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    for name in allowed:
        try:
            device = torch.device(name)
        except RuntimeError:
            raise SpecError(
                f"devices: {name!r} is not a device; there are: {', '.join(present)}, meta"
            ) from None
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise SpecError(f"devices: there is no {name}; there are: {', '.join(present)}")
    return tuple(torch.device(name) for name in allowed or present)


def layouts(*allowed: Layout) -> st.SearchStrategy[Layout]:
    """Layouts; contiguous is the simplest.

    Args:
        allowed: Of `LAYOUTS`; all where nothing is given.

    Raises:
        SpecError: One is no layout.
    """
    return st.sampled_from(layout_options(*allowed))


def layout_options(*allowed: Layout) -> tuple[Layout, ...]:
    """What `layouts` draws from, the simplest first."""
    for name in allowed:
        if name not in LAYOUTS:
            raise SpecError(f"layouts: {name!r} is no layout; allowed: {', '.join(LAYOUTS)}")
    return tuple(sorted(allowed or LAYOUTS, key=LAYOUTS.index))

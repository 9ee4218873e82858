"""Does a worker read the samples that the main process reads?

A spawned worker is another interpreter: what hangs on Python's salted ``hash``, on an order of a
set, or on a global that only the main program sets, comes out differently there. Only what the main
process itself reads alike, with other seeds, with generators that have moved on, and as a worker
would, is compared.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...lean import dataclass
from ..describing import Leaf, describe_leaf, leaves
from ..simulation import Workers
from ..snapshot import put_back
from ..validity import read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ...findings import Location
    from ..plan import Part

_NEAR = 1e-3
"""Relative difference of ranges of floats that other kernels or threads may cause, with a wide
margin."""

Told = list[list[Any]]
"""For every comparable leaf: path, dtype, digest, lowest and highest value, as plain types for
JSON."""


def tell(sample: Any) -> Told:
    """Describe what can be compared of a sample between two processes."""
    found = []
    for path, value in leaves(sample):
        if isinstance(value, torch.Tensor | int | float | str | bytes) or _is_array(value):
            leaf = describe_leaf(path, value)
            if leaf.digest is not None:
                found.append([path, _dtype(leaf), leaf.digest, leaf.low, leaf.high])
    return found


def _dtype(leaf: Leaf) -> str:
    return leaf.dtype or leaf.type


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A sample that a worker reads differently.

    Attributes:
        index: The first one.
        path: Of its first value that differs.
        dtype: Of that value.
        here, there: Its range in the main process, and in the worker; None for text.
        count: How many samples differ.
        compared: How many were compared.
        hashed: The user's line that asks for the hash of a text while this sample is read, or None.
    """

    index: int
    path: str
    dtype: str
    here: tuple[float | None, float | None]
    there: tuple[float | None, float | None]
    count: int
    compared: int
    hashed: Location | None


def disagreement(part: Part, told: Mapping[int, Told], seed: int = 0) -> Disagreement | None:
    """Read the samples of a worker here, twice, and return the first one that is another one there.

    Args:
        part: A map-style dataset and how it is read.
        told: What a worker has told of its samples, by index, in the order in which it read them.
        seed: For the reading.
    """
    if not part.is_map_style or not told:
        return None
    with put_back(part.dataset, tuple(told)):
        plain = {index: tell(read(part.dataset, index, seed + index)) for index in told}
        # again: other seeds, private generators further on, and as a worker is told to be
        with Workers(part).ready(0):
            again = {index: tell(read(part.dataset, index, seed + 101 + index)) for index in told}
    wrong: list[tuple[int, list[Any], list[Any]]] = []
    compared = 0
    for index, there in told.items():
        if plain[index] != again[index]:
            continue
        compared += 1
        here = {one[0]: one for one in plain[index]}
        differs = next(
            (one for one in there if one[0] in here and _unlike(here[one[0]], one)), None
        )
        if differs is not None:
            wrong.append((index, here[differs[0]], differs))
    if not wrong:
        return None
    index, ours, theirs = wrong[0]
    return Disagreement(
        index=index,
        path=ours[0],
        dtype=ours[1],
        here=(ours[3], ours[4]),
        there=(theirs[3], theirs[4]),
        count=len(wrong),
        compared=compared,
        hashed=_hashing_line(part, index, seed),
    )


def _unlike(ours: list[Any], theirs: list[Any]) -> bool:
    """Say whether two descriptions of a value cannot be one value that was computed twice."""
    if ours[2] == theirs[2]:
        return False
    if ours[1] != theirs[1] or not ours[1].startswith(("float", "bfloat", "complex")):
        return True
    pairs = [(a, b) for a, b in zip(ours[3:], theirs[3:], strict=True) if None not in (a, b)]
    scale = max((abs(a) for pair in pairs for a in pair), default=0.0)
    return any(abs(a - b) > _NEAR * scale for a, b in pairs)


def _hashing_line(part: Part, index: int, seed: int) -> Location | None:
    """Return the user's line that calls ``hash`` with a text in it while a sample is read."""
    found: list[Location] = []
    with put_back(part.dataset, (index,)), _hashes_noted(found):
        read(part.dataset, index, seed)
    return found[0] if found else None


@contextlib.contextmanager
def _hashes_noted(found: list[Location]) -> Iterator[None]:
    original = builtins.hash

    def noting(value: object, /) -> int:
        if _salted(value):
            frame = sys._getframe(1)
            if sources.rank(frame.f_code.co_filename) == 2:
                place = sources.of_frame(frame)
                if place is not None:
                    found.append(place)
        return original(value)

    builtins.hash = noting
    try:
        yield
    finally:
        builtins.hash = original


def _salted(value: object) -> bool:
    if isinstance(value, tuple | frozenset):
        return any(_salted(one) for one in value)
    return isinstance(value, str | bytes)

"""Integers that a low-precision dtype rounds to one number, where the model in float64 tells them apart."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import torch

from ...lean import dataclass
from ...objects import trees
from ...subject.errors import SubjectError
from .. import numerics
from ..outputs import reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...batches import Batch
    from ...subject import Subject

_CLEAR: Final = 10.0
"""How many times what rounding the weights does, at least, the other integers must do in float64."""
_WIDTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedIntegers:
    """An input of which two batches give the same outputs, bit for bit, in low precision.

    Attributes:
        path: The input.
        values: An integer of the base batch, and the other one that it was replaced by.
        rounded: What both are in the dtype.
        batch: The batch with the other integers.
        gap: By how much, relatively, the outputs differ in float64.
        noise: By how much random rounding of the weights to the dtype moves them there.
    """

    path: str
    values: tuple[int, int]
    rounded: float
    batch: Batch
    gap: float
    noise: float


def merged_integers(subject: Subject) -> MergedIntegers | None:
    """Replace integers by others of their range that the dtype rounds alike; find an input for which nothing changes.

    Only what float64 tells apart by far more than rounding the weights explains is counted: where an input has no
    influence, or less than the dtype can show, nothing is said.
    """
    for path, given, other in _alike(subject):
        batch = subject.batch().map(functools.partial(_instead, path, other))
        try:
            outputs = {p: trees.dense(t) for p, t in trees.floats(subject.forward(batch)).items()}
        except SubjectError:
            continue  # these integers mean something else to it
        known = reference(subject)
        if not outputs or not all(
            p in known and torch.equal(t, known[p]) for p, t in outputs.items()
        ):
            continue
        gap, noise = _in_double(subject, batch)
        if gap > _CLEAR * noise > 0.0:
            place = (given != other).nonzero()[0].tolist()
            pair = int(given[tuple(place)]), int(other[tuple(place)])
            assert subject.dtype is not None
            rounded = float(torch.tensor(pair[0]).to(subject.dtype))
            return MergedIntegers(
                path=path, values=pair, rounded=rounded, batch=batch, gap=gap, noise=noise
            )
    return None


def _instead(path: str, other: torch.Tensor, at: str, leaf: Any) -> Any:
    return other if at == path else leaf


def _alike(subject: Subject) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield inputs of integers with other integers between their smallest and largest that the dtype rounds alike."""
    for path, leaf in subject.batch().input_leaves():
        if not isinstance(leaf, torch.Tensor) or leaf.dtype not in (
            torch.int64,
            torch.int32,
            torch.int16,
        ):
            continue
        if leaf.numel() == 0 or leaf.is_sparse or subject.dtype is None:
            continue
        low, high, other = leaf.min(), leaf.max(), leaf.clone()
        for width in (w * sign for w in _WIDTHS for sign in (1, -1)):
            moved = leaf + width
            fits = (
                (moved >= low)
                & (moved <= high)
                & (moved.to(subject.dtype) == leaf.to(subject.dtype))
            )
            other = torch.where(fits, moved, other)
        if not torch.equal(other, leaf):
            yield path, leaf, other


def _in_double(subject: Subject, batch: Batch) -> tuple[float, float]:
    """Return how far other integers move the outputs in float64, and how far rounding of the weights does."""

    def compare(model: Any, given: Batch) -> tuple[float, float]:
        exact = numerics.evaluate(subject, model, given.clone())
        other = numerics.evaluate(subject, model, batch.to(dtype=torch.float64).clone())
        gaps = [trees.apart(t, other[p]) for p, t in exact.items() if p in other]
        return max(gaps, default=0.0), numerics.rounded(subject, model, given, exact)

    found: tuple[float, float] | None = numerics.in_double(subject, compare)
    return found if found is not None else (0.0, 0.0)

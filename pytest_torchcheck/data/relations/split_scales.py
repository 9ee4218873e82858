"""Are the values of two splits of one size? A split that misses a normalisation stands far from the other."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Final

from ...findings import Culprit, Finding
from ...lean import dataclass
from ...verdicts import suspicious
from ..wording import where

if TYPE_CHECKING:
    from ...findings import Location
    from ..validity import Survey

_APART: Final = 50.0
"""Ratio of two medians that no draw of samples explains; bytes that are divided by 255 lie further apart."""
_FEWEST: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """A field whose values are of two sizes in two splits; plain data.

    Attributes:
        path: Of the field.
        first, second: The median root mean square of a sample in each.
        count: How many samples were read in both.
    """

    path: str
    first: float
    second: float
    count: int


def scaled_apart(first: Survey, second: Survey) -> Scales | None:
    """Compare the samples that were read of two splits, field by field; None where none stands apart.

    Every sample of the one must be larger than all of the other.
    """
    one, other = _sizes(first), _sizes(second)
    for path in one:
        ours, theirs = one[path], other.get(path, [])
        if min(len(ours), len(theirs)) < _FEWEST:
            continue
        low, high = sorted((ours, theirs), key=median)
        if max(low) < min(high) and median(high) >= _APART * median(low) > 0:
            count = len(ours) + len(theirs)
            return Scales(path=path, first=median(ours), second=median(theirs), count=count)
    return None


def _sizes(survey: Survey) -> dict[str, list[float]]:
    """Return the root mean square of each sample's arrays of floats, or of bytes, by path."""
    found: dict[str, list[float]] = {}
    for sample in survey.samples:
        for leaf in sample.leaves:
            if leaf.mean is None or leaf.std is None or math.prod(leaf.shape) < 2:
                continue  # a number may be a time or an identifier
            if leaf.is_floating or leaf.dtype == "uint8":
                found.setdefault(leaf.path, []).append(math.hypot(leaf.mean, leaf.std))
    return found


def told(first: Survey, second: Survey, found: Scales, declared: Location | None) -> Finding:
    """Explain a split whose values are far larger or smaller than those of another."""
    one, other = first.part, second.part
    ratio = max(found.first, found.second) / min(found.first, found.second)
    large, small = (one, other) if found.first > found.second else (other, one)
    return suspicious(
        "split-scale",
        f"{where(found.path)} is about {ratio:.3g} times as large in {large.role} as in {small.role}",
        culprits=[
            Culprit("dataset", large.role, "has the larger values", large.class_line),
            Culprit("dataset", small.role, "has the smaller values", small.class_line),
        ],
        location=declared or other.class_line,
        observed=f"a sample has a root mean square of {found.first:.3g} in {one.role} and {found.second:.3g} in "
        f"{other.role}: medians of {found.count} samples",
        cause="one split is scaled or normalised, and the other is not, or in another way",
        because=f"every sample of {large.role} that was read has larger values than all of {small.role}",
        fix="make both splits with the same transforms, and statistics of the training data",
    )  # fmt: skip

"""Initial values of two versions: the same, other draws of the same distribution, or others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .numbers import NARROW
from .sketch import Sketch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SIGMAS = 6.0
_FEW = 30  # elements below which a sample says little of a distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialChange:
    """One parameter or buffer that has other initial values.

    Attributes:
        name: Its name.
        fact: What was measured, as a clause.
    """

    name: str
    fact: str


def compare_initial(
    old: Mapping[str, Mapping[str, Any]],
    new: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
    drawn: Callable[[str], bool],
) -> tuple[list[InitialChange], int]:
    """Compare parameters and buffers of two models built under one seed; see :func:`~.snapshot.initial`.

    Another order of drawing gives other values of the same distribution, which is no change.

    Args:
        old: Of the reference.
        new: Of the model as it is.
        names: New names of renamed ones.
        drawn: Says whether one has other values under another seed.

    Returns:
        The changed ones, and how many of both versions have the same values.
    """
    found, same = [], 0
    for before, then in old.items():
        name = names.get(before, before)
        now = new.get(name)
        if now is None or list(then["shape"]) != list(now["shape"]):
            continue
        if then["digest"] == now["digest"]:
            same += 1
            continue
        fact = _otherwise(then, now)
        if not fact and "values" in then:
            gap = _sketch(then).gap(_sketch(now))
            if gap > NARROW and not drawn(name):
                fact = f"values differ by {gap:.2g} of the largest magnitude"
        if fact:
            found.append(InitialChange(name=name, fact=fact))
    return found, same


def _otherwise(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how two parameters of one shape are initialised otherwise; empty where they may be alike."""
    if then["std"] == 0.0 or now["std"] == 0.0:  # a constant
        if then["std"] == now["std"] and math.isclose(then["mean"], now["mean"], rel_tol=1e-6):
            return ""
        return (
            f"mean {then['mean']:.4g} and standard deviation {then['std']:.4g} are now "
            f"{now['mean']:.4g} and {now['std']:.4g}"
        )
    ratio = _ratio(then, now)
    if ratio is not None:
        same = math.isclose(ratio, 1.0, rel_tol=1e-6)
        return "" if same else f"every value is {ratio:.4g} times what it was"
    count = math.prod(then["shape"])
    if count < _FEW:
        return ""
    error = math.sqrt(1 / count)  # of the log of a deviation, twice 1 / (2 n); less if uniform
    if abs(math.log(now["std"] / then["std"])) > _SIGMAS * error:
        return f"standard deviation {then['std']:.4g}, now {now['std']:.4g} ({count} values)"
    spread = math.hypot(then["std"], now["std"]) / math.sqrt(count)
    if abs(now["mean"] - then["mean"]) > _SIGMAS * spread:
        return f"mean {then['mean']:.4g}, now {now['mean']:.4g} ({count} values)"
    return ""


def _ratio(then: Mapping[str, Any], now: Mapping[str, Any]) -> float | None:
    """Return by what all values are multiplied; None where that is not so, or where no values were kept."""
    if "values" not in then:
        return None
    one, two = _sketch(then).values.double(), _sketch(now).values.double()
    norms = float(one.norm()), float(two.norm())
    if not all(norms) or len(one) < 2:
        return None
    cosine = float(torch.dot(one, two)) / (norms[0] * norms[1])
    if abs(abs(cosine) - 1) >= 1e-9:
        return None
    return math.copysign(norms[1] / norms[0], cosine)


def _sketch(data: Mapping[str, Any]) -> Sketch:
    return Sketch.of_plain(
        {key: data[key] for key in ("shape", "dtype", "digest", "scale", "values")}
    )

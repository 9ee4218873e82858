"""Two versions' runs on the same weights, batches and seeds: the same bits, within rounding, or changed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..findings import Location
    from .running import Outcome, Way
    from .sketch import Sketch

ALLOWED: Final = 1e-9
"""Relative difference in float64 that is rounding: a million times that of one operation."""
NARROW: Final = 1e-5
"""The same where the model computes in float32 in a run in float64."""

_SMALL: Final = 1e-4
"""Share of the largest magnitude of their kind below which gradients are measured by that magnitude."""
_SPREAD: Final = 1e-3
"""Share of the distance from evaluation mode that is rounding."""
_STILL: Final = 1e-8
"""Squared distance, over the mean square, that is rounding."""
_STEPS: Final = 1e-5
_OF_STEPS: Final = 100
"""Least relative difference of updates that counts, and times what is allowed elsewhere: the first step of Adam
has about the sign of the gradient, also where that is nearly zero."""

Kind = Literal["error", "structure", "output", "loss", "gradient", "statistics", "update", "module"]
KINDS: Final[tuple[Kind, ...]] = (
    "error", "structure", "output", "loss", "gradient", "statistics", "update", "module",
)  # fmt: skip
"""What can differ, in the order in which it is reported; modules only say where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value that differs.

    Attributes:
        kind: What it is.
        name: Its path or name.
        gap: Largest difference over largest magnitude; inf where they cannot be compared.
        fact: What was measured, as a clause.
        line: The user's line that raised.
    """

    kind: Kind
    name: str
    gap: float
    fact: str = ""
    line: Location | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one way of running came to.

    Attributes:
        way: The way.
        standing: ``bits``, ``rounding``, ``changed``, or ``drawn``: other random numbers, so that
            nothing is compared.
        differences: Those that decide, the first kind first.
    """

    way: Way
    standing: Literal["bits", "rounding", "changed", "drawn"]
    differences: tuple[Difference, ...] = ()

    @property
    def gap(self) -> float:
        """The largest relative difference."""
        return max((one.gap for one in self.differences), default=0.0)


def differences(
    old: Outcome, new: Outcome, names: Mapping[str, str], allowed: float = 0.0
) -> tuple[Difference, ...]:
    """Compare two runs.

    Args:
        old: Of the reference.
        new: Of the model as it is.
        names: New name of every parameter and buffer of the old version, where it has another.
        allowed: Relative difference that does not count; at 0.0 other bits do.
    """
    if old.error or new.error:
        if old.error:  # nothing that worked is lost
            return ()
        return (Difference(kind="error", name="", gap=float("inf"), fact=new.error, line=new.line),)
    found: list[Difference] = []
    paths = [p for p in (*old.outputs, *old.others) if p not in new.outputs and p not in new.others]
    more = [p for p in (*new.outputs, *new.others) if p not in old.outputs and p not in old.others]
    found += [_shape(path, "is gone") for path in paths] + [_shape(path, "is new") for path in more]
    for path, then in old.outputs.items():
        if (now := new.outputs.get(path)) is not None:
            found += _compared("output", path, then, now, allowed)
    for path, told in old.others.items():
        if (shown := new.others.get(path)) not in (None, told):
            found.append(_shape(path, f"was {told}, is {shown}"))
    if old.loss is not None and new.loss is not None:
        least = _SMALL * max((one.scale for one in old.outputs.values()), default=0.0)
        found += _compared("loss", "loss", old.loss, new.loss, allowed, least)
    found += _named("gradient", old.gradients, new.gradients, names, allowed)
    found += _named("statistics", old.buffers, new.buffers, names, allowed)
    steps = max(_OF_STEPS * allowed, _STEPS) if allowed else 0.0
    found += _named("update", old.updates, new.updates, names, steps, share=1.0)
    if found:
        found += _named("module", old.modules, new.modules, {}, allowed)
    return tuple(sorted(found, key=lambda one: KINDS.index(one.kind)))


def _shape(path: str, fact: str) -> Difference:
    return Difference(kind="structure", name=path, gap=float("inf"), fact=fact)


def _compared(
    kind: Kind, name: str, then: Sketch, now: Sketch, allowed: float, least: float = 0.0
) -> list[Difference]:
    if then.shape != now.shape:
        return [_shape(name, f"has shape {list(now.shape)}, had {list(then.shape)}")]
    if then.dtype != now.dtype:
        return [_shape(name, f"is {now.dtype}, was {then.dtype}")]
    if then.same(now):
        return []
    gap = then.gap(now, least)
    if allowed and gap <= allowed:
        return []
    return [Difference(kind=kind, name=name, gap=gap)]


def _named(
    kind: Kind,
    old: Mapping[str, Sketch | None],
    new: Mapping[str, Sketch | None],
    names: Mapping[str, str],
    allowed: float,
    share: float = _SMALL,
) -> list[Difference]:
    """Compare what both versions have; a parameter without a gradient has one of zero."""
    found: list[Difference] = []
    least = share * max((one.scale for one in old.values() if one is not None), default=0.0)
    for name, then in old.items():
        other = names.get(name, name)
        if other not in new:
            continue
        now = new[other]
        if then is not None and now is not None:
            if then.shape == now.shape:
                found += _compared(kind, other, then, now, allowed, least)
        elif (given := then or now) is not None and given.scale > least:
            had = "had one" if then is not None else "had none"
            fact = f"has no gradient, {had}" if now is None else f"has a gradient, {had}"
            found.append(Difference(kind=kind, name=other, gap=float("inf"), fact=fact))
    return found


def of_noise(
    old: Mapping[str, Sequence[float]], new: Mapping[str, Sequence[float]]
) -> tuple[Difference, ...]:
    """Compare two results of :func:`~.running.noise`, at six standard errors.

    The model's output decides; modules only say where, since a refactoring may move what draws.
    """
    found = []
    for name, (before, error) in old.items():
        after, other = new.get(name, (before, error))
        gap = abs(after - before)
        if gap > 6 * math.hypot(error, other) + _SPREAD * max(before, after) + _STILL:
            fact = f"differs from evaluation mode by {after:.3g} of its mean square, by {before:.3g} before"
            kind: Kind = "module" if name else "output"
            found.append(Difference(kind=kind, name=name or "output", gap=gap, fact=fact))
    if not any(one.kind == "output" for one in found):
        return ()
    return tuple(sorted(found, key=lambda one: KINDS.index(one.kind)))

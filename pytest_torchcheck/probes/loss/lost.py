"""Entries of an output that a loss leaves out where they are, and counts elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .slopes import LossOfOutput, Slopes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Entries of an output without a pull, which have one where no NaN is made; plain data.

    Attributes:
        path: Of the output.
        count: How many entries.
        total: Of how many.
    """

    path: str
    count: int
    total: int


def lost_entries(loss: LossOfOutput, base: Slopes) -> Lost | None:
    """Find the output whose entries have no pull where it is, and one elsewhere: they count, and are left out.

    Args:
        loss: The loss as a function of the output.
        base: Its slopes there, finite.
    """
    for path, slope in base.by_output.items():
        values = loss.outputs[path].detach()
        if values.shape != slope.shape or not values.is_floating_point():
            continue
        idle = slope == 0
        if not bool(idle.any()):
            continue
        for other in (-values, values.abs(), 0.1 * values, values.abs().mean().expand_as(values)):
            there = loss.at(path, other.contiguous()).slopes()
            if there is None or not there.finite or path not in there.by_output:
                continue
            count = int((idle & (there.by_output[path] != 0)).sum())
            if count:
                return Lost(path=path, count=count, total=values.numel())
    return None

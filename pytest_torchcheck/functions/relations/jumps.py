"""Does forward move in steps, as rounding and quantising do: then a backward of its own is an estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...lean import dataclass
from .jacobians import as_real, evaluate, moved, real_size
from .relation import Relation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from ..calls import Call

_CELLS = 32
_HALVINGS = 36
_BESIDE = 1e-4  # of a cell, on both sides of a jump


@dataclass(frozen=True, slots=True)
class Steps:
    """How forward changes along a line through an input.

    Attributes:
        reach: How far the line goes to each side.
        share: Part of the change that no slope of forward accounts for.
        jump: Largest change left between two points that are as good as equal.
    """

    reach: float
    share: float
    jump: float


def stepwise(
    call: Call,
    index: int,
    name: str,
    chosen: Sequence[int],
    others: Iterable[tuple[str, int]],
    *,
    alike: bool,
    wide: Callable[[], bool] = lambda: False,
) -> Relation | None:
    """Say that backward estimates, where forward mostly jumps instead of following a slope.

    Args:
        call: The call.
        index: The input in question.
        name: Its name.
        chosen: Outputs to look at.
        others: Other inputs with their names: where one of them is rounded (the weights of a product, a value
            beside its step), so is what this one is multiplied with.
        alike: Whether the gradients agree up to the error of rounding.
        wide: Whether backward agrees with forward over wide steps: where those of forward are so fine that it
            has a slope over many of them.
    """
    own = _steps_along(call, index, chosen)
    if own is not None and (own.share >= 0.5 or wide()):
        return _estimator(name, name, own)
    for other, place in others if own is not None or alike else ():
        steps = _steps_along(call, place, chosen)
        if steps is not None and steps.share >= 0.5:
            return _estimator(name, other, steps)
    return None


def _estimator(name: str, stepped: str, steps: Steps) -> Relation:
    return Relation(
        code="gradcheck-surrogate",
        symptom=f"a surrogate gradient for {name}: forward moves in steps",
        cause=(f"forward rounds {stepped}, and backward is not its derivative: an estimator"),
        because=f"{steps.share:.0%} of what forward changes within {steps.reach:.3g} of {stepped} happens in "
        f"jumps; one of {steps.jump:.3g} is left between two points that almost coincide",
        fix="if it is meant, declare it: promises.StraightThrough(functions=(...), of=<the "
        "function whose gradient it is>, reason=...)",
        evidence={"share_in_jumps": steps.share, "jump": steps.jump},
    )


def _steps_along(call: Call, index: int, chosen: Sequence[int]) -> Steps | None:
    """Walk through an input along a random line; return its steps where there is a jump."""
    value = call.values[index]
    size = float(as_real(value).norm()) / max(real_size(value), 1) ** 0.5
    reach = size or 1.0
    generator = torch.Generator().manual_seed(0x57E9 + index)
    line = torch.randn(real_size(value), generator=generator, dtype=torch.float64)
    line /= line.abs().max()

    def at(place: float) -> Tensor:
        return evaluate(call.replaced(index, moved(value, line, place)), chosen)

    for part in (1.0, 0.5):  # a line through zero may leave the domain of a scale
        try:
            if (found := _steps(at, part * reach)) is not None:
                return found
        except Exception:  # forward of the user: a value on the line may be outside its domain
            continue
    return None


def _steps(at: Callable[[float], Tensor], reach: float) -> Steps | None:
    cell = 2 * reach / _CELLS
    total = unexplained = 0.0
    worst, widest = 0.0, -reach
    for number in range(_CELLS):
        start = -reach + number * cell
        middle, width = start + cell / 2, cell / 16
        change = at(start + cell) - at(start)
        slope = (at(middle + width) - at(middle - width)) / (2 * width)
        off = float((change - cell * slope).abs().sum())
        total += float(change.abs().sum())
        unexplained += min(off, float(change.abs().sum()))
        if float(change.abs().sum()) > worst:
            worst, widest = float(change.abs().sum()), start
    if not total > 0:  # also where it is NaN
        return None
    low, high = widest, widest + cell
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        here = at(middle)
        left, right = float((here - at(low)).abs().sum()), float((at(high) - here).abs().sum())
        low, high = (low, middle) if left >= right else (middle, high)
    jump = float((at(high) - at(low)).abs().sum())
    if not jump > 1e-6 * worst:
        return None
    # where only one point has another value (a power whose exponent is 0), nothing moves in steps
    across = float((at(high + _BESIDE * cell) - at(low - _BESIDE * cell)).abs().sum())
    return Steps(reach, unexplained / total, jump) if across > jump / 2 else None


def nearly(one: Tensor, two: Tensor) -> bool:
    """Say whether two Jacobians agree as well as rounding lets them."""
    return bool((one - two).norm() <= 0.35 * two.norm()) and bool(two.norm() > 0)

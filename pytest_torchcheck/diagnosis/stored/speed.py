"""Why a model takes longer than another: more arithmetic, or more time for the same; and on which line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.flop_counter import FlopCounterMode

from ... import sources
from ...declared.speeds import Faster
from ...findings import Culprit, Finding
from ...measure.repeated import repeated
from ...measure.where import Where, where
from ...text.units import format_flops, format_seconds
from ...verdicts import violated

if TYPE_CHECKING:
    from ...declared.speeds import Kind, Speed
    from ...measure.paired import Paired
    from ...subject import Subject

_ALIKE = 1.02  # times as many operations that count as the same


def too_slow(
    subject: Subject, kind: Kind, declared: Speed, twin: Subject, found: Paired
) -> Finding:
    """Explain a ratio above the declared one by what both models compute, and by the line that takes most."""
    asked = (
        f"at least {declared.by:g} times as fast" if isinstance(declared, Faster)
        else f"at most {declared.at_most:g} times the time"
    )  # fmt: skip
    (mine, spent), (theirs, _) = _looked(subject, kind), _looked(twin, kind)
    top = next((one for one in spent.spent if one.location is not None), None)
    culprits = [Culprit("call", kind)]
    because = f"{format_flops(mine)} beside {format_flops(theirs)}, counted by torch's formulas"
    if top is not None:
        if top.module:
            culprits = [Culprit("module", top.module, top.cls)]
        because += (
            f"; {100 * top.seconds / spent.seconds:.0f} % of the kernels' time is on this line"
        )
    cause = "the arithmetic is not more: the time goes to other operations, to memory, or to Python"
    if mine > _ALIKE * theirs:
        cause = f"the model computes {mine / max(theirs, 1):.2f} times as much"
    return violated(
        "too-slow",
        f"{kind} takes {found.ratio:.2f} times the other model's time; declared is {asked}",
        culprits=culprits,
        location=top.location if top is not None else sources.of_own_class(subject.model),
        observed=f"{format_seconds(found.first_s)} beside {format_seconds(found.second_s)}; the median "
        f"ratio of {found.pairs} pairs is between {found.low:.2f} and {found.high:.2f}",
        cause=cause,
        because=because,
        fix=f"make {kind} cheaper, or change speed[{kind!r}] in the contract",
        evidence={
            "ratio": found.ratio, "low": found.low, "high": found.high, "pairs": found.pairs,
            "seconds": found.first_s, "seconds of the other": found.second_s,
            "flops": mine, "flops of the other": theirs, "time by line": spent.rows(),
        },
    )  # fmt: skip


def _looked(subject: Subject, kind: Kind) -> tuple[int, Where]:
    """Return the floating-point operations of one repeat, and where its time goes."""
    with repeated(subject, kind) as once:
        with FlopCounterMode(display=False) as counted:
            once()
        return int(counted.get_total_flops()), where(once, subject.model, subject.device)

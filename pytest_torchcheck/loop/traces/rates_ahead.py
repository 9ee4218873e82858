"""What a trainer's schedulers would do to the learning rate until the end of the training, and at the other interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...findings import Culprit, Finding
from ...lean import dataclass
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...adapters import Scheduled
    from ...findings import Location

MOST_CALLS = 20_000
_LENGTHS = {"OneCycleLR": "total_steps", "CosineAnnealingLR": "T_max"}
"""Schedules that span the whole training once, and the attribute with their length."""
_OTHER = {"step": "epoch", "epoch": "step"}
_EACH = {"step": "with every step", "epoch": "with every epoch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The first learning rate of a scheduler after each of its calls.

    Attributes:
        name: Class of the scheduler.
        interval: After what it is stepped.
        calls: How often from where it stands until training ends.
        otherwise: How often at the other interval.
        rates: Before the first call and after each, as many as were tried.
        start: How many calls it has had.
        length: How many it is made for, where its class says so.
        error: What a call raised, or empty.
    """

    name: str
    interval: str
    calls: int
    otherwise: int
    rates: tuple[float, ...]
    start: int = 0
    length: int | None = None
    error: str = ""

    @property
    def planned_calls(self) -> int:
        """How often in the whole training."""
        return self.start + self.calls

    @property
    def is_of_other(self) -> bool:
        """Say whether the schedule is made for exactly the calls that it would get at the other interval."""
        return self.length == self.start + self.otherwise and self.length != self.planned_calls

    @property
    def planned(self) -> tuple[float, ...]:
        """The rates of the training as it is."""
        return self.rates[: self.calls + 1]


def rates_ahead(one: Scheduled) -> Ahead:
    """Step a scheduler, which nobody uses any more, from where it stands through the longer of both intervals."""
    scheduler = one.scheduler
    start = getattr(scheduler, "last_epoch", 0)
    rates = [_initial(scheduler)]
    error = ""
    for _ in range(min(max(one.calls, one.otherwise), MOST_CALLS) - start):
        try:
            scheduler.step()
        except Exception as raised:  # a schedule of the user's may raise anything
            error = f"{type(raised).__name__}: {raised}"
            break
        rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
    return Ahead(
        name=type(scheduler).__name__, interval=one.interval, calls=max(one.calls - start, 0),
        otherwise=max(one.otherwise - start, 0), rates=tuple(rates), error=error, start=start,
        length=getattr(scheduler, _LENGTHS.get(type(scheduler).__name__, ""), None),
    )  # fmt: skip


def _initial(scheduler: Any) -> float:
    return float(scheduler.optimizer.param_groups[0]["lr"])


def ahead_findings(one: Ahead, place: Location | None) -> Iterator[Finding]:
    """Yield what is wrong with a schedule over the whole training."""
    planned = one.planned
    other = one.rates[: one.otherwise + 1]
    peak = max((*planned, *other), default=0.0)
    if len(planned) < 3 or one.calls == one.otherwise or not peak > 0.0:
        return
    reached, fallen = max(planned), _fallen(planned, peak)
    common: dict[str, Any] = {
        "culprits": (Culprit("scheduler", one.name, f"stepped {_EACH[one.interval]}", place),),
        "location": place,
        "evidence": {"calls": one.calls, "otherwise": one.otherwise, "first": list(planned[:8]), "last": planned[-1]},
    }  # fmt: skip
    told = f"{one.calls} calls of its step, {_EACH[one.interval]}: from {planned[0]:g} to {planned[-1]:g}, at most {reached:g}"
    fits = f"stepped {_EACH[_OTHER[one.interval]]} ({one.otherwise} calls)"
    fix = f'return {{"scheduler": ..., "interval": "{_OTHER[one.interval]}"}} or set its length to {one.calls} calls'
    if one.error and len(one.rates) <= one.calls:
        yield violated(
            "schedule-differs",
            f"{one.name} raises after {len(one.rates) - 1} of its {one.calls} calls: it is stepped {_EACH[one.interval]}",
            observed=told, cause=f"its length differs from that of the training {_EACH[one.interval]}",
            because=f"it said: {one.error[:160]}", fix=fix, **common,
        )  # fmt: skip
    elif one.is_of_other:
        yield violated(
            "schedule-differs",
            f"{one.name} expects {one.length} calls but receives {one.planned_calls}: it steps {_EACH[one.interval]}",
            observed=told, cause=f"its length is that of a schedule {_EACH[_OTHER[one.interval]]}",
            because=f"it receives {one.length} calls {fits.partition(' (')[0]}", fix=fix, **common,
        )  # fmt: skip
    elif one.interval == "epoch" and reached < 0.1 * peak:
        yield violated(
            "schedule-differs",
            f"{one.name} never exceeds {reached:g} of {peak:g} in the whole training: it steps every epoch",
            observed=told, cause="a warm-up intended for steps is stepped once per epoch",
            because=f"{fits}, it would reach {max(other):g}", fix=fix, **common,
        )  # fmt: skip
    elif (
        one.interval == "epoch"
        and len(other) > 10 * len(planned)
        and _still(planned)
        and not _still(other)
    ):
        yield suspicious(
            "schedule-differs",
            f"{one.name} changes the rate by less than 1 % in the whole training: it steps every epoch",
            observed=told, cause="a schedule intended for steps is stepped once per epoch",
            because=f"{fits}, it would go from {other[0]:g} to {other[-1]:g}", fix=fix, **common,
        )  # fmt: skip
    elif one.interval == "step" and fallen is not None and fallen < 0.5 * len(planned):
        yield violated(
            "rate-vanishes",
            (f"{one.name} is below a thousandth of {peak:g} after {fallen} of {one.calls} steps"),
            observed=told, cause="a schedule intended for epochs is stepped with every batch",
            because=f"from call {fallen} on it stays below {1e-3 * peak:g}; {fits}, it would end at {other[-1]:g}",
            fix=fix, **common,
        )  # fmt: skip


def _still(rates: tuple[float, ...]) -> bool:
    return max(rates) - min(rates) < 1e-2 * max(rates)


def _fallen(rates: tuple[float, ...], peak: float) -> int | None:
    """Return after how many calls the rate stays below a thousandth of its peak, or None."""
    count = 0
    for rate in reversed(rates):
        if not (rate < 1e-3 * peak or math.isnan(rate)):
            break
        count += 1
    return len(rates) - count if count else None

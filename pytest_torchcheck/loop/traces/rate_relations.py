"""How the rates that a run used follow from those that were meant: shifted, stretched, scaled, or not at all."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..trace import OptimizerStep
from .wording import at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..trace import Event, Trace

_TOLERANCE = 1e-6
_MOST_TIMES = 16
OTHER_FUNCTION = "the schedule differs from the declared function"
ADVANCES = "the schedule advances"
SHIFTED = "the schedule counts its steps otherwise from"
FIRST_STAYS = "parameter group 0 keeps its learning rate"
OTHER_BASE = (
    "every rate is off by the same factor: the base rate or the scale of the schedule is wrong"
)


def as_used(trace: Trace, lr: Callable[[int], float] | Sequence[float]) -> Trace:
    """Return the trace with the rates that each step ends with, where these are nearer to those meant.

    A step that sets its own rate may use the one from before or the new one. The trace is returned as it is
    where no step of the first optimizer sets one, and where at least as many of the rates before are as meant
    and one is.
    """
    steps = trace.optimizer_steps()
    steps = [e for e in steps if e.owner == steps[0].owner and e.rates]
    if not any(e.set_rates for e in steps):
        return trace
    meant = meant_rates(lr, len(steps))
    scale = max((abs(rate) for rate in meant), default=1.0)
    before, after = (
        sum(close(rates[0], b, scale) for rates, b in zip(read, meant, strict=False))
        for read in ([e.rates for e in steps], [e.set_rates or e.rates for e in steps])
    )
    if before and before >= after:
        return trace
    events = (
        replace(e, rates=e.set_rates) if isinstance(e, OptimizerStep) and e.set_rates else e
        for e in trace.events
    )
    return replace(trace, events=tuple(events))


def moving_groups(trace: Trace) -> list[tuple[int, float, float]]:
    """Return the parameter groups of the first optimizer that steps whose rate changes: index, first and last rate."""
    steps = trace.optimizer_steps()
    rates = [e.rates for e in steps if e.owner == steps[0].owner and e.rates]
    count = min((len(each) for each in rates), default=0)
    return [
        (group, rates[0][group], rates[-1][group])
        for group in range(count)
        if len({f"{each[group]:.12g}" for each in rates}) > 1
    ]


def of_groups(trace: Trace, meant: Sequence[float]) -> tuple[str, str]:
    """Return which groups of the first optimizer that steps have the rates that are meant, and what the others have.

    Both are empty where there is one group.
    """
    steps = trace.optimizer_steps()
    rates = [e.rates for e in steps if e.owner == steps[0].owner and e.rates][: len(meant)]
    count = min((len(each) for each in rates), default=0)
    scale = max((abs(rate) for rate in meant), default=1.0)
    same: list[str] = []
    others: list[str] = []
    for group in range(count if count > 1 else 0):
        own = [each[group] for each in rates]
        if all(close(a, b, scale) for a, b in zip(own, meant, strict=True)):
            same.append(str(group))
        elif len({f"{rate:.12g}" for rate in own}) == 1:
            others.append(f"group {group} keeps {own[0]:g}")
        else:
            others.append(f"group {group} goes from {own[0]:g} to {own[-1]:g}")
    if not others:
        return (f" of all {count} groups" if same else ""), ""
    noun = "group" if len(same) == 1 else "groups"
    rest = [f"{len(others) - 3} more have other rates"] if len(others) > 3 else []
    return f" of {noun} {', '.join(same)}", "; " + ", ".join([*others[:3], *rest])


def meant_rates(lr: Callable[[int], float] | Sequence[float], count: int) -> list[float]:
    """Return the rates that are meant for the first steps."""
    if callable(lr):
        return [float(lr(step)) for step in range(count)]
    return [float(rate) for rate in lr][:count]


def _as_far_as_declared(lr: Callable[[int], float], count: int) -> list[float]:
    """Return the rates of the first steps, up to the one for which a function gives none."""
    found: list[float] = []
    for step in range(count):
        try:
            found.append(float(lr(step)))
        except Exception:  # the user's schedule ends here
            break
    return found


def close(a: float, b: float, scale: float) -> bool:
    """Say whether two rates are equal up to rounding."""
    return math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-9 * max(scale, 1e-12))


def relation(
    meant: Callable[[int], float] | Sequence[float],
    rates: list[float],
    stepped: list[Event],
    trace: Trace,
    *,
    constant: bool = False,
) -> tuple[str, str, str]:
    """Recognise how the used rates follow from the meant ones, which may be constant."""
    count = len(rates)
    far = _as_far_as_declared(meant, 64 * count) if callable(meant) else meant_rates(meant, 10**9)
    scale = max((abs(rate) for rate in far), default=1.0)
    name = stepped[0].name if stepped else "the scheduler"
    place = stepped[0].place if stepped else None
    where = f" at {at(place)}" if place is not None else ""

    def follows(place: Callable[[int], int], start: int = 0) -> bool:
        if constant:
            return False
        pairs = [(rates[n], far[place(n)]) for n in range(start, count) if 0 <= place(n) < len(far)]
        return len(pairs) >= 2 and all(close(a, b, scale) for a, b in pairs)

    still = len({f"{rate:.12g}" for rate in rates}) == 1
    if still and not constant and (moving := moving_groups(trace)):
        groups = ", ".join(str(group) for group, *_ in moving[:4])
        _, before, after = moving[0]
        word = "groups" if len(moving) > 1 else "group"
        return (
            f"{FIRST_STAYS}, while the rate of {word} {groups} changes",
            f"over the same steps the rate of group {moving[0][0]} goes from {before:g} to {after:g}",
            "set the rate of every group of optimizer.param_groups",
        )
    if not stepped and not constant and still:
        return (
            "the learning rate never changes: no scheduler is stepped",
            f"no scheduler's step ran in {trace.steps} calls, and all rates are {rates[0]:g}",
            "step a scheduler with that schedule after the optimizer",
        )
    if follows(lambda n: n + 1):
        return (
            "the schedule runs one step ahead: the scheduler steps before the optimizer",
            (
                f"the rate of step n is the one declared for n + 1; {name}() "
                f"runs{where or ' with every step'}"
            ),
            f"move {name}() after the optimizer's step",
        )
    if follows(lambda n: n - 1, 1):
        return (
            "the schedule runs one step behind",
            "the rate of step n is the one declared for n - 1",
            "start the schedule at the first step (its initial step, or last_epoch)",
        )
    pairs = enumerate(zip(rates, far, strict=False))
    start = next((n for n, pair in pairs if not close(*pair, scale)), 0)
    if len({f"{rate:.12g}" for rate in rates[start:]}) > 2 and start:
        for shift in sorted(range(1 - count, count), key=abs):
            if shift and follows(partial(operator.add, shift), start):
                return _shifted(start, shift)
    return _stretched(follows, name, stepped, trace, where, rates, far)


def _shifted(start: int, shift: int) -> tuple[str, str, str]:
    """Describe rates that are right before a step and another part of the schedule's from there on."""
    later = f"{abs(shift)} steps {'later' if shift > 0 else 'earlier'}"
    before = f": subtract the {start} steps before it" if shift == start else ""
    return (
        f"{SHIFTED} step {start} on: its rates are those declared {later}",
        f"up to step {start - 1} the rates are as declared, then each is the one declared {later}",
        f"correct the count of steps from step {start} on{before}",
    )


def _unmoved(rates: list[float], far: list[float], ran: str) -> tuple[str, str, str] | None:
    """Recognise the declared rates times a factor, and rates that never change; None of others."""
    ratios = [a / b for a, b in zip(rates, far, strict=False) if b]
    if len(ratios) >= 2 and ratios[0] and all(close(r, ratios[0], ratios[0]) for r in ratios):
        return (
            OTHER_BASE,
            f"used / declared is {ratios[0]:.6g} at all {len(ratios)} steps",
            "correct the lr of the optimizer, or make the schedule return a factor of it",
        )
    if len(rates) < 2 or not all(close(rate, rates[0], rates[0]) for rate in rates):
        return None
    return (
        "the schedule leaves the rate as it is",
        f"all {len(rates)} rates used are {rates[0]:.6g}{ran}",
        "let the schedule return another rate for each step",
    )


def _stretched(
    follows: Callable[..., bool],
    name: str,
    stepped: list[Event],
    trace: Trace,
    where: str,
    rates: list[float],
    far: list[float],
) -> tuple[str, str, str]:
    """Recognise rates that stay, are stretched, or come of another base or function."""
    ran = f"; {name} runs{where}" if stepped else ""
    if (plain := _unmoved(rates, far, ran)) is not None:
        return plain
    for times in (2, 3, 4, 5, 8, 10, 16, 32):
        if follows(lambda n, times=times: n * times):
            return (
                f"{ADVANCES} {times} positions per step",
                f"the rate of step n is the one declared for {times} * n"
                + (
                    f"; {name}() ran {len(stepped)} times in {trace.steps} calls" if stepped else ""
                ),
                f"step it once per optimizer step{where}"
                if stepped
                else "advance the schedule by one per step",
            )
        if follows(lambda n, times=times: (n + 1) * times):
            return (
                f"{ADVANCES} {times} positions in each step, before the optimizer",
                f"the rate of step n is the one declared for {times} * (n + 1)",
                f"step it once per optimizer step{where}, after it"
                if stepped
                else "advance the schedule by one per step, after the optimizer",
            )
        if follows(lambda n, times=times: n // times):
            return (
                f"the schedule advances once in {times} steps, as if per epoch",
                f"the rate of step n is the one declared for n // {times}",
                "step the scheduler with every batch",
            )
    for times in range(2, _MOST_TIMES + 1):
        for shift in range(1, times):
            known = {f"{rate:.12g}" for n, rate in enumerate(rates) if times * n + shift < len(far)}
            if len(known) > 2 and follows(lambda n, t=times, s=shift: t * n + s):
                return (
                    f"{ADVANCES} {times} positions in each step, {shift} of them before the first",
                    f"the rate of step n is the one declared for {times} * n + {shift}",
                    f"step it once per optimizer step{where}, after it"
                    if stepped
                    else "advance the schedule by one per step, after the optimizer",
                )
    return (
        OTHER_FUNCTION,
        f"no shift or stretch of the declared rates gives the used ones{ran}",
        "correct the schedule's formula or its length",
    )

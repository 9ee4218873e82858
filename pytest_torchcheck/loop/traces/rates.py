"""Read a trace for learning rates: what they were meant to be, and who changes them when."""

from __future__ import annotations

import math
import operator
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_torchcheck import sources
from pytest_torchcheck.codes.training import making, optimizer_line
from pytest_torchcheck.findings import Culprit, Finding, Location
from pytest_torchcheck.record.tracing import find_line

from ...verdicts import suspicious, violated
from ..closures import functions_of
from .rate_groups import loop_before
from .rate_setting import last_setting, produced
from .wording import at, call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_torchcheck.subject import Subject

    from ..trace import Event, Trace

_TOLERANCE = 1e-6
_VANISHED = 1e-2
_OTHER_FUNCTION = "the schedule differs from the declared function"
_SHIFTED = "the schedule counts its steps otherwise from"
_FIRST_STAYS = "parameter group 0 keeps its learning rate"
_OTHER_BASE = (
    "every rate is off by the same factor: the base rate or the scale of the schedule is wrong"
)
_FORMULA = re.compile(r"lambda|schedul|lr|rate|warm|decay|cosine|anneal")


def scheduler_findings(trace: Trace) -> Iterator[Finding]:
    """Yield a scheduler that steps before its optimizer, and a rate that falls to nothing."""
    yield from _before_optimizer(trace)
    yield from _vanishing(trace)


def _before_optimizer(trace: Trace) -> Iterator[Finding]:
    wrong: list[tuple[Event, Event]] = []
    for number in range(trace.steps):
        schedulers = [
            (i, e)
            for i, e in trace.of("scheduler-step", step=number)
            if trace.classes.get(e.owner) != "ReduceLROnPlateau"
        ]
        steps = list(trace.of("optimizer-step", step=number))
        if schedulers and steps:
            if schedulers[0][0] > steps[0][0]:
                return
            wrong.append((schedulers[0][1], steps[0][1]))
    if not wrong:
        return
    scheduler, step = wrong[0]
    yield violated(
        "scheduler-before-step",
        f"{scheduler.name}() runs before {step.name}(): the first learning rate of the schedule is skipped",
        culprits=(
            Culprit("scheduler", scheduler.name, "runs first", scheduler.place),
            call(step, "runs afterwards"),
        ),
        observed=f"in all {len(wrong)} calls of the step that did both, {scheduler.name}() came first",
        cause="the schedule advances before the optimizer has used its rate",
        because=f"{at(scheduler.place)} ran before {at(step.place)}",
        fix=f"move {scheduler.name}() after {at(step.place)}",
    )


def _vanishing(trace: Trace) -> Iterator[Finding]:
    rates = first_rates(trace)
    stepped = [e for _, e in trace.of("scheduler-step")]
    if len(rates) < 3 or not stepped or not rates[0] or rates[-1] > _VANISHED * max(rates):
        return
    if rates[-1] >= rates[-2]:
        return
    scheduler = stepped[0]
    yield suspicious(
        "rate-vanishes",
        f"the learning rate falls from {max(rates):g} to {rates[-1]:g} in {len(rates)} steps",
        culprits=(Culprit("scheduler", scheduler.name, f"{len(stepped)} calls", scheduler.place),),
        observed=f"learning rates of {len(rates)} steps: {_listed(rates)}",
        cause="a schedule intended for epochs is stepped with every batch, or decays much too fast",
        because=f"{scheduler.name}() ran {len(stepped)} times in {trace.steps} steps, at "
        f"{at(scheduler.place)}",
        fix="step it once per epoch, or declare Schedule(lr) if this is intended",
    )


def first_rates(trace: Trace) -> list[float]:
    """Return the learning rate of the first group at every step of the first optimizer that steps."""
    steps = trace.optimizer_steps()
    return [e.rates[0] for e in steps if e.owner == steps[0].owner and e.rates]


def moving_groups(trace: Trace) -> list[tuple[int, float, float]]:
    """Return the parameter groups, of the first optimizer that steps, whose rate changes: index, first and last rate."""
    steps = trace.optimizer_steps()
    rates = [e.rates for e in steps if e.owner == steps[0].owner and e.rates]
    count = min((len(each) for each in rates), default=0)
    return [
        (group, rates[0][group], rates[-1][group])
        for group in range(count)
        if len({f"{each[group]:.12g}" for each in rates}) > 1
    ]


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


def schedule_finding(
    subject: Subject, trace: Trace, meant: Callable[[int], float] | Sequence[float]
) -> Finding | None:
    """Compare the rates of the steps with those meant, and say how they differ; None where they agree."""
    rates = first_rates(trace)
    expected = meant_rates(meant, len(rates))
    rates = rates[: len(expected)]
    scale = max((abs(rate) for rate in expected), default=1.0)
    wrong = [
        n for n, (a, b) in enumerate(zip(rates, expected, strict=True)) if not close(a, b, scale)
    ]
    if not wrong:
        return None
    stepped = [e for _, e in trace.of("scheduler-step")]
    step = trace.optimizer_steps()[0]
    constant = len(set(expected)) == 1
    cause, because, fix = _relation(meant, rates, stepped, trace, constant=constant)
    setting = last_setting(subject, wrong[0])
    if setting is not None and not stepped and wrong[0] and len(set(rates)) == 1:
        setting = None  # it is right at first, and then nothing changes it
    by_hand = setting is not None and not setting.loads
    made = _where_made(subject, trace, stepped, wrong[0], by_hand=by_hand)
    place = next((e.place for e in stepped if e.place is not None), None)
    if place is None or cause in (_OTHER_FUNCTION, _OTHER_BASE):
        # no call of the user's steps it, or the calls are right and what they step is not
        place = next((p for _, p in made if p is not None), place) or optimizer_line(subject)
    n = wrong[0]
    if setting is not None:
        often = setting.times > 1 and "positions in each step" in cause
        place = setting.called if often and setting.called is not None else setting.location
        if often:
            because += f"; {at(place)} changes it {setting.times} times in a step"
        if setting.loads:
            cause = (
                f"load_state_dict replaces the learning rate {setting.before:g} by the saved "
                f"one, {setting.after:g}"
            )
            because = (
                f"the rate was {setting.before:g} before {at(place)} and is {setting.after:g} "
                "after it"
            )
            fix = (
                f"set group['lr'] of every param_group after {at(place)}, or load only the "
                "moments (state)"
            )
    elif not stepped and cause.startswith(_FIRST_STAYS):
        # what sets the rate of another group might have set this one's too
        moving = moving_groups(trace)[0][0]
        setting = last_setting(subject, n, moving) or last_setting(subject, wrong[-1], moving)
        if setting is not None:
            place = setting.location
            if (loop := loop_before(place)) is not None:
                because += f"; {at(place)} runs once, after the loop on line {loop.line}"
                fix += f": move {at(place)} into the loop on line {loop.line}"
    formula = None
    if by_hand and setting is not None and cause.startswith((_OTHER_FUNCTION, _SHIFTED)):
        formula = produced(subject, n, setting.after)
    culprits = [Culprit("scheduler", e.name, f"{len(stepped)} calls", e.place) for e in stepped[:1]]
    culprits += [Culprit("scheduler", name, "defines the schedule", p) for name, p in made]
    if setting is not None:
        name = "optimizer.load_state_dict" if setting.loads else "lr"
        detail = f"sets the learning rate to {setting.after:g}"
        culprits.insert(0, Culprit("call", name, detail, place))
        if formula is not None:
            place = formula.location
            if cause.startswith(_SHIFTED) and formula.counted is not None:
                place = formula.counted
                because += (
                    f"; {formula.function} computes it from {formula.counter}, set at {at(place)}"
                )
            culprits.insert(0, Culprit("call", formula.function, "gives that rate", place))
    elif not stepped and len(set(rates)) == 1 and made:
        # there is a scheduler, and what is wrong is the call that is not there
        culprits.insert(0, Culprit("scheduler", "scheduler.step", "missing", step.place))
    if not culprits:
        missing = "scheduler.step" if len(set(rates)) == 1 and not constant else "lr"
        culprits = [
            Culprit("optimizer", "lr", f"{rates[n]:g}", place)
            if constant
            else Culprit("scheduler", missing, "missing", step.place or place)
        ]
    return violated(
        "schedule-differs",
        f"step {n} uses learning rate {rates[n]:g} instead of {expected[n]:g}",
        culprits=tuple(culprits),
        location=place if stepped or constant or setting is not None else step.place or place,
        observed=f"{len(wrong)} of {len(rates)} steps differ; used {_listed(rates)}; declared "
        f"{_listed(expected)}",
        cause=cause,
        because=because,
        fix=fix,
        evidence={"rates": rates, "meant": expected},
    )


def _relation(
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
            f"{_FIRST_STAYS}, while the rate of {word} {groups} changes",
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
        f"{_SHIFTED} step {start} on: its rates are those declared {later}",
        f"up to step {start - 1} the rates are as declared, then each is the one declared {later}",
        f"correct the count of steps from step {start} on{before}",
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
    """Recognise rates that are stretched, or another base or function."""
    for times in (2, 3, 4, 5, 8, 10, 16, 32):
        if follows(lambda n, times=times: n * times):
            return (
                f"the schedule advances {times} positions per step",
                (
                    f"the rate of step n is the one declared for {times} * n; {name}() ran "
                    f"{len(stepped)} times in {trace.steps} calls"
                ),
                f"step it once per optimizer step{where}"
                if stepped
                else "advance the schedule by one per step",
            )
        if follows(lambda n, times=times: (n + 1) * times):
            return (
                f"the schedule advances {times} positions in each step, before the optimizer",
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
    ratios = [a / b for a, b in zip(rates, far, strict=False) if b]
    if len(ratios) >= 2 and ratios[0] and all(close(r, ratios[0], ratios[0]) for r in ratios):
        return (
            _OTHER_BASE,
            f"used / declared is {ratios[0]:.6g} at all {len(ratios)} steps",
            "correct the lr of the optimizer, or make the schedule return a factor of it",
        )
    return (
        _OTHER_FUNCTION,
        (
            f"no shift or stretch of the declared rates gives the used ones; {name} "
            f"{'runs' + where if stepped else 'is not stepped'}"
        ),
        "correct the schedule's formula or its length",
    )


def _where_made(
    subject: Subject, trace: Trace, stepped: list[Event], step: int, *, by_hand: bool
) -> list[tuple[str, Location | None]]:
    """Return the lines that define the schedule: of its formula, of the scheduler, of the optimizer.

    Args:
        subject: Whose schedule.
        trace: What the steps did.
        stepped: The scheduler's steps.
        step: The first step with another rate than the one meant.
        by_hand: Whether a line of the user's, and no scheduler, gives that step its rate.
    """
    classes = {trace.classes.get(e.owner, "") for e in stepped} - {""}
    run = making(subject)
    functions = functions_of(subject.contract.optimizer, subject.contract.train_step)
    made: list[tuple[str, Location | None]] = list(run.schedulers)
    if not made:
        made = [
            (name, place)
            for function in functions
            for name in sorted(classes)
            if (place := sources.search(function, rf"\b{name}\(")) is not None
        ]
    formulas = run.formulas or [
        f
        for f in functions
        if (stepped or (by_hand and f.__code__.co_argcount == 1)) and _FORMULA.search(f.__name__)
    ]
    made += [(f.__name__, _answer(f, step)) for f in formulas]
    return list(dict.fromkeys(made))[:4]


def _answer(formula: Callable[..., Any], step: int) -> Location | None:
    """Return the line by which a schedule's function gives its value for a step, else its first line."""
    code = getattr(formula, "__code__", None)
    return find_line(
        lambda: formula(step), lambda frame, event, _: event == "return" and frame.f_code is code
    ) or sources.of_object(formula)


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:.3g}" for rate in rates[:6]) + (", ..." if len(rates) > 6 else "")

"""Read a trace for learning rates: what they were meant to be, who changes them when, whom a schedule leaves."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from ... import sources
from ...codes.training import making, optimizer_line
from ...findings import Culprit, Finding, Location
from ...record.tracing import find_line
from ...subject.optimizers import optimizers_of
from ...verdicts import suspicious, violated
from ..closures import functions_of
from .rate_relations import (
    ADVANCES,
    FIRST_STAYS,
    OTHER_BASE,
    OTHER_FUNCTION,
    SHIFTED,
    close,
    meant_rates,
    moving_groups,
    relation,
)
from .rate_setting import last_setting, produced, sets_in_step
from .wording import at, call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...subject import Subject
    from ..trace import Event, Trace

_VANISHED = 1e-2
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
    if len(rates) < 3 or not rates[0] or rates[-1] > _VANISHED * max(rates):
        return
    if rates[-1] >= rates[-2]:
        return
    low = min(rates)
    if not stepped:
        if low >= 0:
            yield _by_hand(trace, rates)
        return
    scheduler = stepped[0]
    cause = "a schedule intended for epochs is stepped with every batch, or decays much too fast"
    fix = "step it once per epoch, or declare Schedule(lr) if this is intended"
    if low < 0:
        cause = "the schedule goes below zero, where each step climbs the loss"
        fix = "end the schedule at zero, as max(0, ...) of its factor does, or step it less often"
    yield (violated if low < 0 else suspicious)(
        "rate-vanishes",
        f"the learning rate falls from {max(rates):g} to {rates[-1]:g} in {len(rates)} steps",
        culprits=(Culprit("scheduler", scheduler.name, f"{len(stepped)} calls", scheduler.place),),
        observed=f"learning rates of {len(rates)} steps: {_listed(rates)}",
        cause=cause,
        because=f"{scheduler.name}() ran {len(stepped)} times in {trace.steps} steps, at "
        f"{at(scheduler.place)}",
        fix=fix,
    )


def _by_hand(trace: Trace, rates: list[float]) -> Finding:
    """Warn of a step that lowers its own rate to nothing."""
    step = trace.optimizer_steps()[0]
    return suspicious(
        "rate-vanishes",
        f"the learning rate falls from {max(rates):g} to {rates[-1]:g} in {len(rates)} steps",
        culprits=(call(step, "takes ever smaller steps"),),
        observed=f"learning rates of {len(rates)} steps: {_listed(rates)}",
        cause="the step lowers the rate with every batch, much too fast",
        because=f"no scheduler is stepped in {trace.steps} steps",
        fix="lower it once per epoch, or declare Schedule(lr) if this is intended",
    )


def first_rates(trace: Trace) -> list[float]:
    """Return the learning rate of the first group at every step of the first optimizer that steps."""
    steps = trace.optimizer_steps()
    return [e.rates[0] for e in steps if e.owner == steps[0].owner and e.rates]


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
    cause, because, fix = relation(meant, rates, stepped, trace, constant=constant)
    sets = step.set_rates == step.rates  # what the step ends with is what counts
    setting = last_setting(subject, wrong[0] + sets)
    if setting is not None and not stepped and wrong[0] and len(set(rates)) == 1:
        setting = None  # it is right at first, and then nothing changes it
    by_hand = setting is not None and not setting.loads
    made = _where_made(subject, trace, stepped, wrong[0], by_hand=by_hand)
    place = next((e.place for e in stepped if e.place is not None), None)
    if place is None or cause in (OTHER_FUNCTION, OTHER_BASE):
        # no call of the user's steps it, or the calls are right and what they step is not
        place = next((p for _, p in made if p is not None), place) or optimizer_line(subject)
    n = wrong[0]
    if setting is not None:
        place = setting.location
        advances = by_hand and not stepped and cause.startswith(ADVANCES)
        if advances and (often := sets_in_step(subject, setting)) is not None:
            place = often.location
            cause = f"the rates are set {often.times} times in one step: {cause}"
            because += f"; in one step {at(place)} runs {often.times} times"
            if place != setting.location:
                because += f", and {at(setting.location)} sets them each time"
            fix = f"run {at(place)} once per optimizer step" + ("" if sets else ", after it")
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
    elif not stepped and cause.startswith(FIRST_STAYS):
        # what sets the rate of another group might have set this one's too
        moving = moving_groups(trace)[0][0]
        setting = last_setting(subject, n, moving) or last_setting(subject, wrong[-1], moving)
        if setting is not None:
            place = setting.location
            if (loop := loop_before(place)) is not None:
                because += f"; {at(place)} runs once, after the loop on line {loop.line}"
                fix += f": move {at(place)} into the loop on line {loop.line}"
    elif not stepped and cause == OTHER_FUNCTION and len(set(rates)) == 1:
        because += "; no scheduler is stepped"
    formula = None
    if by_hand and setting is not None and cause.startswith((OTHER_FUNCTION, SHIFTED)):
        formula = produced(subject, n, setting.after)
    culprits = [Culprit("scheduler", e.name, f"{len(stepped)} calls", e.place) for e in stepped[:1]]
    culprits += [Culprit("scheduler", name, "defines the schedule", p) for name, p in made]
    for name, p in made:
        if p is not None and (given := sources.alias_above(p)) is not None:
            culprits.append(Culprit("scheduler", name, "is given this function", given))
    if setting is not None:
        name = "optimizer.load_state_dict" if setting.loads else "lr"
        detail = f"sets the learning rate to {setting.after:g}"
        culprits.insert(0, Culprit("call", name, detail, place))
        if formula is not None:
            place = formula.location
            if cause.startswith(SHIFTED) and formula.counted is not None:
                place = formula.entry or formula.counted
                because += f"; {formula.function} computes it from {formula.counter}, "
                if formula.entered not in ("", formula.counter):
                    because += f"and that from {formula.entered}, "
                because += f"set at {at(place)}"
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
    acting = [named for start, named in run.turns if start <= step][-1:]
    made: list[tuple[str, Location | None]] = [*acting, *run.schedulers]
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
    return list(dict.fromkeys([*made[:4], *run.callers]))[:5]


def _answer(formula: Callable[..., Any], step: int) -> Location | None:
    """Return the line by which a schedule's function gives its value for a step, else its first line."""
    code = getattr(formula, "__code__", None)
    return find_line(
        lambda: formula(step), lambda frame, event, _: event == "return" and frame.f_code is code
    ) or sources.of_object(formula)


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:.3g}" for rate in rates[:6]) + (", ..." if len(rates) > 6 else "")


_FIRST_ONLY = r"param_groups\[0\]\[.lr.\]\s*=[^=]"


def loop_before(place: Location) -> Location | None:
    """Return the loop whose variable a line sets an entry of (``group["lr"] = rate``) after the loop has ended."""
    made = sources.statement(place.file, place.line)
    names = {
        target.value.id
        for target, _ in (sources.writes(made) if made is not None else ())
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
    }
    found: Location | None = None
    for node in sources.own_nodes(sources.function_around(place.file, place.line)):
        if (
            isinstance(node, ast.For)
            and isinstance(node.target, ast.Name)
            and node.target.id in names
        ):
            if sources.holds(node, place.line):
                return None
            if node.lineno < place.line:
                found = sources.of_line(place.file, node.lineno, place.function)
    return found


def set_by_hand(subject: Subject, trace: Trace) -> Finding | None:
    """Find a group that is left behind where no scheduler steps: the rates are set in the step itself.

    Only where a line sets the rate of the first group by its index is this certain.
    """
    if any(trace.of("scheduler-step")):
        return None
    found = left_behind(subject, trace)
    if found is None:
        return None
    indexed = found.location is not None and re.search(_FIRST_ONLY, found.location.text)
    return found.replace(code="rate-of-one-group", status="violated" if indexed else "suspicious")


def left_behind(subject: Subject, trace: Trace) -> Finding | None:
    """Find the group whose rate stands still at the default of its optimizer while that of the first group moves.

    A group that was made with a rate of its own may be meant to keep it.
    """
    steps = trace.optimizer_steps()
    steps = [e for e in steps if e.owner == steps[0].owner and len(e.rates) == len(steps[0].rates)]
    groups = list(zip(*(e.rates for e in steps), strict=True))
    if len(steps) < 2 or len(groups) < 2 or len(set(groups[0])) < 2:
        return None
    with subject.pristine() as model:
        made = optimizers_of(subject.make_optimizer(model))
        default = float(made[0].defaults.get("lr", 0.0)) if made else 0.0
        names = {id(p): name for name, p in model.named_parameters()}
        held = [
            [names.get(id(p), "") for p in g["params"]]
            for g in (made[0].param_groups if made else ())
        ]
    still = [n for n, rates in enumerate(groups) if set(rates) == {default}]
    if not still or still[0] >= len(held):
        return None
    number = still[0]
    functions = functions_of(subject.contract.train_step, subject.contract.optimizer)
    place = next(
        (
            line
            for function in functions
            if (line := sources.search(function, _FIRST_ONLY)) is not None
        ),
        None,
    )
    first = [name for name in held[number] if name][:3]
    where = place or optimizer_line(subject)
    return violated(
        "schedule-differs",
        f"group {number} of the optimizer keeps the learning rate {default:g} while the first one follows the schedule",
        culprits=(
            Culprit("optimizer", "param_groups", f"group {number} is not set", where),
            *(Culprit("parameter", name, f"in group {number}") for name in first),
        ),
        observed=f"over {len(steps)} steps the rate of group 0 goes from {groups[0][0]:g} to "
        f"{groups[0][-1]:g}; that of group {number} is {default:g} throughout",
        cause="only the rate of the first group is set",
        because=f"no rate of its own was given to group {number}, of {len(held[number])} "
        f"parameters: {default:g} is the optimizer's lr",
        fix=(f"on line {place.line} loop" if place is not None else "loop")
        + " over optimizer.param_groups and set the rate of each",
        evidence={"rates": [list(rates) for rates in groups]},
    )

"""A parameter group that a schedule leaves behind: the first one follows it, this one keeps the default rate."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ... import sources
from ...codes.training import optimizer_line
from ...findings import Culprit
from ...subject.optimizers import optimizers_of, schedulers_of
from ...verdicts import violated
from ..closures import functions_of

if TYPE_CHECKING:
    from ...findings import Finding, Location
    from ...subject import Subject
    from ..trace import Trace

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


def idle_schedulers(subject: Subject, trace: Trace) -> Finding | None:
    """Find a scheduler that no step advances, while another one of its class is stepped."""
    stepped = {event.owner: event for _, event in trace.of("scheduler-step")}
    made = [type(one).__name__ for one in _made_schedulers(subject)] if stepped else []
    for kind in dict.fromkeys(made):
        alike = [e for owner, e in stepped.items() if trace.classes.get(owner) == kind]
        if not alike or len(alike) >= made.count(kind):
            continue
        left, place = made.count(kind) - len(alike), alike[-1].place
        return violated(
            "scheduler-idle",
            f"{left} of {made.count(kind)} {kind} schedulers {'is' if left == 1 else 'are'} never stepped",
            culprits=[Culprit("scheduler", kind, f"{e.name} steps one", e.place) for e in alike],
            location=place,
            observed=(
                f"in {trace.steps} training steps {', '.join(e.name for e in alike)} ran, and "
                "no other of its class"
            ),
            cause="the rate of its optimizer stays where it starts",
            because=f"of {made.count(kind)} that optimizer() returns, the steps advanced {len(alike)}",
            fix="step the other one beside it",
        )
    return None


def _made_schedulers(subject: Subject) -> list[object]:
    with subject.pristine() as model:
        return list(schedulers_of(subject.make_optimizer(model)))


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

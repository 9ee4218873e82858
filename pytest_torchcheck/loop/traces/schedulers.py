"""Read a trace for schedulers that change nothing: never stepped, made again in each step, of another optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import ReduceLROnPlateau

from ... import sources
from ...findings import Culprit, Finding
from ...subject.optimizers import schedulers_of
from ...verdicts import suspicious, violated
from ..trace import SchedulerStep
from .rates import first_rates
from .wording import at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim.lr_scheduler import LRScheduler

    from ...subject import Subject
    from ..trace import Trace

_FEWEST = 3


def without_effect(trace: Trace) -> Iterator[Finding]:
    """Yield schedulers whose steps reach no optimizer that steps, and those that begin again in every step."""
    events = [event for _, event in trace.each(SchedulerStep) if event.step]
    if len(events) < _FEWEST - 1:
        return
    first = events[0]
    rates, kind = first_rates(trace), trace.classes.get(first.owner, "scheduler")
    apart = all(e.rates and e.shares and not e.drives for e in events)
    if apart and len(set(rates)) == 1 and len({e.rates for e in events}) > 1:
        yield violated(
            "scheduler-idle",
            f"{first.name}() changes the rate of an optimizer that no step uses",
            culprits=[Culprit("scheduler", first.name, "was given another optimizer", first.place)],
            location=first.place,
            observed=f"the rate that steps use stays {rates[0]:g}; that of the optimizer which {kind} was given goes "
            f"from {events[0].rates[0]:g} to {events[-1].rates[0]:g}",
            cause="the optimizer was made again, or replaced, after its scheduler was made",
            because=f"both hold parameters of the model, and in {trace.steps} steps only the other one stepped",
            fix="make the scheduler of the optimizer that is stepped, after it",
        )
        return
    again = len({e.owner for e in events}) == len(events) and all(e.epoch == 0 for e in events)
    if again and len({e.step for e in events}) == len(events):
        yield suspicious(
            "scheduler-idle",
            f"every training step makes a new {kind}: the schedule begins again each time",
            culprits=[Culprit("scheduler", first.name, "is the first step of each", first.place)],
            location=first.place,
            observed=f"in {trace.steps} training steps {len(events) + 1} schedulers took one step each",
            cause="the scheduler is made within the step",
            because=f"each of them had taken no step before {at(first.place)}",
            fix="make the scheduler once, beside the optimizer, and step that one",
        )


def unstepped_schedulers(subject: Subject) -> Finding | None:
    """Warn of schedulers that a declared step is given and never steps; a loop may step them once per epoch."""
    contract = subject.contract
    if contract.train_step is None or contract.adapted is not None or contract.optimizer is None:
        return None
    made = [one for one in _made_schedulers(subject) if not isinstance(one, ReduceLROnPlateau)]
    if not made:
        return None
    kind, place = type(made[0]).__name__, sources.of_object(contract.train_step)
    return suspicious(
        "scheduler-idle",
        f"the training step never steps the {kind} that it is given",
        culprits=[Culprit("scheduler", kind, "is never stepped", place)],
        location=place,
        observed=f"optimizer() returns {len(made)} scheduler{'s' * (len(made) > 1)}, and no step of any ran",
        cause="scheduler.step() is missing",
        because="the rate stays where it starts, as far as the step goes",
        fix="call it after the optimizer's step; if the loop does so once per epoch, skip this check and say so",
    )


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


def _made_schedulers(subject: Subject) -> list[LRScheduler]:
    with subject.pristine() as model:
        return list(schedulers_of(subject.make_optimizer(model)))

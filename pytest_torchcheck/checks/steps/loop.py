"""The user's own training step: the order of its calls, its rates, its clipping, what it leaves behind."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ... import promises, sources
from ...codes import training as explain
from ...findings import Culprit, Finding
from ...loop.carried_graphs import growing_graph, where_graph_is_carried
from ...loop.recorder import record, trace_of
from ...loop.traces.clipping import clipping_of, scales_nothing, spent_loop
from ...loop.traces.copied_onto_itself import copying_findings
from ...loop.traces.kept_states import FAR, kept_state_findings
from ...loop.traces.modes import mode_findings
from ...loop.traces.opposed_losses import opposed_findings, two_point_findings
from ...loop.traces.protocol import protocol_findings
from ...loop.traces.rate_relations import as_used, meant_rates, moving_groups, of_groups
from ...loop.traces.rates import (
    first_rates,
    left_behind,
    schedule_finding,
    scheduler_findings,
    set_by_hand,
)
from ...loop.traces.rates_ahead import ahead_findings
from ...loop.traces.schedulers import idle_schedulers, unstepped_schedulers, without_effect
from ...loop.traces.taken_back import taken_back_findings
from ...loop.traces.wording import at
from ...runs.training.enduring import moves_blindly
from ...runs.training.steps import trajectory
from ...text.wording import counted
from ...verdicts import inconclusive, not_applicable, passed, suspicious, violated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Location
    from ...loop.trace import Backward, Trace
    from ...subject import Subject

MOST_STEPS = 16
_SECOND = "backward through the graph a second time"
_CHANGED = "modified by an inplace operation"


def whole_trace(subject: Subject) -> Trace:
    """Return the trace of the step, or raise what its first call raised."""
    trace = trace_of(subject)
    if trace.error is not None and trace.steps == 0:
        raise trace.error
    return trace


def step_protocol(subject: Subject) -> Iterator[Finding]:
    """Record some calls of the step and read the order of what it calls.

    Where one optimizer's step applies two losses, of which the second reaches further parameters only through
    those of the first, the second must have a minimum in the outputs of these. Where the step keeps the model's
    own tensors under their names, further calls of it tell whether it loads them again.
    """
    trace = whole_trace(subject)
    if not trace.optimizer_steps() and trace.backwards():
        windows = [
            p.n
            for p in subject.contract.promised("Accumulates")
            if isinstance(p, promises.Accumulates)
        ]
        trace = record(subject, steps=max(MOST_STEPS, *(n + 1 for n in windows), 1))
    wrong = (*protocol_findings(subject, trace), *copying_findings(subject, trace))
    wrong = wrong or (*two_point_findings(subject, trace), *opposed_findings(subject, trace))
    wrong = wrong or tuple(taken_back_findings(subject, trace))
    if not wrong and trace.states:
        wrong = (*kept_state_findings(subject, record(subject, steps=FAR), trace.states),)
    found = [_placed(subject, one) for one in wrong]
    if found:
        yield from found
        return
    steps, passes = trace.optimizer_steps(), trace.backwards()
    told = "" if steps else _moved_by_hand(subject)
    if told and passes and moves_blindly(subject):
        yield _placed(subject, _never_steps(trace, told))
    elif told:
        yield passed(told)
    elif not steps and not passes:
        yield inconclusive(
            "the step calls no backward and no torch optimizer", code="nothing-recorded"
        )
    elif not steps:
        yield _placed(subject, _never_steps(trace))
    else:
        yield passed(
            f"{trace.steps} calls recorded: {len(passes)} backward passes and {len(steps)} "
            "optimizer steps, each gradient applied once",
            evidence={"calls": [event.name for event in trace.events[:40]]},
        )


def _moved_by_hand(subject: Subject) -> str:
    """Say how many parameters the user's own step moves without a torch optimizer; empty where none moves."""
    if subject.contract.train_step is None:
        return ""

    moved = trajectory(subject).moved
    count = sum(size > 0.0 for size in moved.values())
    if not count:
        return ""
    return f"no torch optimizer steps; the step itself updates {count} of {len(moved)} parameters"


def _placed(subject: Subject, finding: Finding, function: Any = None) -> Finding:
    """Point what only a trainer's own code called to the user's function that it runs."""
    loop = subject.contract.loop
    function = function or (None if loop is None else loop.defined)
    if finding.location is not None or function is None:
        return finding
    return finding.replace(location=sources.of_object(function))


def _never_steps(trace: Trace, told: str = "") -> Finding:
    """Explain gradients that nothing applies; ``told`` says what moves the weights without them."""
    last = trace.backwards()[-1]
    return violated(
        "step-missing",
        f"no optimizer steps in {trace.steps} calls of the training step",
        culprits=(Culprit("call", "optimizer.step", "missing", last.place),),
        observed=f"{len(trace.backwards())} backward passes, 0 optimizer steps; gradient norm "
        f"{last.norm:.4g}",
        cause="gradients are computed but never applied"
        + (": the step moves the weights by something else" if told else ""),
        because=f"{told}, bit for bit alike for another batch, of which gradients have other signs"
        if told
        else f"nothing after {at(last.place)} called a torch optimizer's step",
        fix=f"call optimizer.step() after {at(last.place)}",
    )


def graph_kept(subject: Subject) -> Iterator[Finding]:
    """Look for the tensor that carries a graph, where the second call fails for it, and for a graph kept in vain.

    ``retain_graph=True`` is no cure for a carried graph: backward then runs through weights that
    have changed.
    """
    trace = whole_trace(subject)
    if trace.error is None:
        grown = _growing(subject, trace)
        kept = [one for one in trace.backwards() if one.retained]
        # several losses of one call may share a part
        alone = len(kept) == len(trace.backwards()) == trace.steps
        if grown is not None:
            yield explain.longer_graph(
                *grown, where_graph_is_carried(subject, grown[0]), code="graph-carried"
            )
        elif alone and kept and not any(one.again for one in kept):
            yield _kept_in_vain(kept[0], trace)
        else:
            yield passed(f"{trace.steps} consecutive calls ran")
        return
    message = str(trace.error.error)
    retained = next((one for one in trace.backwards() if one.retained), None)
    # with the graph kept, backward gets as far as the weights, which the optimizer has changed
    # since
    if _SECOND not in message and not (retained is not None and _CHANGED in message):
        raise trace.error
    carried = where_graph_is_carried(subject)
    names, place = carried.names, carried.location
    if not names:
        raise trace.error
    if retained is not None and _CHANGED in message:
        yield _carried_and_retained(trace, retained, names, place)
        return
    yield violated(
        "graph-carried",
        f"{names[0]} carries the graph of one step into the next: the second backward fails",
        culprits=carried.culprits(),
        location=place,
        observed=f"call {trace.steps} of the step raised, after "
        f"{counted(trace.steps, 'call')} that succeeded",
        cause=f"{names[0]} is kept with its graph, which backward has already freed",
        because=f"it has a grad_fn after {at(place)}, and torch said: Trying to {_SECOND}",
        fix=f"detach it at {at(place)}: {names[0].partition('[')[0]} = ....detach()",
    )


def _growing(subject: Subject, trace: Trace) -> tuple[str, tuple[int, ...]] | None:
    """Return what grows though each call ends with an optimizer's step, after which its graph serves for nothing.

    A loss that is summed over several calls before its backward grows on purpose until an optimizer
    steps.
    """
    if subject.contract.train_step is None or not trajectory(subject).carries:
        return None
    if not all(trace.optimizer_steps(step=step) for step in range(trace.steps)):
        return None
    return growing_graph(subject)


def _carried_and_retained(
    trace: Trace, retained: Backward, names: tuple[str, ...], place: Location | None
) -> Finding:
    """Explain retain_graph as a cure for a graph that is carried on: backward then meets weights that have moved."""
    return violated(
        "graph-retained",
        f"{names[0]} carries the graph of one step into the next, and retain_graph=True keeps it: "
        "backward runs through weights that have changed since",
        culprits=(
            *(
                Culprit("tensor", name, "has a grad_fn", place)
                for name in names[:4]
            ),
            Culprit("call", retained.name, "retain_graph=True", retained.place),
        ),
        location=place,
        observed=f"call {trace.steps} of the step raised, after "
        f"{counted(trace.steps, 'call')} that succeeded",
        cause=f"{names[0]} is kept with its graph; retain_graph=True at {at(retained.place)} lets "
            "the next backward continue into it, and its memory is not freed",
        because=f"it has a grad_fn after {at(place)}, and torch said that a variable has been "
            f"{_CHANGED}",
        fix=f"detach it at {at(place)}: {names[0].partition('[')[0]} = ....detach(), and drop "
            "retain_graph=True",
    )  # fmt: skip


def _kept_in_vain(one: Backward, trace: Trace) -> Finding:
    return suspicious(
        "graph-retained",
        f"{one.name}(retain_graph=True) keeps a graph that no later backward uses",
        culprits=(Culprit("call", one.name, "retain_graph=True", one.place),),
        observed=f"the graph was retained in each of {trace.steps} calls of the step",
        cause="all tensors saved for backward stay in memory until the loss is deleted",
        because="no node of a retained graph ran a second time, in its own call or a later one",
        fix=f"drop retain_graph=True at {at(one.place)}",
    )


def scheduler_order(subject: Subject) -> Iterator[Finding]:
    """Compare the places of the scheduler's and the optimizer's steps."""
    trace = whole_trace(subject)
    alone = None if subject.contract.promised("Schedule") else set_by_hand(subject, trace)
    if alone is not None:
        yield alone
        return
    if not any(trace.of("scheduler-step")) and not trace.schedules:
        moving = moving_groups(trace) if trace.optimizer_steps() else []
        declared = subject.contract.promised("Schedule")
        found = [] if declared or not moving else [*scheduler_findings(trace)]
        if not moving and not declared and (idle := unstepped_schedulers(subject)) is not None:
            found.append(idle)
        if found:
            yield from found
            return
        yield (
            passed(f"the step itself sets the rates, of {len(moving)} groups")
            if moving
            else not_applicable("the step calls no scheduler")
        )
        return
    idle = idle_schedulers(subject, trace)
    found = [
        f
        for f in (
            *scheduler_findings(trace),
            *_ahead(subject, trace),
            *without_effect(trace),
            *filter(None, (idle,)),
        )
        if not (f.code == "rate-vanishes" and subject.contract.promised("Schedule"))
    ]
    yield from found
    if not found:
        rates = first_rates(trace)
        whole = "".join(
            f"; {one.name} goes from {one.planned[0]:g} to {one.planned[-1]:g} in the whole training"
            for one in trace.schedules
            if one.planned
        )
        yield passed(
            f"the scheduler steps after the optimizer; rates from {rates[0]:g} to {rates[-1]:g}{whole}"
        )


def _ahead(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """Yield what is wrong with a trainer's schedules over the whole training."""
    made = subject.contract.optimizer
    for one in trace.schedules:
        place = (
            sources.search(inspect.unwrap(made), rf"\b{one.name}\b") if callable(made) else None
        ) or explain.made_in_file(subject.contract.location, one.name)
        yield from (_placed(subject, finding) for finding in ahead_findings(one, place))


def schedule(subject: Subject) -> Iterator[Finding]:
    """Compare the rates at the optimizer's steps with the promise."""
    for promise in subject.contract.promised("Schedule"):
        assert isinstance(promise, promises.Schedule)
        lr = promise.lr if callable(promise.lr) else tuple(promise.lr)
        trace = record(subject, steps=MOST_STEPS if callable(lr) else min(len(lr), 4 * MOST_STEPS))
        if trace.error is not None and trace.steps == 0:
            raise trace.error
        trace = as_used(trace, lr)
        rates = first_rates(trace)
        if not rates:
            yield inconclusive(
                "no torch optimizer stepped, so no learning rate was observed",
                code="nothing-recorded",
            )
            continue
        finding = schedule_finding(subject, trace, lr) or left_behind(subject, trace)
        if finding is not None:
            yield finding
        elif len(set(meant_rates(lr, len(rates)))) == 1 and len(rates) > 1 and callable(lr):
            yield inconclusive(f"the schedule is constant over the first {len(rates)} steps")
        else:
            groups, others = of_groups(trace, meant_rates(lr, len(rates)))
            yield passed(
                f"{len(rates)} steps{groups} used the declared learning rates, {rates[0]:g} to "
                f"{rates[-1]:g}{others}"
            )


def gradient_clipping(subject: Subject) -> Iterator[Finding]:
    """Measure norms at every step; make gradients larger where none was too large by itself."""
    for promise in subject.contract.promised("ClipsGradients"):
        assert isinstance(promise, promises.ClipsGradients)
        found = clipping_of(whole_trace(subject), promise.max_norm)
        if found.finding is None and not found.clipped and found.largest > 0.0:
            # no gradient was too large: multiply them all, or the clipping could not have failed
            trace = record(subject, amplify=10.0 * promise.max_norm / found.largest)
            found = clipping_of(trace, promise.max_norm)
        if found.finding is not None:
            loop = subject.contract.loop
            placed = _placed(subject, found.finding, None if loop is None else loop.clips)
            by_hand = loop is None and not any(whole_trace(subject).of("clip"))
            spent = spent_loop(subject) if by_hand else None
            yield placed if spent is None else scales_nothing(placed, spent)
        elif not found.clipped:
            yield inconclusive(
                f"no gradient was larger than {promise.max_norm:g}: the largest norm was {found.largest:.4g}"
            )
        else:
            yield passed(
                f"gradients of norm up to {found.largest:.4g} were clipped to "
                f"{promise.max_norm:g} before {found.clipped} steps"
            )


def evaluation_leaves_trace(subject: Subject) -> Iterator[Finding]:
    """Compare the modes of the training forwards from call to call, and the states in which calls leave the generators.

    A step that puts the whole model into eval mode before the forward that it trains is suspicious,
    where dropout or running statistics are in it.
    """
    trace = whole_trace(subject)
    found = [_placed(subject, one) for one in mode_findings(subject, trace)]
    yield from found
    if found:
        return
    if trace.steps < 2:
        yield inconclusive("only one call of the step ran", code="one-step")
        return
    modes = sum(1 for _ in trace.of("mode"))
    yield passed(f"{trace.steps} calls ran in the same modes; {modes} changes of mode were undone")

"""One batch can be memorised: the end-to-end test of model, loss, targets and optimizer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import sources
from ..codes import overfitting as explain
from ..findings import Culprit, Finding
from ..runs.overfitting.attempts import (
    DECLARED,
    Attempt,
    declared_attempt,
    own_attempt,
    quick_attempt,
)
from ..runs.overfitting.last_layer import layer_attempt
from ..runs.overfitting.one_batch import (
    UNKNOWN,
    WHOLE,
    Budget,
    Floor,
    Look,
    at_floor,
    look,
    runs_whole_alone,
    small_batch,
    spread_of_losses,
)
from ..runs.overfitting.reach import (
    Outputs,
    climb,
    eased,
    few_parameters,
    hopeless,
    outputs_in_double,
    residual_lost,
    told_apart,
)
from ..runs.overfitting.tangent import tangent
from ..runs.training.steps import trains_by_several
from ..subject.errors import SubjectError
from ..verdicts import inconclusive, not_applicable, passed, violated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..declared.limits import Overfit
    from ..runs.overfitting.tangent import Tangent
    from ..subject import Subject

_MOVES = (1.0, 10.0, 10.0)
"""Standard deviations by which outputs are shifted to test whether a loss depends on them."""
_CONSTANT = 1e-6  # what rounding may change in a loss that depends on nothing
_CRAWL = 1.7e-6
"""Progress per step of a learning rate that is far too low: 100 000 steps would not suffice."""
_GROWN = 10.0  # times its first value: a loss that has grown so much does not come down by itself
_FALLING = 0.8  # of the way is left, at most: such a run says nothing of what stops it
_HALF = 0.5  # of the way: enough to say that a step which changes nothing is at fault
_FELL = 0.05  # of the first loss: more than noise takes off it
_SEEN = 8  # so many steps show what an optimizer does
_GATHERED = 2.0  # times the gradient of one step: a step that has added up several
_WITHIN = 0.9
"""A larger part of what the loss asks lies within what the parameters can do: that does not stop the learning."""
_ALONG = 0.2
"""Cosine of a step and the gradient above which the step climbs: weight decay alone stays below."""
_KEPT = 4.0  # steps of the budget that are kept to find out why nothing is learnt


def overfit(subject: Subject) -> Iterator[Finding]:
    """Train on one batch with the declared optimizer, then with Adam at a rate that adapts.

    Where consecutive steps with the declared optimizer lower the loss, Adam begins, on a few samples: with the
    last layer alone, where the loss is known to follow its gradient, else with all layers.
    The check passes as soon as the loss has fallen far enough towards its floor, which follows
    from the labels where the loss is one of torch's. What cannot be memorised is found before
    any training. A loss that does not fall is a violation only with evidence of its own:
    outputs that are equal where targets differ, an activation that keeps the output from the
    targets, a gradient that reaches no parameter, a loss that is the same whatever the outputs
    are, or a declared optimizer that fails where another one succeeds.
    """
    goal = subject.contract.overfit
    if goal is None:
        yield not_applicable("the contract declares overfit=None")
        return
    subject.require_trainable()
    if trains_by_several(subject):
        yield not_applicable(
            "several optimizers work against each other, so no single loss has to fall"
        )
        return
    try:
        yield _tried(subject, goal, Budget(goal.steps))
    except SubjectError:
        if runs_whole_alone(subject):
            raise
        subject.cache[WHOLE] = True  # the loss may ask for as many as it was written for: pairs
        yield _tried(subject, goal, Budget(goal.steps))  # with the whole batch now


def _tried(subject: Subject, goal: Overfit, budget: Budget) -> Finding:
    batch = small_batch(subject)
    if (reason := hopeless(subject, batch)) is not None:
        return inconclusive(f"{reason}; nothing was trained")
    keep = min(_KEPT, budget.left / 2)
    quick = layer_attempt(subject, goal, budget) or quick_attempt(subject, goal, budget, keep=keep)
    if quick is not None:
        seen, attempt = quick
        near = eased(subject, goal, seen)
        slow = attempt.ended in ("pace", "budget") and _fell(attempt)
        if _done(attempt, near) or slow or budget.left < keep + _SEEN:
            return _judge(subject, near, seen, [attempt], budget, quick=True)
    seen = Look(loss=math.nan, floor=UNKNOWN, slope=0.0)
    if subject.contract.loss is not None:
        seen = look(subject, batch, budget)
        if math.isfinite(seen.loss) and not math.isfinite(seen.slope):
            return inconclusive("the first gradient is not finite; nothing was trained")
        if (known := _nothing_to_learn(subject, seen, budget)) is not None:
            return known
    attempts: list[Attempt] = []
    if subject.contract.optimizer is not None or subject.contract.train_step is not None:
        attempts.append(declared_attempt(subject, goal, seen.floor, budget))
        if attempts[0].ended == "silent":
            attempts.clear()
            if subject.contract.loss is None:
                return inconclusive(
                    "the training step returns no loss, and none is declared: no number has to fall"
                )
    slow = bool(attempts) and attempts[0].name == DECLARED and not _done(attempts[0], goal)
    if (not attempts or slow) and math.isfinite(seen.loss):
        attempts += _own(subject, goal, seen, budget)
    if not attempts:
        return inconclusive("the loss is not a finite scalar with a graph; nothing was trained")
    return _judge(subject, goal, seen, attempts, budget)


def _own(subject: Subject, goal: Overfit, seen: Look, budget: Budget) -> list[Attempt]:
    """Train by Adam; once more at a lower rate where the first one raised the loss."""
    keep = min(_KEPT, budget.left / 2)
    made = [own_attempt(subject, goal, seen, budget, keep=keep)]
    finite = made[0].finite
    rose = len(finite) < len(made[0].losses) or finite[-1] > finite[0]
    if rose and not _done(made[0], goal) and budget.left > keep + _SEEN:
        made.append(own_attempt(subject, goal, seen, budget, keep=keep, gentler=10.0))
    return [attempt for attempt in made if attempt.losses]


def _done(attempt: Attempt, goal: Overfit) -> bool:
    return attempt.remaining <= goal.ratio


def _judge(
    subject: Subject,
    goal: Overfit,
    seen: Look,
    attempts: list[Attempt],
    budget: Budget,
    *,
    quick: bool = False,
) -> Finding:
    first, floor = attempts[0], seen.floor
    best = min(attempts, key=lambda a: math.inf if math.isnan(a.remaining) else a.remaining)
    shown: dict[str, Any] = {
        "losses": _thin(best.losses),
        "floor": floor.value if floor.bounded else None,
        "attempts": [
            {"name": a.name, "steps": len(a.losses), "remaining": a.remaining} for a in attempts
        ],
        "steps spent": round(budget.spent, 1),
    }
    if _done(first, goal):
        return passed(
            f"the loss fell from {first.losses[0]:.4g} to {min(first.finite[-5:]):.4g} in "
            f"{len(first.losses)} steps ({floor}{_uniform(floor) if quick else ''})"
            + (f": {first.name}" if first.name.startswith(f"{DECLARED}, ") or quick else ""),
            evidence=shown,
        )
    own_steps = subject.contract.train_step is not None and len(set(first.losses)) == 1
    if _done(best, goal) or (own_steps and best.remaining <= _HALF):
        if first.name == DECLARED:
            return _own_failed(subject, first, best, seen, shown, budget)
        return passed(
            f"{best.name} brings the loss from {best.losses[0]:.4g} to {min(best.finite[-5:]):.4g} in "
            f"{len(best.losses)} steps ({floor})",
            evidence=shown,
        )
    return _not_learnt(subject, seen, attempts, best, budget, shown)


def _uniform(floor: Floor) -> str:
    if floor.uniform is None or floor.uniform <= floor.value:
        return ""
    return f"; at best {floor.uniform:.3g} with scores that ignore the inputs"


def _not_learnt(
    subject: Subject,
    seen: Look,
    attempts: list[Attempt],
    best: Attempt,
    budget: Budget,
    shown: dict[str, Any],
) -> Finding:
    """Look for evidence of a mistake where no run has reached the goal."""
    floor = seen.floor
    runs = f"best of {len(attempts)} runs ({best.name})" if len(attempts) > 1 else best.name
    observed = (
        f"{runs}: loss {best.losses[0]:.4g} -> {min(best.finite, default=math.nan):.4g} in "
        f"{len(best.losses)} steps; {floor}"
        + ("" if math.isnan(best.remaining) else f"; {best.remaining:.0%} of the distance is left")
    )
    if subject.contract.loss is None:
        return inconclusive(
            f"{observed}; without a declared loss no other learning rate could be tried",
            evidence=shown,
        )
    batch = small_batch(subject)
    fell = bool(best.finite) and _fell(best)
    if fell and told_apart(subject, batch):
        found = Outputs(same=None, unmoved=False)
    else:
        found = outputs_in_double(subject, batch, budget)
    if fell:
        # what is rounded or has a threshold may be equal at two weights, and follows them in training
        found = replace(found, unmoved=False)
    # a loss that fell by the gradients of its outputs alone has moved parameters through them
    lost = not (fell and seen.through) and residual_lost(subject, batch, budget)
    wrong = explain.stuck(subject, observed, found, shown, lost=lost)
    if wrong is not None:
        return wrong
    reason = few_parameters(subject, batch) or explain.hindrance(subject)
    if reason is None:
        falling = best.ended in ("pace", "budget") and best.remaining <= _FALLING
        space = None if falling else tangent(subject, batch, budget)
        if space is not None:
            shown["tangent space"] = {
                "outputs": space.outputs, "rank": space.rank, "share": space.share,
            }  # fmt: skip
        if (unreached := _unreached(space)) is not None:
            return inconclusive(f"{observed}; {unreached}", evidence=shown)
        reason = _ended(best, floor, space)
    return inconclusive(f"{observed}; {reason}, which does not indicate a bug", evidence=shown)


def _unreached(space: Tangent | None) -> str | None:
    """Say that the parameters cannot move the outputs as the loss asks, where that was measured."""
    if space is None or space.rank == space.outputs or space.share > _WITHIN:
        return None
    return (
        f"one output of each of {space.outputs} samples: all parameters together move them in {space.rank} of "
        f"{space.outputs} directions, and {space.share:.0%} of what the loss asks of them lies within these; "
        "see which parameters are trained, and which inputs reach them"
    )


def _fell(attempt: Attempt) -> bool:
    first, *later = attempt.finite
    return bool(later) and first - min(later) > _FELL * abs(first)


def _ended(best: Attempt, floor: Floor, space: Tangent | None) -> str:
    if not floor.bounded:
        return "the lowest reachable loss is not known"
    if best.ended == "not-finite":
        return "the loss became NaN or infinite at a learning rate that this check chose"
    if not floor.known:
        return "the lowest value of this loss is not known (a constant term, say)"
    if best.ended == "flat" and space is not None:
        return "to first order the parameters can move the outputs as the loss asks; what stops them is not known"
    if best.ended == "flat":
        return "the range of these outputs is not known"
    if best.ended == "pace":
        return "at this rate the remaining steps are not enough; Overfit(steps=) allows more"
    return "the loss was still falling; Overfit(steps=) allows more steps"


def _nothing_to_learn(subject: Subject, seen: Look, budget: Budget) -> Finding | None:
    """Judge a loss that starts at its floor, or depends on nothing; None for others."""
    loss, few = seen.loss, _CONSTANT * abs(seen.loss)
    shown = {"floor": seen.floor.value if seen.floor.bounded else None}
    if (
        loss and seen.slope <= few
    ):  # a loss may read the model besides its output: then its gradient tells
        spread = spread_of_losses(subject, small_batch(subject), _MOVES, budget)
        if spread is not None and spread <= few:
            return explain.constant(subject, loss, max(_MOVES), shown)
    if seen.floor.bounded and at_floor(loss, seen.floor.value):
        return inconclusive(
            f"the loss is at its floor from the start ({loss:.4g}): there is nothing to learn",
            evidence=shown,
        )
    return None


def _own_failed(
    subject: Subject,
    own: Attempt,
    best: Attempt,
    seen: Look,
    shown: dict[str, Any],
    budget: Budget,
) -> Finding:
    """Judge an optimizer that fails where another one succeeds."""
    finite, floor = own.finite, seen.floor
    made = subject.contract.optimizer
    place = (sources.search(made, r"\blr\s*=") or sources.of_object(made)) if made else None
    learns = f"{best.losses[0]:.4g} -> {best.losses[-1]:.4g} in {len(best.losses)} steps"
    if own.losses[-1:] > own.losses[:1] and (along := climb(subject, budget)) > _ALONG:
        return explain.climbing(subject, own, best, along, place, shown)
    grown = len(finite) > 3 and min(finite[-3:]) > _GROWN * (abs(finite[0]) + 1e-3)
    if len(finite) < len(own.losses) or grown:
        return violated(
            "optimizer-diverges",
            "the loss of one batch grows with the declared optimizer",
            culprits=[Culprit("optimizer", "optimizer", "diverges", place)],
            observed=f"loss {own.losses[0]:.4g} -> {own.losses[-1]:.4g} in {len(own.losses)} steps",
            cause="the learning rate is too high for this model and loss",
            because=f"{best.name} learns the same batch: {learns}",
            fix="lower the learning rate of the declared optimizer",
            evidence=shown,
        )
    gathers = own.pending > _GATHERED * seen.slope  # gradients of several calls, for one later step
    constant = len(finite) >= _SEEN and len(set(finite)) == 1
    if subject.contract.train_step is not None and constant and not gathers:
        step = sources.of_object(subject.contract.train_step)
        return violated(
            "step-learns-nothing",
            "the declared training step leaves the loss of one batch exactly as it is",
            culprits=[Culprit("call", "train_step", "loss constant", step)],
            observed=f"loss {finite[0]:.6g} in each of {len(finite)} steps",
            cause="the step does not change what the loss depends on",
            because=f"a plain step ({best.name}) learns the same batch: {learns}",
            fix="let each call change the weights: backward, then step, and nothing after it that undoes it",
            evidence=shown,
        )
    moved = abs(finite[0] - finite[-1])
    way = finite[0] - (floor.value if floor.bounded else finite[0] - max(1.0, abs(finite[0])))
    if (
        subject.contract.optimizer is not None
        and len(finite) >= _SEEN
        and moved <= min(max(_CRAWL * len(finite) * way, 4e-7 * abs(finite[0])), 1e-4 * way)
        and own.rates[1] <= own.rates[0]  # neither a warm-up nor unknown
        and not (constant and gathers)  # the optimizer has not stepped yet
    ):
        return explain.crawling(own, best, place, shown)
    return passed(
        f"{best.name} learns the batch, {learns}; the declared optimizer was slower "
        f"({own.remaining:.0%} left after {len(own.losses)} steps)",
        evidence=shown,
    )


def _thin(losses: tuple[float, ...], most: int = 60) -> list[float]:
    step = max(1, len(losses) // most)
    return [float(f"{loss:.5g}") for loss in losses[::step]]

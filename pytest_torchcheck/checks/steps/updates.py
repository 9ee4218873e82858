"""A training step moves what should move, keeps what should stay, can be repeated, and what it learns lasts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ... import sources
from ...codes import updates as explain
from ...loop.recorder import trace_of
from ...loop.steps import StepWatch, begun, take_steps
from ...runs.looks import (
    REDRAWS,
    differentiated,
    hidden_by_data,
    rounding_noise,
    shared_shifts,
    unreached,
)
from ...runs.omitted import read_where_given
from ...runs.training.crossed import crossed
from ...runs.training.enduring import decays_alone, fades, inputs_late, stops_training, unused_call
from ...runs.training.forgetting import forgetting, returning, uncounted
from ...runs.training.kept_gradients import kept_gradient
from ...runs.training.otherwise import drifting, thawed_later, untaught, waiting
from ...runs.training.stale_copies import (
    heeds_no_weights,
    kept_copies,
    moved_as_built,
    stale_copy,
    stopped,
)
from ...runs.training.steps import lost as lost_parameters
from ...runs.training.steps import trajectory
from ...verdicts import inconclusive, not_applicable, passed
from .pulled_back import averaged, taken_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...runs.training.steps import Trajectory
    from ...subject import Subject


_ROUNDED = 1e-5
"""Share of the gradient of its weight below which that of a bias is what rounding leaves of a sum of zero."""
_FAINT = 1e-12
"""Share of the largest gradient below which a parameter may stay unchanged with a correct
optimizer."""
_EPSILON = 1e-8
"""What our own Adam adds to the size of a gradient: one below it moves a weight by less than our learning rate."""


def weights_update(subject: Subject) -> Iterator[Finding]:
    """Compare every parameter before and after some steps; look for later steps that skip it or undo them all.

    With an optimizer of your own, or a step that assigns gradients, the update of a parameter must not depend on
    the sign of the gradients of others of its shape. If such an optimizer has a momentum, its step must depend on
    earlier gradients; if it reads a number of steps, that must grow. What it keeps of a gradient for its next step
    must be a copy, where that gradient's memory is written to again.
    """
    trainable = {
        name: parameter
        for name, parameter in subject.named_parameters().items()
        if parameter.requires_grad and parameter.numel()
    }
    if not trainable:
        yield not_applicable("no parameter requires a gradient")
        return
    made = trajectory(subject)
    if made.error is not None and not made.losses:
        raise made.error
    lost = lost_parameters(subject)
    still = [
        name
        for name in trainable
        if (made.moved.get(name, 0.0) == 0.0 or name in lost)
        and not subject.is_promised("MayLackGradient", name)
        and not subject.is_promised("Frozen", name)
    ]
    excused: set[str] = set()
    if still:
        first = subject.gradients()
        excused = _excused(subject, still, made)
        still = [name for name in still if name not in excused]
        largest = max((g.norm for g in first.stats.values() if math.isfinite(g.norm)), default=0.0)
        ours = subject.contract.optimizer is None and subject.contract.train_step is None
        least = max(_FAINT * largest, _EPSILON if ours else 0.0)
        faint = [n for n in still if 0.0 < first.stats[n].norm < least]
        still = [name for name in still if name not in faint]
        if still:
            yield explain.standstill(subject, still, made, total=len(trainable))
            return
        if faint:
            yield inconclusive(
                f"{', '.join(faint[:3])} did not change: a gate passes almost no gradient here"
            )
            return
    if (amiss := _moved_amiss(subject, made)) is not None:
        yield amiss
        return
    note = " (learning rates of 0 were raised to the schedule's base)" if made.warmed else ""
    yield passed(
        f"{len(trainable) - len(excused)} of {len(trainable)} trainable parameters changed in "
        f"{len(made.losses)} steps{note}",
        evidence={"losses": list(made.losses), "rates": list(made.rates)},
    )


def _moved_amiss(subject: Subject, made: Trajectory) -> Finding | None:
    """Return what is wrong with how parameters move that all do."""
    if heeds_no_weights(subject, made):
        return explain.of_other_weights(subject)
    if names := stopped(subject, made):
        return explain.stops(subject, list(names))
    if names := fades(subject, made.left.fading) if all(made.rates[1:]) else ():
        return explain.fades(subject, list(names))
    if names := decays_alone(subject, made):
        return explain.decays_alone(subject, list(names))
    if names := tuple(
        n for n in untaught(subject) if not subject.is_promised("MayLackGradient", n)
    ):
        return explain.untaught(subject, list(names))
    if (undone := returning(subject)) is not None:
        return explain.undone(subject, *undone)
    if (mixed := crossed(subject)) is not None:
        return explain.crossed(subject, mixed)
    if (forgets := forgetting(subject)) is not None:
        return explain.forgets(subject, forgets)
    if (count := uncounted(subject)) is not None:
        return explain.uncounted(subject, *count)
    kept = kept_gradient(subject)
    return None if kept is None else explain.gradient_kept(subject, kept)


def _excused(subject: Subject, still: list[str], made: Trajectory) -> set[str]:
    """Name the parameters, of those that stand still, that these data or this loss give nothing to move by."""
    stats = subject.gradients().stats
    kinds = {n: stats[n].kind for n in still if stats[n].kind != "live" and n not in made.live}
    excused = _move_elsewhere(subject, list(kinds))

    def left(kind: str = "") -> list[str]:
        return [n for n in kinds if n not in excused and (not kind or kinds[n] == kind)]

    if made.error is not None:
        excused |= set(left("zero"))  # what begins at zero may be reached by the step that raises
    excused |= unreached(subject, set(left()))
    excused |= shared_shifts(subject, left("zero"))
    excused |= hidden_by_data(subject, left("zero")).keys()
    excused |= differentiated(subject, left("none")) | set(left()) & kept_copies(subject).keys()
    excused |= read_where_given(subject, left("none")).keys()
    excused |= _cancelled_in_step(subject, set(still) - excused, made)
    if rest := set(still) - excused:
        excused |= waiting(subject, rest)
        excused |= thawed_later(subject, rest - excused)
    return excused | rounding_noise(subject, set(still) - excused)


def _move_elsewhere(subject: Subject, names: list[str]) -> set[str]:
    """Name the parameters that other batches reach: experts, rows, stochastic depth."""
    reached: set[str] = set()
    for index, seed in REDRAWS:
        left = [name for name in names if name not in reached]
        if not left:
            break
        stats = subject.gradients(index, seed=seed).stats
        reached |= {name for name in left if name in stats and stats[name].kind == "live"}
    return reached


def _cancelled_in_step(subject: Subject, names: set[str], made: Trajectory) -> set[str]:
    """Name the biases to which an optimizer of the step applies gradients of zero: the losses there take differences.

    So does that of a critic: what its last bias adds to the scores of real samples and of made ones cancels
    out. A weight without influence is a mistake.
    """
    parameters = subject.named_parameters()
    biases = {
        name
        for name in names
        if parameters[name].dim() < 2
        and "bias" in name.rpartition(".")[2]
        # the weight beside it moves, by whatever name: it is the shift alone that has no influence
        and any(
            moved > 0.0
            for other, moved in made.moved.items()
            if other != name and other.startswith(name.rpartition("bias")[0])
        )
    }
    if not biases or subject.contract.train_step is None:
        return set()
    trace = trace_of(subject)
    held = {name for names in trace.parameters.values() for name in names}
    reached = {name for event in trace.backwards() for name in event.touched}
    applied = {
        n for step in trace.optimizer_steps() for names in step.sources.values() for n in names
    }
    stepped = biases & held & reached & applied
    return (biases & held & reached - applied) | _rounded_in_step(subject, stepped)


def _rounded_in_step(subject: Subject, biases: set[str]) -> set[str]:
    """Name the biases whose gradient at the end of a step is the rounding of a zero, beside that of their weight."""
    if not biases:
        return set()
    with begun(subject) as (model, optimizer):
        take_steps(subject, model, optimizer, 1, StepWatch())
        left = {
            n: float(p.grad.abs().max()) for n, p in model.named_parameters() if p.grad is not None
        }

    def beside(name: str) -> float:
        stem = name.rpartition("bias")[0]
        return max((g for n, g in left.items() if n != name and n.startswith(stem)), default=0.0)

    return {name for name in biases & left.keys() if left[name] < _ROUNDED * beside(name)}


def frozen_stays(subject: Subject) -> Iterator[Finding]:
    """Compare frozen parameters, and the buffers of promised modules, before and after some steps.

    A part that is promised by its parameters, and that no gradient goes through, is so with its buffers.
    """
    # a parameter of two names is as frozen as either promises
    first = {id(parameter): name for name, parameter in subject.named_parameters().items()}
    frozen = list(
        dict.fromkeys(
            first[id(parameter)]
            for name, parameter in subject.model.named_parameters(remove_duplicate=False)
            if subject.is_promised("Frozen", name)
        )
    )
    buffers = [n for n, _ in subject.model.named_buffers() if subject.is_promised("Frozen", n)]
    if not frozen and not buffers:
        globs = [g for promise in subject.contract.promised_names("Frozen") for g in promise.globs]
        yield explain.no_match(subject, "Frozen", globs)
        return
    made = trajectory(subject)
    if made.error is not None and not made.losses:
        raise made.error
    drifted = [name for name in frozen if made.moved.get(name, 0.0) > 0.0]
    moving, noise = drifting(subject, frozen, buffers, made.buffers)
    buffers = [name for name in buffers if name not in noise]
    if drifted and (pairs := averaged(subject, drifted)):
        yield explain.frozen_average(subject, pairs, max(made.moved[n] for n in drifted))
    elif drifted:
        yield explain.drifted(subject, drifted, made)
    if moving:
        yield explain.statistics(subject, moving)
    late = _frozen_late(subject, [*frozen, *buffers]) if not drifted and not moving else ()
    if late:
        yield explain.frozen_by_train(subject, list(late))
    elif not drifted and not moving:
        yield passed(
            f"{len(frozen)} frozen parameters and {len(buffers)} buffers are bit-equal after {len(made.losses)} steps"
            + f"; {len(noise)} more buffers hold noise that steps draw" * bool(noise)
        )


def _frozen_late(subject: Subject, names: list[str]) -> tuple[str, ...]:
    """Return what is frozen by an overridden ``train()`` alone, where the user's own step is declared."""
    overridden = any(
        sources.of_user_object(type(module).train) is not None for module in subject.model.modules()
    )
    if not overridden or subject.contract.train_step is None:
        return ()
    return moved_as_built(subject, names)


def repeatable_steps(subject: Subject) -> Iterator[Finding]:
    """Run further steps without rebuilding anything, and look at what the first ones left.

    What they learn lasts: neither a forward nor the step puts weights back, evaluation and ``state_dict()`` follow
    the weights, and evaluation depends on nothing else that training calls keep. Where anything counts calls, more
    steps run: what a first step trains, a later one with the same weights trains too, and a call of the user's
    own step that moves nothing leaves a trace of its batch in a later one.
    """
    subject.require_trainable()
    made = trajectory(subject)
    if made.error is not None:
        raise made.error
    if found := list(lasting(subject, made)):
        yield from found
        return
    yield passed(f"{len(made.losses)} consecutive steps ran")


def lasting(subject: Subject, made: Trajectory) -> Iterator[Finding]:
    """Ask what the steps left, and where anything counts calls, what more of them leave."""
    left = made.left
    if names := left.put_back or made.live.intersection(left.overwritten):
        made_so = explain.put_back if left.put_back else explain.overwritten
        yield made_so(subject, sorted(names))
        return
    if left.stale:
        yield explain.stale_state(subject, list(left.stale))
    if left.remembered:
        yield explain.remembered(subject, left)
    if (stale := stale_copy(subject)) is not None:
        yield explain.stale_copy(subject, stale)
    if left.numbers and (names := stops_training(subject)):
        yield explain.stops_training(subject, list(names), left.numbers)
    own = subject.contract.train_step is not None and subject.kernel_exact
    if own and left.undone and made.losses[left.undone - 1] <= made.losses[left.undone - 2]:
        yield explain.undone_by_step(subject, left.undone)
    elif own and (left.numbers or left.rests) and (call := unused_call(subject)) is not None:
        yield explain.unused_call(subject, call, left.numbers)
    if left.holds_inputs and subject.kernel_exact and inputs_late(subject):
        yield explain.late_inputs(subject)
    if left.rewritten and (shares := taken_back(subject)) is not None:
        yield explain.taken_back(subject, shares)

"""Training on one batch within a budget of plain steps, and what each attempt showed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...declared.limits import Overfit
from ...lean import dataclass
from ...loop.checkpoints import STEPS
from ...objects import trees
from ...objects.peek import attribute
from ...state import seed_everything
from ...subject.errors import SubjectError, UnmeasurableError
from ...subject.gradients import clear_gradients
from ...subject.optimizers import optimizers_of, require_steppable, step_schedulers
from ...text.printable import message_of
from ..training.steps import trajectory
from .one_batch import (
    Floor,
    few_samples,
    follow,
    look_from,
    remaining,
    small_batch,
    steepness,
    without_dropout,
)
from .reach import eased

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...batches import Batch
    from ...subject import Subject
    from .one_batch import Budget, Look

_DECLARED = 0.35  # share of the budget for the declared optimizer, where another run can follow
_CONSTANT = 0.6  # the same, as long as the loss has not changed by a bit
_RATES = (1e-6, 3e-2)
"""Lowest and highest first learning rate of Adam."""
_BETAS, QUICK = (0.7, 0.9), (0.9, 0.95)
"""How long Adam remembers, in a run and in the first one of a few samples: both have a few dozen steps."""
SHARE = 0.5  # of the way to the floor, to first order, that the first step of a few samples goes
_FUSED = (torch.float32, torch.float64)
_FLAT = 0.01  # of the distance to the floor: a run that gains less in its last window has stopped
_TOO_FAR = 3.0  # times the steps that are left: a run whose pace needs more is ended
_ENOUGH = 18  # steps on a few samples: who reaches the goal mostly does so in fewer
_SHOWN = 5  # steps after which a declared optimizer that learns too slowly leaves the rest to Adam
_LEARNS = 0.9  # of the way is left then, at most
_FALLS = 1e-4
"""Of the loss, from one step to the next: far more than rounding, and than an optimizer that crawls."""
_GROWN = 2.0  # times the first loss: an optimizer that went further is looked at by itself
LITTLE = 1e-6  # a smaller distance or gradient leaves nothing to learn
DECLARED = "the declared optimizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of training on one batch.

    Attributes:
        name: ``the declared optimizer``, or which optimizer at which learning rate, or both.
        losses: Loss of every step.
        remaining: ``(best - floor) / (first - floor)``; NaN if nothing finite came out.
        ended: Why it ended: ``reached`` the goal, ``not-finite``, ``flat``, ``pace`` (it falls too
            slowly for the budget), ``schedule`` (the declared schedule has no further step),
            ``silent`` (the declared step returns no loss) or ``budget``.
        rates: The highest learning rate at the first step, and at the last one or as a schedule
            means it; NaN where it is not known.
        pending: Sum of the absolute values of the gradients that the last step left.
    """

    name: str
    losses: tuple[float, ...]
    remaining: float
    ended: str
    rates: tuple[float, float] = (math.nan, math.nan)
    pending: float = 0.0

    @property
    def finite(self) -> list[float]:
        """The losses that are finite."""
        return [loss for loss in self.losses if math.isfinite(loss)]


def declared_attempt(subject: Subject, goal: Overfit, floor: Floor, budget: Budget) -> Attempt:
    """Train with the declared optimizer and step, from the pristine state and one seed.

    Once that is seen to learn, at a pace that its share of the budget is too short for, Adam goes
    on from there.
    """
    alone = subject.contract.loss is None
    steps = budget.left if alone else _DECLARED * goal.steps
    more = budget.left if alone else _CONSTANT * goal.steps
    batch = small_batch(subject)
    losses: list[float] = []
    ended = "budget"
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        made = subject.make_optimizer(model)
        first = _rate_of(made)
        while len(losses) < (more if len(set(losses)) == 1 else steps) and budget.take():
            seed_everything(subject.seed)
            value = _declared_step(subject, model, made, batch.clone(), number=len(losses))
            if isinstance(value, str):
                ended = value
                break
            losses.append(value)
            if (why := over(losses, goal, floor, int(steps))) and len(set(losses)) > 1:
                ended = why
                break
            if not alone and _learns_slowly(losses, goal, floor, steps):
                break
        rates = (first, _rate_of(made, meant=True))
        pending = steepness(model)
        name = DECLARED
        if not alone and _learns_slowly(losses, goal, floor, steps):
            rate, ended = _by_adam(subject, model, goal, floor, budget, losses)
            name = f"{DECLARED}, then Adam from a rate of {rate:.2g}"
    return Attempt(
        name=name,
        losses=tuple(losses),
        remaining=remaining(losses, floor),
        ended=ended,
        rates=rates,
        pending=pending,
    )


def own_attempt(
    subject: Subject,
    goal: Overfit,
    seen: Look,
    budget: Budget,
    *,
    keep: float,
    gentler: float = 1.0,
) -> Attempt:
    """Train by Adam without dropout, at a rate that follows from loss and gradient.

    Args:
        subject: What is trained.
        goal: When it is reached.
        seen: Loss, floor and gradient before any training.
        budget: What may be spent.
        keep: So much of it is left.
        gentler: The first rate is divided by it.
    """
    rate = first_rate(seen.loss, seen.floor, seen.slope) / gentler
    losses: list[float] = []
    with subject.pristine(steps=True) as model:
        rate, ended = _by_adam(subject, model, goal, seen.floor, budget, losses, keep, rate)
    return Attempt(
        name=f"Adam from a rate of {rate:.2g}",
        losses=tuple(losses),
        remaining=remaining(losses, seen.floor),
        ended=ended,
    )


def quick_attempt(
    subject: Subject, goal: Overfit, budget: Budget, *, keep: float
) -> tuple[Look, Attempt] | None:
    """Train by Adam on a few samples, where the declared optimizer is seen to learn in the steps that run anyway.

    Returns:
        What was seen before the first step, and the run. None where the step is the user's own, where
        these steps do not show that the loss falls, or where the few samples give no loss to lower.
    """
    contract = subject.contract
    if goal.steps > Overfit().steps or contract.train_step is not None or contract.loss is None:
        return None  # who allows more steps means those of the declared optimizer
    if not declared_learns(subject, budget):
        return None
    batch = few_samples(subject)
    losses: list[float] = []
    with subject.pristine(steps=True) as model:
        seen = look_from(subject, without_dropout(model), batch, budget)
        gap = seen.loss - seen.floor.value if seen.floor.bounded else abs(seen.loss)
        # samples without a pair to be compared with may have nothing to learn; more of them have
        if not (math.isfinite(seen.slope) and gap > LITTLE and seen.slope > LITTLE):
            return None
        losses.append(seen.loss)
        rate = first_rate(seen.loss, seen.floor, seen.slope, SHARE)
        keep, goal = max(keep, budget.left - _ENOUGH), eased(subject, goal, seen)
        rate, ended = _by_adam(subject, model, goal, seen.floor, budget, losses, keep, rate, batch)
    return seen, Attempt(
        name=f"Adam from a rate of {rate:.2g}"
        + ("" if batch is subject.batch() else " on a few samples"),
        losses=tuple(losses),
        remaining=remaining(losses, seen.floor),
        ended=ended,
    )


def declared_learns(subject: Subject, budget: Budget) -> bool:
    """Say whether the declared optimizer lowers the loss of some samples from one step to the next, by itself."""
    if subject.contract.optimizer is None:
        return True
    if "trajectory" not in subject.cache and not budget.take(STEPS):
        return False
    try:
        made = trajectory(subject)
    except SubjectError:
        return False
    if made.error is not None or made.warmed or len(made.losses) != STEPS:
        return False
    first, before, after = made.losses  # the last two are of the same samples and the same seed
    return before - after >= _FALLS * abs(before) and after <= _GROWN * abs(first)


def first_rate(loss: float, floor: Floor, slope: float, share: float = 0.5) -> float:
    """Return the rate at which a first step of Adam goes so much of the way to the floor, to first order."""
    return min(max(share * _way(loss, floor) / max(slope, 1e-30), _RATES[0]), _RATES[1])


def _by_adam(
    subject: Subject,
    model: nn.Module,
    goal: Overfit,
    floor: Floor,
    budget: Budget,
    losses: list[float],
    keep: float = 4.0,
    rate: float | None = None,
    batch: Batch | None = None,
) -> tuple[float, str]:
    """Train a model from where it is, and add the losses to those that there are.

    Args:
        subject: Whose model.
        model: The model.
        goal: When it is reached.
        floor: Of the loss.
        budget: What may be spent.
        losses: Those that there are.
        keep: So much of the budget is left.
        rate: The first rate; by default the one that loss and gradient say.
        batch: What is learnt, where the model has the gradients of its last loss; else the small batch.

    Returns:
        The first rate, and why the run ended.
    """
    optimizers: list[torch.optim.Optimizer] = []
    before = len(losses)
    if batch is not None and rate is not None:
        optimizers, before = list(adams(model, rate, QUICK)), before - 1
    batch = small_batch(subject) if batch is None else batch
    without_dropout(model)
    limit = before + max(1, int(budget.left - keep))
    while budget.left >= 1 + keep and budget.take():
        for optimizer in optimizers:
            optimizer.step()
        seed_everything(subject.seed)
        clear_gradients(model)
        given = batch.clone()
        try:
            loss = subject.compute_loss(subject.call(model, given), given)
            why = over([*losses, now := float(loss.detach().sum())], goal, floor, limit)
            if rate is None or not why:  # what ends the run needs no gradient
                with subject.phase("backward", given):
                    loss.backward()
        except SubjectError as error:
            if not losses:
                raise
            raise _provoked(error, rate or 0.0, len(losses)) from error
        if rate is None:
            rate = first_rate(now, floor, steepness(model)) / 2  # Adam begins anew: gently
        optimizers = optimizers or list(adams(model, rate))
        for optimizer in optimizers:
            follow(optimizer, losses[before:], now, floor)
        losses.append(now)
        if why:
            return rate, why
    return rate or 0.0, "budget"


def _learns_slowly(losses: list[float], goal: Overfit, floor: Floor, steps: float) -> bool:
    """Say whether a run whose loss falls in every step would need more than its steps at this pace."""
    if len(losses) != _SHOWN or sorted(losses, reverse=True) != losses:
        return False
    left = remaining(losses, floor)
    if not goal.ratio < left <= _LEARNS:
        return False
    return _SHOWN * math.log(goal.ratio) / math.log(left) > steps


def _provoked(error: SubjectError, rate: float, steps: int) -> UnmeasurableError:
    """Say that the weights at which the model raises are those of a training that nobody declared."""
    said = message_of(error.error).strip().partition("\n")[0][:140]
    return UnmeasurableError(
        f"after {steps} steps of Adam at a rate of {rate:.2g}, which the contract does not declare, the "
        f"{error.phase} raises {type(error.error).__name__}: {said}; at the start it does not. "
        "Declare optimizer= to train as you do"
    )


def _declared_step(
    subject: Subject, model: nn.Module, made: Any, batch: Batch, *, number: int
) -> float | str:
    """Do the declared step and return its loss; ``schedule`` where that has no further step, ``silent`` without one."""
    try:
        value = subject.train_step(model, made, batch)
        if subject.contract.train_step is None:
            step_schedulers(made, _number(value))
    except SubjectError as error:
        if number and _scheduleover(error.error):
            return "schedule"
        raise
    except ValueError as error:
        if _scheduleover(error):
            return "schedule"
        raise
    return "silent" if value is None else _number(value)


def _number(value: Any) -> float:
    if isinstance(value, torch.Tensor):
        return float(value.detach().float().mean())
    return float(value) if isinstance(value, int | float) else math.nan


def _scheduleover(error: BaseException) -> bool:
    """Say whether a schedule of so many steps (``OneCycleLR``) was asked for one more."""
    return isinstance(error, ValueError) and str(error).startswith("Tried to step")


def _rate_of(made: Any, *, meant: bool = False) -> float:
    """Return the highest learning rate of what an optimizer function returned; NaN without one.

    Args:
        made: What it returned.
        meant: Count what a schedule began with, too: a warm-up has not reached it yet.
    """
    rates = [
        max(float(group["lr"]), float(group.get("initial_lr", 0.0)) if meant else 0.0)
        for optimizer in optimizers_of(made)
        for group in optimizer.param_groups
        if group.get("lr") is not None
    ]
    return max(rates, default=math.nan)


def adams(
    model: nn.Module, rate: float, betas: tuple[float, float] = _BETAS
) -> Iterator[torch.optim.Optimizer]:
    """Iterate over the optimizers of a plain step: Adam, sparse where gradients are."""
    require_steppable(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    sparse = {
        id(p)
        for m in model.modules()
        if attribute(m, "sparse", False) is True
        for p in m.parameters(recurse=False)
    }
    dense = [p for p in trainable if id(p) not in sparse]
    if dense:
        # below 1e-7 nothing is left of a number in half precision
        eps = 1e-4 if any(p.dtype == torch.float16 for p in dense) else 1e-8
        # one kernel for each parameter, where that exists
        fused = all(
            p.device.type == "cpu" and p.dtype in _FUSED and trees.computable(p) for p in dense
        )
        yield torch.optim.Adam(dense, lr=rate, betas=betas, eps=eps, fused=fused or None)
    if rest := [p for p in trainable if id(p) in sparse]:
        yield torch.optim.SparseAdam(rest, lr=rate, betas=betas)


def over(losses: list[float], goal: Overfit, floor: Floor, limit: int) -> str:
    """Say why a run of at most ``limit`` steps ends now, or nothing."""
    if not math.isfinite(losses[-1]):
        return "not-finite"
    left = remaining(losses, floor)
    if left <= goal.ratio:
        return "reached"
    window = max(5, limit // 6)
    if len(losses) < 2 * window:
        return ""
    recent, way = losses[-window:], _way(losses[0], floor)
    gained = min(losses[:-window]) - min(recent)
    if gained < _FLAT * way and max(recent) - min(recent) < 5 * _FLAT * way:
        return "flat"
    before = remaining(losses[:-window], floor)
    needed = window * math.log(left / goal.ratio) / max(math.log(before / left), 1e-9)
    swings = losses[-1] > min(recent) and gained <= 0
    return "pace" if needed > _TOO_FAR * max(limit - len(losses), 1) and not swings else ""


def _way(first: float, floor: Floor) -> float:
    return first - floor.value if floor.bounded else max(1.0, abs(first))

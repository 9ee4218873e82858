"""Whether later training steps still do what the first one does."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from ...objects import trees
from ...probes.loss.arguments import by_step, same_results, targets_of
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients, gradient_stats
from ...subject.optimizers import optimizers_of, schedulers_of
from ...subject.remembered import remembered
from .few import later_batch, seed_of
from .left import has_counted
from .strides import Strides

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch import nn

    from ...batches import Batch
    from ...subject import Subject
    from ...subject.gradients import GradStat
    from .steps import Trajectory

MANY: Final = 12
"""Steps after which a count of calls has passed what small numbers it is compared with."""
_ALIVE: Final = 1e-2
_GONE: Final = 1e-6
_FAINT: Final = 1e-4
_SETTLED: Final = 64.0
_FEWEST: Final = 8
_PARALLEL: Final = 1e-6


@remembered("stops-training")
def stops_training(subject: Subject) -> tuple[str, ...]:
    """Return what gets a gradient at first, and after more steps, from the first weights again, does not; cached."""
    first = subject.gradients().stats
    faint = _faint(subject)
    try:
        with _after_steps(subject) as model:
            seen = []
            for _ in ("the weights that the steps left", "the first ones"):
                clear_gradients(model)
                seed_everything(subject.seed)
                subject.passes(model, subject.batch().clone())
                seen.append(gradient_stats(model))
                _restart(subject, model)
            trained = {n for n, p in model.named_parameters() if p.requires_grad}
    except SubjectError:
        return ()  # what raises is explained by others
    return tuple(
        name
        for name, stat in first.items()
        if stat.kind == "live"
        and stat.norm > faint
        and name in trained
        and all(name in now and _is_gone(now[name], stat) for now in seen)
    )


def _is_gone(now: GradStat, first: GradStat) -> bool:
    return now.kind in ("none", "zero") or now.norm < _GONE * first.norm


@contextlib.contextmanager
def after_many(subject: Subject) -> Iterator[nn.Module]:
    """Give the model after some steps, with its first weights and statistics put back."""
    with _after_steps(subject) as model:
        _restart(subject, model)
        yield model


@contextlib.contextmanager
def _after_steps(subject: Subject) -> Iterator[nn.Module]:
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        optimizer = subject.make_optimizer(model)
        batch = later_batch(subject, few=True)
        for step in range(MANY):
            seed_everything(seed_of(subject, step))
            subject.train_step(model, optimizer, batch.clone())
        model.train()
        yield model


def _restart(subject: Subject, model: nn.Module) -> None:
    """Put back the first weights and statistics, and nothing else that steps have changed: no count of calls."""
    clear_gradients(model)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            then = subject.state.original(tensor)
            if then is None or then.shape != tensor.shape or has_counted(then, tensor):
                continue
            if tensor.is_floating_point() or tensor.numel() == 1:
                tensor.copy_(then)


def fades(subject: Subject, names: Collection[str]) -> tuple[str, ...]:
    """Return which parameters nearly stop after the first step, though their gradients do not fall.

    A forward in training mode comes first: initial values that it takes from the data are no step.
    """
    if not names:
        return ()
    norms: dict[str, list[float]] = {name: [] for name in names}
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        try:
            with torch.no_grad():
                subject.call(model, subject.batch().clone())
            made = subject.make_optimizer(model)
            if schedulers_of(made):
                return ()
            strides = Strides(model)
            rates = []
            for step in range(MANY):
                seed_everything(subject.seed + step)  # each draws anew which of them it moves
                subject.train_step(model, made, subject.batch().clone())
                strides.look(model)
                rates.append(
                    max((float(g.get("lr", 1.0)) for o in optimizers_of(made) for g in o.param_groups), default=1.0)
                )  # fmt: skip
                for name, stat in gradient_stats(model).items():
                    if name in norms:
                        norms[name].append(stat.norm if stat.kind == "live" else 0.0)
        except SubjectError:
            return ()
    if subject.contract.train_step is not None and min(rates) < _ALIVE * rates[0]:
        return ()  # a schedule of the step's own
    still, faint = set(strides.fading()), _faint(subject)
    return tuple(
        n for n in names if n in still and max(norms[n][:1], default=0) > faint and _stays(norms[n])
    )


def _faint(subject: Subject) -> float:
    """Return the norm below which a gradient may be a structural zero, which rounding makes."""
    norms = [s.norm for s in subject.gradients().stats.values() if math.isfinite(s.norm)]
    return _FAINT * max(norms, default=0.0)


def _stays(norms: list[float]) -> bool:
    """Say whether a gradient is there in most later steps, not much smaller than in the first."""
    later = [norm >= _ALIVE * norms[0] > 0 for norm in norms[1:]]
    return sum(later) > len(later) / 2


def decays_alone(subject: Subject, made: Trajectory) -> tuple[str, ...]:
    """Return parameters that steps only shrink, though others follow gradients no larger than theirs."""
    names = made.left.decaying
    if not names:
        return ()
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        try:
            subject.passes(model, subject.batch().clone())
        except SubjectError:
            return ()
        parameters = dict(model.named_parameters())
        rms = {n: _rms(p.grad) for n, p in parameters.items() if p.grad is not None}
        others = {n: rms[n] for n in made.left.follows if rms.get(n, 0.0) > 0}
        found = []
        for name in names:
            p = parameters[name]
            if p.grad is None or not rms.get(name) or _parallel(p.detach(), p.grad):
                continue
            step = made.left.resolutions.get(name, 0.0) * _SETTLED
            if any(
                other <= 10 * rms[name] and made.left.follows[n] > 10 * step
                for n, other in others.items()
            ):
                found.append(name)
    return tuple(found)


def _rms(grad: torch.Tensor) -> float:
    dense = trees.dense(grad).double()
    return float(dense.square().mean().sqrt()) if dense.numel() else 0.0


def _parallel(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = trees.dense(a).double().flatten(), trees.dense(b).double().flatten()
    lengths = float(a.norm() * b.norm())
    return lengths > 0 and abs(float(a @ b)) >= (1 - _PARALLEL) * lengths


def unused_call(subject: Subject) -> int | None:
    """Return a call of the step whose gradient is dropped: it moves nothing, and nothing later depends on its batch.

    A step that accumulates moves nothing either, but its later steps depend on the batch. Where no later call moves
    anything, more calls have come to rest than have ever waited for one that moves, and none keeps its gradient.
    """
    batch, other = subject.batch(), _first_alone(subject)
    if other is None:
        return None
    try:
        base = list(_calls(subject, [batch] * MANY))
        weights = [state[0] for state in base]
        if len(base) < MANY:
            return None
        rests = [k for k in range(1, MANY) if same_results(weights[k], weights[k - 1])]
        idle = [
            k
            for k in rests
            if base[k][1] and all(bool(torch.isfinite(g).all()) for g in base[k][1].values())
        ]
        moving = [k for k in range(1, MANY) if k not in rests]
        last = max(moving, default=0)
        waited = max((b - a for a, b in itertools.pairwise((0, *moving))), default=MANY)
        ended = last + 1 in idle and MANY - 1 - last > waited
        for k in [k for k in idle if k < min(last, MANY - 2)][:1] or [last + 1] * ended:
            tried = list(_calls(subject, [other if n == k else batch for n in range(MANY)]))
            if same_results(tried[k][1], base[k][1]) or not same_results(tried[k][0], weights[k]):
                return None  # it reads nothing, or it is the data that decide
            if k > last and not same_results(tried[k + 1][1], base[k + 1][1]):
                return None  # the gradient is kept for a later call
            if same_results(tried[-1][0], weights[-1]):
                return k
    except SubjectError:
        return None
    return None


def moves_blindly(subject: Subject) -> bool:
    """Say whether the step moves weights bit for bit alike for another batch, of which gradients have other signs."""
    other = _first_alone(subject)
    if other is None:
        return False
    try:
        ours, theirs = (list(_calls(subject, [b] * _FEW)) for b in (subject.batch(), other))
    except SubjectError:
        return False
    turned = [
        bool((trees.dense(g) * trees.dense(after[name]) < 0).any())
        for (_, before), (_, after) in zip(ours, theirs, strict=True)
        for name, g in before.items()
        if name in after
    ]
    return any(turned) and all(
        same_results(weights, again) for (weights, _), (again, _) in zip(ours, theirs, strict=True)
    )


_FEW: Final = 4
"""Calls of a step, of which one at least applies what it has: a step may accumulate."""
_LATER: Final = (1, 2)


def inputs_late(subject: Subject) -> bool:
    """Say whether later calls of the step train on their own targets and on other inputs than their own.

    Inputs of other samples in the first call, its targets left, give other gradients there; in the calls after it
    they give the very same ones, though other targets alone do not. A step that holds both back keeps them together.
    """
    batch, symbol = subject.batch(), subject.source.batch_symbol
    size = 0 if symbol is None else batch.sizes.get(symbol, 0)
    turned = subject.source.rows(batch, torch.arange(size).roll(1)) if size > 1 else None
    if turned is None:
        return False
    moved = replace(batch, args=turned.args, kwargs=turned.kwargs)
    relabelled = replace(batch, targets=turned.targets)

    def gradients(at: int, other: Batch) -> _Tensors:
        made = list(_calls(subject, [other if n == at else batch for n in range(at + 1)]))
        return made[at][1]

    try:
        base = [arrived for _, arrived in _calls(subject, [batch] * (_LATER[-1] + 1))]
        if not all(base) or same_results(gradients(0, moved), base[0]):
            return False
        return all(
            same_results(gradients(k, moved), base[k])
            and not same_results(gradients(k, relabelled), base[k])
            for k in _LATER
        )
    except SubjectError:
        return False


_Tensors = dict[str, torch.Tensor]


def _calls(subject: Subject, batches: list[Batch]) -> Iterator[tuple[_Tensors, _Tensors]]:
    """Yield the weights after each call of the step, and the gradients that reached them in it."""
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        optimizer = subject.make_optimizer(model)
        with _arrivals(model) as arrived:
            for step, batch in enumerate(batches):
                arrived.clear()
                seed_everything(seed_of(subject, step))
                subject.train_step(model, optimizer, batch.clone())
                groups = [g for o in optimizers_of(optimizer) for g in o.param_groups]
                if groups and all(g.get("lr") == 0 for g in groups):
                    return  # a schedule has ended
                yield {n: p.detach().clone() for n, p in model.named_parameters()}, dict(arrived)


@contextlib.contextmanager
def _arrivals(model: nn.Module) -> Iterator[_Tensors]:
    """Keep a copy of each gradient as backward leaves it, whatever clears it later."""
    arrived: _Tensors = {}

    def keep(name: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            arrived[name] = parameter.grad.clone()

    handles = [
        parameter.register_post_accumulate_grad_hook(functools.partial(keep, name))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        yield arrived
    finally:
        for handle in handles:
            handle.remove()


@remembered("blind-direction")
def blind_direction(subject: Subject) -> bool:
    """Say whether a step has a gradient along the very same line for the batch and for its first sample alone; cached.

    The sample stands as often in the batch as there are samples: no size changes. A step without targets may
    draw its data by itself, as at the points of a differential equation.
    """
    same = _first_alone(subject) if targets_of(subject.batch()) else None
    if same is None:
        return False
    try:
        base, other = by_step(subject, subject.batch()), by_step(subject, same)
    except SubjectError:
        return False
    if not base or not other or base.keys() != other.keys():
        return False
    asked = [
        k for k in base if k.startswith("gradient ") and trees.dense(base[k]).numel() >= _FEWEST
    ]
    asked = [k for k in asked if bool(trees.dense(base[k]).any())]
    if sum(trees.dense(base[k]).numel() for k in asked) < 4 * _FEWEST:
        return False
    return all(_parallel(base[k], other[k]) for k in asked)


def _first_alone(subject: Subject) -> Batch | None:
    """Return the batch with its first sample in every place; None where it has no samples to choose.

    Another batch of a user who declared one holds the same samples in another order, and has the same gradient.
    """
    batch, symbol = subject.batch(), subject.source.batch_symbol
    size = 0 if symbol is None else batch.sizes.get(symbol, 0)
    return subject.source.rows(batch, torch.zeros(size, dtype=torch.int64)) if size > 1 else None

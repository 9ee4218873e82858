"""Does the loss fall along its gradient as the gradient says: differences in float64."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...objects import trees
from ...objects.kinds import here
from ...probes.gradient.surrogates import Held, held_between
from ...probes.recorded.watch import nodes_of
from ...state import ModuleState, has_drawn, random_states, seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...subject.remembered import remembered
from ..training.few import many_targets
from ..variants.woken import jitter, jittered
from .followed import (
    APART,
    CLOSE,
    CLOSE_ROUNDED,
    FIRST,
    SHORT,
    STEEP_SHORT,
    STEEPEST,
    SURE,
    Descent,
    Slope,
    is_steep,
    steps_of,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from ...batches import Batch
    from ...probes.recorded.watch import Op
    from ...subject import Subject

_STEADY = 1e-12  # relative: parameters that went to and fro round once
_SMALLEST = 1e-8  # of the loss: a slope that rounding does not hide
_Ways = dict[str, torch.Tensor]
_TOLD = 8  # so many parameters whose slope is another are looked for
_SAMPLES = 3
"""Of two values a statistic over the batch keeps no more than which is larger, and passes no gradient on."""


class _Losses:
    """Evaluates the loss at moved parameters, from the same state and seed each time."""

    def __init__(self, subject: Subject, model: nn.Module, batch: Batch) -> None:
        self._subject, self._model, self._batch = subject, model, batch
        self._state = ModuleState(model)
        self._narrow = False
        self._moves: dict[str, tuple[torch.Tensor, torch.Tensor, float]] = {}
        self.promises: dict[str, float] = {}

    def now(self) -> torch.Tensor:
        """Return the loss of a fresh forward, with its graph where gradients are on."""
        self._state.restore(parameters=False)
        self._model.train()
        seed_everything(self._subject.seed)
        batch = self._batch.clone()
        output = self._subject.call(self._model, batch)
        if not self._narrow:
            try:
                return self._subject.compute_loss(output, batch)
            except SubjectError as error:
                if error.phase != "loss" or self.promises:
                    raise
                self._narrow = True
        # a loss may hold tensors of its own, such as weights of classes, in float32
        wide = {id(t): t for t in trees.floats(output).values() if t.dtype == torch.float64}
        cast = trees.substitute(output, {key: t.float() for key, t in wide.items()})
        return self._subject.compute_loss(cast, batch.to(dtype=torch.float32))

    def along(self, ways: _Ways) -> None:
        """Take the directions in which parameters move, each with the length of its step."""
        parameters = dict(self._model.named_parameters())
        for name, way in ways.items():
            wide = torch.complex128 if way.is_complex() else torch.float64
            size = float(torch.linalg.vector_norm(way, dtype=wide))
            reach = float(torch.linalg.vector_norm(parameters[name].detach()))
            if size > 0 and reach > 0 and math.isfinite(size):
                self._moves[name] = (parameters[name], way, reach / size)
                self.promises[name] = reach * size
            elif not math.isfinite(size):
                self.promises[name] = math.nan

    def step(self, step: float, names: Iterable[str] | None = None) -> None:
        """Move some parameters, or all, along their gradients by a share of their size."""
        _move([self._moves[name] for name in (self._moves if names is None else names)], step)

    def around(self, step: float, rounded: float) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Return the loss ahead and behind, and the step to both sides; the parameters stay behind.

        Args:
            step: The step.
            rounded: That of a loss that comes out in float32.
        """
        self.step(step)
        ahead = self.now()
        if ahead.dtype == torch.float32:
            self.step(rounded - step)
            ahead, step = self.now(), rounded
        self.step(-2 * step)
        return ahead, self.now(), step

    def draws(self) -> bool:
        """Say whether a forward draws random numbers."""
        seed_everything(self._subject.seed)
        before = random_states()
        self.now()
        return has_drawn(before)

    def slope(
        self,
        step: float,
        loss: float,
        names: Iterable[str] | None = None,
        *,
        promised: float = math.nan,
        close: float = CLOSE,
    ) -> Slope:
        """Measure the slope of the loss along the gradients of some parameters, or of all.

        Args:
            step: By what share of its own size each parameter moves.
            loss: At the point.
            names: Of the parameters; all of them by default.
            promised: Where the slope ahead is this one, the one behind is not measured.
            close: By so much of it the slope ahead may differ.
        """
        names = None if names is None else list(names)
        self.step(step, names)
        ahead = behind = (float(self.now().detach()) - loss) / step
        if abs(ahead / promised - 1) <= close:
            self.step(-step, names)
        else:
            self.step(-2 * step, names)
            behind = (loss - float(self.now().detach())) / step
            self.step(step, names)
        return Slope(step=step, ahead=ahead, behind=behind)


def _ways(model: nn.Module, loss: torch.Tensor) -> _Ways:
    """Run backward; return the gradients in float32 by the names of their parameters."""
    ways: _Ways = {}

    def take(name: str, parameter: torch.Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None and parameter.numel():
            gradient = trees.dense(gradient)
            ways[name] = gradient.to(torch.complex64 if gradient.is_complex() else torch.float32)

    handles = [
        parameter.register_post_accumulate_grad_hook(functools.partial(take, name))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    return ways


@torch.no_grad()
def _move(chosen: list[tuple[torch.Tensor, torch.Tensor, float]], step: float) -> None:
    for parameter, gradient, length in chosen:
        here(parameter).add_(gradient, alpha=step * length)


def few_samples(subject: Subject) -> Batch:
    """Return the base batch, cut to a few samples where that is possible."""
    batch = subject.batch()
    few = 2 if many_targets(subject, batch) else _SAMPLES
    return subject.few(batch, few, aligned=True) or batch


@remembered("descent")
def descent(subject: Subject) -> Descent:
    """Compare the slope of the loss along its gradient with the gradient; cached.

    The weights are moved a little at random first, away from ties and zero-initialised parts. Each
    parameter moves along its gradient by the same share of its size. One forward and backward in float32
    and two forwards in float64; where that leaves a doubt, the gradient is taken in float64 too.
    """
    return _single(subject) or _double(subject)


def _single(subject: Subject) -> Descent | None:
    """Compare with the gradient at the same weights in float32; None where that does not settle it."""
    watched = subject.cache.get("observation")
    floats = {p.dtype for p in subject.model.parameters()}
    if floats != {torch.float32} or watched is None or watched.signals.drawn or is_steep(subject):
        return None  # what is drawn in another dtype is something else
    batch = few_samples(subject)
    try:
        with subject.pristine(steps=True, train=True) as model, torch.enable_grad():
            jitter(model, seed=subject.seed)
            clear_gradients(model)
            seed_everything(subject.seed)
            given = batch.clone()
            loss = subject.compute_loss(subject.call(model, given), given)
            if loss.dim() or not loss.requires_grad:
                return None
            ways = _ways(model, loss)
            subject.state.restore(parameters=False)  # what the forward left, such as a cache
            subject.state.put_gradients_aside()
            subject.convert(model, torch.float64)
            torch.set_default_dtype(torch.float64)
            losses = _Losses(subject, model, batch.to(dtype=torch.float64))
            losses.along(ways)
            return _settled(losses, float(loss.detach()))
    except (SubjectError, RuntimeError):
        return None


def _settled(losses: _Losses, loss: float) -> Descent | None:
    promised = sum(losses.promises.values())
    if not math.isfinite(promised) or not promised > _SMALLEST * abs(loss):
        return None  # also where the loss is NaN
    if promised > STEEPEST * abs(loss):
        return None  # a gradient of float32 is off by more than rounding there
    step = SHORT if promised >= STEEP_SHORT * abs(loss) else steps_of(False, promised, loss)[0]
    with torch.no_grad():
        ahead, behind, step = losses.around(step, steps_of(True, promised, loss)[0])
    if ahead.dtype not in (torch.float64, torch.float32):
        return None
    narrow = ahead.dtype == torch.float32
    after, before = float(ahead), float(behind)
    close = SURE if narrow else CLOSE  # a loss that is rounded tells no more
    middle = (after - before) / (2 * step)
    found = Descent(loss=loss, promised=promised, narrow=narrow)
    if abs(middle / promised - 1) <= close:
        return replace(found, slopes=(Slope(step=step, ahead=middle, behind=middle),))
    losses.step(step)
    with torch.enable_grad():
        value = losses.now()
        if value.dim() or not value.requires_grad:
            return None
        loss, nodes = float(value.detach()), custom_functions(value)
        casts = narrow or bool(nodes) or _rounds(value)
        del value
    first = Slope(step=step, ahead=(after - loss) / step, behind=(loss - before) / step)
    if abs(first.ahead / promised - 1) <= (CLOSE_ROUNDED if narrow else CLOSE):
        first = replace(first, behind=first.ahead)
    with torch.no_grad():
        found = replace(found, loss=loss, nodes=nodes, casts=casts, slopes=(first,))
        found = _slopes(losses, found)
    return found if found.holds or found.measured is None else None


def _double(subject: Subject) -> Descent:
    """Compare with the gradient in float64."""
    batch = few_samples(subject).to(dtype=torch.float64)
    try:
        with jittered(subject, seed=subject.seed) as model:
            clear_gradients(model)
            losses = _Losses(subject, model, batch)
            with torch.enable_grad():
                before = _values(model)
                value = losses.now()
                if not _unwritten(model, before):
                    # data-dependent initialisation: measured from the state that it leaves
                    losses, before = _Losses(subject, model, batch), _values(model)
                    value = losses.now()
                if not _unwritten(model, before):
                    return Descent(refused="the forward writes to parameters")
                if value.dim() or not value.requires_grad:
                    return Descent(refused="the loss is no scalar with a graph")
                if value.dtype not in (torch.float64, torch.float32):
                    return Descent(refused=f"the loss is computed in {value.dtype}")
                narrow = value.dtype != torch.float64
                nodes = custom_functions(value)
                casts = narrow or bool(nodes) or _rounds(value)
                found = Descent(loss=float(value.detach()), nodes=nodes, casts=casts, narrow=narrow)
                losses.along(_ways(model, value))
                return _compared(losses, found)
    except SubjectError as error:
        return Descent(refused=f"the {error.phase} raises {type(error.error).__name__} in float64")
    except RuntimeError as error:
        return Descent(refused=f"backward raises {type(error).__name__} in float64")


def _values(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def _unwritten(model: nn.Module, before: list[torch.Tensor]) -> bool:
    """Say whether the parameters are what they were: a write to ``.data`` leaves no version behind."""
    return all(map(trees.same, (p.detach() for p in model.parameters()), before))


def _slopes(losses: _Losses, found: Descent) -> Descent:
    """Measure at one step after the other, until one says enough; a slope at the first of them may be known."""
    first, *others = steps_of(found.narrow, found.promised, found.loss)
    close = CLOSE_ROUNDED if found.narrow else CLOSE
    for step in (first, *sorted(others)):
        if step not in [slope.step for slope in found.slopes]:
            slope = losses.slope(step, found.loss, promised=found.promised, close=close)
            found = replace(found, slopes=(*found.slopes, slope))
        # a step that is larger than the first tells of nothing but rounding
        exact = not found.casts and (len(found.slopes) > 1 or found.kinked)
        if found.holds or found.measured is not None or exact:
            break
    return found


def _compared(losses: _Losses, found: Descent) -> Descent:
    loss, promised = found.loss, sum(losses.promises.values())
    if not (math.isfinite(loss) and math.isfinite(promised)):
        return Descent(refused="loss or gradient is not finite in float64")
    if promised <= _SMALLEST * abs(loss):
        return Descent(refused="the gradient is zero, or too small to be measured")
    found = _slopes(losses, replace(found, promised=promised))
    if found.holds or found.measured is None:
        return found
    again = float(losses.now().detach())
    steady = abs(again - loss) <= (1e-6 if found.narrow else _STEADY) * abs(loss)
    if not steady:
        return replace(found, steady=False)
    first = found.slopes[0].step
    return replace(found, random=losses.draws(), wrong=_wrong(losses, loss, promised, first))


def _wrong(
    losses: _Losses, loss: float, promised: float, step: float, most: int = 24
) -> dict[str, float]:
    """Look for parameters whose slope misses, by halves, the largest promises first; return the ratios."""
    order = sorted(losses.promises, key=lambda name: -losses.promises[name])[:most]
    large = [name for name in order if losses.promises[name] > 1e-4 * promised]
    groups = [large] if large else []
    found: dict[str, float] = {}
    while groups and len(found) < _TOLD:
        names = groups.pop()
        alone = len(names) == 1
        promise = sum(losses.promises[name] for name in names)
        close = 3 * APART if alone else APART
        slope = losses.slope(step, loss, names, promised=promise, close=close)
        if abs(slope.middle / promise - 1) <= close:
            continue
        if alone:
            found[names[0]] = slope.middle / promise
        else:
            half = len(names) // 2
            groups += [names[half:], names[:half]]
    return found


def custom_functions(value: torch.Tensor) -> tuple[str, ...]:
    """Return the names of the custom autograd Functions behind a value."""
    custom = torch.autograd.function.BackwardCFunction
    found = {type(node).__name__ for node in nodes_of(value.grad_fn) if isinstance(node, custom)}
    return tuple(sorted(name.removesuffix("Backward") for name in found))


def _rounds(value: torch.Tensor) -> bool:
    """Say whether a cast lies behind a value."""
    return any(type(node).__name__ == "ToCopyBackward0" for node in nodes_of(value.grad_fn))


def surrogates(subject: Subject, names: Iterable[str]) -> list[Op]:
    """Return the calls with a gradient whose value stays while their operands move.

    Watched forwards in float64: one at the point, and for each parameter one a small step along its
    gradient.

    Args:
        subject: Whose loss.
        names: Parameters that move one by one; all together where there are none.
    """
    batch = few_samples(subject).to(dtype=torch.float64)
    try:
        with jittered(subject, seed=subject.seed) as model, torch.enable_grad():
            clear_gradients(model)
            losses = _Losses(subject, model, batch)
            losses.along(_ways(model, losses.now()))
            with Held(model) as here:
                losses.now()
            ways: list[list[str] | None] = [[name] for name in names]
            for chosen in ways or [None]:
                losses.step(FIRST, chosen)
                with Held(model) as there:
                    losses.now()
                losses.step(-FIRST, chosen)
                if found := held_between(here, there):
                    return found
    except (SubjectError, RuntimeError):
        return []
    return []

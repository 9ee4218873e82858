"""Does the loss fall along its gradient as the gradient says: differences in float64."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from ...objects import trees
from ...probes.gradient.surrogates import Held, held_between
from ...probes.recorded.watch import nodes_of
from ...state import ModuleState, has_drawn, random_states, seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...subject.remembered import remembered
from ..double import jittered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from ...batches import Batch
    from ...probes.recorded.watch import Op
    from ...subject import Subject

FIRST = 1e-5
"""Relative step of every parameter up to which the curvature is far below the tolerance."""
EXACT = (FIRST, 1e-3, 1e-6)
"""The steps, in this order: casts to float32 within the model need a larger, curvature a smaller one."""
ROUNDED = (1e-3, 3e-4, 3e-3)
"""The steps where the loss itself comes out in float32, as of logits that a model casts."""
_STEEP, _STEEP_ROUNDED = 1e-3, 3.0
"""Times the loss: such a slope stands out of the rounding at the smallest of the steps, which then comes first."""
CLOSE, CLOSE_ROUNDED = 1e-4, 1e-3
"""A ratio that misses 1 by no more holds: in float64; at the largest step."""
APART = 3e-4
"""A ratio that misses 1 by more, at two steps alike, does not."""
SURE = 0.01
"""Below it, what misses 1 and is not explained may be rounding within the model."""
_ALIKE = 0.1  # of the distance to 1: by so much may the ratios of two steps differ
_ONE_SIDED = (
    0.5  # of what is missing: by so much may the slopes of both sides differ; else there is a kink
)
_MANY = (
    20 * CLOSE
)  # of the slope: so much between both sides is too much at a tenth of the step, too
_STEADY = 1e-12  # relative: parameters that went to and fro round once
_SMALLEST = 1e-8  # of the loss: a slope that rounding does not hide
_TOLD = 8  # so many parameters whose slope is another are looked for
_SAMPLES = 3
"""Of two values a statistic over the batch keeps no more than which is larger, and passes no gradient on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """The loss at one step to both sides.

    Attributes:
        step: By what share of its own size each parameter moves.
        ahead: Slope of the loss along the gradient, from the point on.
        behind: Slope up to the point.
    """

    step: float
    ahead: float
    behind: float

    @property
    def middle(self) -> float:
        """Slope from both sides, with an error of the second order."""
        return (self.ahead + self.behind) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """What the gradient says of the loss, and what the loss does.

    Attributes:
        loss: At the point where the gradient was taken.
        promised: The slope that the gradient says.
        slopes: The measured ones, the first step first.
        refused: Why nothing was measured, or empty.
        nodes: Names of the custom autograd Functions in the graph.
        casts: Whether the graph may round to float32 on its way: a cast, or a custom Function.
        narrow: Whether the loss comes out in float32.
        random: Whether the forward draws random numbers; only asked where the first slope misses.
        steady: Whether a second evaluation gives the same loss; only asked where the slopes miss.
        wrong: By the name of a parameter, its measured slope as a share of what its gradient says;
            only of those that miss.
    """

    loss: float = math.nan
    promised: float = 0.0
    slopes: tuple[Slope, ...] = ()
    refused: str = ""
    nodes: tuple[str, ...] = ()
    casts: bool = False
    narrow: bool = False
    random: bool = False
    steady: bool = True
    wrong: dict[str, float] = field(default_factory=dict)

    def ratio(self, slope: Slope) -> float:
        """Return a measured slope as a share of the promised one."""
        return slope.middle / self.promised

    @property
    def compared(self) -> tuple[Slope, Slope]:
        """The first step and the smallest other one; the first twice where there is no other."""
        return self.slopes[0], min(self.slopes[1:] or self.slopes, key=lambda slope: slope.step)

    @property
    def holds(self) -> bool:
        """Say whether some step shows the promised slope."""
        near = any(abs(self.ratio(s) - 1) <= CLOSE for s in self.slopes if s.step <= FIRST)
        far = any(abs(self.ratio(s) - 1) <= CLOSE_ROUNDED for s in self.slopes if s.step > FIRST)
        # where the loss is rounded, what misses by less could not be told from it
        rounded = self.narrow and abs(self.ratio(self.slopes[0]) - 1) < SURE
        return near or rounded or (far and self.measured is None)

    @property
    def kinked(self) -> bool:
        """Say whether kinks explain what the first step misses, too many for a smaller one to show the slope."""
        first = self.slopes[0]
        gap = abs(first.ahead - first.behind) / self.promised
        return gap > max(_ONE_SIDED * abs(self.ratio(first) - 1), _MANY)

    @property
    def measured(self) -> float | None:
        """The share of the promised slope, where two steps agree that it is not 1; or None."""
        first, again = self.compared
        missing = abs(self.ratio(first) - 1)
        if first is again or missing < (SURE if self.narrow else APART):
            return None
        small = min(first, again, key=lambda slope: slope.step)
        if abs(small.ahead - small.behind) > _ONE_SIDED * missing * self.promised:
            return None  # a kink
        ratio = self.ratio(first)
        return ratio if abs(ratio - self.ratio(again)) <= _ALIKE * missing else None


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

    def backward(self, loss: torch.Tensor) -> None:
        """Take the gradients in float32, each with the length of its step."""
        ways: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        handles = [
            parameter.register_post_accumulate_grad_hook(functools.partial(_take, ways, name))
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        ]
        try:
            loss.backward()
        finally:
            for handle in handles:
                handle.remove()
        for name, (parameter, way) in ways.items():
            wide = torch.complex128 if way.is_complex() else torch.float64
            size = float(torch.linalg.vector_norm(way, dtype=wide))
            reach = float(torch.linalg.vector_norm(parameter.detach()))
            if size > 0 and reach > 0 and math.isfinite(size):
                self._moves[name] = (parameter, way, reach / size)
                self.promises[name] = reach * size
            elif not math.isfinite(size):
                self.promises[name] = math.nan

    def step(self, step: float, names: Iterable[str] | None = None) -> None:
        """Move some parameters, or all, along their gradients by a share of their size."""
        _move([self._moves[name] for name in (self._moves if names is None else names)], step)

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


def _take(
    ways: dict[str, tuple[torch.Tensor, torch.Tensor]], name: str, parameter: torch.Tensor
) -> None:
    gradient, parameter.grad = parameter.grad, None
    if gradient is not None and parameter.numel():
        gradient = trees.dense(gradient)
        narrow = torch.complex64 if gradient.is_complex() else torch.float32
        ways[name] = parameter, gradient.to(narrow)


@torch.no_grad()
def _move(chosen: list[tuple[torch.Tensor, torch.Tensor, float]], step: float) -> None:
    for parameter, gradient, length in chosen:
        parameter.add_(gradient, alpha=step * length)


def few_samples(subject: Subject) -> Batch:
    """Return the base batch, cut to a few samples where that is possible."""
    batch = subject.batch()
    return subject.few(batch, _SAMPLES, aligned=True) or batch


@remembered("descent")
def descent(subject: Subject) -> Descent:
    """Compare the slope of the loss along its gradient with the gradient; cached.

    The weights are moved a little at random first, away from ties and zero-initialised parts. Each
    parameter moves along its gradient by the same share of its size. One forward and backward and
    one forward in float64, a second where its slope is not the promised one; where that misses, two
    at other steps each, and, where two steps agree on another slope, two for some parameters.
    """
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
                losses.backward(value)
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


def _compared(losses: _Losses, found: Descent) -> Descent:
    loss, promised = found.loss, sum(losses.promises.values())
    if not (math.isfinite(loss) and math.isfinite(promised)):
        return Descent(refused="loss or gradient is not finite in float64")
    if promised <= _SMALLEST * abs(loss):
        return Descent(refused="the gradient is zero, or too small to be measured")
    first, *others = ROUNDED if found.narrow else EXACT
    if promised >= (_STEEP_ROUNDED if found.narrow else _STEEP) * abs(loss):
        first, *others = sorted((first, *others))
    close = CLOSE_ROUNDED if found.narrow else CLOSE
    found = replace(found, promised=promised)
    for step in (first, *sorted(others)):
        slope = losses.slope(step, loss, promised=promised, close=close)
        found = replace(found, slopes=(*found.slopes, slope))
        # a step that is larger than the first tells of nothing but rounding
        exact = not found.casts and (len(found.slopes) > 1 or found.kinked)
        if found.holds or found.measured is not None or exact:
            break
    if found.holds or found.measured is None:
        return found
    again = float(losses.now().detach())
    steady = abs(again - loss) <= (1e-6 if found.narrow else _STEADY) * abs(loss)
    if not steady:
        return replace(found, steady=False)
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
            losses.backward(losses.now())
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

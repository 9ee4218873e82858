"""The losses that the user's own training step computes: what it calls, subtracts, adds, and replaces unread."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ... import sources
from ...lean import dataclass
from ...objects import trees
from ...probes.gradient.penalties import PartialNorms, Turned, reflected
from ...probes.gradient.row_sums import Apart, RowSums
from ...probes.loss.consumption import LossWatch
from ...probes.loss.directions import order_of
from ...probes.loss.regrouping import Regroupings
from ...probes.loss.terms import Terms
from ...probes.recorded.unread import UnreadWatch
from ...probes.recorded.watch import name_of, tensors_in
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from ..liveness.unread import judged
from ..training.observation import number_of
from .consumption import LossEvidence, describe
from .shapes import stretched

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ...batches import Batch
    from ...findings import Location
    from ...probes.gradient.penalties import PartialNorm
    from ...probes.gradient.row_sums import RowSum
    from ...probes.loss.terms import IdleTerm
    from ...probes.recorded.unread import Place
    from ...subject import Subject

_NORMS: Final = (0.1, 1.0, 10.0)
"""Norms of which one is near enough to that which a penalty asks for."""
_ROUNDING: Final = 1e-5


class _StepWatch(LossWatch):
    """Counts what the modules return that the step itself calls as outputs.

    Args:
        module: Names are qualified relative to it.
        batch: What the step is given.

    Attributes:
        orders: In which orders modules got the samples of the batch.
    """

    def __init__(self, module: nn.Module, batch: Batch) -> None:
        super().__init__(module)
        targets = trees.tensors(batch.targets).values()
        inputs = [leaf for _, leaf in batch.input_leaves() if isinstance(leaf, Tensor)]
        self.norms = PartialNorms()
        self.row_sums = RowSums(self)
        self.terms = Terms()
        self.regroupings = Regroupings(inputs, targets)
        self.between((), targets)
        self.comparisons.of(batch.tensors().values())
        self.comparisons.hooked = self.undefined.hooked = True
        self.orders: set[tuple[int, ...]] = set()
        self._batch = [tensor for tensor in self.comparisons.labels if tensor.is_floating_point()]

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Follow derivatives too."""
        super().after(func, args, kwargs, result, token)
        name = name_of(func)
        self.norms.see(name, args, kwargs, result, lambda: self.op(name))
        self.row_sums.see(name, args, kwargs, result)
        bare = name.rpartition(".")[2]
        self.terms.see(bare, args, kwargs, result, lambda: self.op(name))
        if not self.scopes:
            self.regroupings.see(bare, args, kwargs, result, lambda: self.op(name))

    def backward_called(self, root: Tensor) -> None:
        """Take a loss apart."""
        super().backward_called(root)
        self.terms.differentiated(root, self.leaves)

    def module_left(self, module: nn.Module, args: Any, result: Any) -> None:
        """Take the outputs of a module that no other module called."""
        if len(self.scopes) == 1:
            self.regroupings.called(tensors_in(args))
            pairs = [(a, b) for a in tensors_in(args) for b in self._batch if a.shape == b.shape]
            found = [order_of(a.detach(), b) for a, b in pairs]
            self.orders |= {order for order in found if order is not None}
            self.comparisons.order = next(iter(self.orders)) if len(self.orders) == 1 else None
            self.between(list(tensors_in(result)), ())


@remembered("step-loss")
def step_evidence(subject: Subject) -> LossEvidence | None:
    """Watch the loss functions of one training step; None where the step raises. Cached.

    There is no one loss of a step, so that its value is not part of it; gradients are those that pass
    where outputs meet the labels of the batch. A broadcast is part of it where a loss function makes it, or where
    both an output and a target grow.
    """
    batch = subject.batch().clone()
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        watch = _StepWatch(model, batch)
        try:
            made = subject.make_optimizer(model)
            with watch, watch.terms.watching():
                value = number_of(subject.train_step(model, made, batch))
        except SubjectError:
            return None  # weights-update explains it
        return LossEvidence(
            shape=(),
            dtype="",
            value=math.nan,
            leaf=False,
            connected=True,
            consumed=tuple(describe(call, None, model) for call in watch.calls),
            broadcasts=stretched(watch),
            dead=tuple(watch.derivatives.found),
            logs=tuple(watch.logs),
            norms=tuple(watch.norms.found),
            row_sums=tuple(watch.row_sums.found),
            idle=tuple(watch.terms.idle(model)),
            directions=watch.comparisons.directions(value),
            fed=len(watch.orders) == 1,
            regrouped=watch.regroupings.apart(),
            crossed=watch.axes.every(),
            cosines=tuple(watch.lengths.found),
            noise=tuple(watch.noise.found),
            crosses=watch.crosses,
            undefined=tuple(watch.undefined.without_pull()),
        )


_LOOKED_AT: Final = 3
"""Terms; the first one that trains nothing is told."""
_AFTER: Final = 3
"""Further steps in which gradients may be applied that a step keeps, or adds up."""


def idle_term(subject: Subject) -> IdleTerm | None:
    """Return a term of a loss of the step that trains nothing, whatever its gradient is.

    Cost: nothing where the gradients of every term are applied; else a few steps, twice.
    """
    seen = step_evidence(subject)
    found = () if seen is None or seen.dead else seen.idle
    for term in found[:_LOOKED_AT]:
        if not term.reached or term.limited:
            return term  # no gradient of it is computed
        plain, turned = _trained(subject, term, 1.0), _trained(subject, term, -3.0)
        if plain is not None and turned is not None and all(map(torch.equal, plain, turned)):
            return term
    return None


def _trained(subject: Subject, term: IdleTerm, factor: float) -> list[Tensor] | None:
    """Return what some steps make of all parameters with the gradient of a term multiplied in the first of them.

    None where a step raises, and where the gradient is zero there: that of a term of weight 0, or held by a bound.
    """
    batch = subject.batch().clone()
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        watch = _StepWatch(model, batch)
        watch.terms.turned = (term.number, factor)
        named = dict(model.named_parameters())
        held = {id(p): p for p in named.values()}
        reached: list[bool] = []

        def arriving(gradient: Tensor) -> None:
            if torch._C._current_graph_task_id() in watch.terms.turning:
                reached.append(bool(gradient.any()))

        def stepping(optimizer: Any, *_: Any) -> None:
            held.update((id(p), p) for group in optimizer.param_groups for p in group["params"])

        handles: list[Any] = [register_optimizer_step_pre_hook(stepping)]
        handles += [named[name].register_hook(arriving) for name in term.reached if name in named]
        try:
            made = subject.make_optimizer(model)
            with watch:
                subject.train_step(model, made, batch)
            arrives = watch.terms.turning and (any(reached) or not reached)  # or is not the model's
            for number in range(1, _AFTER + 1):
                seed_everything(subject.seed + number)
                subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return None
        finally:
            for handle in handles:
                handle.remove()
        return [p.detach().clone() for p in held.values()] if arrives else None


def penalised_in_parts(subject: Subject, found: PartialNorm) -> int | None:
    """Return the dimension over which a penalty takes the norms of a derivative, for each entry of the others.

    None where the loss of the step depends on the derivative in another way: on each sample's whole
    norm, on its entries or their signs, or where no norm above zero has the lowest loss.

    Args:
        subject: Has a train step.
        found: As the step's evidence has it.
    """
    base = _loss_with(subject, found, _long)
    if base is None:
        return None

    def keeps(dim: int | None) -> bool:
        return _near(_loss_with(subject, found, lambda made: reflected(_long(made), dim)), base)

    if keeps(None):
        return None
    over = next((dim for dim in range(1, len(found.shape)) if keeps(dim)), None)
    if over is None:
        return None

    def at(size: float) -> float | None:
        return _loss_with(
            subject, found, lambda made: made * (size / made.detach().norm(dim=over).mean())
        )

    none, some = at(0.0), [at(size) for size in _NORMS]
    if none is None or None in some:
        return None
    lower = any(value < none and not _near(value, none) for value in some if value is not None)
    bounded = _near(some[0], none) and not _near(some[-1], none)
    return over if lower or bounded else None


_MIXED: Final = 1e-3
"""Of the largest second derivative: far above what rounding leaves between one that is taken alone and among others."""


def mixed_into(subject: Subject, found: RowSum) -> tuple[float, float] | None:
    """Return by how much mixed derivatives change second derivatives by single components, and how large these are.

    None where the mixed ones are zero, as those of a sum of functions of one component each.

    Args:
        subject: Has a train step.
        found: As the step's evidence has it.
    """
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        made = subject.make_optimizer(model)
        apart = Apart(found)
        try:
            with apart:
                subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return None
    return (apart.off, apart.size) if apart.off > _MIXED * apart.size else None


def _long(made: Tensor) -> Tensor:
    """Return the derivative at a size at which no norm is below a bound that a penalty may allow."""
    return made * (3.0 / made.detach().square().mean().sqrt())


def _near(one: float | None, other: float) -> bool:
    return one is not None and abs(one - other) <= _ROUNDING * max(1.0, abs(other))


def _loss_with(
    subject: Subject, found: PartialNorm, change: Callable[[Tensor], Tensor]
) -> float | None:
    """Return the loss of the step on which a derivative is changed; None where it raises or has none."""
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        made = subject.make_optimizer(model)
        turned = Turned(found, change)
        try:
            with turned:
                subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return None
    return turned.loss if turned.loss is not None and math.isfinite(turned.loss) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLoss:
    """A line that computes numbers with a gradient, not all of which anything reads.

    Attributes:
        calls: How often it ran in one step.
        lost: How many of its results nothing read.
        location: The line.
        again: The line that binds the variable again; None where the same line does, in a loop.
    """

    calls: int
    lost: int
    location: Location
    again: Location | None


def lost_loss(subject: Subject) -> LostLoss | None:
    """Return a loss that the declared step computes itself and loses.

    One whose name it never reads may be there for a debugger.

    Cost: nothing where the step calls a single loss function; else one step.
    """
    seen = step_evidence(subject)
    if subject.contract.train_step is None or seen is None or len(seen.consumed) < 2:
        return None
    watch = _Losses()
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        try:
            made = subject.make_optimizer(model)
            with watch:
                returned = subject.train_step(model, made, subject.batch().clone())
            del returned
        except SubjectError:
            return None
    for place, lost in watch.missed.items():
        calls = watch.made[place]
        again = None
        if lost == calls:
            known = judged(place)
            if known is None or known.kind != "overwritten":
                continue
            again = known.again
        elif watch.in_order(place) != [False] * lost + [True]:
            continue  # a turn may be left before its end, by an early stop for one
        where = sources.of_line(place.file, place.span[0] or 0, place.function)
        return LostLoss(calls=calls, lost=lost, location=where, again=again)
    return None


class _Losses(UnreadWatch):
    """Follows the numbers with a gradient that no module computes."""

    def in_order(self, place: Place) -> list[bool]:
        """Return of each number that a line made whether it was read."""
        return self._reads.in_order(place)

    def backward_called(self, root: Tensor) -> None:
        """Count what a backward pass begins at as read."""
        self._reads.given([root])

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Note a number with a gradient that the step itself computes."""
        number = isinstance(result, Tensor) and not result.dim() and result.requires_grad
        if number and not self.scopes:
            super().after(func, args, kwargs, result, token)

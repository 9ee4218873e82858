"""Terms of a loss that follow the weights, while their gradient cancels out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.graph import GradientEdge

from ...lean import dataclass
from ...probes.gradient.cancelling import cancelled
from ...probes.loss.terms import summands
from ...probes.recorded.watch import Watch, name_of, tensors_in
from ...state import seed_everything
from ...subject.gradients import clear_gradients
from ..variants.woken import jittered

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.autograd.graph import Node

    from ...batches import Batch
    from ...probes.recorded.watch import Op
    from ...subject import Subject

_MOVES: Final = 1e-3
"""Relative: weights that are moved by a twentieth of their size move what depends on them by far more."""


@dataclass(frozen=True, slots=True)
class CancelledTerm:
    """A term whose value follows the weights while its gradient cancels out.

    Attributes:
        values: The term at two places near the weights.
        made: The operation that computes it.
        meets: What computes the value at which opposite gradients meet; None where it is a parameter.
        parts: The operation that is given this value on both ways.
    """

    values: tuple[float, float]
    made: Op | None
    meets: Op | None
    parts: Op


class _Makers(Watch):
    """Notes which operation computes what a node of the graph belongs to, and the numbers that have one."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.ops: dict[Node, Op] = {}
        self.numbers: dict[Node, float] = {}

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Note the first operation whose result has a node."""
        new = {t.grad_fn: t for t in tensors_in(result) if t.grad_fn is not None}
        new = {node: tensor for node, tensor in new.items() if node not in self.ops}
        if new:
            self.ops.update(dict.fromkeys(new, self.op(name_of(func))))
            self.numbers.update({n: float(t.detach()) for n, t in new.items() if t.numel() == 1})


@dataclass(frozen=True, slots=True)
class _Term:
    value: float
    made: Op | None
    meets: Op | None
    parts: Op | None


def cancelled_term(subject: Subject, batch: Batch) -> CancelledTerm | None:
    """Return a term whose gradient cancels out wherever it reaches, at two places at which it is another number.

    Both places are near the weights, in float64, with the same random numbers. Where the gradient of a term rests on
    any way, as behind a hinge, a bound or a rounding, the term is not told of.

    Raises:
        SubjectError: The model or the loss raised.
    """
    one, two = (_terms(subject, batch, seed) for seed in (subject.seed, subject.seed + 1))
    if len(one) != len(two):
        return None
    for at, term in one.items():
        other = two.get(at)
        if other is None or term.parts is None:
            continue
        largest = max(abs(term.value), abs(other.value))
        if abs(term.value - other.value) > _MOVES * largest:
            values = (term.value, other.value)
            return CancelledTerm(values, term.made, term.meets, term.parts)
    return None


def _terms(subject: Subject, batch: Batch, seed: int) -> dict[int, _Term]:
    """Return the terms of the loss whose gradients cancel out, by their place, at weights that are moved a little."""
    given = batch.to(dtype=torch.float64)
    with jittered(subject, seed=seed) as model, torch.enable_grad():
        clear_gradients(model)
        model.train()
        seed_everything(subject.seed)
        with _Makers(model) as seen:
            loss = subject.compute_loss(subject.call(model, given), given)
        if loss.dim() or loss.grad_fn is None or loss.dtype != torch.float64:
            return {}
        found = {}
        with subject.phase("backward", batch):
            for at, node in enumerate(n for n, is_sum in summands(loss.grad_fn) if not is_sum):
                place = cancelled(node)
                if place is None or not _weighs(loss, node):
                    continue
                found[at] = _Term(
                    value=seen.numbers.get(node, 0.0),
                    made=seen.ops.get(node),
                    meets=seen.ops.get(place.meets),
                    parts=next(filter(None, map(seen.ops.get, place.parts)), None),
                )
        return found


def _weighs(loss: torch.Tensor, term: Node) -> bool:
    """Say whether a term is added to a loss with another weight than zero."""
    (weight,) = torch.autograd.grad(
        loss, [GradientEdge(term, 0)], retain_graph=True, allow_unused=True
    )
    return weight is not None and bool(weight.any())

"""A part of the loss that reads no sample, such as a KL divergence of weights, which the batch's size scales.

A full batch's gradient is then not what micro-batches add up to, though every sample counts alike. Only after a
finding: it runs the loss on the whole batch and on every part, and a backward pass for each sum in it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge

from ..lean import dataclass
from ..probes.loss.terms import one_of, summands
from ..probes.recorded.watch import Watch, name_of
from ..state import seed_everything
from .accumulation import divided, flat, in_double_without_noise

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.autograd.graph import Node

    from ..batches import Batch
    from ..findings import Location
    from ..probes.recorded.watch import Op
    from ..subject import Subject
    from .accumulation import Comparison

_MOST = 64
"""How many sums and terms of a loss are asked for their gradients."""
_LEFT = 1e-3
"""What may be left of a difference beside the gradient of a part that explains it."""
_SAME = 1e-6
"""How near two directions in float64 are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantPart:
    """The part of a loss that explains a wrong sum of micro-batches.

    Attributes:
        op: What computes it; where the size of the batch enters by its own operation, that one.
        location: The line of it.
        left: What is left of the difference beside its gradient, relative.
        times: How large its share of the loss is on a micro-batch, beside that on the whole batch.
        counted: How often the accumulated gradient counts it, beside the full batch's.
        sizes: Samples of a micro-batch, and of the batch.
    """

    op: Op
    location: Location | None
    left: float
    times: float
    counted: float
    sizes: tuple[int, int]

    @property
    def per_sample(self) -> bool:
        """Whether it is divided by the number of samples of the batch at hand."""
        part, whole = self.sizes
        return part > 0 and abs(self.times - whole / part) < _LEFT * self.times


class _Numbers(Watch):
    """Knows which operation made each number that has a gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.made: dict[Node, Op] = {}

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Note the operation of a number."""
        if isinstance(result, torch.Tensor) and result.grad_fn is not None and result.numel() == 1:
            self.made.setdefault(result.grad_fn, self.op(name_of(func)))


class _Taken:
    """The loss of one batch, taken apart into its sums and what they are of."""

    def __init__(self, subject: Subject, model: nn.Module, batch: Batch) -> None:
        self._leaves = {name: p for name, p in model.named_parameters() if p.requires_grad}
        seed_everything(subject.seed)
        given = batch.clone()
        numbers = _Numbers(model)
        with torch.enable_grad(), numbers:
            self.loss = subject.compute_loss(subject.call(model, given), given)
        node = self.loss.grad_fn
        self.nodes = [] if node is None else [n for n, _ in itertools.islice(summands(node), _MOST)]
        self.made = numbers.made

    def gradient(self, place: int) -> torch.Tensor:
        """Return the gradient of one of its parts, as a vector."""
        node, leaves = self.nodes[place], list(self._leaves.values())
        made = torch.autograd.grad(
            [GradientEdge(node, 0)], leaves, [one_of(node)], retain_graph=True, allow_unused=True
        )
        zeros = (torch.zeros_like(p) if g is None else g for p, g in zip(leaves, made, strict=True))
        return flat({n: g.to_dense().double() for n, g in zip(self._leaves, zeros, strict=True)})

    def weight(self, place: int) -> float:
        """Return the factor with which one of its parts enters the loss."""
        (made,) = torch.autograd.grad(
            self.loss, [GradientEdge(self.nodes[place], 0)], retain_graph=True, allow_unused=True
        )
        return 0.0 if made is None else float(made.sum())


def constant_part(
    subject: Subject, found: Comparison, n: int, *, unequal: bool
) -> ConstantPart | None:
    """Return the part of the loss that reads no sample, where the accumulated gradient is wrong in that part alone.

    Args:
        subject: With a loss.
        found: How the accumulated gradient differs.
        n: How many micro-batches.
        unequal: Whether targets were marked as ignored.
    """
    difference = flat(found.difference)
    if not bool(difference.any()):
        return None
    with subject.pristine(steps=True), in_double_without_noise(subject) as (model, dtype):
        batch, pieces = divided(subject, n, dtype, unequal=unequal)
        if len(pieces) < 2:
            return None
        whole = _Taken(subject, model, batch)
        parts = [_Taken(subject, model, piece) for piece in pieces]
        if any(len(part.nodes) != len(whole.nodes) for part in parts):
            return None
        symbol = subject.source.batch_symbol
        sizes = (pieces[0].sizes.get(symbol or "", 0), batch.sizes.get(symbol or "", 0))
        return _explaining(difference, whole, parts, sizes)


def _explaining(
    difference: torch.Tensor, whole: _Taken, parts: list[_Taken], sizes: tuple[int, int]
) -> ConstantPart | None:
    """Return the part by whose gradient, and nothing else, two gradients differ; of several, where the size enters."""
    chosen: ConstantPart | None = None
    for place in range(1, len(whole.nodes)):  # the root is the loss itself
        full = whole.gradient(place)
        length, weight = float(full.norm()), whole.weight(place)
        along = float(difference @ full) / max(length**2, 1e-300)
        left = float((difference - along * full).norm() / difference.norm())
        if left > _LEFT or not weight:
            continue
        each = [part.gradient(place) for part in parts]
        if any(_apart(one, full) > _SAME for one in each):
            continue
        grown = float(each[0].norm()) / length
        op = whole.made.get(whole.nodes[place])
        if op is None or (chosen is not None and abs(grown - 1) < _SAME):
            continue
        chosen = ConstantPart(
            op=op,
            location=op.location,
            left=left,
            times=grown * abs(parts[0].weight(place) / weight),
            counted=1 + along / weight,
            sizes=sizes,
        )
    return chosen


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how far two directions are apart; 2 for opposite ones."""
    lengths = float(one.norm()) * float(other.norm())
    return 2.0 if not lengths else float((one / one.norm() - other / other.norm()).norm())

"""Whether the gradient of a sample depends on its place in the batch where its output does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass
from ...objects import trees
from ...state import seed_everything
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from torch import nn

    from ...batches import Batch
    from ...subject import Subject

_SAMPLES: Final = 8
_ROUNDING: Final = 1e-4
_FAINT: Final = 1e-3
_LARGE: Final = 0.05
"""Share of the larger gradient by which both must differ: rounding and statistics are far below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientByPlace:
    """A sample with the same output in two places of a batch, and another gradient; plain data.

    Attributes:
        sample: Which one.
        places: Where it stood.
        name: Of the parameter.
        norms: Of the gradient by this parameter, in either place.
        names: All parameters that differ.
    """

    sample: int
    places: tuple[int, int]
    name: str
    norms: tuple[float, float]
    names: tuple[str, ...]


def gradient_by_place(subject: Subject) -> GradientByPlace | None:
    """Move all samples on by one place, and compare the gradient of each one's output with what it was.

    Where outputs move along with the samples, gradients do too, whatever samples have to do with
    each other: they are derivatives of the same function. None where outputs do not, as with noise.

    Cost: 2 forwards, and up to 16 backward passes.
    """
    batch, symbol = subject.batch(), subject.source.batch_symbol
    axis = subject.contract.batch_dim
    size = 0 if symbol is None else batch.sizes.get(symbol, 0)
    if axis is None or size < 3:
        return None
    order = torch.arange(size).roll(1)  # place p holds sample order[p]
    try:
        with subject.pristine() as model:
            base = _rows(subject, model, batch, axis, size)
            moved = _rows(subject, model, subject.source.rows(batch, order), axis, size)
            if base is None or moved is None or base.shape != moved.shape:
                return None
            at = order.argsort().to(base.device)  # where each sample stands now
            largest = float(base.detach().abs().max())
            if not float((moved[at] - base).detach().abs().max()) <= _ROUNDING * largest:
                return None
            return _compared(model, base, moved, at)
    except SubjectError:
        return None


def _rows(
    subject: Subject, model: nn.Module, batch: Batch, axis: int, size: int
) -> torch.Tensor | None:
    """Return the floating outputs of a training forward with their graph, one row for each sample."""
    model.train()
    seed_everything(subject.seed)
    outputs = trees.floats(subject.call(model, batch.clone())).values()
    rows = [
        t.movedim(axis, 0).reshape(size, -1)
        for t in outputs
        if t.requires_grad
        and trees.computable(t)
        and t.layout is torch.strided
        and t.dim() > axis
        and t.shape[axis] == size
    ]
    return torch.cat(rows, 1) if rows else None


def _compared(
    model: nn.Module, base: torch.Tensor, moved: torch.Tensor, at: torch.Tensor
) -> GradientByPlace | None:
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(base.shape[1], generator=generator).to(base.device, base.dtype)
    for sample in range(min(len(base), _SAMPLES)):
        place = int(at[sample])
        one = _gradients((base[sample] * weights).sum(), named)
        two = _gradients((moved[place] * weights).sum(), named)
        # below this a gradient may be a structural zero, which rounding makes
        faint = _FAINT * max(_norm(g) for g in (*one.values(), *two.values()))
        differ = [name for name in named if _unlike(one[name], two[name], faint)]
        if differ:
            first = differ[0]
            return GradientByPlace(
                sample=sample, places=(sample, place), name=first, norms=(_norm(one[first]), _norm(two[first])),
                names=tuple(differ),
            )  # fmt: skip
    return None


def _gradients(
    value: torch.Tensor, named: dict[str, nn.Parameter]
) -> dict[str, torch.Tensor | None]:
    found = torch.autograd.grad(value, list(named.values()), allow_unused=True, retain_graph=True)
    dense = (None if g is None else trees.dense(g).double() for g in found)
    return dict(zip(named, dense, strict=True))


def _norm(gradient: torch.Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.norm())


def _unlike(one: torch.Tensor | None, two: torch.Tensor | None, faint: float) -> bool:
    largest = max(_norm(one), _norm(two))
    if largest <= faint:
        return False
    return one is None or two is None or float((one - two).norm()) > _LARGE * largest

"""Blocks of a layer's outputs that reach nothing: no gradient comes back to them, and other weights change no output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ...lean import dataclass
from ...objects import trees
from ...probes.loss.arguments import by_step
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..facts import outputs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...subject import Subject

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MOST_PARTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRows:
    """A block of rows of a layer's weight, or one that comes again in every period, as within each head.

    Attributes:
        name: Of the weight.
        start, stop: The rows within a period.
        period: After how many rows the block comes again; all of them where it stands once.
        total: How many rows the weight has.
    """

    name: str
    start: int
    stop: int
    period: int
    total: int

    @property
    def count(self) -> int:
        """How many rows these are."""
        return (self.stop - self.start) * (self.total // self.period)

    @property
    def text(self) -> str:
        """Say which rows these are."""
        last = self.stop - 1
        block = f"{self.start} to {last}" if last > self.start else str(last)
        return block if self.period == self.total else f"{block} of every {self.period}"

    def within(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return these rows of a tensor, as a view."""
        part: torch.Tensor = tensor.unflatten(0, (-1, self.period))[:, self.start : self.stop]
        return part


def silent_rows(model: nn.Module) -> tuple[IdleRows, ...]:
    """Return the blocks of rows to which the gradients that a model holds now are exactly zero.

    A block is one of 2 to 16 equal parts, or several next to each other, as ``chunk`` and slices make
    them, of the whole or of each of its equal periods. Layers of which no row, or every row, has a
    gradient have none.
    """
    return tuple(_silent_rows(model))


def _silent_rows(model: nn.Module) -> Iterator[IdleRows]:
    for name, module in model.named_modules():
        weight = module._parameters.get("weight") if isinstance(module, _LAYERS) else None
        if weight is None or weight.grad is None or not trees.computable(weight.grad):
            continue
        grad = weight.grad.detach().flatten(1)
        if len(grad) < 4 or not grad.numel() or bool((grad[:, 0] != 0).all()):
            continue  # one number of each row says it of nearly every layer
        idle = (grad == 0).all(1)
        if not 1 < int(idle.sum()) < len(idle):
            continue
        start, stop, period = _block(idle)
        sizes = (period // parts for parts in range(2, _MOST_PARTS + 1) if period % parts == 0)
        least = 1 if period < len(idle) else 2
        if start < stop and any(
            size >= least and start % size == 0 and stop % size == 0 for size in sizes
        ):
            where = f"{name}.weight" if name else "weight"
            yield IdleRows(name=where, start=start, stop=stop, period=period, total=len(idle))


def _block(idle: torch.Tensor) -> tuple[int, int, int]:
    """Return the one block of idle rows within the shortest period; none where there are several."""
    total = len(idle)
    period = next(
        size
        for size in range(2, total + 1)
        if total % size == 0 and bool((idle.view(-1, size) == idle[:size]).all())
    )
    rows = idle[:period].nonzero().flatten().tolist()
    whole = rows[-1] - rows[0] + 1 == len(rows)
    return rows[0] if whole else 1, rows[-1] + 1 if whole else 0, period


def without_effect(subject: Subject, rows: IdleRows) -> bool:
    """Say whether other weights in a block of rows leave every output as it is, bit by bit, in both modes.

    Weights are drawn wide, and once more with the opposite sign, so that they wake rectifiers. Rows that the user's
    own step trains have an effect that no output shows. Cost: at most 6 forwards, and such a step.
    """
    try:
        if subject.contract.train_step is not None and _trained(subject, rows):
            return False
        return all(
            _same(subject, rows, sign, index=int(train), train=train)
            for train in (True, False)
            for sign in (1.0, -1.0)
        )
    except SubjectError:
        return False


def _trained(subject: Subject, rows: IdleRows) -> bool:
    """Say whether a step leaves a gradient at the rows, or moves them and leaves none."""
    made = by_step(subject, subject.batch())
    gradient = made.get(f"gradient {rows.name}")
    if gradient is not None:
        return bool(rows.within(trees.dense(gradient)).any())
    before = subject.named_parameters().get(rows.name)
    now = made.get(rows.name)
    return not (before is None or now is None or trees.same(rows.within(before), rows.within(now)))


def _same(subject: Subject, rows: IdleRows, sign: float, *, index: int, train: bool) -> bool:
    known = outputs(subject, subject.batch(index), train=train)
    with subject.pristine(steps=True) as model, torch.no_grad():
        model.train(train)
        owner = model.get_submodule(rows.name.rpartition(".")[0])
        generator = torch.Generator().manual_seed(subject.seed)
        for tensor in owner._parameters.values():
            if tensor is not None and len(tensor) == rows.total:
                part = rows.within(tensor)
                noise = sign * torch.randn(part.shape, generator=generator).to(part)
                part.add_(noise * (3.0 * float(tensor.abs().max()) + 1.0))
        seed_everything(subject.seed)
        made = trees.tensors(subject.call(model, subject.batch(index).clone()))
        return all(path in made and trees.same(t, made[path]) for path, t in known.items())

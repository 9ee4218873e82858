"""Run a trainer's loop over the parts of a batch, and over the whole of it, and take the gradients before the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_torchcheck.subject.gradients import clear_gradients

from .accumulation import Gradients, flat, gradients_of, without_noise
from .steps import StepWatch, run_loop

if TYPE_CHECKING:
    from pytest_torchcheck.adapters import Loop
    from pytest_torchcheck.batches import Batch
    from pytest_torchcheck.subject import Subject

_IGNORED = -100
LABELS = "labels"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulated:
    """An accumulated gradient beside that of the whole batch, both by the trainer's loop.

    Attributes:
        error: Norm of the difference, relative to the whole batch's gradient.
        ratio: Length of the accumulated gradient along the other.
        residual: What is left of it across, relative.
        worst: Parameters that differ most.
        counts: Valid targets of each part, where labels are whole numbers.
    """

    error: float
    ratio: float
    residual: float
    worst: tuple[str, ...]
    counts: tuple[int, ...]


def accumulate(subject: Subject, loop: Loop, *, unequal: bool) -> Accumulated | None:
    """Compare; None where the batch cannot be cut, or not be made unequal.

    Dropout is off in both, so that only how the loop divides and adds can make a difference.
    """
    batch = _divisible(subject, loop.window)
    if batch is None:
        return None
    if unequal:
        batch = _with_ignored(batch)
        if batch is None:
            return None
    symbol = subject.source.batch_symbol
    assert symbol is not None
    rows = torch.arange(batch.sizes[symbol]).chunk(loop.window)
    parts = [subject.source.rows(batch, index) for index in rows]
    added = _gradients(subject, loop, parts, loop.window)
    whole = _gradients(subject, loop, [batch], 1)
    if added is None or whole is None:
        return None
    a, b = flat(added), flat(whole)
    size = float(b.norm()) or 1.0
    ratio = float(a @ b) / size**2
    worst = sorted(whole, key=lambda name: -float((added[name] - whole[name]).norm()))
    return Accumulated(
        error=float((a - b).norm()) / size,
        ratio=ratio,
        residual=float((a - ratio * b).norm()) / size,
        worst=tuple(worst[:3]),
        counts=tuple(_valid(part) for part in parts) if _labels(batch) is not None else (),
    )


def _divisible(subject: Subject, n: int) -> Batch | None:
    """Return a batch of as many samples as ``n`` divides."""
    batch = subject.batch()
    symbol = subject.source.batch_symbol
    size = batch.sizes.get(symbol, 0) if symbol is not None else 0
    if symbol is None or size == 0:
        return None
    if size >= n:
        return subject.source.rows(batch, torch.arange(size - size % n))
    grown = torch.arange(n) % size
    return subject.source.rows(batch, grown)


def _labels(batch: Batch) -> torch.Tensor | None:
    found = batch.kwargs.get(LABELS, batch.targets)
    return found if isinstance(found, torch.Tensor) and not found.is_floating_point() else None


def _valid(batch: Batch) -> int:
    labels = _labels(batch)
    return 0 if labels is None else int((labels != _IGNORED).sum())


def _with_ignored(batch: Batch) -> Batch | None:
    """Mark ever more labels of the later samples as ignored, never all of one; None where labels are no sequences."""
    labels = _labels(batch)
    if labels is None or labels.dim() != 2 or len(labels) < 2 or labels.shape[1] < 4:
        return None
    width = labels.shape[1]
    keep = torch.linspace(width, 2, len(labels), device=labels.device).round().long()
    marked = torch.arange(width, device=labels.device)[None] >= keep[:, None]
    changed = labels.masked_fill(marked, _IGNORED)
    return batch.map(lambda path, leaf: changed if leaf is labels else leaf)


class _Passes(StepWatch):
    """Takes the gradients after the backward pass of every batch."""

    def __init__(self, model: nn.Module, count: int) -> None:
        self.model, self.count = model, count
        self.original = torch.autograd.backward
        self.passes = 0
        self.found: Gradients | None = None

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        result = self.original(*args, **kwargs)
        self.passes += 1
        if self.passes == self.count:
            self.found = gradients_of(self.model)
        return result


def _gradients(subject: Subject, loop: Loop, parts: list[Batch], window: int) -> Gradients | None:
    with subject.pristine(steps=True) as model:
        clear_gradients(model)
        with without_noise(model):
            passes = _Passes(model, window)
            torch.autograd.backward = passes.backward
            try:
                run_loop(
                    subject,
                    loop,
                    model,
                    lambda place: parts[place].clone(),
                    1,
                    passes,
                    window=window,
                )
            finally:
                torch.autograd.backward = passes.original
    return passes.found if passes.passes == window else None

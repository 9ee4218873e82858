"""A trainer's own loop and loss: gradients over the parts of a batch and over the whole of it, and what labels do to the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..lean import dataclass
from ..subject.gradients import clear_gradients
from .accumulation import Gradients, flat, gradients_of, without_noise
from .steps import StepWatch, run_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..adapters import Loop
    from ..batches import Batch
    from ..subject import Subject


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


_MOST_SHIFT = 3


def labels_of(batch: Batch) -> tuple[str, torch.Tensor] | None:
    """Return the labels of a batch and their name: an input that is called so, or the targets."""
    for name, value in batch.kwargs.items():
        if "label" in name and isinstance(value, torch.Tensor):
            return name, value
    if isinstance(batch.targets, torch.Tensor):
        return "targets", batch.targets
    return None


def with_labels(batch: Batch, labels: torch.Tensor, changed: torch.Tensor) -> Batch:
    """Return a batch with other labels."""
    return batch.map(lambda path, leaf: changed if leaf is labels else leaf)


def other_labels(labels: torch.Tensor, where: torch.Tensor | None = None) -> torch.Tensor:
    """Return labels that differ, at some places or everywhere, but for those to be ignored; classes stay those that occur."""
    if labels.is_floating_point():
        changed = labels + 1.0
    else:
        kept = labels[labels != _IGNORED].unique()
        if len(kept) < 2:
            kept = torch.cat([kept, kept.clamp_min(1) - 1 if len(kept) else kept]).unique()
        changed = labels.clone()
        for place, value in enumerate(kept.tolist()):
            changed[labels == value] = kept[(place + 1) % len(kept)]
    return changed if where is None else torch.where(where, changed, labels)


def loss_of(subject: Subject, batch: Batch) -> float:
    """Return the trainer's loss of a batch in train mode, under the subject's seed."""
    batch = batch.clone()
    with subject.pristine(train=True, seeded=True) as model, torch.no_grad():
        return float(subject.compute_loss(subject.call(model, batch), batch))


def padded_labels(batch: Batch, labels: torch.Tensor) -> torch.Tensor | None:
    """Return where labels stand at padded positions without being ignored; None where none does."""
    mask = batch.kwargs.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.shape != labels.shape or labels.dim() != 2:
        return None
    found = (mask == 0) & (labels != _IGNORED)
    return found if bool(found.any()) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """Which token the logits of a position are pulled to.

    Attributes:
        shift: How many places ahead of the position it stands in the input.
        share: At how many of the positions that are trained.
        next_share: How many are pulled to the next token.
    """

    shift: int
    share: float
    next_share: float


def learnt_shift(
    subject: Subject, batch: Batch, graded: Callable[[nn.Module, Batch], tuple[Any, Any]]
) -> Learnt | None:
    """Read off the loss's gradient at the logits which token they learn; None where it is no token of the input."""
    ids = batch.kwargs.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
        return None
    batch = batch.clone()
    pristine = subject.pristine(train=True, seeded=True)
    with pristine as model, torch.enable_grad(), subject.phase("loss", batch):
        loss, logits = graded(model, batch)
        if not isinstance(logits, torch.Tensor) or logits.shape[:2] != ids.shape:
            return None
        (grad,) = torch.autograd.grad(loss, [logits], allow_unused=True)
    if grad is None or logits.dim() != 3:
        return None
    trained = grad.abs().amax(-1) > 0
    token = grad.argmin(-1)
    shares = []
    for shift in range(_MOST_SHIFT + 1):
        width = ids.shape[1] - shift
        if width < 1:
            break
        seen = trained[:, :width]
        hit = (token[:, :width] == ids[:, shift:]) & seen
        shares.append(float(hit.sum()) / max(int(seen.sum()), 1))
    best = max(range(len(shares)), key=lambda shift: shares[shift])
    if shares[best] < 0.9 or len(shares) < 2 or not bool(trained.any()):
        return None
    return Learnt(shift=best, share=shares[best], next_share=shares[1])

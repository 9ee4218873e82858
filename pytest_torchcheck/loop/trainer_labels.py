"""What the labels of a batch do to a trainer's loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pytest_torchcheck.state import seed_everything

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from pytest_torchcheck.batches import Batch
    from pytest_torchcheck.subject import Subject

_IGNORED = -100
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
    with subject.pristine() as model:
        model.train()
        seed_everything(subject.seed)
        with torch.no_grad():
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
    with subject.pristine() as model:
        model.train()
        seed_everything(subject.seed)
        with torch.enable_grad(), subject.phase("loss", batch):
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

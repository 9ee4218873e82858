"""Class 0 among the labels that a loss is given, and among those of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...probes.loss.own import labels_of
from .consumption import evidence_of

if TYPE_CHECKING:
    from ...subject import Subject
    from .consumption import Consumed


def without_zero(subject: Subject, used: Consumed) -> int:
    """Return among how many labels class 0 does not occur; copies of a label are one, and drawn ones prove nothing.

    Where a label of the batch is 0, the loss compares a part of them, or makes others of them: which one, it shows
    when all of them are 0.
    """
    batch = subject.batch()
    own = {p: t for p, t in labels_of(batch).items() if not t.is_floating_point() and t.numel()}
    if used.low < 1:
        return 0
    if not any(bool((t == 0).any()) for t in own.values()):
        held = sum(t.numel() for t in own.values()) or used.counted
        return 0 if own and batch.origin == "drawn" else min(used.counted, held)
    zeros = batch.clone().map(lambda p, leaf: torch.zeros_like(own[p]) if p in own else leaf)
    again = next((u for u in evidence_of(subject, zeros).consumed if u.classes), None)
    return used.counted if again is not None and again.low >= 1 else 0

"""A model that is trained on the next token, and reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..causal import reads_ahead
from ..promised import find_input

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...findings import Finding
    from ...subject import Subject

_MANY: Final = 0.5
"""Share of tokens from which on another input that has them may be what is to be repeated."""
_NEAR: Final = 3


def answer_seen(subject: Subject, ids: torch.Tensor, trained: Mapping[str, int]) -> Finding | None:
    """Return what is wrong where an output at a position depends on later tokens, or None.

    Not where another input repeats the tokens, as that of a model that copies or corrects them; a
    prefix that is read in both directions is not trained, so its model is not asked.

    Args:
        subject: Whose model promises nothing of time.
        ids: int64, ``[B, T]``, the input whose next tokens are the labels.
        trained: By path, the dimension of time of the outputs that each position trains.
    """
    batch = subject.batch()
    inputs = [leaf for _, leaf in batch.input_leaves() if isinstance(leaf, torch.Tensor)]
    if any(_repeats(leaf, ids) for leaf in inputs if leaf is not ids):
        return None
    names: list[int | str] = [*range(len(inputs)), *batch.kwargs]
    found = ((name, find_input(batch, name)) for name in names)
    which = next((name for name, one in found if one is not None and one[1] is ids), None)
    if which is None:
        return None
    asked = (reads_ahead(subject, which, path, dim) for path, dim in trained.items())
    return next((finding for finding in asked if finding is not None), None)


def _repeats(other: torch.Tensor, ids: torch.Tensor) -> bool:
    """Say whether another input has most of the tokens, in their places or near them."""
    length = min(other.shape[-1], ids.shape[1]) - _NEAR + 1 if other.dim() == ids.dim() else 0
    if length < 1 or other.is_floating_point() or other.shape[0] != ids.shape[0]:
        return False
    near = range(_NEAR)
    shares = [
        float((other[:, a : a + length] == ids[:, b : b + length]).float().mean())
        for a in near
        for b in near
    ]
    return max(shares) > _MANY

"""Ids that only pad the rows of a batch, as its rows show: runs of one id at one end, which stands nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

_FEWEST: Final = 4
"""Ids that a text is of at least, padding included: a mask of 0 and 1 ends in runs of 0, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """An id that only pads the rows of a batch; plain data and two tensors.

    Attributes:
        path: Of the tensor that holds the ids.
        ids: int, ``[B, T]``.
        pad: The id.
        runs: For each row, how many positions it pads.
        inner: bool, ``[B, T]``: all of these but the one next to the text, whose id may say that the text ends.
    """

    path: str
    ids: torch.Tensor
    pad: int
    runs: tuple[int, ...]
    inner: torch.Tensor


def padding_of(tensors: Mapping[str, torch.Tensor]) -> list[Padded]:
    """Return the ids that only pad rows of integers ``[B, T]``: at one end, at different lengths, nowhere else."""
    found: list[Padded] = []
    for path, ids in tensors.items():
        if ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 2 or min(ids.shape) < 2:
            continue
        if any(torch.equal(ids, other.ids) for other in found) or len(ids.unique()) < _FEWEST:
            continue
        for rows in (ids, ids.flip(1)):
            ends = rows[:, -1]
            for pad in ends[ends == rows[:, -2]].unique().tolist():
                run = (rows == pad).flip(1).cumprod(1).flip(1).bool()
                runs = run.sum(1)
                if int((ids == pad).sum()) != int(runs.sum()) or len(runs.unique()) == 1:
                    continue
                inner = run.clone()
                inner[:, 1:] &= run[:, :-1]
                inner[:, 0] = False
                inner = inner if rows is ids else inner.flip(1)
                found.append(
                    Padded(path=path, ids=ids, pad=pad, runs=tuple(runs.tolist()), inner=inner)
                )
    return found

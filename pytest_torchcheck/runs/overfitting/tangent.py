"""In how many directions the parameters can move a handful of outputs, and whether the loss asks for one of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...lean import dataclass
from ...objects import trees
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..variants.woken import jittered
from .one_batch import FORWARD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...batches import Batch
    from ...subject import Subject
    from .one_batch import Budget

_MOST, _LEAST = 8, 3
"""Outputs whose gradients are taken, one for each sample; fewer than the least say too little."""
_DOUBLE = 2.0  # a pass in float64 counts as so many
_BUCKETS = 2**14
"""Longer gradients are folded to so many numbers, with random signs, which keeps their rank."""
_NONE = 1e-8  # relative to the largest: in float64 no direction but rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Tangent:
    """How a few outputs follow all parameters together, to first order and in float64.

    The rank is that of almost all weights, so that so many outputs can never take more than ``rank``
    values independently.

    Attributes:
        outputs: How many outputs were looked at, one of each sample.
        rank: In how many directions the parameters move them.
        share: Which part of what the loss asks of them lies within these, from 0 to 1.
    """

    outputs: int
    rank: int
    share: float


def tangent(subject: Subject, batch: Batch, budget: Budget) -> Tangent | None:
    """Measure the tangent space of one output of each of a few samples, those that the loss pulls on most.

    Args:
        subject: Whose model.
        batch: A small batch.
        budget: A forward and one backward for each output are taken from it.

    Returns:
        None where the budget does not suffice, or outputs, loss or model do not allow it.
    """
    each = _DOUBLE * 2 * FORWARD  # a backward
    affordable = int((budget.left - 2 * each) / each)
    if affordable < _LEAST:
        return None
    try:
        with jittered(subject, seed=subject.seed) as model, torch.enable_grad():
            model.train(False)
            seed_everything(subject.seed)
            given = batch.to(dtype=torch.float64).clone()
            output = subject.call(model, given)
            chosen = _chosen(subject, output, given, min(_MOST, affordable))
            if chosen is None or not budget.take((2 + len(chosen[0])) * each):
                return None
            parameters = [p for p in model.parameters() if p.requires_grad]
            rows = [_row(value, parameters, subject.seed) for value in chosen[0]]
            return _measured(torch.stack(rows), chosen[1])
    except (SubjectError, RuntimeError):  # not in float64, or a Function that has no gradient
        return None


def _chosen(
    subject: Subject, output: object, batch: Batch, most: int
) -> tuple[list[torch.Tensor], torch.Tensor] | None:
    """Return of each sample the output that the loss pulls on most, and these pulls."""
    symbol = subject.source.batch_symbol
    size = batch.sizes.get(symbol, 0) if symbol is not None else 0
    live = [
        t
        for t in trees.floats(output).values()
        if t.requires_grad and t.dtype == torch.float64 and t.dim() and t.shape[0] == size
    ]
    if len(live) != 1 or size < _LEAST:
        return None
    loss = subject.compute_loss(output, batch)
    if loss.dim() or not loss.requires_grad:
        return None
    (pull,) = torch.autograd.grad(loss, live, allow_unused=True, retain_graph=True)
    if pull is None or not bool(torch.isfinite(pull).all()):
        return None
    pulls, values = pull.reshape(size, -1)[:most], live[0].reshape(size, -1)[:most]
    places = pulls.abs().argmax(dim=1)
    asked = -pulls.gather(1, places[:, None]).squeeze(1)
    if not bool(asked.count_nonzero()):
        return None
    return [values[row, place] for row, place in enumerate(places.tolist())], asked


def _row(value: torch.Tensor, parameters: Sequence[torch.Tensor], seed: int) -> torch.Tensor:
    """Return the gradient of one output by all parameters, folded where it is long."""
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    total = sum(p.numel() for p in parameters)
    generator = torch.Generator().manual_seed(seed)  # the same folding for every row
    row = torch.zeros(min(total, _BUCKETS), dtype=torch.float64)
    start = 0
    for parameter, gradient in zip(parameters, found, strict=True):
        count = parameter.numel()
        places = torch.arange(start, start + count)
        start += count
        if total > _BUCKETS:
            places = torch.randint(_BUCKETS, (count,), generator=generator)
        signs = torch.randint(2, (count,), generator=generator) * 2.0 - 1.0
        if gradient is not None:
            row.index_add_(0, places, trees.dense(gradient).flatten().cpu().double() * signs)
    return row


def _measured(rows: torch.Tensor, asked: torch.Tensor) -> Tangent | None:
    """Return rank and share of a Jacobian and of what is asked of its outputs."""
    sizes = torch.linalg.vector_norm(rows, dim=1)
    if not bool(torch.isfinite(sizes).all()):
        return None
    sizes = torch.where(sizes > _NONE * float(sizes.max()), sizes, torch.zeros_like(sizes))
    unit = rows / torch.where(sizes > 0, sizes, torch.ones_like(sizes))[:, None]
    unit[sizes == 0] = 0.0
    strengths, directions = torch.linalg.eigh(unit @ unit.T)
    held = strengths > math.sqrt(_NONE) * _NONE * len(rows)
    rank = int(held.sum())
    if rank == 0:
        return Tangent(outputs=len(rows), rank=0, share=0.0)
    basis, _ = torch.linalg.qr(sizes[:, None] * directions[:, held])
    wanted = asked.cpu() / torch.linalg.vector_norm(asked.cpu())
    share = float((basis.T @ wanted).square().sum())
    return Tangent(outputs=len(rows), rank=rank, share=min(share, 1.0))

"""Outputs that are equal for every input and every weight, though the loss wants different values of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..lean import dataclass
from ..objects import trees
from ..state import seed_everything
from ..subject.errors import SubjectError
from .variants.woken import jittered

if TYPE_CHECKING:
    from ..batches import Batch
    from ..subject import Subject

_TRIED: Final = 7
"""With which entries all others are compared: most of them meet a group that holds more than half."""
_LEAST: Final = 16
_EQUAL: Final = 1e-6
_EXACT: Final = 1e-10
_UNLIKE: Final = 0.05
"""From which part of all targets' spread on those of a group differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedOutputs:
    """More than half of an output's entries, which are one number.

    Attributes:
        path: Of the output.
        members: Which entries, bool of the shape of one sample's output.
        spread: Standard deviation of their targets within a sample, beside that of all targets.
    """

    path: str
    members: torch.Tensor
    spread: float


def tied_outputs(
    subject: Subject, batch: Batch, path: str, output: torch.Tensor, target: torch.Tensor
) -> TiedOutputs | None:
    """Return what is tied in an output with a target of its shape; None where it is not so by structure.

    Cost: one comparison; where more than half of the entries agree, 2 F on other weights and inputs in float64.

    Args:
        subject: The model.
        batch: What it was given.
        path: Of the output.
        output: Real numbers; samples stand in the batch's dimension.
        target: Of its shape.
    """
    axis = subject.contract.batch_dim
    if axis is None or output.dim() < 2 or output.shape[axis] < 2 or output.shape != target.shape:
        return None
    rows, wanted = (
        trees.dense(t).detach().double().movedim(axis, 0).flatten(1) for t in (output, target)
    )
    members = _group(rows, _EQUAL)
    if members is None:
        return None
    spread = float(wanted[:, members].std(1).median()) / max(float(wanted.std()), 1e-30)
    if not spread > _UNLIKE:
        return None
    try:
        for seed in (1, 2):
            again = _group(_elsewhere(subject, batch, path, axis, seed), _EXACT, members)
            if again is None:
                return None
    except (SubjectError, RuntimeError):
        return None  # it does not run in float64, or with other inputs
    shape = output.movedim(axis, 0).shape[1:]
    return TiedOutputs(path=path, members=members.reshape(shape), spread=spread)


def _group(
    rows: torch.Tensor, allowed: float, known: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Return the entries that equal one of some in all samples; None where they are half of all, or all, or constant.

    Args:
        rows: [samples, entries].
        allowed: Largest difference beside the spread of all entries.
        known: Entries that must be equal; the group is not looked for then.
    """
    entries = rows.shape[1]
    if entries < _LEAST or not bool(torch.isfinite(rows).all()):
        return None
    near = allowed * max(float(rows.abs().max()), 1e-30)
    if known is not None:
        group = rows[:, known]
        alike = bool(((group - group[:, :1]).abs() <= near).all())
        return known if alike and float(group[:, 0].std()) > near else None
    for entry in torch.linspace(0, entries - 1, _TRIED).long().tolist():
        members = ((rows - rows[:, entry : entry + 1]).abs() <= near).all(0)
        varies = float(rows[:, entry].std()) > 1e3 * near
        if varies and entries // 2 < int(members.sum()) < entries:
            return members
    return None


def _elsewhere(subject: Subject, batch: Batch, path: str, axis: int, seed: int) -> torch.Tensor:
    """Return the output for inputs with noise, at other weights and in float64, as [samples, entries].

    Raises:
        SubjectError: The model raises.
    """
    generator = torch.Generator().manual_seed(seed)

    def noisy(_: str, leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        size = float(leaf.std()) if leaf.numel() > 1 else 1.0
        noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
        return leaf + (0.3 * size * noise).to(leaf.device)

    with jittered(subject, seed=seed) as model, torch.no_grad():
        given = batch.to(dtype=torch.float64).map(noisy, targets=False)
        model.eval()
        seed_everything(subject.seed)
        found = trees.floats(subject.call(model, given.clone()))[path]
        return trees.dense(found).double().movedim(axis, 0).flatten(1)

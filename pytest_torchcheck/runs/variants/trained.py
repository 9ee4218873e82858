"""The model with the weights of a few training steps, where these fill zeros of its first weights."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from ...lean import dataclass
from ...objects import trees
from ...state import is_lazy, seed_everything
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from ..training.few import later_batch, seed_of
from .copied import of_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...subject import Subject

_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class Trained:
    """Weights of which training fills zeros.

    Attributes:
        subject: The model with the weights that the steps leave.
        cleared: The same with the filled zeros put back.
        counts: By the name of a parameter: how many of its zeros the steps filled, and how many it had.
        steps: How many there were.
    """

    subject: Subject
    cleared: Subject
    counts: Mapping[str, tuple[int, int]]
    steps: int = _STEPS


@remembered("filled-zeros")
def trained(subject: Subject) -> Trained | None:
    """Train a few steps where a trained parameter of two or more dimensions is zero in part; cached.

    Returns:
        None where no parameter is, or none of these zeros is filled: rows of an embedding that stand for
        padding get no gradient, and what a mask in the forward hides gets none either.
    """
    first = {name: p.detach() == 0 for name, p in _partly_zero(subject.model).items()}
    if not first:
        return None
    try:
        weights = _after_steps(subject)
    except SubjectError:
        return None  # a step that raises is explained by others
    holes = {name: zero & (weights[name] != 0) for name, zero in first.items() if name in weights}
    counts = {
        name: (int(hole.sum()), int(first[name].sum()))
        for name, hole in holes.items()
        if hole.any()
    }
    model = subject.copy_model() if counts else None
    if model is None:
        return None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in weights and weights[name].shape == parameter.shape:
                parameter.copy_(weights[name])
        cleared = copy.deepcopy(model)
        known = dict(cleared.named_parameters())
        for name in counts:
            known[name].masked_fill_(holes[name], 0)
    return Trained(of_model(subject, model), of_model(subject, cleared), counts)


def _partly_zero(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters of two or more dimensions that have zeros and other values, padding rows apart."""
    padding = {
        id(m.weight): m.padding_idx
        for m in model.modules()
        if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.padding_idx is not None
    }
    found = {}
    for name, p in model.named_parameters():
        if not (p.requires_grad and p.is_floating_point()) or is_lazy(p) or p.dim() < 2:
            continue
        values = p.detach()
        if not trees.computable(values) or values.layout != torch.strided:
            continue
        zeros = values.numel() - int(values.count_nonzero())
        if id(p) in padding and not bool(values[padding[id(p)]].any()):
            zeros -= values.shape[1]
        if 0 < zeros < values.numel():
            found[name] = p
    return found


def _after_steps(subject: Subject) -> dict[str, torch.Tensor]:
    """Return the trained parameters as a few steps of the user's leave them."""
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        optimizer = subject.make_optimizer(model)
        batch = later_batch(subject, few=True)
        for step in range(_STEPS):
            seed_everything(seed_of(subject, step))
            subject.train_step(model, optimizer, batch.clone())
        return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

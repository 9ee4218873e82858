"""Optimizers of the user's own with a momentum that keep nothing of earlier gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from ...objects import trees
from ...state import seed_everything
from ...subject.errors import SubjectError
from .returning import own_optimizers

if TYPE_CHECKING:
    from ...subject import Subject

_STEPS: Final = 4
"""Steps of which the last has the same gradients in both runs; some optimizers warm up in the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """An optimizer whose step depends on no earlier gradient.

    Attributes:
        optimizer: It.
        option: Its option that says otherwise, as ``momentum=0.9``.
        kept: What it keeps of each parameter, by the names of its state; empty where it keeps nothing.
    """

    optimizer: torch.optim.Optimizer
    option: str
    kept: tuple[str, ...]


def forgetting(subject: Subject) -> Forgetting | None:
    """Return the optimizer of the user's own that has a momentum, and takes the same step whatever came before.

    Each steps alone, twice from the same values: with other gradients in all steps but the last one, before which
    the parameters are put back. A moving average, of gradients or of their squares, makes the last steps differ.

    Cost: nothing for torch's own optimizers; else steps of the optimizer alone.
    """
    one, other = (_last_values(subject, seed) for seed in (1, 2))
    for place, (optimizer, option, begun, values) in one.items():
        again = other[place][3] if place in other else None
        if again is None or all(map(trees.same, begun, values)):
            continue
        if all(map(trees.same, values, again)):
            return Forgetting(optimizer=optimizer, option=option, kept=_kept(optimizer))
    return None


def _last_values(subject: Subject, seed: int) -> dict[int, Any]:
    """Return by place each optimizer that has a momentum, with its values before and after its last step."""
    found: dict[int, Any] = {}
    with subject.pristine(steps=True) as model:
        try:
            made = own_optimizers(subject.make_optimizer(model))
        except SubjectError:
            return found
        for place, optimizer in enumerate(made):
            option = _momentum(optimizer)
            held = [p for g in optimizer.param_groups for p in g["params"] if trees.computable(p)]
            if not option or not held:
                continue
            seed_everything(subject.seed)
            begun = [p.detach().clone() for p in held]
            if _stepped(optimizer, held, begun, seed):
                found[place] = optimizer, option, begun, [p.detach().clone() for p in held]
    return found


def _stepped(
    optimizer: torch.optim.Optimizer, held: list[Any], begun: list[torch.Tensor], seed: int
) -> bool:
    earlier, last = (torch.Generator().manual_seed(n) for n in (seed, 0))
    for step in range(_STEPS):
        final = step == _STEPS - 1
        for p, value in zip(held, begun, strict=True):
            p.grad = torch.randn(p.shape, generator=last if final else earlier).to(p)
            if final:
                p.data.copy_(value)
        try:
            optimizer.step()
        except Exception:  # it needs a closure, or gradients of a kind that a loss gives
            return False
    return True


def _momentum(optimizer: torch.optim.Optimizer) -> str:
    """Return the option by which an optimizer averages over steps, as it would be written; "" where none does."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            values = value if isinstance(value, tuple | list) else (value,)
            if ("momentum" in name or "beta" in name) and any(
                isinstance(v, float) and 0 < v < 1 for v in values
            ):
                return f"{name}={value}"
    return ""


def _kept(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    names = {
        str(name): None
        for p, state in optimizer.state.items()
        if isinstance(state, dict)
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.shape == p.shape and value.dim()
    }
    return tuple(names)

"""Optimizers of the user's own that keep nothing of earlier steps: no gradient, or not their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from ...objects import trees
from ...state import seed_everything
from .returning import own_optimizer, own_optimizers

if TYPE_CHECKING:
    from ...subject import Subject

_STEPS: Final = 4
"""Steps of which the last has the same gradients in both runs; some optimizers warm up in the first ones."""
_COUNTERS: Final = frozenset({"step", "steps", "t", "step_count", "num_steps"})
"""What optimizers call the number of their steps, torch's own and others."""
_MORE: Final = 7


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
    if own_optimizer(subject) is None:
        return None
    one, other = (_last_values(subject, seed) for seed in (1, 2))
    for place, (optimizer, option, begun, values) in one.items():
        again = other[place][3] if place in other else None
        if again is None or all(map(trees.same, begun, values)):
            continue
        if all(map(trees.same, values, again)):
            return Forgetting(optimizer=optimizer, option=option, kept=_kept(optimizer))
    return None


def uncounted(subject: Subject) -> tuple[torch.optim.Optimizer, str] | None:
    """Return the optimizer of the user's own that reads a number of steps which never changes, and its name.

    The number must be the same after four steps and after eight, and a copy of the optimizer in which it is greater
    must take another step.

    Cost: nothing for torch's own optimizers; else steps of the optimizer alone.
    """
    if own_optimizer(subject) is None:
        return None
    with subject.pristine(steps=True) as model:
        for optimizer in own_optimizers(subject.make_optimizer(model)):
            held = [p for g in optimizer.param_groups for p in g["params"] if trees.computable(p)]
            begun = [p.detach().clone() for p in held]
            if not held or not _stepped(optimizer, held, begun, seed=1):
                continue
            first = _counters(optimizer)
            if not first or not _stepped(optimizer, held, begun, seed=2):
                continue
            last = _counters(optimizer)
            name = next((key[1] for key, v in first.items() if last.get(key) == v), "")
            if name and _reads(optimizer, held, begun, name):
                return optimizer, name
    return None


def _reads(
    optimizer: torch.optim.Optimizer, held: list[Any], begun: list[torch.Tensor], name: str
) -> bool:
    """Say whether the optimizer takes another step where its number of steps is greater."""
    before = [{k: _apart(v) for k, v in holder.items()} for holder in _holders(optimizer)]
    made: list[list[torch.Tensor]] = []
    for more in (0, _MORE):
        for holder, values in zip(_holders(optimizer), before, strict=True):
            holder.update({k: _apart(v) for k, v in values.items()})
            if name in holder:
                holder[name] = holder[name] + more
        if not _stepped(optimizer, held, begun, seed=1, steps=1):
            return False
        made.append([p.detach().clone() for p in held])
    return not all(map(trees.same, *made))


def _apart(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _holders(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [*(s for s in optimizer.state.values() if isinstance(s, dict)), *optimizer.param_groups]


def _counters(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], float]:
    """Return the numbers of steps that an optimizer keeps, by their places and names."""
    return {
        (place, name): float(value)
        for place, holder in enumerate(_holders(optimizer))
        for name, value in holder.items()
        if name in _COUNTERS
        and (
            (isinstance(value, torch.Tensor) and value.numel() == 1)
            or (isinstance(value, int | float) and not isinstance(value, bool))
        )
    }


def _last_values(subject: Subject, seed: int) -> dict[int, Any]:
    """Return by place each optimizer that has a momentum, with its values before and after its last step."""
    found: dict[int, Any] = {}
    with subject.pristine(steps=True) as model:
        for place, optimizer in enumerate(own_optimizers(subject.make_optimizer(model))):
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
    optimizer: torch.optim.Optimizer,
    held: list[Any],
    begun: list[torch.Tensor],
    seed: int,
    steps: int = _STEPS,
) -> bool:
    """Take steps with drawn gradients, the last one from the first values; say whether the optimizer allows it."""
    earlier, last = (torch.Generator().manual_seed(n) for n in (seed, 0))
    for step in range(steps):
        final = step == steps - 1
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

"""Copies that never move while a step pulls the trained weights back to them: source and copy changed places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...loop.steps import begun
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of

if TYPE_CHECKING:
    from ...subject import Subject

_STEPS = 2
_ALONG = 1e-2
"""How far from the straight way to the copy a move may lie, in parts of its length: rounding and no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledBack:
    """Trained parameters that a step moves towards frozen copies.

    Attributes:
        pairs: By the name of a copy, the trained parameter.
        share: The part of the way that each step goes.
    """

    pairs: dict[str, str]
    share: float


def pulled_back(subject: Subject, pairs: dict[str, str]) -> PulledBack | None:
    """Look whether the step, after the optimizer's, moves every parameter one part of the way to its copy.

    The copies stay as they are, and the step runs what they belong to: an average with its arguments swapped. A
    reference that is frozen on purpose pulls on the loss, not on the weights.

    Args:
        subject: Whose step.
        pairs: By the name of each copy, the parameter.
    """
    if subject.contract.train_step is None or subject.contract.loop is not None:
        return None
    shares: list[float] = []
    try:
        with begun(subject) as (model, made):
            tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            start = {name: tensors[name].detach().clone() for name in pairs}
            stepped: dict[str, torch.Tensor] = {}
            ran: set[int] = set()

            def after_optimizer(*_: Any) -> None:
                stepped.update((n, tensors[n].detach().clone()) for n in pairs.values())

            owners = [model.get_submodule(name.rpartition(".")[0]) for name in pairs]
            handles: list[Any] = [
                o.register_step_post_hook(after_optimizer) for o in optimizers_of(made)
            ]
            handles += [m.register_forward_hook(lambda m, *_: ran.add(id(m))) for m in owners]
            try:
                for number in range(_STEPS):
                    seed_everything(subject.seed + number)
                    subject.train_step(model, made, subject.batch().clone())
                    for copy, source in pairs.items():
                        share = _share(stepped.get(source), tensors[source], tensors[copy])
                        if share is None:
                            return None
                        shares.append(share)
            finally:
                for handle in handles:
                    handle.remove()
            still = all(torch.equal(start[name], tensors[name]) for name in pairs)
            if not still or not all(id(owner) in ran for owner in owners):
                return None
    except SubjectError:
        return None
    alike = max(shares) - min(shares) < 0.1 * max(shares)
    return PulledBack(pairs=pairs, share=sum(shares) / len(shares)) if alike else None


def _share(before: torch.Tensor | None, now: torch.Tensor, target: torch.Tensor) -> float | None:
    """Return which part of the way to a target a tensor went; None where it did not, or went elsewhere."""
    if before is None:
        return None
    moved, way = (now.detach() - before).double(), (target.detach() - before).double()
    length = float(way.norm()) ** 2
    share = float((moved * way).sum()) / length if length else 0.0
    off = float((moved - share * way).norm())
    noise = 1e-6 * float(before.double().norm())
    return share if 0 < share <= 1 and off <= _ALONG * float(moved.norm()) + noise else None

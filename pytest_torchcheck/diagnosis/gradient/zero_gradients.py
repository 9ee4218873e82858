"""Gradients of zeros where there should be none: what an optimizer makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...loop.checkpoints import STEPS
from ...objects import trees
from ...probes.recorded.watch import Watch
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...subject.optimizers import optimizers_of

if TYPE_CHECKING:
    from ...findings import Location
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroAtStep:
    """Parameters whose gradient is all zeros whenever the optimizer steps.

    Attributes:
        steps: In how many steps.
        decay: The weight decay without which they stay; 0 where it is not that.
        location: The user's line that makes the gradient zero, where it was not before.
    """

    steps: int
    decay: float
    location: Location | None


def zero_at_step(subject: Subject, names: list[str]) -> ZeroAtStep | None:
    """Run some steps again and see whether gradients are zero, and not None, as the optimizer steps."""
    seen = _gradients_at_step(subject, names, STEPS)
    if seen is None or len(seen.zero) < STEPS or not all(seen.zero):
        return None
    decay = seen.decay
    if decay:
        without = _gradients_at_step(subject, names, STEPS, decay=False)
        decay = 0.0 if without is None or without.moved else decay
    return ZeroAtStep(steps=len(seen.zero), decay=decay, location=seen.location)


@dataclass(slots=True)
class _Seen:
    zero: list[bool]
    decay: float = 0.0
    moved: bool = False
    location: Location | None = None


def _gradients_at_step(
    subject: Subject, names: list[str], steps: int, *, decay: bool = True
) -> _Seen | None:
    """Return what a run of some steps shows of these parameters' gradients; None where it raises."""
    seen = _Seen([])

    class Zeroing(Watch):
        """Notes the line after which the first parameter's gradient is zero, and was not before."""

        def before(self, func: Any, args: Any, kwargs: Any) -> Any:
            return is_zero(first.grad)

        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            if token is False and is_zero(first.grad):
                seen.location = self.locate() or seen.location

    def is_zero(grad: torch.Tensor | None) -> bool | None:
        return None if grad is None else not bool(trees.dense(grad).any())

    def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if id(first) in held:
            seen.zero.append(all(is_zero(p.grad) is True for p in wanted.values()))

    hooks: list[Any] = []
    with subject.pristine(steps=True) as model:
        model.train()
        seed_everything(subject.seed)
        known = dict(model.named_parameters())
        wanted = {name: known[name] for name in names}
        first = wanted[names[0]]
        start = {name: p.detach().clone() for name, p in wanted.items()}
        clear_gradients(model)
        try:
            made = subject.make_optimizer(model)
            hooks += [o.register_step_pre_hook(stepping) for o in optimizers_of(made)]
            for optimizer in optimizers_of(made):
                for group in optimizer.param_groups:
                    if any(p is first for p in group["params"]):
                        seen.decay = float(group.get("weight_decay") or 0.0)
                        if not decay:
                            group["weight_decay"] = 0.0
            for step in range(steps):
                seed_everything(subject.seed + step)
                with Zeroing(model):
                    subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return None
        finally:
            for hook in hooks:
                hook.remove()
        seen.moved = any(not torch.equal(p, start[name]) for name, p in wanted.items())
    return seen

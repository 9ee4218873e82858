"""Parts that are linear in their input in both modes, by the same parameters, and give something else in each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...lean import dataclass
from ...objects import trees
from ...subject.errors import SubjectError
from .settling import Quiet, asks_for_mode, quiet

if TYPE_CHECKING:
    from torch import nn

    from ...subject import Subject

_PARTS = 8
"""So many parts are looked at."""
_APART = 0.02
"""Relative: more than an evaluation with rounded weights changes."""
_EXACT = 1e-3
"""Relative: rounding of a linear map in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A part that is one linear map in training and another one in evaluation.

    Attributes:
        name: Of the module.
        distance: Between its outputs for one input, relative.
        parameters: Qualified names of those that have another share in evaluation.
    """

    name: str
    distance: float
    parameters: tuple[str, ...]


def folded_otherwise(subject: Subject) -> Folded | None:
    """Return the innermost part whose two modes are linear in its input and read the same parameters, and differ.

    Not where one mode gives a multiple of the other: scores may be scaled in training alone.
    Cost: 1 forward; 8 calls of each part that asks for its mode.
    """
    given: dict[str, torch.Tensor] = {}

    def taken(name: str) -> Any:
        def take(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
                given.setdefault(name, args[0].detach().clone())

        return take

    try:
        with subject.pristine(train=False, seeded=True) as model:
            asking = [(n, m) for n, m in model.named_modules() if n and asks_for_mode(type(m))]
            handles = [
                m.register_forward_pre_hook(taken(n), with_kwargs=True) for n, m in asking[:_PARTS]
            ]
            try:
                with torch.no_grad():
                    subject.call(model, subject.batch().clone())
            finally:
                for handle in handles:
                    handle.remove()
            for name in sorted(given, key=lambda n: -n.count(".")):  # the innermost first
                with subject.phase("forward"):
                    found = _differs(model, name, given[name])
                if found is not None:
                    return found
    except SubjectError:
        return None  # a part that runs within the model alone tells nothing
    return None


def _differs(model: nn.Module, name: str, x: torch.Tensor) -> Folded | None:
    module = model.get_submodule(name)
    if not x.is_floating_point() or not x.numel():
        return None
    maps = []
    for train in (True, False):
        quiet(module) if train else module.eval()
        with Quiet():
            maps.append(_linear(module, x))
    if None in maps:
        return None
    (trained, shares), (evaluated, others) = (one for one in maps if one is not None)
    if trained.shape != evaluated.shape or shares.keys() != others.keys() or not shares:
        return None
    distance = trees.apart(trained, evaluated)
    factor = float((trained * evaluated).sum() / evaluated.square().sum().clamp_min(1e-30))
    if distance < _APART or trees.apart(evaluated * factor, trained) < _APART:
        return None
    moved = [n for n, share in shares.items() if trees.apart(share, others[n]) > _APART]
    own = tuple(f"{name}.{n}" for n in moved)
    return Folded(name=name, distance=distance, parameters=own) if own else None


def _linear(
    module: nn.Module, x: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]] | None:
    """Return what a linear map gives, and the gradients of a random sum of it; None where it is not linear."""
    generator = torch.Generator().manual_seed(0)
    other = torch.randn(x.shape, generator=generator).to(x) * x.std().clamp_min(1e-3)
    with torch.no_grad():
        both, one, two, none = (module(i) for i in (x + other, x, other, torch.zeros_like(x)))
    if not isinstance(one, torch.Tensor) or not one.is_floating_point():
        return None
    if trees.apart(both - none, one + two - 2 * none) > _EXACT or not bool((one != none).any()):
        return None
    with torch.enable_grad():
        result = module(x)
        weights = torch.randn(result.shape, generator=generator).to(result)
        named = {n: p for n, p in module.named_parameters() if p.requires_grad}
        if not named or not result.requires_grad:
            return None
        grads = torch.autograd.grad(
            (result * weights).sum(), list(named.values()), allow_unused=True
        )
    found = {n: trees.dense(g) for n, g in zip(named, grads, strict=True) if g is not None}
    return one, found

"""Numbers of a model that are 0 and keep parameters from being trained until something raises them."""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...lean import dataclass
from ...objects import trees
from ...subject.errors import SubjectError
from ..again import forward_and_loss

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType

    from torch import nn

    from ...subject import Subject

_OPEN = 0.5
_MOST = 12
"""Numbers that are tried."""
_PASSED = frozenset({"__init__", "forward", "reset_parameters", "init_weights"})
_WRITING = frozenset({"fill_", "copy_", "add_", "mul_", "lerp_", "clamp_"})


@dataclass(frozen=True, slots=True)
class Gate:
    """A number of 0 that, raised, lets a gradient through.

    Attributes:
        name: Its qualified name.
        raised_by: Methods of the user's classes that assign it, apart from those that build and run the model.
    """

    name: str
    raised_by: tuple[str, ...]


def closed_gate(subject: Subject, names: Sequence[str]) -> Gate | None:
    """Return the number of 0 with which parameters get no gradient, and with another value all of them do."""
    with subject.pristine() as model:
        for module, prefix, key in list(_numbers(model))[:_MOST]:
            kept = getattr(module, key)
            try:
                setattr(module, key, _opened(kept))
                live = _all_live(subject, model, names)
            finally:
                setattr(module, key, kept)
            if live:
                return Gate(f"{prefix}{key}", tuple(_raising(model, key)))
    return None


def _numbers(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield the floats of 0 that the user's modules hold, as attributes or as buffers of one entry."""
    for path, module in model.named_modules():
        if not sources.is_own_class(type(module)):
            continue
        prefix = f"{path}." if path else ""
        for key, value in (*vars(module).items(), *module.named_buffers(recurse=False)):
            plain = type(value) is float and value == 0
            if plain or (isinstance(value, torch.Tensor) and _is_zero(value)):
                yield module, prefix, key


def _is_zero(value: torch.Tensor) -> bool:
    one = value.numel() == 1 and value.is_floating_point() and not value.requires_grad
    return one and trees.computable(value) and not bool(value.any())


def _opened(value: Any) -> Any:
    return torch.full_like(value, _OPEN) if isinstance(value, torch.Tensor) else _OPEN


def _all_live(subject: Subject, model: nn.Module, names: Sequence[str]) -> bool:
    known = dict(model.named_parameters(remove_duplicate=False))
    try:
        loss = forward_and_loss(subject)()
        found = torch.autograd.grad(loss, [known[name] for name in names], allow_unused=True)
    except (SubjectError, RuntimeError):  # another number may not suit the model
        return False
    return all(grad is not None and bool(grad.any()) for grad in found)


def _raising(model: nn.Module, key: str) -> Iterator[str]:
    """Yield the methods that assign an attribute, or write to a buffer, of this name."""
    seen: set[type] = set()
    for module in model.modules():
        kind = type(module)
        if kind in seen or not sources.is_own_class(kind):
            continue
        seen.add(kind)
        for name, value in vars(kind).items():
            own = value.fset if isinstance(value, property) else value
            code = getattr(own, "__code__", None)
            if code is not None and name not in _PASSED and _assigns(code, key):
                yield name


def _assigns(code: CodeType, key: str) -> bool:
    used = {one.opname for one in dis.get_instructions(code) if one.argval == key}
    return "STORE_ATTR" in used or (bool(used) and not _WRITING.isdisjoint(code.co_names))

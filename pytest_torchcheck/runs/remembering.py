"""Whether what a model gives for one input depends on the input that it was given before."""

from __future__ import annotations

import copy
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from ..objects import trees
from ..state import seed_everything
from ..subject.errors import SubjectError
from .facts import copied, forward_facts
from .outputs import gap

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import nn

    from ..subject import Subject


def remembered(subject: Subject, forget: Collection[str] = ()) -> tuple[str, ...]:
    """Evaluate another batch of the same sizes, then the base batch, with nothing put back in between.

    Args:
        subject: Whose model.
        forget: Paths of attributes that are put back after the first of the two calls.

    Returns:
        Paths of the outputs that are not those of the base batch alone; empty where the other batch
        cannot be run.
    """
    wanted = forward_facts(subject).outputs
    with subject.pristine() as model, torch.no_grad():
        before = {path: kept_value(model, path) for path in forget}
        try:
            model.eval()
            seed_everything(subject.seed + 1)
            subject.call(model, subject.batch(1).clone())
        except SubjectError:
            return ()
        for path, value in before.items():
            put_value(model, path, value)
        seed_everything(subject.seed)
        again = copied(subject.call(model, subject.batch().clone()))
    if gap(again, wanted) is None:
        return ()
    return tuple(p for p, t in wanted.items() if p not in again or not trees.same(t, again[p]))


def kept_value(model: nn.Module, path: str) -> Any:
    """Return a copy of an attribute or buffer that later writes do not reach; of containers a shallow one."""
    owner, _, key = path.rpartition(".")
    module = model.get_submodule(owner)
    value = module._buffers.get(key, vars(module).get(key, _ABSENT))
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.copy(value) if isinstance(value, list | dict | set | deque) else value


_ABSENT = object()


def put_value(model: nn.Module, path: str, value: Any) -> None:
    """Put back what :func:`kept_value` returned."""
    owner, _, key = path.rpartition(".")
    module = model.get_submodule(owner)
    if value is _ABSENT:
        vars(module).pop(key, None)
        module._buffers.pop(key, None)
    elif key in module._buffers:
        module._buffers[key] = value
    else:
        vars(module)[key] = value

"""A sequence given step by step with a cache that the forward returns and takes."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...lean import dataclass
from ...state import seed_everything
from ...subject.errors import SubjectError
from .settling import quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from ...batches import Batch
    from ...subject import Subject

_CACHE = re.compile(r"past|cache|mems?\b|memories|state|hidden|carry")
_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a cache goes round.

    Attributes:
        name: The argument that takes it.
        key: The item or attribute of the output that holds it.
        whole_mask: Whether a mask covers all positions so far, or the new ones alone.
    """

    name: str
    key: int | str
    whole_mask: bool = True


def arguments(model: nn.Module) -> list[str]:
    """Return the optional arguments of a forward that take a cache, by their names."""
    try:
        known = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in known if p.default is None and _CACHE.search(p.name.lower())]


def returned(output: Any, name: str) -> Iterator[int | str]:
    """Iterate over what an output may hold for a cache argument: what bears its name, else what comes second."""
    if isinstance(output, Mapping):
        keys = [k for k in output if isinstance(k, str) and _CACHE.search(k.lower())]
        yield from sorted(keys, key=lambda key: key != name)
    elif isinstance(output, tuple) and hasattr(output, "_fields"):
        yield from (f for f in output._fields if _CACHE.search(f.lower()))
    elif isinstance(output, tuple | list) and len(output) > 1:
        yield 1
    elif getattr(output, name, None) is not None:
        yield name


def ways_of(subject: Subject, batch: Batch, path: str, dim: int) -> list[Way]:
    """Return how the cache of a model goes round: the ways in which a second call takes what a first one gave.

    More than one where it is not known which positions a mask is to cover.
    """
    output = None
    for name in arguments(subject.model):
        if batch.kwargs.get(name) is not None:
            continue
        output = subject.forward(batch) if output is None else output
        masks = (True, False) if any("mask" in p for p, _ in batch.input_leaves()) else (True,)
        for key in list(returned(output, name)):
            ways = [Way(name=name, key=key, whole_mask=whole) for whole in masks]
            if found := [way for way in ways if _runs(subject, batch, path, dim, way)]:
                return found
    return []


def _runs(subject: Subject, batch: Batch, path: str, dim: int, way: Way) -> bool:
    try:
        run(subject, batch, path, dim, way)
    except SubjectError:
        return False
    return True


def run(subject: Subject, batch: Batch, path: str, dim: int, way: Way) -> Any:
    """Return the output of the last step, after all before it were given: the first ones together, then one by one.

    Raises:
        SubjectError: The model raised, or gave no cache.
    """
    with subject.pristine() as model, torch.no_grad():
        model.eval()
        return last_step(subject, model, batch, path, dim, way)()


def last_step(
    subject: Subject, model: nn.Module, batch: Batch, path: str, dim: int, way: Way
) -> Callable[[], Any]:
    """Run all steps but the last, and return a function that runs that one; call both inside ``pristine``."""
    length = batch.tensors()[path].shape[dim]

    def part(start: int, stop: int) -> Batch:
        def cut(where: str, leaf: Any) -> Any:
            if not (isinstance(leaf, torch.Tensor) and leaf.dim() > dim and leaf.shape[dim] == length):  # fmt: skip
                return leaf
            first = 0 if "mask" in where and way.whole_mask else start
            return leaf.narrow(dim, first, stop - first)

        return batch.map(cut, targets=False).clone()

    def given(piece: Batch, output: Any) -> Batch:
        if (cache := _item(output, way.key)) is None:
            raise SubjectError("forward", TypeError("the output holds no cache"))
        return replace(piece, kwargs={**piece.kwargs, way.name: cache})

    seed_everything(subject.seed)
    output = subject.call(model, part(0, length - _STEPS))
    for position in range(length - _STEPS, length - 1):
        output = subject.call(model, given(part(position, position + 1), output))
    last = given(part(length - 1, length), output)
    return lambda: subject.call(model, last)


def _item(output: Any, key: int | str) -> Any:
    return getattr(output, key, None) if isinstance(key, str) and not isinstance(output, Mapping) else output[key]  # fmt: skip


def calls(subject: Subject, *, train: bool) -> Counter[str]:
    """Count the calls of each module in one forward, in eval mode or in quiet training mode."""
    found: Counter[str] = Counter()
    with subject.pristine() as model, torch.no_grad():
        quiet(model) if train else model.eval()
        handles = [
            module.register_forward_pre_hook(lambda _module, _args, name=name: found.update([name]))
            for name, module in model.named_modules()
        ]
        try:
            seed_everything(subject.seed)
            subject.call(model, subject.batch().clone())
        finally:
            for handle in handles:
                handle.remove()
    return found

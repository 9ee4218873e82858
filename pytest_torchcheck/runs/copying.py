"""A model copied and pickled, as checkpoints, averages and spawned processes do."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..objects import trees
from ..sources import is_own_class
from ..state import seed_everything
from ..subject.errors import SubjectError
from .outputs import expectations, gap, outputs_of, unlike
from .saving import perturb, registered

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..batches import Batch
    from ..subject import Subject

PICKLED = "a pickled copy gives the same outputs"
COPIED = "a deep copy gives the same outputs after {} tensors of the original changed"
OTHER_DRAWS = 7919
"""Added to the seed while copying: a copy that is drawn anew must not come out as the original by chance."""


class LightPickler(pickle.Pickler):
    """Pickles everything but the tensors, which it keeps aside: their memory is not copied."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.kept: list[torch.Tensor] = []

    def persistent_id(self, thing: Any) -> int | None:
        """Keep a tensor aside and return its number."""
        if isinstance(thing, torch.Tensor):
            self.kept.append(thing)
            return len(self.kept) - 1
        return None


class _LightUnpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, kept: list[torch.Tensor]) -> None:
        super().__init__(buffer)
        self._kept = kept

    def persistent_load(self, number: int) -> torch.Tensor:
        return self._kept[number]


def pickled(model: nn.Module) -> nn.Module:
    """Return what pickling and unpickling makes of a module; it shares the tensors.

    Raises:
        Exception: Whatever an object that cannot be pickled raises.
    """
    buffer = io.BytesIO()
    pickler = LightPickler(buffer)
    pickler.dump(model)
    buffer.seek(0)
    made: nn.Module = _LightUnpickler(buffer, pickler.kept).load()
    return made


def _copied_and_pickled(model: nn.Module) -> nn.Module:
    return pickled(copy.deepcopy(model))


def shared_with(model: nn.Module, twin: nn.Module) -> list[str]:
    """Return the names of a copy's tensors that stand in the memory of the original's."""
    ours = {trees.address(t) for t in registered(model) if t.numel()} - {None}
    return [
        name
        for name, t in (*twin.named_parameters(), *twin.named_buffers())
        if t.numel() and trees.address(t) in ours
    ]


def copied_soundly(subject: Subject) -> int | None:
    """Pickle a deep copy, change every parameter and buffer of the original, and run what comes back.

    Returns:
        How many tensors of the original were changed, where both ways of copying hold. None where
        one of them has to be looked at by itself: something refused, the outputs differ, or a class
        copies itself in its own way, which pickling might mend.
    """
    if _has_own_deepcopy(subject.model):
        return None
    wanted = expectations(subject)
    with subject.pristine(steps=True) as model:
        try:
            seed_everything(subject.seed + OTHER_DRAWS, own=False)
            copied = copy.deepcopy(model)
            twin = pickled(copied)
        except Exception:  # any object may refuse, in its own words
            return None
        shared = shared_with(model, copied)
        changed = perturb(registered(model))
        try:
            difference = unlike(subject, twin, wanted)
        except SubjectError:
            return None
        alive = weakref.ref(twin)
        del twin
        if alive() is not None:
            gc.collect()  # modules may stand in cycles
            subject.cache["copy-held"] = alive
    if shared or not changed or difference is not None:
        return None
    return changed


def _has_own_deepcopy(model: nn.Module) -> bool:
    return any("__deepcopy__" in vars(c) for m in model.modules() for c in type(m).__mro__)


_WAYS = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__deepcopy__", "__copy__")


def copies_itself(model: nn.Module) -> bool:
    """Say whether a module of the model says in a way of its own what a copy or a pickle gets.

    A class of a package that the model's own does not belong to is held to its contract by that package.
    """
    kinds = {kind for module in model.modules() for kind in type(module).__mro__[:-1]}
    root = type(model).__module__.partition(".")[0]
    return any(
        way in vars(kind) and (kind.__module__.partition(".")[0] == root or is_own_class(kind))
        for kind in kinds
        if not kind.__module__.startswith("torch.")
        for way in _WAYS
    )


def lost_in_copies(subject: Subject, model: nn.Module, batch: Batch) -> str:
    """Return which copy of a trained model computes something else than the model; empty where both do the same.

    Cost: nothing but where :func:`copies_itself`; then two evaluations, more where these differ.
    """
    if not copies_itself(model):
        return ""
    modes = {module: module.training for module in model.modules()}
    model.eval()

    def differs(make: Callable[[nn.Module], nn.Module]) -> bool | None:
        try:
            twin = make(model)
        except Exception:  # any object may refuse, in its own words
            return None
        return gap(outputs_of(subject, twin, batch), first) is not None

    try:
        first = outputs_of(subject, model, batch)
        if not _has_own_deepcopy(model) and differs(_copied_and_pickled) is False:
            return ""
        if gap(outputs_of(subject, model, batch), first) is not None:
            return ""
        for code, make in (("pickle-differs", pickled), ("copy-differs", copy.deepcopy)):
            if differs(make):
                return code
    except SubjectError:
        return ""  # an untrained copy that raises is told by itself
    finally:
        for module, mode in modes.items():
            module.training = mode
    return ""

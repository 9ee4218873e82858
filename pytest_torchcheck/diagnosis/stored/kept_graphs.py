"""What a training step leaves at a model so that it can no longer be copied, and what holds a copy for ever."""

from __future__ import annotations

import copy
import functools
import gc
from collections import deque
from typing import TYPE_CHECKING, Any

from ... import sources
from ...explanation import listed, on_line
from ...findings import Culprit, Finding
from ...probes.holding.held_by_models import holdings
from ...runs.training.observation import checksums
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...text.printable import message_of
from ...verdicts import suspicious, violated
from ..outputs.eval_lines import keeping_lines

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import FunctionType

    from torch import nn

    from ...subject import Subject


def copied_after_training(subject: Subject, names: Collection[str]) -> Finding | None:
    """Copy the model after a training step of the user's, where attributes keep tensors with a graph.

    A tensor that the loss reads after the forward has to keep its graph: an auxiliary loss, the
    parameters of a distribution. That is suspicious. One that can be detached at the end of the
    forward, with equal weights after the step, keeps it for nothing.

    Args:
        subject: Whose model.
        names: Paths of attributes that a forward leaves with a graph.
    """
    with subject.pristine(steps=True) as model:
        try:
            _step(subject, model)
        except SubjectError:
            return None  # other checks tell it
        try:
            copy.deepcopy(model)
        except RuntimeError as error:
            said = message_of(error).partition(".")[0][:160]
        else:
            return None
        guilty = [h for h in holdings(model) if h.path in names and h.value.grad_fn is not None]
        plain = all(h.path == h.attribute and h.value.dim() > 1 for h in guilty)
        end = checksums(model)
    if not guilty:
        return None
    declared = subject.contract.loss is not None or subject.contract.train_step is not None
    idle = plain and declared and _detached(subject, {h.path for h in guilty}) == end
    first = guilty[0]
    made = violated if idle else suspicious
    places = {c.name: c.location for c in keeping_lines(subject, train=True)}
    place = places.get(first.attribute) or first.location
    line = on_line(place)
    return made(
        "copy-after-training",
        f"after a training step the model cannot be copied: {listed([h.path for h in guilty])} keeps its graph",
        culprits=[
            Culprit("tensor", h.path, location=places.get(h.attribute) or h.location)
            for h in guilty
        ],
        location=place,
        observed=f"copy.deepcopy(model) after one step: {said}",
        cause=f"the forward keeps {first.path} with the graph that computed it",
        because="with it detached at the end of the forward, a step gives the same weights: its "
        "graph is not used"
        if idle
        else (
            f"{first.path}.grad_fn is not None after the step, and the newly built model can be "
            "copied"
        ),
        fix=f"keep {first.name}.detach(){line}"
        if idle
        else f"keep {first.name}.detach(){line}, or return it from forward if the loss reads it",
    )


def _step(subject: Subject, model: nn.Module) -> None:
    model.train()
    seed_everything(subject.seed)
    made = subject.make_optimizer(model)
    subject.train_step(model, made, subject.batch().clone())


def _detached(subject: Subject, names: Collection[str]) -> dict[str, int] | None:
    """Return the checksums after a step in which these attributes are detached as each forward ends."""

    def cut(module: nn.Module, args: Any, output: Any) -> None:
        for held in holdings(module):
            if held.path in names and held.value.grad_fn is not None:
                vars(held.owner)[held.name] = held.value.detach()

    with subject.pristine(steps=True) as model:
        hook = model.register_forward_hook(cut)
        try:
            _step(subject, model)
        except SubjectError:
            return None
        finally:
            hook.remove()
        return checksums(model)


def held_by_cache(twin: nn.Module) -> Finding | None:
    """Explain a copy that lives on after its last use, where a function of the user's caches what it was called with."""
    for thing in gc.get_objects():
        if not issubclass(type(thing), functools._lru_cache_wrapper):  # wakes no lazy proxy
            continue
        function: FunctionType | None = getattr(thing, "__wrapped__", None)
        place = None if function is None else sources.of_object(function)
        if place is None or sources.rank(place.file) != 2 or not _holds(thing, twin):
            continue
        name = function.__qualname__ if function is not None else ""
        return violated(
            "copy-held",
            f"a copy of {type(twin).__name__} is never freed: {name} caches it",
            culprits=[Culprit("call", name, "lru_cache", place)],
            location=place,
            observed="a copy and its parameters stay alive after one forward and the last use of "
            "the copy",
            cause=f"functools.lru_cache keeps the arguments of {name}, including self, for the "
            "whole process",
            because=f"the cache of {name} holds {thing.cache_info().currsize} entries, and the copy in one of them",
            fix="cache in an attribute of the instance, or cache a function of plain numbers",
        )
    return None


_MOST = 20_000


def _holds(wrapper: Any, wanted: object) -> bool:
    """Say whether a cache holds an object in a key or a value; the function itself is not looked into."""
    skip = {id(getattr(wrapper, "__wrapped__", None)), id(getattr(wrapper, "__dict__", None))}
    queue, seen = deque([(wrapper, 0)]), set[int]()
    while queue and len(seen) < _MOST:
        thing, depth = queue.popleft()
        for part in gc.get_referents(thing):
            if part is wanted:
                return True
            if id(part) in seen or id(part) in skip or isinstance(part, type) or depth > 3:
                continue
            seen.add(id(part))
            queue.append((part, depth + 1))
    return False

"""Graphs that a step carries into the next one: the line that keeps them, and where they grow."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import sources
from ..findings import Culprit
from ..lean import dataclass
from ..probes.holding.leaks import count_hooks
from ..record.tracing import Watcher, line_of
from ..subject.errors import SubjectError
from ..subject.remembered import remembered
from .closures import carried_graphs

if TYPE_CHECKING:
    from types import FrameType

    from ..findings import Location
    from ..subject import Subject

from .replay import replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What holds a graph from one step to the next.

    Attributes:
        names: Paths of the tensors, such as ``carried['hidden'][0]``.
        location: The line that puts it there.
        given: The variables with a graph that this line reads, and the line that bound each of
            them: in the same function, or the call that passed it.
    """

    names: tuple[str, ...] = ()
    location: Location | None = None
    given: tuple[tuple[str, Location], ...] = ()

    def culprits(self) -> tuple[Culprit, ...]:
        """Return what is kept, and what was given to the line that keeps it."""
        return (
            *(Culprit("tensor", name, "has a grad_fn", self.location) for name in self.names[:4]),
            *(
                Culprit("tensor", name, "passed with its graph", place)
                for name, place in self.given[:2]
            ),
        )


def where_graph_is_carried(subject: Subject, name: str | None = None) -> Carried:
    """Find what holds a graph from one step to the next, and the line that puts it there.

    Args:
        subject: Whose step.
        name: The path of the tensor that is asked for; the first one that is kept by default.
    """
    contract = subject.contract
    names: list[str] = []
    given: list[tuple[str, Location]] = []

    def watch(model: nn.Module, _: Any) -> Watcher:
        def holding() -> dict[str, torch.Tensor]:
            held = carried_graphs(contract.train_step, contract.optimizer, model=model)
            return {path: tensor for path, tensor in held.items() if name in (None, path)}

        # what is held before the step counts again once it is another tensor, or is written to
        known = [(tensor, tensor.grad_fn) for tensor in holding().values()]
        bound = _Bindings()

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            bound.note(frame, event, line)
            if event == "call":
                return False
            held = holding()
            new = [
                path
                for path, tensor in held.items()
                if not any(tensor is one and tensor.grad_fn is made for one, made in known)
            ]
            known.extend((held[path], held[path].grad_fn) for path in new)
            names[:] = list(held)
            if new:
                given[:] = bound.read_on(frame, line)
            return bool(new)

        return watcher

    place = replay(subject, watch)
    return Carried(names=tuple(names), location=place, given=tuple(given))


def given_with_graph(subject: Subject, place: Location) -> tuple[tuple[str, Location], ...]:
    """Return the variables with a graph that a line of the step reads, each with the other line that bound it."""
    given: list[tuple[str, Location]] = []

    def watch(model: nn.Module, _: Any) -> Watcher:
        bound = _Bindings()

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            bound.note(frame, event, line)
            here = event != "call" and line == place.line
            if not here or os.path.abspath(frame.f_code.co_filename) != place.file:
                return False
            given[:] = bound.read_on(frame, line)
            return True

        return watcher

    replay(subject, watch)
    return tuple(given)


def where_hooks_are_added(subject: Subject) -> Location | None:
    """Return the first line of a step after which the model has more hooks."""

    def watch(model: nn.Module, _: Any) -> Watcher:
        before = count_hooks(model).total()
        return lambda frame, event, line: event != "call" and count_hooks(model).total() > before

    return replay(subject, watch)


def where_buffers_keep_a_graph(subject: Subject) -> tuple[str, Location | None]:
    """Return the first buffer that a step leaves with a graph, and the line that binds it; else an empty name."""
    names: list[str] = []

    def watch(model: nn.Module, _: Any) -> Watcher:
        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event != "call":
                names.extend(n for n, b in model.named_buffers() if b.grad_fn is not None)
            return bool(names)

        return watcher

    line = replay(subject, watch)
    return (names[0] if names else ""), line


class _Bindings:
    """Knows by which line each variable of the running functions got a tensor with a graph."""

    def __init__(self) -> None:
        self._lines: dict[FrameType, dict[str, tuple[int, Location]]] = {}

    def note(self, frame: FrameType, event: str, line: int) -> None:
        """Look at a frame after a line of it, or at its arguments when it is called."""
        here = self._lines.setdefault(frame, {})
        caller = frame.f_back
        for name, value in frame.f_locals.items():
            if not _has_graph(value) or here.get(name, (0,))[0] == id(value):
                continue
            if event != "call":
                here[name] = (id(value), line_of(frame.f_code, line))
            elif caller is not None and sources.rank(caller.f_code.co_filename) == 2:
                here[name] = (id(value), line_of(caller.f_code, caller.f_lineno))

    def read_on(self, frame: FrameType, line: int) -> list[tuple[str, Location]]:
        """Return the variables with a graph that a line reads, with the other lines that bound them.

        Where it reads none, but an attribute: the arguments with a graph that its function was given.
        """
        here = self._lines.get(frame, {})
        place = line_of(frame.f_code, line)
        read = sources.names_read(frame.f_code.co_filename, line)
        bound = [(name, here[name][1]) for name in read if name in here and here[name][1] != place]
        code = frame.f_code
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return bound or [(name, here[name][1]) for name in given if name in here]


def _has_graph(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(isinstance(one, torch.Tensor) and one.grad_fn is not None for one in value[:8])
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


@remembered("growing-graph")
def growing_graph(subject: Subject) -> tuple[str, tuple[int, ...]] | None:
    """Return what the step keeps whose graph grows with every call, and its nodes after each.

    A sum of losses is one small tensor whatever it holds, so that no count of bytes tells; its graph
    gets longer with every loss that is added. So does that of running statistics updated with a
    graph. Cached.
    """
    contract = subject.contract
    sizes: dict[str, list[int]] = {}
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        optimizer = subject.make_optimizer(model)
        for call in range(_CALLS):
            try:
                subject.train_step(model, optimizer, subject.batch().clone())
            except SubjectError:
                return None
            held = carried_graphs(contract.train_step, contract.optimizer, model=model)
            if not held:
                return None
            for name, tensor in held.items():
                sizes.setdefault(name, [0] * call).append(_nodes(tensor))
            del held
    for name, counts in sizes.items():
        later = counts[2:]
        if len(counts) == _CALLS and all(a < b for a, b in pairwise(later)):
            return name, tuple(counts)
    return None


_CALLS = 6


def _nodes(tensor: torch.Tensor, most: int = 20_000) -> int:
    """Count the nodes of a tensor's graph."""
    seen = {tensor.grad_fn}
    stack = [tensor.grad_fn]
    while stack and len(seen) < most:
        node = stack.pop()
        for following, _ in node.next_functions if node is not None else ():
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return len(seen)

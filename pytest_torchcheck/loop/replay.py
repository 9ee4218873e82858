"""Run the user's step again, line by line, to name a line. Only after a plain run has found something."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_torchcheck import sources
from pytest_torchcheck.findings import Culprit
from pytest_torchcheck.record.tracing import Watcher, find_line, line_of
from pytest_torchcheck.state import seed_everything
from pytest_torchcheck.subject import Subject, SubjectError

from .closures import carried_graphs
from .steps import StepWatch, take_steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pytest_torchcheck.findings import Location


def replay(
    subject: Subject,
    watcher: Callable[[nn.Module, Any], Watcher],
    *,
    before: int = 0,
    steps: int = 1,
) -> Location | None:
    """Return the first line of the user's step for which a watcher says True.

    Args:
        subject: Whose step.
        watcher: Made from the model and what the optimizer function returned.
        before: Steps that run first, unwatched.
        steps: Steps that are watched.
    """
    with (
        subject.pristine(steps=True) as model,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for parameter in model.parameters():
            parameter.grad = None
        model.train()
        seed_everything(subject.seed)
        made = None if subject.contract.loop is not None else subject.make_optimizer(model)
        watched = _From(before, watcher(model, made) if subject.contract.loop is not None else None)
        if watched.watcher is not None:  # a trainer's loop runs once, from the start
            watching = watched.watcher
            return find_line(
                lambda: take_steps(subject, model, made, before + steps, watched),
                lambda frame, event, line: watched.reached and watching(frame, event, line),
            )

        def run(count: int, first: int) -> None:
            for step in range(first, first + count):
                seed_everything(subject.seed + step)
                subject.train_step(model, made, subject.batch().clone())

        try:
            run(before, 0)
        except SubjectError:
            return None
        return find_line(lambda: run(steps, before), watcher(model, made))


class _From(StepWatch):
    """Knows when a step is reached."""

    def __init__(self, first: int, watcher: Watcher | None) -> None:
        self.first, self.watcher, self.reached = first, watcher, False

    def before(self, step: int) -> None:
        self.reached = self.reached or step >= self.first


def where_loss_is_made_anew(subject: Subject) -> tuple[str, Location | None]:
    """Find the line that makes a scalar leaf that requires a gradient, and its name."""
    found: list[str] = []

    def watch(model: nn.Module, _: Any) -> Watcher:
        known = {id(p) for p in model.parameters()}

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event == "call":
                return False
            for name, value in frame.f_locals.items():
                if (
                    isinstance(value, torch.Tensor)
                    and value.is_leaf
                    and value.requires_grad
                    and value.numel() == 1
                    and id(value) not in known
                ):
                    found.append(name)
                    return True
            return False

        return watcher

    place = replay(subject, watch)
    return (found[0] if found else ""), place


def where_mode_is_left(
    subject: Subject, module: str, function: str, *, before: int = 0
) -> Location | None:
    """Find the line by which a function returns with a module still in eval mode.

    Args:
        subject: Whose step.
        module: Qualified name of the module.
        function: Qualified name of the function that switched it.
        before: Steps that run first.
    """

    def watch(model: nn.Module, _: Any) -> Watcher:
        switched = model.get_submodule(module) if module else model

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)
            return event == "return" and name == function and not switched.training

        return watcher

    return replay(subject, watch, before=before)


def where_gradients_go_off(subject: Subject, *, before: int = 0) -> Location | None:
    """Find the last line that switches gradients off and does not switch them on again."""
    last: list[tuple[FrameType, int]] = []

    def watch(model: nn.Module, _: Any) -> Watcher:
        state = [True]

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            now = torch.is_grad_enabled()
            if state[0] and not now and event != "call":
                last[:] = [(frame, line)]
            state[0] = now
            return False

        return watcher

    replay(subject, watch, before=before)
    return line_of(last[0][0].f_code, last[0][1]) if last else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What holds a graph from one step to the next.

    Attributes:
        names: Paths of the tensors, such as ``carried['hidden'][0]``.
        location: The line that puts it there.
        given: The variables with a graph that this line reads, and the line that bound each of them: in the
            same function, or the call that passed it.
    """

    names: tuple[str, ...] = ()
    location: Location | None = None
    given: tuple[tuple[str, Location], ...] = ()

    def culprits(self) -> tuple[Culprit, ...]:
        """Return what is kept, and what was given to the line that keeps it."""
        return (
            *(
                Culprit(kind="tensor", name=name, detail="has a grad_fn", location=self.location)
                for name in self.names[:4]
            ),
            *(
                Culprit(kind="tensor", name=name, detail="given with its graph", location=place)
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


def growing_graph(subject: Subject) -> tuple[str, tuple[int, ...]] | None:
    """Return what the step keeps whose graph grows with every call, and its nodes after each.

    A sum of losses is one small tensor whatever it holds, so that no count of bytes tells; its graph
    gets longer with every loss that is added. So does that of running statistics updated with a graph. Cached.
    """
    if "growing-graph" not in subject.cache:
        subject.cache["growing-graph"] = _growing_graph(subject)
    found: tuple[str, tuple[int, ...]] | None = subject.cache["growing-graph"]
    return found


def _growing_graph(subject: Subject) -> tuple[str, tuple[int, ...]] | None:
    contract = subject.contract
    sizes: dict[str, list[int]] = {}
    with subject.pristine(steps=True) as model:
        model.train()
        seed_everything(subject.seed)
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


def last_write(subject: Subject, a: str, b: str, *, before: int) -> Location | None:
    """Find the last line that writes to one of two gradients before the two parameters part.

    Args:
        subject: Whose step.
        a: Qualified name of the one parameter.
        b: Of the other.
        before: Steps after which they are still equal.
    """
    writes: list[tuple[FrameType, int, str]] = []

    def watch(model: nn.Module, _: Any) -> Watcher:
        pair = [model.get_parameter(a), model.get_parameter(b)]
        state = [_signature(p) for p in pair]

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event == "call":
                return False
            now = [_signature(p) for p in pair]
            parted = not torch.equal(pair[0].detach(), pair[1].detach())
            if now != state:
                grads_differ = _unlike(pair)
                if not parted or not writes:
                    writes.append((frame, line, "grads differ" if grads_differ else "grads equal"))
                state[:] = now
            return parted

        return watcher

    parted = replay(subject, watch, before=before)
    differing = [one for one in writes if one[2] == "grads differ"]
    if differing:
        frame, line, _ = differing[-1]
        return line_of(frame.f_code, line)
    return parted


def _signature(parameter: torch.Tensor) -> tuple[int, int]:
    grad = parameter.grad
    return (0, 0) if grad is None else (id(grad), grad._version)


def _unlike(pair: list[Any]) -> bool:
    a, b = pair[0].grad, pair[1].grad
    if a is None or b is None:
        return (a is None) != (b is None)
    return a.shape != b.shape or not torch.equal(a, b)


def where_changed(subject: Subject, name: str) -> Location | None:
    """Find the line of the user's step that writes to a parameter or buffer, or the call of the step where none does."""

    def watch(model: nn.Module, _: Any) -> Watcher:
        parameter = {**dict(model.named_parameters()), **dict(model.named_buffers())}[name]
        before = parameter.detach().clone()

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            return event != "call" and not torch.equal(parameter.detach(), before)

        return watcher

    return replay(subject, watch)

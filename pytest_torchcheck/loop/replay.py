"""Run the user's step again, line by line, to name a line. Only after a plain run has found something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..probes.recorded.watch import version_of
from ..record.tracing import Watcher, find_line, line_of
from ..state import seed_everything
from ..state.tensors import named_tensors
from ..subject.errors import SubjectError
from .closures import functions_of
from .steps import StepWatch, begun, take_steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ..findings import Location
    from ..subject import Subject


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
    with begun(subject) as (model, made):
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


def lines_of_step(subject: Subject, file: str) -> frozenset[int]:
    """Return the lines of a file that one step of the user's runs."""
    ran: set[int] = set()

    def watch(model: nn.Module, _: Any) -> Watcher:
        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event != "call" and frame.f_code.co_filename == file:
                ran.add(line)
            return False

        return watcher

    replay(subject, watch)
    return frozenset(ran)


def last_written(subject: Subject, name: str) -> Location | None:
    """Find the line of the user's step that is the last to write to a parameter, or that calls what does."""
    found: list[Location] = []
    step = {f.__code__ for f in functions_of(subject.contract.train_step)}

    def watch(model: nn.Module, _: Any) -> Watcher:
        parameter = named_tensors(model)[name]
        version = [version_of(parameter)]

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event != "call" and version_of(parameter) != version[0]:
                version[0] = version_of(parameter)
                outer: FrameType | None = frame
                while outer is not None and outer.f_code not in step:
                    outer = outer.f_back
                at = line if outer is None or outer is frame else outer.f_lineno
                found.append(line_of((outer or frame).f_code, at))
            return False

        return watcher

    replay(subject, watch)
    return found[-1] if found else None


def where_changed(
    subject: Subject, name: str, *, written: bool = False, before: int = 0
) -> Location | None:
    """Find the line of the user's step that writes to a parameter or buffer, or the call of the step where none does.

    Args:
        subject: Whose step.
        name: Of the parameter or buffer.
        written: Whether a write of the value that it has counts.
        before: Steps that run first; none where a trainer's loop makes the steps.
    """
    first = 0 if subject.contract.loop is not None else before

    def watch(model: nn.Module, _: Any) -> Watcher:
        tensor = named_tensors(model)[name]
        was, version = tensor.detach().clone(), version_of(tensor)

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event == "call":
                return False
            moved = version_of(tensor) != version
            return moved if written else not torch.equal(tensor.detach(), was)

        return watcher

    return replay(subject, watch, before=first)

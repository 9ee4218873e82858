"""Which statements of a step read a value that was cut from its graph, and for which of its backward passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import sources
from ...lean import dataclass
from ..recorded.operations import gradients_kept, record_step, values_behind
from ..recorded.recording import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType

    import torch
    from torch import Tensor, nn

    from ...findings import Location
    from ..recorded.values import Call, Value
    from ..recorded.watch import Op

_Line = tuple["CodeType", int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """The statements that read a value which was cut, in the order in which they first did.

    Attributes:
        locations: Their lines, in the function that both cuts the value and reads it, itself or by what it calls.
        at_fault: The one that reads it for the pass that was to train the parameter, and for no other pass; None
            where the passes do not tell.
    """

    locations: tuple[Location, ...]
    at_fault: Location | None


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of an optimizer, after a number of backward passes."""

    passes: int
    holds: bool
    live: bool


class _Recorder(Recorder):
    """Also keeps the frames that led to each operation, the outermost first, and the steps of optimizers."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.lines: dict[int, list[tuple[FrameType, int]]] = {}
        self.steps: list[_Step] = []

    def op(self, name: str, location: Location | None = None) -> Op:
        """Make the next operation and keep the user's lines that led to it."""
        made = super().op(name, location)
        own = [f for f in self.frames() if sources.rank(f.f_code.co_filename) == 2]
        self.lines[made.index] = [(frame, frame.f_lineno) for frame in reversed(own)]
        return made

    def watching(self, parameter: Tensor) -> Callable[..., None]:
        """Make a hook that notes the steps of optimizers, and whether they hold a parameter."""

        def stepping(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            live = any(p.grad is not None and bool(p.grad.any()) for p in held)
            holds = any(p is parameter for p in held)
            self.steps.append(_Step(len(self.backward_roots), holds, live))

        return stepping


def readers_of(
    run: Callable[[], object],
    module: nn.Module,
    cut: Op,
    parameter: Tensor,
    optimizers: Iterable[torch.optim.Optimizer],
) -> Readers | None:
    """Run a step once more and find who reads what an operation of it cuts off; None where all do for the same passes.

    Args:
        run: The step, with its backward passes.
        module: The model.
        cut: The operation, of an equal run.
        parameter: The one that gets no gradient.
        optimizers: Those that the step is given.
    """
    recorder = _Recorder(module)
    optimizers = list(optimizers)
    hooks = [each.register_step_pre_hook(recorder.watching(parameter)) for each in optimizers]
    try:
        with gradients_kept(module.parameters()):
            record_step(run, recorder, backward=False)
        calls = [
            c for c in recorder.calls if c.op.name == cut.name and c.op.location == cut.location
        ]
        passes = [
            values_behind([recorder.value_of(root)], alias=True) for root in recorder.backward_roots
        ]
        return _readers(recorder, calls, passes, several=len(optimizers) > 1)
    finally:
        for hook in hooks:
            hook.remove()
        recorder.lines.clear()
        recorder.release()


def _readers(
    recorder: _Recorder, cutting: list[Call], passes: list[set[Value]], *, several: bool
) -> Readers | None:
    values = [value for call in cutting for value in call.outputs]
    if not cutting:
        return None
    home = recorder.lines[cutting[0].op.index]
    by_line: dict[_Line, set[int]] = {}
    for _ in range(len(recorder.calls)):
        by_line, following = {}, []
        for call in _consumers(values):
            where = _common(home, recorder.lines.get(call.op.index, []))
            used = {n for n, behind in enumerate(passes) if any(v in behind for v in call.outputs)}
            if where is not None and used:
                by_line.setdefault(where, set()).update(used)
                following += call.outputs
        if len(by_line) != 1 or not following:
            break
        values = following  # one statement makes another value of it, which several may read
    if len({frozenset(used) for used in by_line.values()}) < 2:
        return None  # one statement, or several for the same passes
    lines = {
        where: sources.of_line(where[0].co_filename, where[1], where[0].co_qualname)
        for where in by_line
    }
    meant = _meant(recorder.steps, several=several)
    own = [where for where, used in by_line.items() if used == {meant}]
    at_fault = lines[own[0]] if len(own) == 1 else None
    return Readers(locations=tuple(lines.values()), at_fault=at_fault)


def _consumers(values: list[Value]) -> list[Call]:
    found = {id(call): call for value in values for call in value.consumers if not call.shape_only}
    return sorted(found.values(), key=lambda call: call.op.index)


def _common(home: list[tuple[FrameType, int]], other: list[tuple[FrameType, int]]) -> _Line | None:
    """Return where the innermost frame that runs at both places is at the second one."""
    found = None
    for (mine, _), (theirs, line) in zip(home, other, strict=False):
        if mine is not theirs:
            break
        found = theirs.f_code, line
    return found


def _meant(steps: list[_Step], *, several: bool) -> int | None:
    """Return the pass that was to train a parameter.

    It is the last one before the optimizer that holds the parameter steps with no gradient at all; or, of several
    optimizers, before that one steps last.
    """
    own = [step for step in steps if step.holds and step.passes]
    idle = {step.passes - 1 for step in own if not step.live}
    if len(idle) == 1:
        return idle.pop()
    return own[-1].passes - 1 if own and several else None

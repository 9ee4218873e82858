"""Steps of a loop that each begin from a state of zeros, though the one before returned another."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import rnn

from ... import sources
from ...lean import dataclass
from ...objects import trees
from ...record.lines import traced
from ...record.tracing import line_of

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from ...findings import Location
    from ...subject import Subject

_Shape = tuple[torch.Size, torch.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncarried:
    """A state that no step of a loop passes on to the next.

    Attributes:
        function: What computes a step.
        argument: Its argument that is zero in every step.
        calls: How many steps there are.
        location: The line that calls it.
    """

    function: str
    argument: str
    calls: int
    location: Location


@dataclass(slots=True)
class _Steps:
    calls: int = 0
    zeros: dict[str, _Shape] = field(default_factory=dict)
    returned: set[_Shape] = field(default_factory=set)


def uncarried(subject: Subject, least: int) -> Uncarried | None:
    """Trace an evaluation for a line that calls a function once for each position, each time with zeros for its state.

    A state is an argument of the shape and dtype of something that every call returns, and that is
    not zero.

    Args:
        subject: Whose model.
        least: How many calls there must be.
    """
    found: dict[tuple[CodeType, CodeType, int], _Steps] = defaultdict(_Steps)
    running: dict[FrameType, tuple[_Steps, dict[str, _Shape]]] = {}

    def local(frame: FrameType, event: str, value: Any) -> Any:
        if event == "return" and (one := running.pop(frame, None)) is not None:
            steps, zeros = one
            known = steps.calls > 0
            returned = {_shape(t) for t in trees.tensors(value).values() if bool((t != 0).any())}
            steps.zeros = _both(steps.zeros, zeros) if known else zeros
            steps.returned = steps.returned & returned if known else returned
            steps.calls += 1
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        code, caller = frame.f_code, _caller(frame)
        if event != "call" or caller is None or not _counts(code):
            return None
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = {name: trees.tensors(frame.f_locals.get(name)) for name in names if name != "self"}
        zeros = {
            name: _shape(t)
            for name, held in given.items()
            for t in held.values()
            if t.is_floating_point() and t.numel() and not bool(t.any())
        }
        running[frame] = found[code, caller.f_code, caller.f_lineno], zeros
        return local

    with traced(enter):
        subject.forward()
    for (code, caller, line), steps in found.items():
        for name, shape in steps.zeros.items():
            if steps.calls >= least and shape in steps.returned:
                function = getattr(code, "co_qualname", code.co_name)
                place = line_of(caller, line)
                return Uncarried(function=function, argument=name, calls=steps.calls, location=place)  # fmt: skip
    return None


def _both(known: dict[str, _Shape], now: dict[str, _Shape]) -> dict[str, _Shape]:
    return {name: shape for name, shape in known.items() if now.get(name) == shape}


def _shape(tensor: torch.Tensor) -> _Shape:
    return tensor.shape, tensor.dtype


def _counts(code: CodeType) -> bool:
    """Say whether a function may compute a step: the user's, an installed package's, or torch's recurrent layers."""
    return sources.rank(code.co_filename) > 0 or code.co_filename == rnn.__file__


def _caller(frame: FrameType) -> FrameType | None:
    """Return the frame whose line calls a function, beyond those of ``nn.Module.__call__``."""
    above = frame.f_back
    while above is not None and sources.rank(above.f_code.co_filename) == 0:
        above = above.f_back
    return above

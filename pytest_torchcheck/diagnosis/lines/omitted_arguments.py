"""Calls that leave out an optional argument for which a value stands ready that nothing uses."""

from __future__ import annotations

import inspect
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from ... import sources
from ...findings import Culprit
from ...lean import dataclass
from ...record.lines import traced
from ...record.modes import Functions
from .unread import bound_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType

    from ...findings import Location

_MOST = 2
_CALLING = torch_module.__file__


@dataclass(frozen=True, slots=True, kw_only=True)
class Omitted:
    """A call that leaves out an argument.

    Attributes:
        name: The variable that holds what could have been given.
        called: What is called: the class of a module, or a function.
        parameter: The argument.
        location: The line.
        other: Whether another value was given in its place; the variable then has the argument's
            very name.
    """

    name: str
    called: str
    parameter: str
    location: Location
    other: bool = False

    def culprit(self, why: str) -> Culprit:
        """Return the call as a culprit, with what is known of the variable."""
        how = (
            f"with another value as {self.parameter}" if self.other else f"without {self.parameter}"
        )
        detail = f"called here {how}; {self.name} {why}"
        return Culprit("call", self.called, detail, self.location)


def edit(calls: list[Omitted]) -> str:
    """Return what would give the variable to the first of some calls, or to the one of several that is meant."""
    first = calls[0]
    alike = [one for one in calls if (one.name, one.parameter) == (first.name, first.parameter)]
    lines = " or ".join(str(one.location.line) for one in alike)
    return f"pass {first.name} as {first.parameter} on line {lines}"


def without_names(
    place: Location, names: Iterable[str], run: Callable[[], object]
) -> list[Omitted]:
    """Return calls after a line, in its function, that could take one of the function's variables and do not.

    Those too that are given another value under the name of one.

    Args:
        place: The line.
        names: The variables.
        run: Runs it.
    """

    def held(frame: FrameType) -> dict[str, object]:
        same = os.path.abspath(frame.f_code.co_filename) == place.file
        if not same or frame.f_code.co_qualname != place.function or frame.f_lineno <= place.line:
            return {}
        return {name: frame.f_locals[name] for name in names if name in frame.f_locals}

    return _omitting(run, held, others=True)


def without_input(run: Callable[[], object], leaf: Tensor) -> list[Omitted]:
    """Return calls that could take an input and do not, in the functions that have it as a variable.

    Args:
        run: One forward.
        leaf: The input, as the run gets it.
    """

    def held(frame: FrameType) -> dict[str, object]:
        locals_ = frame.f_locals
        own: dict[str, object] = {n: value for n, value in locals_.items() if value is leaf}
        if own:
            line = sources.of_line(frame.f_code.co_filename, frame.f_lineno)
            own.update({n: locals_[n] for n in bound_from(line, frozenset(own)) if n in locals_})
        return own

    return _omitting(run, held)


def _omitting(
    run: Callable[[], object],
    held: Callable[[FrameType], Mapping[str, object]],
    *,
    others: bool = False,
) -> list[Omitted]:
    """Return the calls, one for each line, that leave out an argument which one of the held values fits."""
    found: dict[Location, Omitted] = {}

    def look(
        caller: FrameType,
        called: str,
        options: Mapping[str, Callable[[object], bool]],
        given: Mapping[str, object],
    ) -> None:
        line = sources.of_frame(caller, until=caller)
        for name, value in held(caller).items() if line is not None else ():
            own = name if others and isinstance(given.get(name), Tensor) else ""
            for parameter in (*options, *filter(None, [own])):
                other = parameter not in options
                fits = other or options[parameter](value) or _related(parameter, name, value)
                if line is not None and fits and value is not given.get(parameter):
                    found.setdefault(
                        line,
                        Omitted(
                            name=name,
                            called=called,
                            parameter=parameter,
                            location=line,
                            other=other,
                        ),
                    )

    def enter(frame: FrameType, event: str, _: Any) -> None:
        caller = _caller(frame) if event == "call" else None
        options = _left_out(frame) if caller is not None else {}
        while caller is not None:
            look(caller, _called(frame), options, frame.f_locals)
            # one that hands on what it is given leaves the choice to its own caller
            handing = caller.f_code.co_flags & inspect.CO_VARKEYWORDS
            caller = _caller(caller) if handing and options else None

    def attention(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        if func is F.scaled_dot_product_attention and mask is None and not kwargs.get("is_causal"):
            above = sys._getframe(2)  # above the mode
            if sources.rank(above.f_code.co_filename) == 2:
                look(above, "scaled_dot_product_attention", {"attn_mask": _never}, {})
        return func(*args, **kwargs)

    with Functions(attention), traced(enter):
        run()
    return list(found.values())[:_MOST]


def _caller(frame: FrameType) -> FrameType | None:
    """Return the frame of the user's that called a function or a module itself, not by way of a container."""
    back = frame.f_back
    while back is not None and back.f_code.co_filename == _CALLING:
        back = back.f_back
    if back is None or sources.rank(back.f_code.co_filename) < 2:
        return None
    module = isinstance(_self(frame), nn.Module) and frame.f_code.co_name == "forward"
    return back if module or sources.rank(frame.f_code.co_filename) else None


def _self(frame: FrameType) -> object:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _called(frame: FrameType) -> str:
    code, owner = frame.f_code, _self(frame)
    return type(owner).__name__ if code.co_name == "forward" and owner is not None else code.co_name


def _left_out(frame: FrameType) -> dict[str, Callable[[object], bool]]:
    """Return the parameters that default to None and are None in a call, with a test of what fits each by its shape."""
    code, owner = frame.f_code, _self(frame)
    function = getattr(type(owner), code.co_name, None) or frame.f_globals.get(code.co_name)
    function = inspect.unwrap(function) if callable(function) else None
    if getattr(function, "__code__", None) is not code:
        return {}
    assert function is not None
    given = frame.f_locals
    return {
        name: _state_of(owner, given) if name == "hx" else _never
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is None and given.get(name) is None
    }


def _never(value: object) -> bool:
    return False


def _state_of(owner: object, given: Mapping[str, object]) -> Callable[[object], bool]:
    """Return a test of whether a value is a state that a recurrent layer can start from with its input."""
    read = given.get("input")
    want: list[tuple[int, ...]] = []
    if isinstance(owner, nn.RNNCellBase) and isinstance(read, Tensor) and read.dim() == 2:
        want = [(read.shape[0], owner.hidden_size)]
        want *= 1 + isinstance(owner, nn.LSTMCell)
    elif isinstance(owner, nn.RNNBase) and isinstance(read, Tensor) and read.dim() == 3:
        want = [owner.get_expected_hidden_size(read, None)]
        if isinstance(owner, nn.LSTM):
            want.append(owner.get_expected_cell_size(read, None))

    def fits(value: object) -> bool:
        states = [value] if isinstance(value, Tensor) else list(_tensors(value))
        return bool(states) and all(tuple(state.shape) in want for state in states)

    return fits


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, list | tuple):
        yield from (each for each in value if isinstance(each, Tensor))


def _related(parameter: str, name: str, value: object) -> bool:
    """Say whether a parameter shares a word with a variable, or is a mask where the value is one of truth values."""
    if not isinstance(value, Tensor | list | tuple | dict):
        return False
    truth = isinstance(value, Tensor) and value.dtype == torch.bool
    if "mask" in parameter:
        return truth or "mask" in name
    return bool(_words(parameter) & _words(name))


def _words(name: str) -> set[str]:
    return {word for word in re.findall(r"[a-z]+", name.lower()) if len(word) > 2}

"""A layer or parameter that is built and never used, and a sibling of its kind that is used in its place."""

from __future__ import annotations

import ast
import difflib
import re
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ... import sources
from ...lean import dataclass
from ...probes.holding.holders import lines_run
from ...record.hooks import hooked
from ...record.tracing import expression
from ...runs.again import forward_and_loss
from ..lines.conditions import assigned_above, choosing_entries

if TYPE_CHECKING:
    from types import FrameType

    from torch import nn

    from ...findings import Location
    from ...subject import Subject


_Call = tuple["Location", "ast.expr | None"]
"""The user's line of a call, and what it calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """A module that runs more often than its owner does, while one like it never runs.

    Attributes:
        idle: Qualified name of the module that never runs.
        name: Qualified name of the sibling.
        calls: How often the sibling runs in one forward of its owner.
        line: The call that stands where one would expect the idle module's, or the statement that gave the
            variable which is called the sibling.
        sure: Whether this line chooses the sibling, so that it is the one to change.
        fact: What was counted, as a clause.
        chosen: The variables by which the line takes the sibling from a list, with the lines that
            assigned them.
    """

    idle: str
    name: str
    calls: int
    line: Location
    fact: str
    sure: bool
    chosen: tuple[tuple[str, Location], ...] = ()


def called_instead(subject: Subject, parameter: str) -> Sibling | None:
    """Return the sibling that is called once too often where the module that owns a parameter is never called.

    Args:
        subject: The model; its forward and loss run once more.
        parameter: Qualified name of a parameter that no operation reads.

    Two modules are siblings where one owner holds them, under one class, with parameters of the
    same shapes.
    """
    calls = _calls(subject)
    model = subject.model
    parts = parameter.split(".")[:-1]
    paths = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    ran_within = {
        name[: len(path)] for name in calls for path in paths if f"{name}.".startswith(f"{path}.")
    }
    idle = next((path for path in paths if path not in ran_within), None)
    if idle is None:
        return None
    owner = model.get_submodule(idle.rpartition(".")[0])
    own, ran = idle.rpartition(".")[2], _owner_runs(idle, calls)
    children = dict(owner.named_children())
    likely = [
        name
        for name, child in children.items()
        if _alike(child, children[own]) and len(calls[_join(idle, name)]) > ran
    ]
    if not likely:
        return None
    name = max(likely, key=lambda one: difflib.SequenceMatcher(None, one, own).ratio())
    lines = list(dict.fromkeys(place for place in calls[_join(idle, name)] if place is not None))
    if not lines:
        return None
    order = list(children)
    later = order.index(own) > order.index(name)
    count = len(calls[_join(idle, name)]) // ran
    line, called = lines[-1 if later else 0]
    choice = _choice(subject, _join(idle, name), called, line)
    line = choice or line
    return Sibling(
        idle=idle,
        name=_join(idle, name),
        calls=count,
        line=line,
        sure=choice is not None,
        chosen=_chosen(subject, line),
        fact=f"{_join(idle, name)} is called {count} times in one forward, {idle} never",
    )


def _choice(
    subject: Subject, name: str, called: ast.expr | None, line: Location
) -> Location | None:
    """Return the statement that chose a module which a line calls; None where that is not sure.

    It is the line itself where this writes the module out, and of a local variable the one statement that ran and
    assigned it. What a loop or a caller hands over was chosen elsewhere.
    """
    parts = name.split(".")
    if isinstance(called, ast.Attribute):
        return line if called.attr == parts[-1] else None
    if isinstance(called, ast.Subscript):
        return line if getattr(called.value, "attr", "") in parts[-2:-1] else None
    if not isinstance(called, ast.Name) or not (given := assigned_above(line, called.id)):
        return None
    with subject.pristine(), lines_run() as ran:
        forward_and_loss(subject)()
    found = [at for at in given if (at.file, at.line) in ran]
    return found[0] if len(found) == 1 else None


def _chosen(subject: Subject, line: Location) -> tuple[tuple[str, Location], ...]:
    """Return what gives the index by which a line takes a module from a list: the assignments that ran."""
    found = choosing_entries(line)
    if not found:
        return ()
    with subject.pristine(), lines_run() as ran:
        forward_and_loss(subject)()
    return tuple((name, at) for name, at in found if (at.file, at.line) in ran)


def read_instead(subject: Subject, parameter: str) -> Sibling | None:
    """Return the parameter that is read on several lines where one of its owner and of its shape is on none.

    Of several, one that has the same name but for a number; else there must be one alone.

    Args:
        subject: The model; its forward and loss run once more, where there is such a one.
        parameter: Qualified name of a parameter that no operation reads.
    """
    path, _, own = parameter.rpartition(".")
    owner = subject.model.get_submodule(path)
    shapes = {name: tuple(p.shape) for name, p in owner.named_parameters(recurse=False)}
    alike = [name for name in shapes if name != own and shapes[name] == shapes.get(own)]
    if not alike:
        return None
    with subject.pristine(), lines_run() as ran:
        forward_and_loss(subject)()
    if any((place.file, place.line) in ran for place in _reading(owner, own)):
        return None
    read = {
        name: [place for place in _reading(owner, name) if (place.file, place.line) in ran]
        for name in alike
    }
    several = [name for name, lines in read.items() if len(lines) > 1]
    bare = re.sub(r"\d+", "", own)
    named = [name for name in several if re.sub(r"\d+", "", name) == bare]
    if not named and len(several) != 1:
        return None
    name = (named or several)[0]
    lines, later = read[name], list(shapes).index(own) > list(shapes).index(name)
    return Sibling(
        idle=parameter,
        name=_join(parameter, name),
        calls=len(lines),
        line=lines[-1 if later else 0],
        sure=True,
        fact=f"{name} is read on lines {', '.join(str(place.line) for place in lines)}, {own} on none",
    )


def _reading(owner: nn.Module, name: str) -> list[Location]:
    """Return the lines of a module's class that read an attribute."""
    pattern = rf"\bself\.{re.escape(name)}\b(?!\s*(:[^=]+)?=[^=])"
    return sources.matches(type(owner), pattern) if sources.is_no_tools_class(type(owner)) else []


def _calls(subject: Subject) -> dict[str, list[_Call | None]]:
    """Return every call of every module, in one forward; None for those without a line of the user's."""
    found: dict[str, list[_Call | None]] = defaultdict(list)

    def note(name: str) -> Any:
        return lambda *_: found[name].append(_call_at(sys._getframe(1)))

    with subject.pristine() as model:
        handles = [
            module.register_forward_pre_hook(note(name)) for name, module in model.named_modules()
        ]
        with hooked(handles):
            forward_and_loss(subject)()
    return found


def _call_at(frame: FrameType | None) -> _Call | None:
    """Return the user's innermost line that runs, and what it calls; None for the latter where that is not seen."""
    place = sources.of_frame(frame)
    while frame is not None and sources.rank(frame.f_code.co_filename) < 2:
        frame = frame.f_back
    if place is None or frame is None:
        return None if place is None else (place, None)
    call = expression(frame.f_code, frame.f_lasti)
    return place, call[1].func if call is not None and isinstance(call[1], ast.Call) else None


def _join(idle: str, name: str) -> str:
    owner = idle.rpartition(".")[0]
    return f"{owner}.{name}" if owner else name


def _owner_runs(idle: str, calls: dict[str, list[_Call | None]]) -> int:
    """Return how often the nearest owner with a forward of its own ran; lists and dicts have none."""
    owner = idle
    while owner:
        owner = owner.rpartition(".")[0]
        if calls[owner]:
            return len(calls[owner])
    return 1


def _alike(one: nn.Module, other: nn.Module) -> bool:
    return (
        one is not other
        and type(one) is type(other)
        and [p.shape for p in one.parameters()] == [p.shape for p in other.parameters()]
    )

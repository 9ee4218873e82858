"""Sums that a loop begins at zero and then replaces in each turn, of which the last term alone is left."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from ... import sources
from ...lean import dataclass
from ...probes.holding.holders import lines_run
from ...subject.remembered import remembered
from ..training.observation import observe
from .unread import bindings, in_training, reads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Location
    from ...subject import Subject

_ZEROS: Final = frozenset({"zeros", "new_zeros", "zeros_like", "tensor", "new_tensor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A variable that is zero before a loop, and that each turn binds anew without reading it.

    Attributes:
        name: The variable.
        turns: How often the terms were computed.
        location: The line that binds it in the loop.
        begun: The line that sets it to zero.
        term: The line that computes a term, of which all results but the last are read by nothing.
    """

    name: str
    turns: int
    location: Location
    begun: Location
    term: Location


def replaced(subject: Subject) -> Replaced | None:
    """Return a sum that a loop replaces, where a line in it has results of which the last alone is read.

    Cost: nothing where the shared observation saw every result read; else what `unread_results` has run, and a
    forward under a line tracer where a loop binds what is zero before it.
    """
    if not observe(subject).signals.unread:
        return None
    for place, turns in in_training(subject).last.items():
        lines = [(place.file, place.span[0]), *((file, line) for file, _, line in place.above)]
        for file, line in lines:
            for one in _begun_at_zero(file, line or 0):
                ran = _ran(subject)
                if one.read & ran or (file, one.at) not in ran:
                    continue
                return Replaced(
                    name=one.name,
                    turns=turns,
                    location=sources.of_line(file, one.at, one.function),
                    begun=sources.of_line(file, one.zero, one.function),
                    term=sources.of_line(place.file, place.span[0] or 0, place.function),
                )
    return None


@remembered("lines-of-training-forward")
def _ran(subject: Subject) -> set[tuple[str, int]]:
    """Return the lines that a forward in training mode runs."""
    with lines_run() as found:
        subject.forward(train=True)
    return found


@dataclass(frozen=True, slots=True)
class _Bound:
    """What a loop binds that is zero before it: the variable, the lines of both, and those in the loop that read it."""

    name: str
    at: int
    zero: int
    read: frozenset[tuple[str, int]]
    function: str


def _begun_at_zero(file: str, line: int) -> Iterator[_Bound]:
    """Yield what the loops around a line bind that is zero before, and read behind them."""
    function = sources.function_around(file, line)
    if function is None:
        return
    for loop in reversed(sources.around(file, line, ast.For)):
        if loop.lineno <= function.lineno:
            continue
        plain = [
            s for s in ast.walk(function) if isinstance(s, ast.stmt) and not hasattr(s, "body")
        ]
        inside = [s for s in plain if loop.lineno < s.lineno <= (loop.end_lineno or 0)]
        for name in dict.fromkeys(n for s in inside for n, _ in bindings(s)):
            lines = [s.lineno for s in inside for n, _ in bindings(s) if n == name]
            zeros = [
                s.lineno
                for s in plain
                if s.lineno < loop.lineno
                for n, value in bindings(s)
                if n == name and _is_zero(value)
            ]
            behind = any(s.lineno > (loop.end_lineno or 0) and reads(s, name) for s in plain)
            own = [at for at in lines if not reads(next(s for s in inside if s.lineno == at), name)]
            if zeros and behind and own:
                read = frozenset((file, s.lineno) for s in inside if reads(s, name))
                owners = [c.name for c in sources.around(file, line, ast.ClassDef)]
                words = ".".join([*owners, getattr(function, "name", "")])
                yield _Bound(name, own[0], zeros[-1], read, words)


def _is_zero(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return value.value == 0 and not isinstance(value.value, bool)
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    if value.func.attr in ("tensor", "new_tensor"):
        return bool(value.args) and _is_zero(value.args[0])
    return value.func.attr in _ZEROS

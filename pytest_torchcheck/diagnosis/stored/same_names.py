"""Modules of a list that are registered under a computed name, of which a later one replaced an earlier one."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from ... import sources
from ..lines.unread import enclosing, target_of

if TYPE_CHECKING:
    from ...findings import Location
    from ...probes.holding.held_by_models import Holding

_NAMING = ("setattr", "add_module", "register_module")


@dataclass(frozen=True, slots=True, kw_only=True)
class SameName:
    """Where modules that one loop builds get a name.

    Attributes:
        made: The line that makes the name.
        registered: The line that registers under it.
        name: A name that was given twice, where only one is left; empty else.
    """

    made: Location
    registered: Location
    name: str


def same_name(group: list[Holding]) -> SameName | None:
    """Return the lines that gave one name to several modules of a list; None where that is not certain.

    It is where one loop registers every module that it appends, under a name that it computes, and
    yet only some of the list are registered: a name that is given again replaces what it stood for.
    """
    first = group[0]
    value = getattr(first.owner, first.name, None)
    if first.kind != "module" or not isinstance(value, list | tuple):
        return None
    hidden = {id(h.value) for h in group}
    own = {id(child): name for name, child in first.owner._modules.items()}
    kinds = {type(h.value) for h in group}
    left = [own[id(m)] for m in value if isinstance(m, nn.Module) and id(m) in own]
    known = [m for m in value if id(m) in own and type(m) in kinds]
    if not known or not all(id(m) in own or id(m) in hidden for m in value):
        return None
    found = _registering(type(first.owner))
    if found is None:
        return None
    made, registered = found
    return SameName(made=made, registered=registered, name=left[0] if len(left) == 1 else "")


def _registering(cls: type) -> tuple[Location, Location] | None:
    """Return the line that makes the name, and the one that registers, of a loop that does so with all that it appends."""
    place = sources.search(cls, rf"\b(?:{'|'.join(_NAMING)})\(")
    function = enclosing(place) if place is not None else None
    for loop in (n for n in ast.walk(function) if isinstance(n, ast.For)) if function else ():
        # only what the loop does in every turn
        calls = [s.value for s in loop.body if isinstance(s, ast.Expr)]
        added = {
            ast.unparse(c.args[0])
            for c in calls
            if isinstance(c, ast.Call) and sources.called(c) == "append" and c.args
        }
        for call in calls:
            if not isinstance(call, ast.Call) or sources.called(call) not in _NAMING:
                continue
            name, module = call.args[-2:] if len(call.args) > 1 else (None, None)
            if name is None or module is None or ast.unparse(module) not in added:
                continue
            if isinstance(name, ast.Constant) or place is None:
                continue
            at = sources.of_line(place.file, call.lineno, place.function)
            bound = _bound(loop, name) if isinstance(name, ast.Name) else []
            made = sources.of_line(place.file, bound[0].lineno, place.function) if len(bound) == 1 else at  # fmt: skip
            return made, at
    return None


def _bound(loop: ast.For, name: ast.Name) -> list[ast.Assign]:
    """Return the lines of a loop that make a name, without those that number it: these make another one in each turn."""
    number = ""
    if isinstance(loop.iter, ast.Call) and sources.called(loop.iter) in ("enumerate", "range"):
        target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
        number = getattr(target, "id", "")
    bound = [s for s in ast.walk(loop) if isinstance(s, ast.Assign) and target_of(s) == name.id]
    return [s for s in bound if not number or not _numbered(s.value, number)]


def _numbered(value: ast.expr, number: str) -> bool:
    parts = [n.value for n in ast.walk(value) if isinstance(n, ast.FormattedValue)]
    parts += [a for n in ast.walk(value) if isinstance(n, ast.Call) for a in n.args]
    return any(isinstance(part, ast.Name) and part.id == number for part in parts)

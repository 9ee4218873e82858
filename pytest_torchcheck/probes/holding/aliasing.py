"""By which line a tensor that was handed over gets the other name under which it is written to."""

from __future__ import annotations

import ast
import os
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit
from ...lean import dataclass
from ...record.tracing import find_line, line_of
from ..recorded.watch import storage_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ...findings import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A second name of a tensor that was handed over.

    Attributes:
        name: What it is called.
        location: The line that binds it without copying.
    """

    name: str
    location: Location

    def culprit(self, of: str) -> Culprit:
        """Name the line, and what it gives the name to."""
        return Culprit("call", self.code, f"{self.name} shares memory with {of}", self.location)

    @property
    def fix(self) -> str:
        """How to copy there."""
        return f"take a copy on line {self.location.line}: {self.code}.clone()"

    @property
    def code(self) -> str:
        """The statement on that line."""
        node = sources.statement(self.location.file, self.location.line)
        return ast.unparse(node) if node is not None else self.location.text


def find_alias(
    call: Callable[[], Any], tensor: torch.Tensor, write: Location | None
) -> Alias | None:
    """Run a call line by line and find the line that binds the name which a line writes to.

    None where that name is a parameter's, comes from elsewhere, or is not known. Errors of the call
    are swallowed.

    Args:
        call: What to run; takes no arguments.
        tensor: What is written to, and handed over to the call.
        write: The line that writes.
    """
    statement = sources.statement(write.file, write.line) if write is not None else None
    written = _written(statement)
    storage = storage_of(tensor)
    if write is None or statement is None or not written or storage is None:
        return None
    bound: dict[tuple[FrameType, str], Location | None] = {}
    found: list[Location] = []

    def shares(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and storage_of(value) == storage

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        here = os.path.abspath(frame.f_code.co_filename) == write.file
        if event != "call" and here and statement.lineno <= line <= (statement.end_lineno or line):
            place = bound.get((frame, written))
            if place is not None:
                found.append(place)
                return True
        for name, value in frame.f_locals.items():
            key = (frame, name)
            if not shares(value):
                bound.pop(key, None)
            elif key not in bound:
                bound[key] = None if event == "call" else _binding(frame, line, name, bound)
        return False

    find_line(call, watcher, least=1)
    return Alias(name=written, location=found[0]) if found else None


def _binding(
    frame: FrameType, line: int, name: str, bound: dict[tuple[FrameType, str], Location | None]
) -> Location | None:
    """Return the line that has bound a name, where it is ``name = ...`` of another one for the same memory."""
    node = sources.statement(frame.f_code.co_filename, line)
    if not isinstance(node, ast.Assign) or node.lineno != node.end_lineno:
        return None
    plain = len(node.targets) == 1 and getattr(node.targets[0], "id", "") == name
    others = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)} - {name}
    simple = isinstance(node.value, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    known = any((frame, other) in bound for other in others)
    return line_of(frame.f_code, line) if plain and simple and known else None


def _written(statement: ast.stmt | None) -> str:
    """Return the name whose memory a statement writes to: ``a[i] = 0``, ``a += 1``, ``a.view(-1).mul_(2)``; else empty."""
    if isinstance(statement, ast.AugAssign):
        return _base(statement.target)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        return _base(statement.targets[0])
    value = getattr(statement, "value", None)
    called = value.func if isinstance(value, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr.endswith("_"):
        return _base(called.value)
    return ""


def _base(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""

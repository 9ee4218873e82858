"""Where the line of an error spells a size out: the number itself, or a name that the source gives this number."""

from __future__ import annotations

import ast
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from .assigned import assigned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import FrameType

    from ...findings import Location


def spelled(error: BaseException, size: int) -> tuple[Location, str] | None:
    """Return where a size is written, and how: ``6``, ``self.rows`` of a class with ``rows = 6``; else None.

    What a constructor is given, and what is read off a tensor, is no number of the source. Of a tensor
    with this size, such as a state, the line that makes it is looked at too.

    Args:
        error: What was raised, with its traceback.
        size: The size.
    """
    place = sources.of_error(error)
    frame = None if place is None else _frame(error, place)
    if place is None or frame is None:
        return None
    known = {**frame.f_globals, **frame.f_locals}
    read = list(_read(place))
    if (word := _among(read, place, known, size)) is not None:
        return place, word
    for node in read:
        value = known.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Name) and isinstance(value, torch.Tensor) and size in value.shape:
            made = assigned(place, node.id)
            word = None if made is None else _among(ast.walk(made.value), place, known, size)
            if made is not None and word is not None:
                return made.location, word
    return None


def _frame(error: BaseException, place: Location) -> FrameType | None:
    """Return the innermost frame of an error at a line."""
    frames = [
        frame
        for frame, line in walk_tb(error.__traceback__)
        if line == place.line and sources.of_line(frame.f_code.co_filename, line).file == place.file
    ]
    return frames[-1] if frames else None


def _read(place: Location) -> Iterator[ast.AST]:
    """Yield the expressions of the innermost statements at a line, without blocks within them."""
    around = sources.around(place.file, place.line, ast.stmt)
    for statement in around:
        inner = {id(n) for n in ast.walk(statement) if isinstance(n, ast.stmt)} - {id(statement)}
        if not any(id(other) in inner for other in around):
            pending: list[ast.AST] = [statement]
            while pending:
                node = pending.pop(0)
                yield node
                pending += [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.stmt)]


def _among(
    nodes: Iterable[ast.AST], place: Location, known: Mapping[str, Any], size: int
) -> str | None:
    """Return what among expressions stands for a size by the source alone, as it is written."""
    for node in nodes:
        if _is(node, size):
            return str(size)
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        written = ast.unparse(node)
        if isinstance(node, ast.Attribute):
            owner = known.get(node.value.id) if isinstance(node.value, ast.Name) else None
            value, of_class = _held(owner, node.attr)
        else:
            value, of_class = known.get(node.id), False
        if type(value) is not int or value != size:
            continue
        made = None if of_class else assigned(place, written)
        if of_class or (made is not None and _is(made.value, size)):
            return written
    return None


def _is(node: ast.AST, size: int) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == size


def _held(owner: Any, name: str) -> tuple[Any, bool]:
    """Return an attribute, and whether the class of its owner has it; runs no code of the user's."""
    if name in getattr(owner, "__dict__", {}):
        return vars(owner)[name], isinstance(owner, type)
    cls = owner if isinstance(owner, type) else type(owner)
    return next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None), True

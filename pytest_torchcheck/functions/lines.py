"""Which line of a Function: the one that computes a gradient, saves a tensor, or first differs."""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
from dataclasses import field
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..lean import dataclass
from ..record.modes import KernelObserver
from ..sources import (
    holds,
    of_error,
    of_line,
    of_object,
    own_nodes,
    parsed,
    search,
    untaken_lines,
    writes,
)
from .relations.jacobians import distance

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import CodeType, FrameType

    from ..findings import Location

_Function = torch.autograd.Function


def method_of(function: type | None, *names: str) -> Callable[..., Any] | None:
    """Return the first of these methods that a Function overrides, without its decorators."""
    for name in names:
        for cls in getattr(function, "__mro__", ()):
            if cls is _Function:
                break
            if name in vars(cls):
                method = getattr(function, name)
                plain = inspect.unwrap(getattr(method, "__func__", method))
                found: Callable[..., Any] = getattr(plain, "__func__", plain)
                return found
    return None


def overrides(function: type | None, name: str) -> bool:
    """Say whether a Function defines this method itself."""
    return method_of(function, name) is not None


def head(function: type | None, *names: str) -> Location | None:
    """Return the line of ``def backward`` (or of the class, where there is none)."""
    method = method_of(function, *names)
    if method is None:
        return of_object(function) if function is not None else None
    return _definition(method) or of_object(method)


def gradient_line(
    function: type | None, position: int | None, *, method: str = "backward", assigned: bool = True
) -> Location | None:
    """Return the line of ``backward`` that computes what it returns at a position.

    The value returned at that position counts; where it is a plain name, the last line that assigns
    it. Without source, None.

    Args:
        function: The Function.
        position: Position among the returned values: the argument's for backward, the output's for jvp;
            None where it is not known.
        method: ``backward`` or ``jvp``.
        assigned: Follow a plain name to the line that assigns it; else the line of ``return`` itself.
    """
    found = method_of(function, *(("backward", "vjp") if method == "backward" else (method,)))
    own = _parse(found)
    if found is None or own is None:
        return head(function, method)
    tree, filename = own
    dead = untaken_lines(found)
    returns = [
        node
        for node in own_nodes(tree)
        if isinstance(node, ast.Return) and node.value and node.lineno not in dead
    ]
    if not returns:
        return head(function, method)
    last = returns[-1]
    value: ast.expr = last.value  # type: ignore[assignment]
    line = last.lineno
    if isinstance(value, ast.Tuple) and position is not None and position < len(value.elts):
        value = value.elts[position]
        line = value.lineno
    if not assigned:
        line = last.lineno
    elif isinstance(value, ast.Name) and (made := _assigned(tree, value.id, last.lineno, dead)):
        line = made
    return of_line(filename, line, found.__qualname__)


def computing_lines(function: type | None, position: int | None, most: int = 4) -> list[Location]:
    """Return the lines of ``backward`` that compute what its gradient line reads, the last one first.

    Variables are followed to every line that may assign them, and what those read in turn; lines
    that only unpack what was saved are left out.

    Args:
        function: The Function.
        position: As for :func:`gradient_line`.
        most: How many at most.
    """
    found = method_of(function, "backward", "vjp")
    own = _parse(found)
    returned = gradient_line(function, position)
    if found is None or own is None or returned is None:
        return []
    tree, filename = own
    dead = untaken_lines(found)
    statements = [
        n
        for n in own_nodes(tree)
        if isinstance(n, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return)
        and n.lineno not in dead
    ]
    known = [n for n in statements if holds(n, returned.line)]
    for node in known:  # grows as it is walked
        read = {
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        known += [
            n for n in statements if n not in known and n.lineno < node.lineno and read & _bound(n)
        ]
    lines = {n.lineno for n in known[1:] if _computes(n)}
    return [
        of_line(filename, line, found.__qualname__) for line in sorted(lines, reverse=True)[:most]
    ]


def _bound(node: ast.AST) -> set[str]:
    return {n.id for t, _ in writes(node) for n in ast.walk(t) if isinstance(n, ast.Name)}


def _computes(node: ast.stmt) -> bool:
    """Say whether a statement calculates: an operator or a call in its value."""
    value = getattr(node, "value", None)
    return value is not None and any(
        isinstance(n, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Call) for n in ast.walk(value)
    )


def line_with(function: type | None, pattern: str, *methods: str) -> Location | None:
    """Return the first line of these methods that matches a regular expression."""
    for name in methods:
        method = method_of(function, name)
        if method is not None and (found := search(method, pattern)) is not None:
            return found
    return None


def error_line(function: type | None, error: BaseException) -> Location | None:
    """Return the Function's own line in a traceback, else the user's innermost one."""
    files = _files(function)
    best = None
    for frame, line in walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_filename in files:
            best = of_line(code.co_filename, line, code.co_qualname)
    return best or of_error(error)


@dataclass(slots=True, kw_only=True)
class Op:
    """One operation, the line of the Function that called it, and what it gave."""

    line: Location
    name: str
    results: list[Tensor] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    draws: bool = False


class Trace(KernelObserver):
    """Record the operations that run while a Function's own code is on the stack.

    Args:
        function: The Function.
        method: A method of it, whose lines are recorded whatever it calls; all of its file otherwise.
    """

    def __init__(self, function: type | None, method: str = "") -> None:
        self.ops: list[Op] = []
        self._files = _files(function)
        self._code = getattr(method_of(function, method), "__code__", None)

    def around(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run one kernel, and record it where the Function's own code called it."""
        result = func(*args, **kwargs)
        line = _own_line(sys._getframe(1), self._files, self._code)
        if line is not None:
            self.ops.append(
                Op(
                    line=line,
                    draws=torch.Tag.nondeterministic_seeded in func.tags,
                    name=str(func),
                    results=[
                        t.detach().clone()
                        for t in pytree.tree_leaves(result)
                        if isinstance(t, Tensor)
                    ],
                    written=_written(func, args, kwargs),
                )
            )
        return result


def first_divergence(reference: Sequence[Op], other: Sequence[Op], tolerance: float) -> Op | None:
    """Return the first operation of ``other`` whose result differs from the reference run's."""
    a = [(op.line.line, op.name, _shapes(op)) for op in reference]
    b = [(op.line.line, op.name, _shapes(op)) for op in other]
    for block in difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        for k in range(block.size):
            left, right = reference[block.a + k], other[block.b + k]
            pairs = zip(left.results, right.results, strict=False)
            if any(distance(y, x) > tolerance for x, y in pairs):
                return right
    return None


def first_write(ops: Sequence[Op], storage: int) -> Op | None:
    """Return the first operation that writes into a storage (its data pointer)."""
    return next((op for op in ops if storage in op.written), None)


def storage_of(tensor: Tensor) -> int:
    """Return the data pointer of a tensor's storage, 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _written(func: Any, args: Any, kwargs: Any) -> set[int]:
    found = set()
    schema = getattr(func, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        found |= {storage_of(t) for t in pytree.tree_leaves(value) if isinstance(t, Tensor)}
    return found


def _shapes(op: Op) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(t.shape) for t in op.results)


def _files(function: type | None) -> set[str]:
    names = ("forward", "backward", "vjp", "setup_context", "jvp", "vmap")
    methods = [method_of(function, name) for name in names]
    return {m.__code__.co_filename for m in methods if m is not None and hasattr(m, "__code__")}


def _own_line(
    frame: FrameType | None, files: set[str], code: CodeType | None = None
) -> Location | None:
    while frame is not None:
        if frame.f_code is code if code is not None else frame.f_code.co_filename in files:
            return of_line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
        frame = frame.f_back
    return None


def _parse(method: Callable[..., Any] | None) -> tuple[ast.AST, str] | None:
    """Return the tree of a method's own definition, with the line numbers of its file, and that file."""
    found = None if method is None else parsed(method)
    if found is None:
        return None
    definitions = [n for n in ast.walk(found[0]) if isinstance(n, (ast.FunctionDef, ast.Lambda))]
    return (definitions[0] if definitions else found[0]), found[1]


def _definition(method: Callable[..., Any]) -> Location | None:
    own = _parse(method)
    if own is None or not isinstance(own[0], ast.FunctionDef):
        return None
    return of_line(own[1], own[0].lineno, method.__qualname__)


def _assigned(tree: ast.AST, name: str, before: int, dead: Collection[int] = ()) -> int | None:
    lines = []
    for node in own_nodes(tree):
        if getattr(node, "lineno", 0) in dead:
            continue
        names = _bound(node)
        called = getattr(getattr(node, "value", None), "func", None)
        if isinstance(node, ast.Expr) and isinstance(called, ast.Attribute) and called.attr.endswith("_"):  # fmt: skip
            # an in-place method: grad.mul_(2)
            names = {n.id for n in ast.walk(called.value) if isinstance(n, ast.Name)}
        value = getattr(node, "value", None)
        empty = isinstance(value, ast.Constant) and value.value is None
        if name in names and getattr(node, "lineno", 0) <= before and not empty:
            lines.append(getattr(node, "lineno", 0))
    return max(lines) if lines else None

"""Parameters that a forward would read in a branch that it does not take for these data."""

from __future__ import annotations

import ast
import inspect
import os
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...record.lines import traced

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType

    from torch import nn

    from ...findings import Location

_Node = tuple[str, ast.Attribute]
"""A file, and an expression there that reads an attribute of ``self``."""
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def in_untaken_branches(
    run: Callable[[], object], model: nn.Module, names: Collection[str]
) -> dict[str, Location]:
    """Return which parameters, of those that no operation reads, a branch would read, with its line.

    Its function runs, and comes to no place that reads the parameter, or the layer that owns it. What the
    values of arguments or tensors decide may come out otherwise elsewhere; what only settings of the model
    decide, which nothing changes once it is built, never does, nor an argument that its caller leaves out.

    Args:
        run: A forward of ``model``; it is traced once, instruction by instruction, where one of its classes has such a place.
        model: Whose parameters.
        names: Of the parameters.
    """
    places = {name: list(_places(model, name)) for name in names}
    files = {file for found in places.values() for each in found for file, _ in each[1]}
    if not files:
        return {}
    ran = _run_in(files, run)
    found: dict[str, Location] = {}
    for name, levels in places.items():
        for owner, reads in levels:
            if any((file, *_span(node)) in ran for file, node in reads):
                continue  # the layer that owns it is read; a deeper one may not be
            line = next((_line(ran, owner, *read) for read in reads), None)
            if line is not None:
                found[name] = line
            break
    return found


def _places(model: nn.Module, name: str) -> Iterator[tuple[nn.Module, list[_Node]]]:
    """Iterate over the modules on the way to a parameter, with what their classes read of it after construction."""
    parts = name.split(".")
    for depth, word in enumerate(parts):
        owner = model.get_submodule(".".join(parts[:depth]))
        reads = [
            (file, node)
            for file, function in _methods(owner)
            for node in ast.walk(function)
            if isinstance(node, ast.Attribute) and _is_own(node, word) and isinstance(node.ctx, ast.Load)
        ]  # fmt: skip
        if reads:
            yield owner, reads


def _methods(owner: nn.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Iterate over the methods of a module's classes that the user wrote, the constructor left out, with their file."""
    for cls in filter(sources.is_own_class, type(owner).__mro__):
        for value in vars(cls).values():
            code = getattr(inspect.unwrap(getattr(value, "__func__", value)), "__code__", None)
            if code is not None and code.co_name != "__init__":
                function = sources.function_around(code.co_filename, code.co_firstlineno)
                if function is not None:
                    yield os.path.abspath(code.co_filename), function


def _run_in(files: set[str], run: Callable[[], object]) -> set[tuple[Any, ...]]:
    """Run a forward; return the places, by file, of the expressions in some files that came to run."""
    steps: set[tuple[Any, int]] = set()

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            steps.add((frame.f_code, frame.f_lasti))
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if event != "call" or os.path.abspath(frame.f_code.co_filename) not in files:
            return None
        frame.f_trace_opcodes = True
        return local

    with torch.no_grad(), traced(enter):
        run()
    spans = {code: list(code.co_positions()) for code, _ in steps}
    return {(os.path.abspath(code.co_filename), *spans[code][at // 2]) for code, at in steps}


def _span(node: ast.expr) -> tuple[Any, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _line(
    ran: set[tuple[Any, ...]], owner: nn.Module, file: str, node: ast.Attribute
) -> Location | None:
    """Return the line of a place that did not run, where its function did and the data decide about it."""
    function = sources.function_around(file, node.lineno)
    if function is None or not any(
        at == file and line is not None and function.lineno <= line <= (function.end_lineno or line)
        for at, line, *_ in ran
    ):
        return None
    if any(_is_open(owner, function, test) for test in _tests(function, node)):
        return sources.of_line(file, node.lineno, f"{type(owner).__name__}.{function.name}")
    return None


def _tests(scope: ast.AST, node: ast.AST) -> Iterator[ast.expr]:
    """Iterate over what decides within a function whether an expression is evaluated."""
    inner = next((n for n in ast.iter_child_nodes(scope) if _within(n, node)), None)
    if inner is None:
        return
    if isinstance(scope, ast.If | ast.While | ast.IfExp) and inner is not scope.test:
        yield scope.test
    elif isinstance(scope, ast.For) and inner is not scope.iter:
        yield scope.iter
    elif isinstance(scope, ast.Match) and inner is not scope.subject:
        yield scope.subject
    elif isinstance(scope, ast.BoolOp):
        yield from scope.values[: scope.values.index(inner)]  # type: ignore[arg-type]
    for block in (getattr(scope, "body", ()), getattr(scope, "orelse", ())):
        if isinstance(block, list) and inner in block:
            above = (n for n in block[: block.index(inner)] if isinstance(n, ast.If))
            yield from (n.test for n in above if any(isinstance(i, _LEAVES) for i in ast.walk(n)))
    yield from _tests(inner, node)


def _within(outer: ast.AST, node: ast.AST) -> bool:
    return any(each is node for each in ast.walk(outer))


def _is_open(
    owner: nn.Module, function: ast.FunctionDef | ast.AsyncFunctionDef, test: ast.expr
) -> bool:
    """Say whether a condition may come out otherwise for other data, or later on."""
    bound = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
    for name in sources.parameters(function)[1:]:
        default = sources.default_of(function, name)
        if not (isinstance(default, ast.Constant) and default.value in (None, False)):
            bound.add(name)
    if any(isinstance(n, ast.Name) and n.id in bound for n in ast.walk(test)):
        return True
    return any(_is_own(n) and _changes(owner, n.attr) for n in ast.walk(test))  # type: ignore[attr-defined]


def _is_own(node: ast.AST, name: str = "") -> bool:
    """Say whether an expression is an attribute of ``self``."""
    if not isinstance(node, ast.Attribute) or name not in ("", node.attr):
        return False
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _changes(owner: nn.Module, name: str) -> bool:
    """Say whether an attribute is data of a module, or one that a method other than the constructor sets."""
    return isinstance(getattr(owner, name, None), torch.Tensor) or any(
        _is_own(n, name) and isinstance(n.ctx, ast.Store)  # type: ignore[attr-defined]
        for _, function in _methods(owner)
        for n in ast.walk(function)
    )

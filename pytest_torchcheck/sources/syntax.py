"""The syntax tree of a file: what stands around a line, the names that are read, and the lines that constants rule out."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import textwrap
from typing import TYPE_CHECKING, Any, TypeVar

from .. import deadline
from ..objects.peek import closed_over
from .locations import of_frame, of_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..findings import Location

    Function = ast.FunctionDef | ast.AsyncFunctionDef
    from collections.abc import Callable, Mapping
    from types import CodeType, FrameType


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def assigned_name(place: Location) -> str:
    """Return the one variable or attribute that the statement at a place assigns to, or an empty string."""
    for node in around(place.file, place.line, ast.Assign):
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name | ast.Attribute):
            return ast.unparse(node.targets[0])
    return ""


def crossed_call(called: FrameType, caller: FrameType) -> Location | None:
    """Return the line by which one frame calls another where an argument has the name of another parameter.

    That is a variable in the place of one parameter whose name is that of a different one, to which another is given.
    """
    code = called.f_code
    names = code.co_varnames[: code.co_argcount]
    place = of_frame(caller)
    if place is None:
        return None
    for node in around(place.file, place.line, ast.Call):
        given = [a.id if isinstance(a, ast.Name) else "" for a in node.args]
        if getattr(node.func, "id", None) != code.co_name or len(given) > len(names):
            continue
        if any(a != n and a in names for a, n in zip(given, names, strict=False)):
            return place
    return None


def uncalled(place: Location, method: str) -> Location | None:
    """Return a statement that names a method without calling it (``optimizer.zero_grad``), in the function around a line."""
    for function in around(place.file, place.line, ast.FunctionDef):
        for node in ast.walk(function):
            named = isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute)
            if named and node.value.attr == method:  # type: ignore[attr-defined]
                return of_line(place.file, node.lineno, place.function)  # type: ignore[attr-defined]
    return None


@functools.lru_cache(maxsize=64)
def tree_of(filename: str) -> ast.Module | None:
    """Return the syntax tree of a file, or None where it cannot be parsed; cached."""
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return None


def parsed(thing: Any) -> tuple[ast.Module, str] | None:
    """Return the syntax tree of a class, a function or its code, with the line numbers of the file, and that file.

    None where it has no source that can be parsed.
    """
    try:
        lines, start = inspect.getsourcelines(thing)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        return ast.increment_lineno(tree, max(start, 1) - 1), inspect.getsourcefile(thing) or ""
    except (TypeError, OSError, SyntaxError):
        return None


@functools.lru_cache(maxsize=64)
def nodes(filename: str) -> tuple[ast.AST, ...]:
    """Return the nodes of a file's syntax tree, as :func:`ast.walk` does; none where it cannot be parsed; cached."""
    tree = tree_of(filename)
    return () if tree is None else tuple(ast.walk(tree))


def holds(node: ast.AST, line: int) -> bool:
    """Say whether a line is one of a statement's or expression's."""
    first = getattr(node, "lineno", 0)
    return first <= line <= (getattr(node, "end_lineno", None) or first)


_Node = TypeVar("_Node", bound=ast.stmt | ast.expr)


def around(filename: str, line: int, kind: type[_Node]) -> list[_Node]:
    """Return the nodes of a kind that hold a line of a file, the outermost first."""
    deadline.keep()
    tree = tree_of(filename)
    level: list[ast.AST] = [] if tree is None else [tree]
    found: list[_Node] = []
    while level:
        found += [node for node in level if isinstance(node, kind)]
        level = [child for node in level for child in _within(node, line)]
    return sorted(found, key=lambda node: node.lineno)


def _within(parent: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield the children of a node that hold a line, or whose own children may."""
    for node in ast.iter_child_nodes(parent):
        if not hasattr(node, "lineno") or holds(node, line):
            yield node
        else:  # a decorator stands above what it decorates
            yield from (d for d in getattr(node, "decorator_list", ()) if holds(d, line))


def statement(filename: str, line: int) -> ast.stmt | None:
    """Return the innermost statement around a line of a file."""
    found = around(filename, line, ast.stmt)
    last = max((node.lineno for node in found), default=0)
    return next((node for node in found if node.lineno == last), None)


def functions_around(filename: str, line: int) -> list[Function]:
    """Return the functions around a line of a file, the innermost first."""
    found = around(filename, line, ast.stmt)
    return [node for node in reversed(found) if isinstance(node, FUNCTIONS)]


def function_around(filename: str, line: int) -> Function | None:
    """Return the innermost function around a line of a file."""
    return next(iter(functions_around(filename, line)), None)


def parameters(function: ast.AST) -> list[str]:
    """Return the names of a function's positional and keyword parameters; none for anything else."""
    if not isinstance(function, FUNCTIONS):
        return []
    given = function.args
    return [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def default_of(function: Function, name: str) -> ast.expr | None:
    """Return the expression that a parameter has by default; None where there is none."""
    given = function.args
    both = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(both[len(both) - len(given.defaults) :], given.defaults, strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return next((value for argument, value in pairs if argument.arg == name), None)


def own_nodes(scope: ast.AST | None) -> Iterator[ast.AST]:
    """Walk a scope in the order of the source, without what stands in the functions and classes within it."""
    pending = [] if scope is None else list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop(0)
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            pending = [*ast.iter_child_nodes(node), *pending]


def root_name(node: ast.expr) -> str:
    """Return the variable that an expression takes attributes or entries of; empty where it starts with none."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def writes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a statement assigns, each target with its value, those of an unpacked tuple one by one.

    Where what is unpacked is not written out, its parts share one value.
    """
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        targets = [node.target]
    else:
        return
    if node.value is not None:
        for target in targets:
            yield from _parts(target, node.value)


def _parts(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
        return
    written = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    given = written if len(written) == len(target.elts) else [value] * len(target.elts)
    for part, own in zip(target.elts, given, strict=True):
        yield from _parts(part, own)


def assigned_above(frame: FrameType, name: str) -> Location | None:
    """Return the last statement above the running line that assigns a variable, in a branch that can be taken."""
    file, dead = frame.f_code.co_filename, untaken_in(frame)
    lines = [
        node.lineno
        for node in own_nodes(function_around(file, frame.f_lineno))
        if isinstance(node, ast.stmt) and node.lineno < frame.f_lineno and node.lineno not in dead
        for target, _ in writes(node)
        if isinstance(target, ast.Name) and target.id == name
    ]
    return of_line(file, max(lines), frame.f_code.co_qualname) if lines else None


def names_read(filename: str, line: int) -> tuple[str, ...]:
    """Return the variables that the statement on a line reads, in the order of the text."""
    innermost = statement(filename, line)
    if innermost is None:
        return ()
    names = [
        node
        for node in ast.walk(innermost)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]
    names.sort(key=lambda node: (node.lineno, node.col_offset))
    return tuple(dict.fromkeys(node.id for node in names))


def reads_old_name(place: Location) -> Location | None:
    """Return the one later statement that reads what a statement gave another name, by its old name alone.

    The statement on the line is ``new = call(old, ...)``; None where it is another, or several read the old name.
    """
    made = statement(place.file, place.line)
    if not (isinstance(made, ast.Assign) and isinstance(made.value, ast.Call) and made.value.args):
        return None
    new, old = made.targets[0], made.value.args[0]
    if not (isinstance(new, ast.Name) and isinstance(old, ast.Name) and new.id != old.id):
        return None
    found = []
    for node in own_nodes(function_around(place.file, place.line)):
        read: ast.AST | None = node.iter if isinstance(node, ast.For) else None
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr):
            read = node
        if read is None or node.lineno <= place.line:  # type: ignore[attr-defined]
            continue
        names = {one.id for one in ast.walk(read) if isinstance(one, ast.Name)}
        if old.id in names and new.id not in names:
            found.append(of_line(place.file, node.lineno, place.function))  # type: ignore[attr-defined]
    return found[0] if len(found) == 1 else None


def _aliases(place: Location) -> Iterator[tuple[str, str, Location]]:
    """Yield the statements ``name = other`` above a line, for the names that it reads: name, other, place."""
    read = set(names_read(place.file, place.line))
    for node in own_nodes(function_around(place.file, place.line)):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Name)
            and isinstance(node.targets[0], ast.Name)
            and node.lineno < place.line
            and node.targets[0].id in read
        ):
            made = of_line(place.file, node.lineno, place.function)
            yield node.targets[0].id, node.value.id, made


def alias_above(place: Location) -> Location | None:
    """Return the one statement ``name = other`` above a line that reads the name; None where there are several."""
    found = aliases_above(place)
    return found[0] if len(found) == 1 else None


def aliases_above(place: Location) -> list[Location]:
    """Return the statements ``name = other`` above a line that reads the name, those of other branches too."""
    return [made for _, _, made in _aliases(place)]


def alias_at(place: Location) -> tuple[str, str, Location] | None:
    """Return ``name = other`` where it gives two variables that a line reads one value: name, other, place."""
    read = names_read(place.file, place.line)
    return next((one for one in _aliases(place) if one[1] in read), None)


@functools.lru_cache(maxsize=1024)
def source_of(thing: Any) -> tuple[list[str], int, str]:
    """Return the lines of what has source, the number of the first, and their file; no lines where it has none."""
    try:
        lines, start = inspect.getsourcelines(thing)
        return lines, start, inspect.getsourcefile(thing) or ""
    except (TypeError, OSError):
        return [], 0, ""


def untaken_lines(function: Callable[..., Any] | type) -> frozenset[int]:
    """Return the lines of a function in branches that its own closure and globals rule out.

    ``if fused:`` with ``fused`` a variable of an enclosing function is decided once the function is
    made; arguments and attributes are not. Classes and functions without source have no such lines.
    """
    plain = inspect.unwrap(function) if callable(function) else function
    plain = getattr(plain, "__func__", plain)
    if not inspect.isfunction(plain):
        return frozenset()
    known = closed_over(plain)
    if not any(
        value is None or isinstance(value, bool | int | float | str) for value in known.values()
    ):
        return frozenset()
    return _untaken(plain.__code__, known)


def untaken_in(frame: FrameType) -> frozenset[int]:
    """Return the lines of a running function in branches that its closure rules out; see :func:`untaken_lines`."""
    code = frame.f_code
    return _untaken(code, {n: frame.f_locals[n] for n in code.co_freevars if n in frame.f_locals})


def _untaken(code: CodeType, known: Mapping[str, Any]) -> frozenset[int]:
    if (found := parsed(code)) is None:
        return frozenset()
    tree, _ = found
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    stored |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    known = {
        name: value
        for name, value in known.items()
        if name not in stored and (value is None or isinstance(value, bool | int | float | str))
    }
    dead: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.If) or (taken := _truth(node.test, known)) is None:
            continue
        gone = list(node.orelse if taken else node.body)
        chosen = node.body if taken else node.orelse
        if chosen and isinstance(chosen[-1], ast.Return | ast.Raise):
            gone += _following(tree, node)
        for statement in gone:
            end = statement.end_lineno or statement.lineno
            dead.update(range(statement.lineno, end + 1))
    return frozenset(dead)


def _following(tree: ast.AST, node: ast.stmt) -> list[ast.stmt]:
    """Return the statements behind one, in its own block."""
    for parent in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(parent, block, None)
            if isinstance(statements, list) and node in statements:
                return statements[statements.index(node) + 1 :]
    return []


def _truth(test: ast.expr, known: Mapping[str, Any]) -> bool | None:
    """Return whether a condition of known names holds, or None where that is not known."""
    if isinstance(test, ast.Name):
        return bool(known[test.id]) if test.id in known else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand, known)
        return None if inner is None else not inner
    return None

"""Where targets that the contract was given were made: read off the source that hands them over."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from typing import TYPE_CHECKING, Any

from ... import sources
from ...findings import Culprit
from ...sources.syntax import root_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...findings import Location

_NAMES = frozenset({"target", "targets", "label", "labels"})
_SPECS = frozenset({"TensorSpec", "Floats", "Ints", "Labels", "Tokens", "Mask"})
_DEPTH = 6
_MOST = 3


def target_culprits(*things: Any, name: str = "targets") -> tuple[Culprit, ...]:
    """Return the lines that make the targets as culprits; what stands beside the model or the loss is read.

    Args:
        things: Models, losses, batch functions: objects or classes of the user's, or file names.
        name: What the culprits are called.
    """
    lines = target_lines(*things)
    helpers = [
        (function, helper)
        for place in lines
        for function, helper in helper_returns(place)
        if helper not in lines
    ]
    return (
        *(Culprit("target", name, "created here", p) for p in lines),
        *(
            Culprit("call", function, "a return of the function that creates them", helper)
            for function, helper in helpers[:_MOST]
        ),
    )


def helper_returns(place: Location, most: int = 2) -> list[tuple[str, Location]]:
    """Return the functions and own methods that a line calls, with their ``return``; none that has more than a few.

    Where the function returns a variable, the lines that assign it stand for the ``return``.
    """
    tree = sources.tree_of(place.file)
    if tree is None:
        return []
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and n.lineno == place.line]
    names = dict.fromkeys(name for n in calls if (name := _own_name(n.func)))
    found: list[tuple[str, Location]] = []
    for name in names:
        function = _function(name, tree)
        if function is None:
            continue
        returned = [
            n.value
            for n in sources.own_nodes(function)
            if isinstance(n, ast.Return) and n.value is not None
        ]
        ways = sorted({line for value in returned for line in _made_at(value, function)})
        if len(ways) <= most:
            found += [(name, sources.of_line(place.file, line, name)) for line in ways]
    return found


def _own_name(called: ast.expr) -> str:
    """Return the name of a function, or of a method of ``self``; empty for others."""
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        return called.attr if called.value.id in ("self", "cls") else ""
    return called.id if isinstance(called, ast.Name) else ""


def _made_at(value: ast.expr, function: ast.AST) -> list[int]:
    """Return the lines that assign a variable in a function; the line itself of any other value."""
    if not isinstance(value, ast.Name):
        return [value.lineno]
    assigned = [
        n.lineno
        for n in sources.own_nodes(function)
        if isinstance(n, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == value.id for t in n.targets)
    ]
    return assigned or [value.lineno]


def target_lines(*things: Any) -> list[Location]:
    """Return up to three lines that make the targets, the likeliest first; empty where none is found."""
    found: list[Location] = []
    for file in dict.fromkeys(_files(things)):
        for line in _lines(file):
            place = sources.of_line(file, line)
            if place not in found:
                found.append(place)
        if found:
            break
    return found[:_MOST]


def marking_lines(mark: int, *things: Any) -> list[tuple[str, Location]]:
    """Return the lines that write a number to some elements of a tensor, with the tensor's name.

    Args:
        mark: The number, such as -100.
        things: Models, losses, functions: objects or classes of the user's, whose files are read.
    """
    found: list[tuple[str, Location]] = []
    for file in dict.fromkeys(_files(things)):
        for node in ast.walk(sources.tree_of(file) or ast.Module([], [])):
            name = _marked(node, mark)
            if name and isinstance(node, ast.Assign | ast.Call):
                found.append((name, sources.of_line(file, node.lineno)))
    return found


def _marked(node: ast.AST, mark: int) -> str:
    """Return the name of the tensor of which a statement or a call writes a number to some elements, or empty."""
    if isinstance(node, ast.Assign) and _is_number(node.value, mark):
        return next((root_name(t) for t in node.targets if isinstance(t, ast.Subscript)), "")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        fills = node.func.attr in ("masked_fill", "masked_fill_") and node.args
        return root_name(node.func.value) if fills and _is_number(node.args[-1], mark) else ""
    return ""


def _is_number(node: ast.expr, number: int) -> bool:
    try:
        return bool(ast.literal_eval(node) == number)
    except ValueError:
        return False


def _files(things: Iterable[Any]) -> Iterator[str]:
    for thing in things:
        if isinstance(thing, str):
            name: str | None = thing
        elif thing is None:
            continue
        else:
            kind = thing if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)
            try:
                name = inspect.getsourcefile(inspect.unwrap(kind))
            except (TypeError, OSError):  # builtins and what was typed at a prompt
                continue
        if name is not None and sources.rank(name) == 2:
            yield name


@functools.lru_cache(maxsize=64)
def _lines(file: str) -> tuple[int, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    found: list[int] = []
    for scope in [
        n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ] + [tree]:
        for node in sources.own_nodes(scope):
            if isinstance(node, ast.Call):
                for given in _handed_over(node):
                    found += _made(given, scope, tree, _DEPTH)
                for name in _batch_functions(node):
                    if (function := _function(name, tree)) is not None:
                        found += _returned(function, 1, tree, _DEPTH)
    return tuple(dict.fromkeys(found))


def _handed_over(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the expressions that a call takes for targets: by that name, or second in ``batch=(x, y)``."""
    for keyword in call.keywords:
        if keyword.arg in _NAMES:
            made = keyword.value.func if isinstance(keyword.value, ast.Call) else None
            named = getattr(made, "id", getattr(made, "attr", ""))
            if named not in _SPECS:
                yield keyword.value
        elif (
            keyword.arg == "batch"
            and isinstance(keyword.value, ast.Tuple)
            and len(keyword.value.elts) == 2
        ):
            yield keyword.value.elts[1]


def _batch_functions(call: ast.Call) -> Iterator[str]:
    """Yield the names of functions that a call takes for its batches."""
    for keyword in call.keywords:
        if keyword.arg == "batch" and isinstance(keyword.value, ast.Name):
            yield keyword.value.id


def _made(expression: ast.expr, scope: ast.AST, tree: ast.Module, depth: int) -> list[int]:
    """Return the lines that make the value of an expression, through names and functions of the file."""
    if depth == 0 or isinstance(expression, ast.Constant):
        return []
    if isinstance(expression, ast.Name):
        return _assigned(expression, scope, tree, depth)
    if isinstance(expression, ast.Call):
        called = expression.func
        if isinstance(called, ast.Name) and (function := _function(called.id, tree)) is not None:
            return _returned(function, None, tree, depth)
        if (
            isinstance(called, ast.Attribute)
            and called.attr in ("contiguous", "clone", "float", "long", "to")
            and isinstance(called.value, ast.expr)
        ):
            return _made(called.value, scope, tree, depth - 1) or [expression.lineno]
    if isinstance(expression, ast.Tuple | ast.List):
        return [line for part in expression.elts for line in _made(part, scope, tree, depth - 1)]
    if isinstance(expression, ast.Dict):
        return [line for part in expression.values for line in _made(part, scope, tree, depth - 1)]
    return [expression.lineno]


def _assigned(name: ast.Name, scope: ast.AST, tree: ast.Module, depth: int) -> list[int]:
    found: list[int] = []
    assignments = sorted(
        (
            n
            for n in sources.own_nodes(scope)
            if isinstance(n, ast.Assign) and n.lineno <= name.lineno
        ),
        key=lambda node: node.lineno,
    )
    for node in assignments:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and root_name(target) == name.id:
                found.append(node.lineno)
            elif isinstance(target, ast.Name) and target.id == name.id:
                found += _made(node.value, scope, tree, depth - 1)
            elif isinstance(target, ast.Tuple):
                places = [
                    i
                    for i, t in enumerate(target.elts)
                    if isinstance(t, ast.Name) and t.id == name.id
                ]
                if places:
                    found += _part(node.value, places[0], scope, tree, depth)
    return found


def _part(value: ast.expr, place: int, scope: ast.AST, tree: ast.Module, depth: int) -> list[int]:
    """Return the lines that make one part of what is unpacked."""
    if isinstance(value, ast.Tuple) and place < len(value.elts):
        return _made(value.elts[place], scope, tree, depth - 1)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        function = _function(value.func.id, tree)
        if function is not None:
            return _returned(function, place, tree, depth)
    return [value.lineno]


def _function(name: str, tree: ast.Module) -> ast.FunctionDef | None:
    return next(
        (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name), None
    )


def _returned(
    function: ast.FunctionDef, place: int | None, tree: ast.Module, depth: int
) -> list[int]:
    returns = sorted(
        (
            n
            for n in sources.own_nodes(function)
            if isinstance(n, ast.Return) and n.value is not None
        ),
        key=lambda node: node.lineno,
    )
    found: list[int] = []
    for node in returns:
        assert node.value is not None
        made = (
            _made(node.value, function, tree, depth - 1)
            if place is None
            else _part(node.value, place, function, tree, depth - 1)
        )
        # a name that only a parameter gives is what this line hands on; so does one way out of
        # several
        found += [node.lineno, *made] if len(returns) > 1 else made or [node.lineno]
    return found

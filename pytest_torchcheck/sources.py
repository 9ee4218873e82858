"""Which line of the user's code: from a frame, a traceback, an object or a name in a class."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import re
import site
import sys
import sysconfig
import textwrap
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from . import deadline
from .findings import Location
from .prose import in_code
from .weak import by_class

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from types import CodeType, FrameType, TracebackType

_HERE = os.path.dirname(os.path.abspath(__file__))
_TOOLS = (
    "torch",
    "_pytest",
    "pytest",
    "pluggy",
    "hypothesis",
    "xdist",
    "execnet",
    "numpy",
    "functorch",
)


@functools.cache
def _standard_library() -> tuple[str, ...]:
    paths = {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        os.path.dirname(os.__file__),
    }
    return tuple(os.path.realpath(path) + os.sep for path in paths if path)


@functools.cache
def _site_packages() -> tuple[str, ...]:
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    return tuple(os.path.realpath(path) + os.sep for path in paths if path)


_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_OWN: set[str] = set()


def count_as_own(packages: Iterable[str]) -> None:
    """Let these installed packages, and no others, count as the user's own code; findings name their lines."""
    _OWN.clear()
    _OWN.update(packages)
    rank.cache_clear()


@functools.cache
def rank(filename: str) -> int:
    """Say how much a file is the user's own: 2 own code, 1 an installed package, 0 a tool."""
    if filename.startswith("<"):
        return 0
    path = os.path.realpath(filename)
    if path.startswith(_HERE + os.sep):
        return 0
    root = next((root for root in _site_packages() if path.startswith(root)), None)
    if root is None:  # those of another interpreter, put on the path of this one
        root = next(
            (path[: path.rindex(name) + len(name)] for name in _PACKAGES if name in path), None
        )
    if root is not None:
        top = path[len(root) :].split(os.sep, 1)[0]
        if top.removesuffix(".py") in _OWN:
            return 2
        return 0 if top in _TOOLS or top.split(".")[0] in _TOOLS else 1
    if any(path.startswith(root) for root in _standard_library()):
        return 0
    return 2


def _make(filename: str, line: int, function: str = "") -> Location:
    text = linecache.getline(filename, line).strip()
    file = _normal(filename) if os.path.isabs(filename) else os.path.abspath(filename)
    return Location(file=file, line=line, text=text, function=function)


_normal = functools.lru_cache(maxsize=4096)(os.path.abspath)


def of_line(filename: str, line: int, function: str = "") -> Location:
    """Return a line of a file, with its text."""
    return _make(filename, line, function)


def _best(frames: Iterable[tuple[CodeType, int]]) -> Location | None:
    """Pick the innermost frame of the user's own code, else of an installed package."""
    best: tuple[int, CodeType, int] | None = None
    for code, line in frames:  # from the outermost to the innermost
        value = rank(code.co_filename)
        if value and (best is None or value >= best[0]):
            best = (value, code, line)
    if best is None:
        return None
    _, code, line = best
    return _make(code.co_filename, line, getattr(code, "co_qualname", code.co_name))


def of_traceback(traceback: TracebackType | None) -> Location | None:
    """Return the user's innermost line of a traceback, or None if it holds none."""
    frames = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    return _best(frames)


def of_error(error: BaseException) -> Location | None:
    """Return the user's innermost line of an exception, following causes where it has none."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if (found := of_traceback(current.__traceback__)) is not None:
            return found
        current = current.__cause__ or current.__context__
    return None


def of_frame(
    frame: FrameType | None = None, *, skip: int = 0, until: FrameType | None = None
) -> Location | None:
    """Return the user's innermost line of the running stack.

    Args:
        frame: Where to start; the caller's frame by default.
        skip: How many frames to leave out first.
        until: The outermost frame to look at, such as the one that started a probe.
    """
    current: FrameType | None = frame if frame is not None else sys._getframe(1 + skip)
    fallback: tuple[CodeType, int] | None = None
    while current is not None:
        value = rank(current.f_code.co_filename)
        if value == 2:
            return _make(
                current.f_code.co_filename,
                current.f_lineno,
                getattr(current.f_code, "co_qualname", ""),
            )
        if value == 1 and fallback is None:
            fallback = (current.f_code, current.f_lineno)
        current = None if current is until else current.f_back
    return (
        None
        if fallback is None
        else _make(fallback[0].co_filename, fallback[1], fallback[0].co_name)
    )


def of_object(thing: Any) -> Location | None:
    """Return where a function, method or class is defined, or None for builtins."""
    thing = inspect.unwrap(thing) if callable(thing) else type(thing)
    if isinstance(thing, functools.partial):
        thing = thing.func
    if not inspect.isroutine(thing) and not inspect.isclass(thing):
        thing = type(thing)
    try:
        filename = inspect.getsourcefile(thing)
        _, line = inspect.getsourcelines(thing)
    except (TypeError, OSError):
        return None
    if filename is None:
        return None
    return _make(filename, max(line, 1), getattr(thing, "__qualname__", ""))


def of_user_object(thing: Any) -> Location | None:
    """Return where a function, method or class is defined, or None where that is in torch or another tool."""
    place = of_object(thing)
    return place if place is not None and rank(place.file) else None


def of_own_class(model: Any) -> Location | None:
    """Return where the class of a model, else of the first of its modules that the user wrote, is defined."""
    for module in (model, *model.modules()):
        place = of_object(type(module))
        if place is not None and rank(place.file) == 2:
            return place
    return None


def is_own_class(cls: type) -> bool:
    """Say whether a class is written in the user's own files, and its objects have attributes."""
    return _is_own_class(cls)


@by_class
def _is_own_class(cls: type) -> bool:
    if cls.__module__ == "builtins" or not hasattr(cls, "__dict__"):
        return False
    place = of_object(cls)
    return place is not None and rank(place.file) == 2 and "__dict__" in dir(cls)


def search(thing: Callable[..., Any] | type | ModuleType, pattern: str) -> Location | None:
    """Return the first line of a function's, class's or module's source that matches a regular expression."""
    return next(iter(matches(thing, pattern)), None)


def matches(thing: Callable[..., Any] | type | ModuleType, pattern: str) -> list[Location]:
    """Return the lines of a function's, class's or module's source whose code matches a regular expression."""
    thing = thing if isinstance(thing, ModuleType) else inspect.unwrap(thing)
    dead = frozenset() if isinstance(thing, ModuleType) else untaken_lines(thing)
    code = getattr(thing, "__code__", None)
    found = _matching(thing if code is None else code, getattr(thing, "__qualname__", ""), pattern)
    return [place for place in found if place.line not in dead]


@functools.lru_cache(maxsize=4096)
def _matching(thing: Any, name: str, pattern: str) -> tuple[Location, ...]:
    """Return the matching lines of a class, a module or a function's code; the same are asked for each parameter."""
    lines, start, filename = _source_of(thing)
    expression = re.compile(pattern)
    if "(?!" not in pattern and not re.search(pattern, "".join(lines), re.MULTILINE):
        return ()  # nearly always: one search of the text, not one of every line
    return tuple(
        _make(filename, line, name)
        for line, text in enumerate(lines, max(start, 1))
        if in_code(filename, line, text, expression)
    )


@functools.lru_cache(maxsize=1024)
def _source_of(thing: Any) -> tuple[list[str], int, str]:
    """Return the lines of what has source, the number of the first, and their file; no lines where it has none."""
    try:
        lines, start = inspect.getsourcelines(thing)
        return lines, start, inspect.getsourcefile(thing) or ""
    except (TypeError, OSError):
        return [], 0, ""


def file_matches(filename: str, pattern: str) -> list[Location]:
    """Return the lines of a file whose code matches a regular expression."""
    expression = re.compile(pattern)
    return [
        _make(filename, line)
        for line, text in enumerate(linecache.getlines(filename), 1)
        if in_code(filename, line, text, expression)
    ]


def line_above(place: Location, pattern: str, most: int = 20) -> Location | None:
    """Return the nearest line at or above a place, within its function, that matches a regular expression."""
    expression = re.compile(pattern)
    for line in range(place.line, max(0, place.line - most), -1):
        text = linecache.getline(place.file, line)
        if in_code(place.file, line, text, expression):
            return _make(place.file, line, place.function)
        if re.match(r"\s*(async )?def ", text):
            return None
    return None


def assigned_name(place: Location) -> str:
    """Return the one variable or attribute that the statement at a place assigns to, or an empty string."""
    tree = tree_of(place.file)
    for node in ast.walk(tree) if tree is not None else ():
        if (
            isinstance(node, ast.Assign)
            and node.lineno <= place.line <= (node.end_lineno or node.lineno)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name | ast.Attribute)
        ):
            return ast.unparse(node.targets[0])
    return ""


def uncalled(place: Location, method: str) -> Location | None:
    """Return a statement that names a method without calling it (``optimizer.zero_grad``), in the function around a line."""
    tree = tree_of(place.file)
    for function in ast.walk(tree) if tree is not None else ():
        if not isinstance(function, ast.FunctionDef) or not function.lineno <= place.line <= (
            function.end_lineno or 0
        ):
            continue
        for node in ast.walk(function):
            named = isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute)
            if named and node.value.attr == method:  # type: ignore[attr-defined]
                return of_line(place.file, node.lineno, place.function)  # type: ignore[attr-defined]
    return None


def deciding_lines(place: Location) -> list[Location]:
    """Return the innermost ``if`` around a line, and the lines before it, in its function, that assign names of its condition."""
    tree = tree_of(place.file)
    around = [
        node
        for node in ast.walk(tree or ast.Module(body=[], type_ignores=[]))
        if isinstance(node, ast.If) and node.lineno < place.line <= (node.end_lineno or 0)
    ]
    if not around:
        return []
    test = max(around, key=lambda node: node.lineno)
    head = of_line(place.file, test.lineno, place.function)
    names = [node.id for node in ast.walk(test.test) if isinstance(node, ast.Name)]
    found = [head]
    for name in dict.fromkeys(names):
        made = line_above(head, rf"^\s*{re.escape(name)}\s*=[^=]")
        while made is not None and len(found) < 4:
            found.append(made)
            above = of_line(place.file, made.line - 1, place.function)
            made = line_above(above, rf"^\s*{re.escape(name)}\s*=[^=]")
    return found


def giving_call(place: Location, values: Collection[float] = ()) -> Location | None:
    """Return the call that gives a line its values, where these are parameters of the function around it.

    ``nn.init.constant_(m.bias, value)`` within ``def init_weights(value)`` says less than
    ``self.apply(init_weights(-10.0))``. None where the line has values of its own.

    Args:
        place: The line.
        values: What was measured, such as a mean and a deviation: of several calls the one with such a number.
    """
    for function, sites in _giving_sites(place.file, place.line):
        fitting = [
            line
            for line, numbers in sites.items()
            if any(abs(n - v) <= 0.1 * abs(v) for n in numbers for v in values)
        ]
        if len(sites) == 1 or len(fitting) == 1:
            return _make(place.file, (fitting or list(sites))[0], function)
    return None


@functools.lru_cache(maxsize=256)
def _giving_sites(file: str, line: int) -> list[tuple[str, dict[int, list[float]]]]:
    """Return the functions around a line whose parameters it uses, the innermost first, and the numbers of their calls."""
    tree = tree_of(file)
    if tree is None:
        return []
    nodes = list(ast.walk(tree))
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    given = [a for c in calls if c.lineno == line for a in _arguments(c)]
    used = {n.id for a in given for n in ast.walk(a) if isinstance(n, ast.Name)}
    around = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    found = []
    for function in reversed(around):
        own = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)} - {"self"}
        if function.name.startswith("__") or not own & used:
            continue
        sites: dict[int, list[float]] = {}
        for call in calls:
            if getattr(call.func, "id", getattr(call.func, "attr", "")) == function.name:
                sites.setdefault(call.lineno, []).extend(_numbers(call))
        # what is initialised is handed over too, by apply(): only numbers tell
        found.append((function.name, {at: numbers for at, numbers in sites.items() if numbers}))
    return found


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [
        *(a for a in call.args if not isinstance(a, ast.Attribute)),
        *(k.value for k in call.keywords),
    ]


def _numbers(call: ast.Call) -> list[float]:
    found = []
    for argument in _arguments(call):
        try:
            value = ast.literal_eval(argument)
        except ValueError:  # no literal
            continue
        if isinstance(value, int | float):
            found.append(float(value))
    return found


@functools.lru_cache(maxsize=64)
def tree_of(filename: str) -> ast.Module | None:
    """Return the syntax tree of a file, or None where it cannot be parsed; cached."""
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return None


def statement(filename: str, line: int) -> ast.stmt | None:
    """Return the innermost statement around a line of a file."""
    return _innermost(filename, line, ast.stmt)


def function_around(filename: str, line: int) -> ast.FunctionDef | None:
    """Return the innermost function around a line of a file."""
    return _innermost(filename, line, ast.FunctionDef)


_Node = TypeVar("_Node", bound=ast.stmt)


def _innermost(filename: str, line: int, kind: type[_Node]) -> _Node | None:
    deadline.keep()
    around = [
        node
        for node in ast.walk(tree_of(filename) or ast.Module(body=[], type_ignores=[]))
        if isinstance(node, kind) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


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


def untaken_lines(function: Callable[..., Any] | type) -> frozenset[int]:
    """Return the lines of a function in branches that its own closure and globals rule out.

    ``if fused:`` with ``fused`` a variable of an enclosing function is decided once the function is
    made; arguments and attributes are not. Classes and functions without source have no such lines.
    """
    plain = inspect.unwrap(function) if callable(function) else function
    plain = getattr(plain, "__func__", plain)
    if not inspect.isfunction(plain):
        return frozenset()
    names = plain.__code__.co_freevars
    known: dict[str, Any] = {}
    for name, cell in zip(names, plain.__closure__ or (), strict=False):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
    if not any(
        value is None or isinstance(value, bool | int | float | str) for value in known.values()
    ):
        return frozenset()
    lines, start, _ = _source_of(plain.__code__)
    try:
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except SyntaxError:
        return frozenset()
    return _untaken(tree, start, known)


def untaken_in(frame: FrameType) -> frozenset[int]:
    """Return the lines of a running function in branches that its closure rules out; see :func:`untaken_lines`."""
    code = frame.f_code
    try:
        lines, start = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (TypeError, OSError, SyntaxError):
        return frozenset()
    return _untaken(
        tree, start, {n: frame.f_locals[n] for n in code.co_freevars if n in frame.f_locals}
    )


def _untaken(tree: ast.Module, start: int, known: Mapping[str, Any]) -> frozenset[int]:
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
            dead.update(range(start + statement.lineno - 1, start + end))
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


def of_assignment(module: Any, name: str, *, plain: bool = False) -> Location | None:
    """Return the line of a module's class (or its bases) that assigns ``self.name``.

    Plain, annotated, augmented and tuple assignments count, ``register_buffer("name", ...)`` and its like, also where
    the name comes from a loop over names, and last a class attribute.

    Args:
        module: An ``nn.Module`` or any object.
        name: Attribute name, without dots.
        plain: It is registered nowhere: lines that register it are those of another branch.
    """
    return of_attribute(type(module), name, plain=plain)


def of_attribute(owner: type, name: str, *, plain: bool = False) -> Location | None:
    """Return the line of a class (or its bases) that assigns an attribute, as :func:`of_assignment` does."""
    written = [
        (cls, filename)
        for cls in owner.__mro__
        if (filename := _file_of(cls)) is not None and rank(filename)
    ]
    for on_class in (False, True):
        for cls, filename in written:
            if line := _assignments(cls, plain)[on_class].get(name):
                return _make(filename, line, cls.__qualname__)
    return None


_SETTING = frozenset({"setattr", "__setattr__"})
_REGISTERING = _SETTING | {"register_buffer", "register_parameter", "register_module", "add_module"}


@by_class
def _assignments(cls: type, plain: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Return the line that assigns each attribute in a class's methods, and in its body.

    The first line counts; of a name that no ``__init__`` assigns as such, and that stands in one as a text, the line
    that registers under a name from a variable.
    """
    try:
        lines, start = inspect.getsourcelines(cls)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (TypeError, OSError, SyntaxError):
        return {}, {}
    body = next((node.body for node in tree.body if isinstance(node, ast.ClassDef)), [])
    first = next(
        (node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__"),
        None,
    )
    calls = _SETTING if plain else _REGISTERING
    found = _assigned(tree, calls)
    if first is not None:
        known = _assigned(first, calls)
        looped = _registered_by_variable(first, calls)
        found |= {name: line for name, line in looped.items() if name not in known}
    own = {
        target.id: node.lineno
        for node in reversed(body)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and node.value is not None
    }
    return (
        {name: start + line - 1 for name, line in found.items()},
        {name: start + line - 1 for name, line in own.items()},
    )


def _assigned(tree: ast.AST, calls: frozenset[str]) -> dict[str, int]:
    """Return the first line of a tree that assigns each attribute by its name, itself or by one of some calls."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Assign):
            names = [n for target in node.targets for n in _attributes(target)]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            names = list(_attributes(node.target))
        elif isinstance(node, ast.Call) and called(node) in calls:
            names = [
                a.value
                for a in node.args[:2]
                if isinstance(a, ast.Constant) and isinstance(a.value, str)
            ]
        for name in names:
            line = getattr(node, "lineno", 1)
            found[name] = min(line, found.get(name, line))
    return found


def _registered_by_variable(function: ast.FunctionDef, calls: frozenset[str]) -> dict[str, int]:
    """Return the texts of a function that may be names, to its line that registers or sets under a variable's name."""
    line = min(
        (
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Call)
            and called(node) in calls
            and not any(
                isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                for argument in node.args[:2]
            )
        ),
        default=None,
    )
    if line is None:
        return {}
    return {
        node.value: line
        for node in ast.walk(function)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.isidentifier()
    }


def called(node: ast.AST) -> str:
    """Return the last name of what a call calls: ``BCELoss`` for ``nn.BCELoss()``; empty for no call, or no name."""
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _attributes(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Attribute):
        yield target.attr
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _attributes(element)


def _file_of(cls: type) -> str | None:
    try:
        return inspect.getsourcefile(cls)
    except (TypeError, OSError):  # OSError: a class that was typed at a prompt
        return None


def is_no_tools_class(cls: type) -> bool:
    """Say whether a class is the user's own, or an installed package's: its file is asked, and no line looked for."""
    filename = _file_of(cls)
    return filename is not None and rank(filename) > 0


def of_parameter(root: Any, qualified: str) -> Location | None:
    """Return the line that makes a parameter, buffer or submodule, by its qualified name.

    The innermost owner written by the user counts: for ``encoder.0.weight`` of an ``nn.Sequential``
    that is the line that assigns ``self.encoder``.
    """
    parts = qualified.split(".")
    owners = [root]
    for part in parts[:-1]:
        following = getattr(owners[-1], part, None)
        if following is None:
            break
        owners.append(following)
    for depth in range(len(owners) - 1, -1, -1):
        if depth < len(parts) and (found := of_assignment(owners[depth], parts[depth])):
            return found
    return None

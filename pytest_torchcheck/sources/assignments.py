"""Where a class assigns an attribute, a submodule or a parameter, and where a call gives a value to a parameter."""

from __future__ import annotations

import ast
import functools
import inspect
from typing import TYPE_CHECKING, Any

from ..objects.weak import by_class
from .locations import of_line, rank
from .syntax import holds, own_nodes, parsed, statement, tree_of, writes

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..findings import Location


def of_assignment(module: Any, name: str, *, plain: bool = False) -> Location | None:
    """Return the line of a module's class (or its bases) that assigns ``self.name``.

    Plain, annotated, augmented and tuple assignments count, ``register_buffer("name", ...)`` and
    its like, also where the name comes from a loop over names, and last a class attribute.

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
                return of_line(filename, line, cls.__qualname__)
    return None


_SETTING = frozenset({"setattr", "__setattr__"})
_REGISTERING = _SETTING | {"register_buffer", "register_parameter", "register_module", "add_module"}


@by_class
def _assignments(cls: type, plain: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Return the line that assigns each attribute in a class's methods, and in its body.

    The first line counts, in ``__init__`` the first that assigns something other than None; of a name that no
    ``__init__`` assigns as such, and that stands in one as a text, the line that registers under a name from a
    variable.
    """
    if (found_source := parsed(cls)) is None:
        return {}, {}
    tree, _ = found_source
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
        valued = _assigned(first, calls, none=False)
        found |= {name: n for name, n in valued.items() if found[name] == known[name]}
    own = {
        target.id: node.lineno
        for node in reversed(body)
        for target, _ in writes(node)
        if isinstance(target, ast.Name)
    }
    return found, own


def _assigned(tree: ast.AST, calls: frozenset[str], *, none: bool = True) -> dict[str, int]:
    """Return the first line of a tree that assigns each attribute by its name, itself or by one of some calls.

    Args:
        tree: The tree.
        calls: Names of the calls.
        none: Whether to assign None counts.
    """
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        names = [
            target.attr
            for target, value in writes(node)
            if isinstance(target, ast.Attribute)
            and (none or getattr(value, "value", value) is not None)
        ]
        if isinstance(node, ast.Call) and called(node) in calls:
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


def says(place: Location | None, name: str, keyword: str, value: object, index: int) -> bool:
    """Say whether a call in the statement of a line passes an argument as this constant.

    Args:
        place: The line.
        name: The last name of what is called.
        keyword: Of the argument.
        value: The constant.
        index: Where the argument stands where it is passed by position.
    """
    made = statement(place.file, place.line) if place is not None else None
    for node in ast.walk(made) if made is not None else ():
        if isinstance(node, ast.Call) and called(node) == name:
            given = [one.value for one in node.keywords if one.arg == keyword]
            given += node.args[index : index + 1]
            return any(isinstance(one, ast.Constant) and one.value is value for one in given)
    return False


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


def constructed(place: Location, thing: Any) -> Location | None:
    """Return the one line of a function called at a place that constructs an object as this one.

    None where the place constructs it, or no function of its file that it calls does so on one line alone.
    Of several lines, those count whose arguments, where they are written out, are what the object holds.
    """
    tree = tree_of(place.file)
    nodes = [] if tree is None else list(ast.walk(tree))
    here = {called(node) for node in nodes if holds(node, place.line)} - {""}
    cls = type(thing).__name__
    if cls in here:
        return None
    found = {
        node.lineno: function.name
        for function in nodes
        if isinstance(function, ast.FunctionDef) and function.name in here
        for node in own_nodes(function)
        if isinstance(node, ast.Call) and called(node) == cls and _made_with(thing, node)
    }
    if len(found) != 1:
        return None
    ((line, function),) = found.items()
    return of_line(place.file, line, function)


def _made_with(thing: Any, call: ast.Call) -> bool:
    """Say whether an object can have been made by a call: what it holds by the names of the arguments is not another."""
    try:
        names = list(inspect.signature(type(thing)).parameters)
    except (TypeError, ValueError):
        return True
    given = [*zip(names, call.args, strict=False), *((k.arg or "", k.value) for k in call.keywords)]
    for name, node in given:
        held = vars(thing).get(name)
        if isinstance(held, int | float | str | tuple):
            try:
                value = ast.literal_eval(node)
            except ValueError:
                continue  # not written out
            if type(value) is type(held) and value != held:
                return False
    return True


def giving_call(place: Location, values: Collection[float] = ()) -> Location | None:
    """Return the call that gives a line its values, where these are parameters of the function around it.

    ``nn.init.constant_(m.bias, value)`` within ``def init_weights(value)`` says less than
    ``self.apply(init_weights(-10.0))``. None where the line has values of its own.

    Args:
        place: The line.
        values: What was measured, such as a mean and a deviation: of several calls the one with
            such a number.
    """
    for function, sites in _giving_sites(place.file, place.line):
        fitting = [
            line
            for line, numbers in sites.items()
            if any(abs(n - v) <= 0.1 * abs(v) for n in numbers for v in values)
        ]
        if len(sites) == 1 or len(fitting) == 1:
            return of_line(place.file, (fitting or list(sites))[0], function)
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
    around = [node for node in nodes if isinstance(node, ast.FunctionDef) and holds(node, line)]
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

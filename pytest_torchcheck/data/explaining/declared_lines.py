"""The user's line that makes one dataset of a contract, read from the file that declares it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ... import sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Location


def making_line(declared: Location | None, role: str) -> Location | None:
    """Return the line that makes the dataset of a role; the declaration itself where none is found.

    Looked for, in this order: the value that stands under the role in a dict (followed to the
    assignment where it is a name), and an assignment to a name that holds the role as a word.

    Args:
        declared: Where the contract is declared.
        role: Key of the dataset in the contract, such as ``eval``.
    """
    if declared is None or not role:
        return declared
    if (tree := sources.tree_of(declared.file)) is None:
        return declared
    assigned = list(_assignments(tree))
    node: ast.expr | None = _under_key(tree, role)
    if node is not None:
        for _ in range(4):  # a name may be given another name
            value = _last(assigned, node.id, node.lineno) if isinstance(node, ast.Name) else None
            if value is None:
                break
            node = value
    else:
        word = re.compile(rf"(?i)(?:^|_){re.escape(role)}(?:_|$)")
        node = next((value for name, value in reversed(assigned) if word.search(name)), None)
    if node is None:
        return declared
    return _place(declared.file, node.lineno)


def loader_line(
    declared: Location | None, role: str, words: tuple[str, ...] = ("drop_last",)
) -> Location | None:
    """Return the line that tells a role's loader something; the declaration where none is found.

    Followed from the contract's ``loader`` through names, dicts by role, and functions of the same
    file to the DataLoader's call or the dict of its arguments.

    Args:
        declared: Where the contract is declared.
        role: Key of the dataset in the contract, such as ``eval``; empty where there is one.
        words: Arguments of the DataLoader, the most telling first; without any, where it is made.
    """
    if declared is None or (tree := sources.tree_of(declared.file)) is None:
        return declared
    made = _loader(tree, declared.line, role)
    if made is None:
        return declared
    told = said(made)
    line = next((told[word].lineno for word in words if word in told), made.lineno)
    return _place(declared.file, line)


def made_in_file(declared: Location | None, name: str) -> Location | None:
    """Return the one line of the contract's file that calls a class or function; None where there are others.

    Args:
        declared: Where the contract is declared.
        name: Of what is called, without its module.
    """
    if declared is None or (tree := sources.tree_of(declared.file)) is None:
        return None
    lines = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", None) == name or getattr(node.func, "attr", None) == name)
    }
    if len(lines) != 1:
        return None
    (line,) = lines
    return _place(declared.file, line)


def _loader(tree: ast.Module, line: int, role: str) -> ast.Dict | ast.Call | None:
    """Return the dict or call that makes the loader of a role, for the contract declared at a line."""
    assigned = list(_assignments(tree))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    node: ast.expr | None = _declared_loader(tree, line)
    for _ in range(6):
        match node:
            case ast.Name():
                node = _last(assigned, node.id, node.lineno)
            case ast.Dict() if role and (part := said(node).get(role)) is not None:
                node = part
            case ast.Call(func=ast.Name(id=name)) if name in functions:
                node = next(
                    (
                        each.value
                        for each in ast.walk(functions[name])
                        if isinstance(each, ast.Return) and each.value is not None
                    ),
                    None,
                )
            case ast.Dict() | ast.Call():
                return node
            case _:
                return None
    return None


def _declared_loader(tree: ast.Module, line: int) -> ast.expr | None:
    """Return what the contract that is declared at a line has for ``loader``."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            first = min(each.lineno for each in node.decorator_list)
            if not first <= line <= (node.end_lineno or node.lineno):
                continue
            calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
        elif isinstance(node, ast.Call) and sources.holds(node, line):
            calls = [node]
        else:
            continue
        found += [
            (call.lineno, keyword.value)
            for call in calls
            for keyword in call.keywords
            if keyword.arg == "loader"
        ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def said(node: ast.Dict | ast.Call) -> dict[str, ast.expr]:
    """Return what a dict or a call says by name."""
    if isinstance(node, ast.Call):
        return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    return {
        str(key.value): value
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
    }


def _under_key(tree: ast.Module, role: str) -> ast.expr | None:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            named = isinstance(key, ast.Constant) and key.value == role
            if named and isinstance(value, ast.Call | ast.Name | ast.Attribute | ast.Subscript):
                return value
    return None


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield every assigned name with its value; the names of an unpacked tuple share one value."""
    for node in ast.walk(tree):
        for target, value in sources.writes(node) if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name):
                yield target.id, value


def _last(assigned: list[tuple[str, ast.expr]], name: str, before: int) -> ast.expr | None:
    earlier = [value for key, value in assigned if key == name and value.lineno < before]
    return max(earlier, key=lambda value: value.lineno, default=None)


def _place(file: str, line: int) -> Location:
    around = sources.function_around(file, line)
    return sources.of_line(file, line, "" if around is None else around.name)

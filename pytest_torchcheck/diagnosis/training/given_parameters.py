"""Which statements gave an optimizer its parameters: from its constructor's argument back through the user's code.

The lines that ran are known; the source says which of them assign, extend or choose what the
constructor was given.
"""

from __future__ import annotations

import ast
import re
from dataclasses import field
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...lean import dataclass
from .given_syntax import (
    COMPREHENSIONS,
    last_line,
    looped,
    parts_of,
    scopes,
    tests_of,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ...findings import Location
    from .making import Making

_DEPTH = 6
MOST = 3
_TRAINABLE = re.compile(r"(lambda \w+: )?(not )?[\w.]+\.requires_grad")
_LISTS = (
    "parameters",
    "named_parameters",
    "modules",
    "named_modules",
    "children",
    "named_children",
)


@dataclass(slots=True, kw_only=True, eq=False)
class Given:
    """A statement that gave an optimizer parameters.

    Attributes:
        location: Its line; where it writes a list over several lines, that of the last element.
        statement: The statement.
        adds: Whether it takes parameters from modules itself; one of names alone hands on what
            others gave.
        conditions: The lines of the conditions that choose what it gives.
        loops: The loops around it, the innermost last.
    """

    location: Location
    statement: ast.stmt
    adds: bool
    conditions: list[Location] = field(default_factory=list)
    loops: list[ast.For] = field(default_factory=list)

    @property
    def place(self) -> Location:
        """The line that says what it gives: a condition, else the head of a loop, else its own."""
        if self.conditions:
            return self.conditions[0]
        if self.loops:
            return sources.of_line(self.location.file, self.loops[0].lineno, self.location.function)
        return self.location


def given_to_optimizers(made: Making, model: nn.Module, name: str) -> list[Given]:
    """Return the statements that gave the optimizers what they hold, in the order in which they ran.

    Args:
        made: The run of the optimizer function.
        model: The model.
        name: A parameter: only conditions that looked at it count.
    """
    search = _Search(made, model, name)
    for place in made.optimizers:
        argument = _handed(place)
        if isinstance(argument, ast.Name | ast.Attribute | ast.Subscript):
            search.follow(argument, place.file, _DEPTH)
        elif argument is not None:
            search.written_out(argument, place)
    search.added_later()
    return sorted(search.found.values(), key=search.order)


def list_given(made: Making, every: list[Given]) -> Given | None:
    """Return the one statement that makes the list whose name the optimizer was given, where it writes it out."""
    for place in made.optimizers[-1:]:
        given = _handed(place)
        if not isinstance(given, ast.Name):
            return None
        own = [
            g
            for g in every
            if g.location.file == place.file
            and g.location.function == place.function.rpartition(".")[2]
            and any(True for _ in written(g.statement, given.id))
        ]
        made_of = getattr(own[0].statement, "value", None) if len(own) == 1 else None
        return own[0] if isinstance(made_of, ast.List | ast.Tuple | ast.Dict) else None
    return None


def _handed(place: Location) -> ast.expr | None:
    """Return the expression of the parameters that the call on a line makes an optimizer of."""
    for call in _constructors(place):
        named = next((k.value for k in call.keywords if k.arg == "params"), None)
        return call.args[0] if call.args else named
    return None


def _constructors(place: Location) -> list[ast.Call]:
    """Return the call on a line that makes an optimizer: of a class of torch's, else the outermost with an argument."""
    calls = sources.around(place.file, place.line, ast.Call)
    named = [
        n
        for n in calls
        if sources.called(n) != "Optimizer" and hasattr(torch.optim, sources.called(n))
    ]
    starting = [n for n in calls if n.lineno == place.line and (n.args or n.keywords)]
    return (named or starting)[:1]


class _Search:
    """Follows expressions back to the statements that ran."""

    def __init__(self, made: Making, model: nn.Module, name: str) -> None:
        self.ran = {(p.file, p.line): i for i, p in reversed(list(enumerate(made.lines)))}
        self.files = dict.fromkeys(p.file for p in made.lines)
        self.model, self.name = model, name
        self.found: dict[tuple[str, int], Given] = {}
        self.seen: set[ast.expr] = set()

    def order(self, given: Given) -> int:
        """Return when a statement ran first."""
        return self._when(given.location.file, given.statement) or 0

    def _when(self, file: str, node: ast.stmt) -> int | None:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return min((self.ran[file, n] for n in lines if (file, n) in self.ran), default=None)

    def follow(self, value: ast.expr, file: str, depth: int) -> None:
        """Note the statements that made the value of an expression."""
        if depth == 0 or value in self.seen:
            return
        self.seen.add(value)
        if isinstance(value, ast.Name | ast.Attribute):
            self._name(value, file, depth)
        elif isinstance(value, ast.Call):
            self._call(value, file, depth)
        else:
            for part in parts_of(value):
                self.follow(part, file, depth - 1)

    def written_out(self, argument: ast.expr, place: Location) -> None:
        """Note the statement of a constructor that is given more than a name."""
        for scope in scopes(place.file, place.line):
            around = [n for n in sources.own_nodes(scope) if isinstance(n, ast.stmt) and sources.holds(n, place.line)]  # fmt: skip
            if around:
                self._note(around[-1], place.file, scope, argument, _DEPTH)
                return
        self.follow(argument, place.file, _DEPTH)

    def _name(self, name: ast.Name | ast.Attribute, file: str, depth: int) -> None:
        text = ast.unparse(name)
        for scope in scopes(file, name.lineno):
            writers = [
                (node, value)
                for node in sources.own_nodes(scope)
                if isinstance(node, ast.stmt)
                and (isinstance(scope, ast.Module) or self._when(file, node) is not None)
                for value in written(node, text)
            ]
            for node, value in writers:
                self._note(node, file, scope, value, depth)
            if writers:
                return
            if text in (names := sources.parameters(scope)):
                self._callers(scope, names.index(text), text, depth)
                return

    def _call(self, call: ast.Call, file: str, depth: int) -> None:
        function = self._function(sources.called(call))
        if function is None:
            for argument in (*call.args, *(k.value for k in call.keywords if k.arg is None)):
                self.follow(argument, file, depth - 1)
            return
        where, node = function
        for inner in sources.own_nodes(node):
            if isinstance(inner, ast.Return | ast.Expr) and self._when(where, inner) is not None:
                value = inner.value
                if isinstance(value, ast.Yield | ast.YieldFrom):
                    value = value.value
                elif isinstance(inner, ast.Expr):
                    continue
                if isinstance(value, ast.Name):
                    self.follow(value, where, depth - 1)
                elif value is not None:
                    self._note(inner, where, node, value, depth)

    def _function(self, name: str) -> tuple[str, ast.FunctionDef] | None:
        """Return the one function of that name some lines of which ran."""
        found = [
            (file, node)
            for file in self.files
            for node in sources.nodes(file)
            if isinstance(node, ast.FunctionDef) and node.name == name
            if any(self._when(file, statement) is not None for statement in node.body)
        ]
        return found[0] if len(found) == 1 else None

    def _callers(self, function: ast.AST, place: int, name: str, depth: int) -> None:
        """Follow what the calls that ran gave to a parameter of a function."""
        for file in self.files:
            for call in sources.nodes(file):
                if (
                    not isinstance(call, ast.Call)
                    or sources.called(call) != getattr(function, "name", None)
                    or (file, call.lineno) not in self.ran
                ):
                    continue
                bound = isinstance(call.func, ast.Attribute) and sources.parameters(function)[
                    :1
                ] in (
                    ["self"],
                    ["cls"],
                )
                named = [k.value for k in call.keywords if k.arg == name]
                for value in named or call.args[place - bound :][:1]:
                    self.follow(value, file, depth - 1)

    def added_later(self) -> None:
        """Note the calls that add groups to an optimizer that is there."""
        for file in self.files:
            for node in sources.nodes(file):
                if (
                    isinstance(node, ast.Expr)
                    and sources.called(node.value) == "add_param_group"
                    and self._when(file, node) is not None
                ):
                    self._note(node, file, sources.tree_of(file), node.value, _DEPTH)

    def _note(
        self, node: ast.stmt, file: str, scope: ast.AST | None, value: ast.expr, depth: int
    ) -> None:
        """Note a statement, with the loops around it and the conditions that choose in it, and follow its value."""
        loops = [
            n
            for n in sources.own_nodes(scope)
            if isinstance(n, ast.For) and sources.holds(n, node.lineno)
        ]
        last = last_line(value)
        tests = [
            *self._tests_within(value),
            *(t for loop in loops if self._looks(loop.iter) for t in tests_of(loop, node)),
        ]
        lines = dict.fromkeys(t.lineno for t in tests if not _TRAINABLE.fullmatch(ast.unparse(t)))
        self.found[file, node.lineno] = Given(
            location=sources.of_line(file, max(node.lineno, last), getattr(scope, "name", "")),
            statement=node,
            adds=self._adds(value) or bool(looped(value, loops)),
            conditions=[sources.of_line(file, n, getattr(scope, "name", "")) for n in lines],
            loops=loops,
        )
        for expression in (value, *(loop.iter for loop in loops)):
            self.follow(expression, file, depth - 1)

    def _adds(self, value: ast.expr) -> bool:
        """Say whether an expression takes parameters from modules, and does not only hand on names."""
        if isinstance(value, ast.Call):
            handed = [*value.args, *(k.value for k in value.keywords)]
            if self._function(sources.called(value)) is not None:
                return False
            return not handed or any(self._adds(a) for a in handed if not isinstance(a, ast.Lambda))
        if isinstance(value, ast.Name) or (
            isinstance(value, ast.List | ast.Tuple) and not value.elts
        ):
            return False
        return (
            isinstance(value, COMPREHENSIONS)
            or not (parts := parts_of(value))
            or any(map(self._adds, parts))
        )

    def _tests_within(self, value: ast.expr) -> Iterator[ast.expr]:
        """Yield the conditions of the comprehensions and filters of an expression that looked at the parameter."""
        for node in ast.walk(value):
            if isinstance(node, COMPREHENSIONS) and self._looks(node.generators[0].iter):
                yield from (test for g in node.generators for test in g.ifs)
            elif (
                sources.called(node) == "filter"
                and isinstance(node, ast.Call)
                and len(node.args) == 2
                and self._looks(node.args[1])
            ):
                yield node.args[0]

    def _looks(self, iterated: ast.expr) -> bool:
        """Say whether a loop over an expression can meet the parameter: ``model.head.parameters()`` holds the head's alone."""
        for node in ast.walk(iterated):
            if (
                not isinstance(node, ast.Call)
                or sources.called(node) not in _LISTS
                or not isinstance(node.func, ast.Attribute)
            ):
                continue
            path = ast.unparse(node.func.value).split(".")[1:]
            whole = {name for name, _ in self.model.named_modules()}
            known = next((p for i in range(len(path)) if (p := ".".join(path[i:])) in whole), "")
            return not known or self.name.startswith(f"{known}.")
        return True

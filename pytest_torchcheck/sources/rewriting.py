"""The one-line edit that a fix describes in words, where it is one of few forms.

``drop .detach() on line 21``, ``write .reshape for .view on line 17``, ``pass batch_first=True``: what is
to be dropped, replaced or added is looked up in the syntax of that line. Where it is not there, or there
more than once, no edit is known.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
import sys
from typing import TYPE_CHECKING, Final, TypeVar

from ..findings import Edit
from .edits import known_names, names_of_code
from .syntax import around, nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..findings import Finding, Location

Rewrite = str | None
_Node = TypeVar("_Node", bound=ast.stmt | ast.expr)
_PLACE: Final = (
    r"(?: (?:on (?:this line|line \d+)|at \S+:\d+))?(?=[;:]|,(?! and )|\.(?:\s|$)|$| so )"
)
_CODE: Final = r"-?[\w.]+(?:\((?:[^()]|\([^()]*\))*\)(?:\.\w+)*)?"


def edit_of(finding: Finding) -> Edit | None:
    """Return the edit of one line that a finding's fix describes, or None.

    The edited file parses, and every name that the edit brings in exists at its line.
    """
    place = _place_of(finding)
    if place is None:
        return None
    lines = linecache.getlines(place.file)
    if not 0 < place.line <= len(lines):
        return None
    old = lines[place.line - 1].rstrip("\n")
    for pattern, rewrite in _FORMS:
        if (match := pattern.search(finding.fix)) is None:
            continue
        new = rewrite(_Line(place, old), match)
        if new is not None and new != old and _stands(place, lines, old, new):
            return Edit(file=place.file, line=place.line, old=old, new=new)
    return None


def _place_of(finding: Finding) -> Location | None:
    """Return the line that the fix names, else that of the finding."""
    places = [finding.location, *(culprit.location for culprit in finding.culprits)]
    known = [place for place in places if place is not None]
    named = re.search(r"\bline (\d+)\b|([\w.-]+\.py):(\d+)", finding.fix)
    if named is None:
        return known[0] if known else None
    line, name = int(named[1] or named[3]), named[2]
    for place in known:
        if name is None or os.path.basename(place.file) == name:
            text = linecache.getline(place.file, line).strip()
            return type(place)(file=place.file, line=line, text=text, function=place.function)
    return None


def _stands(place: Location, lines: list[str], old: str, new: str) -> bool:
    """Say whether the file parses with the edit, and the line then uses no name that does not exist there."""
    changed = [*lines[: place.line - 1], f"{new}\n", *lines[place.line :]]
    try:
        ast.parse("".join(changed))
    except SyntaxError:
        return False
    brought = names_of_code(new) - names_of_code(old)
    known = known_names(place)
    return known is None or brought <= known


class _Line:
    """A line, and the syntax that stands in it."""

    def __init__(self, place: Location, text: str) -> None:
        self.place, self.text = place, text

    def nodes(self, kind: type[_Node]) -> Iterator[_Node]:
        """Iterate over what begins and ends in the line."""
        for node in around(self.place.file, self.place.line, kind):
            if node.lineno == self.place.line == node.end_lineno:
                yield node

    def decorates(self, node: ast.AST) -> bool:
        """Say whether an expression is a decorator: what it declares is no part of what the fix is about."""
        owners = nodes(self.place.file)
        return any(node in getattr(owner, "decorator_list", ()) for owner in owners)

    def with_one(self, kind: type[_Node], fits: Callable[[_Node], str | None]) -> Rewrite:
        """Return the line with the one node that fits replaced by what ``fits`` returns for it."""
        found = [(node, new) for node in self.nodes(kind) if (new := fits(node)) is not None]
        if len(found) != 1:
            return None
        node, new = found[0]
        # columns count bytes
        text = self.text.encode()
        start, end = node.col_offset, node.end_col_offset
        return (text[:start] + new.encode() + text[end:]).decode()


def _place_among(called: str, key: str) -> int | None:
    """Return the place of an argument of one of torch's modules or functionals, of functions of other names nothing."""
    owner, _, called = called.rpartition(".")
    if owner in ("F", "functional", "nn.functional", "torch.nn.functional"):
        function = getattr(sys.modules.get("torch.nn.functional"), called, None)
        named = list(inspect.signature(function).parameters) if inspect.isfunction(function) else []
        return named.index(key) if key in named else None
    torchs = sys.modules.get("torch.nn")
    made = getattr(torchs, called, None)
    if not isinstance(made, type):
        return None
    for cls in made.__mro__:  # a recurrent layer takes *args, and hands them on with its mode
        names = [
            n
            for n in inspect.signature(vars(cls).get("__init__", cls)).parameters
            if n not in ("self", "mode")
        ]
        if "args" not in names:
            return names.index(key) if key in names else None
    return None


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def _without_method(line: _Line, match: re.Match[str]) -> Rewrite:
    name, called = match["method"], bool(match["called"])
    # named without its parentheses, a call is dropped with them all the same
    called = called or any(
        isinstance(n.func, ast.Attribute) and n.func.attr == name and not (n.args or n.keywords)
        for n in line.nodes(ast.Call)
        if isinstance(n, ast.Call)
    )

    def inner(node: ast.AST) -> str | None:
        own = node.func if called and isinstance(node, ast.Call) else node
        if not isinstance(own, ast.Attribute) or own.attr != name or (own is node) is called:
            return None
        kept = ast.unparse(own.value)
        return f"({kept})" if isinstance(own.value, ast.BinOp | ast.UnaryOp | ast.IfExp) else kept

    return line.with_one(ast.expr, inner)


def _unwrapped(line: _Line, match: re.Match[str]) -> Rewrite:
    name = match["function"].lower()

    def inner(node: ast.AST) -> str | None:
        assert isinstance(node, ast.Call)
        owner, _, last = _called(node).rpartition(".")
        if last.lower() not in (name, f"log_{name}") or not isinstance(node.func, ast.Attribute):
            return None
        if owner in ("F", "torch", "nn.functional", "torch.nn.functional"):
            return ast.unparse(node.args[0]) if node.args else None
        return None if owner == "self" else owner

    return line.with_one(ast.Call, inner)


def _without_keyword(line: _Line, match: re.Match[str]) -> Rewrite:
    def inner(node: ast.AST) -> str | None:
        assert isinstance(node, ast.Call)
        rest = [k for k in node.keywords if k.arg != match["key"]]
        if len(rest) == len(node.keywords):
            return None
        return ast.unparse(ast.Call(func=node.func, args=node.args, keywords=rest))

    return line.with_one(ast.Call, inner)


def _with_keyword(line: _Line, match: re.Match[str]) -> Rewrite:
    wanted = match.groupdict().get("call") or ""

    def inner(node: ast.AST) -> str | None:
        assert isinstance(node, ast.Call)
        called = _called(node).rpartition(".")[2]
        outer = not any(node in ast.walk(n) and n is not node for n in line.nodes(ast.Call))
        # a line that declares a contract builds no layer
        outer = outer and "Contract(" not in line.text and not line.decorates(node)
        if called != wanted.rpartition(".")[2] and not (outer and not wanted):
            return None
        try:
            value = ast.parse(match["value"], mode="eval").body
        except SyntaxError:
            return None
        args, rest = list(node.args), [k for k in node.keywords if k.arg != match["key"]]
        place = _place_among(_called(node), match["key"])
        if place is not None and place < len(args):
            args[place] = value  # it is given by place
        else:
            rest.append(ast.keyword(arg=match["key"], value=value))
        return ast.unparse(ast.Call(func=node.func, args=args, keywords=rest))

    return line.with_one(ast.Call, inner)


def _replaced(line: _Line, match: re.Match[str]) -> Rewrite:
    new, old = match["new"], match["old"]
    key, equals, value = new.partition("=")
    if equals and f"{new[: len(key)]}={old}" in line.text:
        old = f"{key}={old}"
    elif equals and not old.startswith(f"{key}="):
        new = value
    pattern = rf"(?<![\w.]){re.escape(old)}(?!\w)" if old[0] != "." else rf"{re.escape(old)}(?!\w)"
    made, count = re.subn(pattern, lambda _: new, line.text)
    return made if count == 1 else None


def _statement(line: _Line, match: re.Match[str]) -> Rewrite:
    try:
        (new,) = ast.parse(match["code"]).body
    except (SyntaxError, ValueError):
        return None
    if any(isinstance(n, ast.Constant) and n.value is ... for n in ast.walk(new)):
        return None  # a sketch
    own = next(line.nodes(ast.stmt), None)
    if isinstance(own, ast.AugAssign | ast.Assign) and isinstance(new, ast.Assign):
        target = own.target if isinstance(own, ast.AugAssign) else own.targets[0]
        if ast.unparse(target) != ast.unparse(new.targets[0]):
            return None
    elif type(own) is not type(new) and not (
        isinstance(own, ast.Expr) and isinstance(new, ast.Return | ast.Assign)
    ):
        return None
    return line.with_one(ast.stmt, lambda _: match["code"])


def _with_method(line: _Line, match: re.Match[str]) -> Rewrite:
    def inner(node: ast.AST) -> str | None:
        loaded = isinstance(getattr(node, "ctx", None), ast.Load)
        same = loaded and ast.unparse(node) == match["name"]
        return f"{match['name']}{match['method']}" if same else None

    return line.with_one(ast.expr, inner)


def _deleted(line: _Line, match: re.Match[str]) -> Rewrite:
    own = next(line.nodes(ast.stmt), None)
    # what it assigns may be used further on
    return line.with_one(ast.stmt, lambda _: "pass") if isinstance(own, ast.Expr) else None


_WRITE: Final = (
    rf"^(?:write|use|name the dimension:) (?P<new>\.?{_CODE}(?:=[\w.]+)?)"
    rf"(?: or more)? (?:for|instead of) (?P<old>\.?{_CODE}){_PLACE}"
)
_KEYWORD: Final = r"(?P<key>\w+)=(?P<value>(?:[\w.'\"]|\((?:[^()]|\([^()]*\))*\))+)"
_FORMS: Final[tuple[tuple[re.Pattern[str], Callable[[_Line, re.Match[str]], Rewrite]], ...]] = (
    tuple(
        (re.compile(pattern), rewrite)
        for pattern, rewrite in (
            (rf"^(?:[\w ,]+: )?drop \.(?P<method>\w+)(?P<called>\(\))?{_PLACE}", _without_method),
            (rf"\bdrop the (?P<function>\w+){_PLACE}", _unwrapped),
            (rf"^drop (?P<key>\w+)=[\w.'\"]+{_PLACE}", _without_keyword),
            (_WRITE, _replaced),
            (r"^rename (?P<old>\w+) to (?P<new>\w+)", _replaced),
            (rf"^pass {_KEYWORD} to (?P<call>[\w.]+){_PLACE}", _with_keyword),
            (rf"^build \w+ with {_KEYWORD}{_PLACE}", _with_keyword),
            (rf"^give (?P<call>[\w.]+) {_KEYWORD}{_PLACE}", _with_keyword),
            (rf"^(?:pass|use) {_KEYWORD} on line \d+{_PLACE}", _with_keyword),
            (r": (?P<code>[^:]+?)(?: instead of .*|, or .*)?$", _statement),
            (r"^(?P<code>return [^:,]+?)(?: at \S+:\d+| on line \d+)?$", _statement),
            (rf"^call (?P<method>\.\w+\([^()]*\)) on (?P<name>[\w.]+){_PLACE}", _with_method),
            (r"^(?:delete (?:it on )?line \d+|drop [\w.-]+\.py:\d+)", _deleted),
        )
    )
)
"""How a fix says what to change on a line, and what makes the change; the first that fits counts."""

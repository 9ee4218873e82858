"""How the parts of a model are written down: one instance listed many times, read from the source."""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from ... import sources
from ...lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...findings import Location

Repetition = Literal["inline", "copied", "named", "attribute"]
"""How one instance comes to occur in a list many times.

``inline``: built inside the list that is multiplied, ``[Block()] * n``; ``copied``: by
    ``copy.copy``, which shares the
parameters; ``named``: a variable is repeated, ``[block] * n``; ``attribute``: ``[self.block for _
in range(n)]``.
"""

_SHARING = re.compile(
    r"\bshar(e|ed|es|ing)|\b(un)?tied?\b|_tied?_|\btying\b|universal|albert", re.IGNORECASE
)
_LOOPING = re.compile(
    r"recurr|recursi|\breus(e|ed|es|ing)\b|unroll|same (weight|layer|block|module)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A place in the source that lists one instance many times.

    Attributes:
        kind: How.
        location: The line.
        fix: The expression to write instead.
    """

    kind: Repetition
    location: Location
    fix: str


def find_repetition(owner: Any, attribute: str) -> Repeated | None:
    """Find the expression that puts one instance many times into ``owner.attribute``.

    Args:
        owner: The module that holds the container, or a function that builds it.
        attribute: Name of the container, or ``""`` for a function.

    Returns:
        The one in the assignment itself if there is one there, else any in the same source; None
        without.
    """
    things = (
        [owner]
        if inspect.isroutine(owner)
        else [c for c in type(owner).__mro__ if c is not nn.Module]
    )
    fallback: Repeated | None = None
    for thing in things:
        tree, filename = sources.parsed(thing) or (None, "")
        if tree is None or not sources.rank(filename):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return) and node.value is not None:
                inside = _is_assignment(node, attribute)
                for found in _repetitions(node.value, filename):
                    if inside:
                        return found
                    fallback = fallback or found
            elif isinstance(node, ast.Expr):
                fallback = fallback or next(_repetitions(node.value, filename), None)
    return fallback


def _is_assignment(node: ast.Assign | ast.AnnAssign | ast.Return, attribute: str) -> bool:
    if isinstance(node, ast.Return):
        return not attribute
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(t, ast.Attribute) and t.attr == attribute for t in targets)


def _repetitions(value: ast.expr, filename: str) -> Iterator[Repeated]:
    for node in ast.walk(value):
        made = _multiplied(node) or _comprehension(node)
        if made is not None:
            kind, fix = made
            location = sources.of_line(filename, node.lineno)  # type: ignore[attr-defined]
            yield Repeated(kind=kind, location=location, fix=fix)


def _multiplied(node: ast.AST) -> tuple[Repetition, str] | None:
    """Read ``[x] * n``, ``n * [x]`` and ``repeat(x, n)``."""
    if isinstance(node, ast.Call) and _name(node.func) == "repeat" and len(node.args) == 2:
        kind = _kind(node.args[0])
        return kind and (
            kind,
            f"[{_build(node.args[0])} for _ in range({ast.unparse(node.args[1])})]",
        )
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for items, times in ((node.left, node.right), (node.right, node.left)):
        if not isinstance(items, ast.List | ast.Tuple):
            continue
        kinds = [kind for item in items.elts if (kind := _kind(item)) is not None]
        if not kinds:
            continue
        kind = "inline" if "inline" in kinds else kinds[0]
        parts = ", ".join(_build(item) for item in items.elts)
        loop = f"for _ in range({ast.unparse(times)})"
        if len(items.elts) == 1:
            return kind, f"[{parts} {loop}]"
        return kind, f"[layer {loop} for layer in ({parts})]"
    return None


def _comprehension(node: ast.AST) -> tuple[Repetition, str] | None:
    """Read ``[block for _ in range(n)]`` and ``[copy.copy(block) for _ in range(n)]``."""
    if not isinstance(node, ast.ListComp | ast.GeneratorExp):
        return None
    element = node.elt
    loops = " ".join(ast.unparse(c).strip() for c in node.generators)
    own = {n.id for c in node.generators for n in ast.walk(c.target) if isinstance(n, ast.Name)}
    if isinstance(element, ast.Call) and _is_shallow(element):
        return "copied", f"[copy.deepcopy({ast.unparse(element.args[0])}) {loops}]"
    if isinstance(element, ast.Name) and element.id not in own:
        return "named", f"[copy.deepcopy({element.id}) {loops}]"
    if isinstance(element, ast.Attribute) and not own & {
        n.id for n in ast.walk(element) if isinstance(n, ast.Name)
    }:
        return "attribute", f"[copy.deepcopy({ast.unparse(element)}) {loops}]"
    return None


def _kind(item: ast.expr) -> Repetition | None:
    if isinstance(item, ast.Call):
        return "copied" if _is_shallow(item) else "inline"
    if isinstance(item, ast.Name):
        return "named"
    return "attribute" if isinstance(item, ast.Attribute) else None


def _is_shallow(call: ast.Call) -> bool:
    return len(call.args) == 1 and ast.unparse(call.func) in ("copy.copy", "copy")


def _build(item: ast.expr) -> str:
    text = ast.unparse(item)
    return text if isinstance(item, ast.Call) else f"copy.deepcopy({text})"


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def speaks_of_sharing(owner: Any, *, loosely: bool) -> bool:
    """Say whether the source of a class (its comments too) says that weights are shared on purpose.

    Args:
        owner: A module, or a function.
        loosely: Also count words such as *recurrent* or *reuse*.
    """
    things: list[type | Callable[..., Any]]
    things = (
        [owner]
        if inspect.isroutine(owner)
        else [c for c in type(owner).__mro__ if _written_by_user(c)]
    )
    for thing in things:
        try:
            text = inspect.getsource(thing)
        except (TypeError, OSError):
            continue
        if _SHARING.search(text) or (loosely and _LOOPING.search(text)):
            return True
    return False


def _written_by_user(cls: type) -> bool:
    try:
        filename = inspect.getsourcefile(cls)
    except (TypeError, OSError):
        return False
    return filename is not None and sources.rank(filename) > 0

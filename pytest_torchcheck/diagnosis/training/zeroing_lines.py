"""Which of the user's lines makes a parameter all zeros: seen as the model is built, else read from the source."""

from __future__ import annotations

import ast
import inspect
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ... import sources
from ...probes.recorded.watch import storage_of, tensors_in
from ...record.modes import Observer
from ...state import isolated
from ...subject.remembered import remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...findings import Location
    from ...subject import Subject

_IN_PLACE = ("zero_", "zeros_")
_WITH_VALUE = ("fill_", "constant_", "mul_", "full")
_MADE = ("zeros", "zeros_like", "new_zeros")
_WRITES = (*_IN_PLACE, *_WITH_VALUE, *_MADE, "copy_", "clone", "__setitem__")


class _Zeroing(Observer):
    """Notes, by memory, the user's line that last made a tensor all zeros."""

    def __init__(self) -> None:
        self.lines: dict[int, Location | None] = {}

    def around(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one torch function, and note the line where it fills with zeros."""
        given = {storage_of(tensor) for tensor in tensors_in((args, kwargs))}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        for tensor in tensors_in(args[0] if name == "__setitem__" else result):
            storage = storage_of(tensor)
            if storage is not None and name in _WRITES:
                self.lines[storage] = sources.of_frame(sys._getframe(1))
            elif storage is not None and storage not in given:
                self.lines.pop(storage, None)  # memory that is used again
        return result


def zeroing_lines(subject: Subject, name: str) -> list[Location]:
    """Return the line that makes a parameter all zeros, and the helper's own line behind it where there is one.

    Empty where no line, or more than one, could have done it.

    Args:
        subject: Whose model.
        name: Qualified name of a parameter that is all zeros in the model as built.
    """
    if (seen := _seen(subject).get(name)) is not None:
        return [seen]
    return _read(subject, name)


@remembered("zeroed")
def _seen(subject: Subject) -> dict[str, Location]:
    """Return, by parameter, the line that wrote it last as the factory ran; cached."""
    found: dict[str, Location] = {}
    if subject.contract.is_factory:
        with isolated(), _Zeroing() as watch:
            model = subject.build()
        for name, parameter in model.named_parameters():
            storage = storage_of(parameter)
            place = None if storage is None else watch.lines.get(storage)
            if place is not None and sources.rank(place.file) == 2:
                found[name] = place
    return found


def _read(subject: Subject, name: str) -> list[Location]:
    """Look through the classes that own the parameter, and the functions beside them."""
    parts = name.split(".")
    classes: dict[str, set[str]] = {}
    replaced: set[tuple[str, str]] = set()
    for depth in range(len(parts)):
        owner = subject.model.get_submodule(".".join(parts[:depth]))
        replaced |= set(_replaced(type(owner)))
        for cls in type(owner).__mro__:
            place = sources.of_object(cls)
            if place is not None and sources.rank(place.file) == 2:
                classes.setdefault(inspect.getsourcefile(cls) or "", set()).add(cls.__name__)
    exact: dict[Location, str] = {}
    loose: dict[Location, str] = {}
    trees = {file: tree for file in classes if (tree := sources.tree_of(file)) is not None}
    for file, tree in trees.items():
        for node, around in _inside(tree, (), classes[file]):
            fits = _fits(node, parts)
            if _method(around) in replaced:
                continue
            if fits is not None and (fits or _named((*around, node), name)):
                helper = next((a.name for a in around if isinstance(a, ast.FunctionDef)), "")
                own = any(isinstance(a, ast.ClassDef) for a in around)
                place = sources.of_line(file, node.lineno, helper)
                (exact if fits else loose)[place] = "" if own else helper
    calls = {
        helper: [
            sources.of_line(file, node.lineno)
            for file, tree in trees.items()
            for node, _ in _inside(tree, (), classes[file])
            if isinstance(node, ast.Call) and _hands_over(node, helper, parts)
        ]
        for helper in {*exact.values(), *loose.values()} - {""}
    }
    # what a function does to whatever it is given counts where it is given this
    found = exact or {p: helper for p, helper in loose.items() if not helper or calls[helper]}
    if len(found) != 1:
        return []
    ((place, helper),) = found.items()
    ways = calls.get(helper, [])
    return [*ways, place] if len(ways) == 1 else [place]


def _replaced(cls: type) -> Iterator[tuple[str, str]]:
    """Yield class and name of the methods that a class does not run, since another one overrides them."""
    own = [b for b in cls.__mro__ if (at := sources.of_object(b)) and sources.rank(at.file) == 2]
    for name in dict.fromkeys(key for base in own for key in vars(base)):
        owners = [base for base in own if name in vars(base)]
        while len(owners) > 1 and _calls_super(vars(owners[0])[name]):
            owners.pop(0)  # it may well call the one that it overrides
        yield from ((base.__name__, name) for base in owners[1:])


def _calls_super(method: Any) -> bool:
    return callable(method) and sources.search(method, r"\bsuper\(") is not None


def _method(around: tuple[ast.AST, ...]) -> tuple[str, str] | None:
    """Return class and name of the method that a node stands in."""
    for outer, inner in pairwise(around):
        if isinstance(outer, ast.ClassDef) and isinstance(inner, ast.FunctionDef):
            return outer.name, inner.name
    return None


def _inside(
    node: ast.AST, around: tuple[ast.AST, ...], classes: set[str]
) -> Iterator[tuple[ast.expr | ast.stmt, tuple[ast.AST, ...]]]:
    """Walk what stands in some classes and in no class, each node with what is around it, the outermost first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and child.name not in classes:
            nested = any(isinstance(a, ast.FunctionDef) for a in around)
            if not nested:
                continue
        if isinstance(child, ast.expr | ast.stmt):
            yield child, around
        yield from _inside(child, (*around, child), classes)


def _fits(node: ast.AST, parts: list[str]) -> bool | None:
    """Say whether a node zeroes something of this name (True), something of any name (False), or not (None)."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        made = value is not None and any(
            isinstance(inner, ast.Call) and sources.called(inner) in _MADE
            for inner in ast.walk(value)
        )
        names = [_chain(t) for t in targets if isinstance(t, ast.Attribute)]
        return True if made and any(_ends(chain, parts) for chain in names) else None
    if not isinstance(node, ast.Call):
        return None
    called = sources.called(node)
    method = called in ("zero_", "fill_", "mul_")
    if called not in (*_IN_PLACE, *_WITH_VALUE) or (not method and not node.args):
        return None
    if called in _WITH_VALUE:
        values = [*(node.args if method else node.args[1:2]), *(k.value for k in node.keywords)]
        if not any(isinstance(v, ast.Constant) and v.value == 0 for v in values):
            return None
    subject_ = node.func.value if method and isinstance(node.func, ast.Attribute) else node.args[0]
    chain = _chain(subject_)
    if chain is None:
        return None
    if len(chain) == 1 and chain[0]:
        return False
    return True if _ends(chain, parts) else None


def _chain(node: ast.expr) -> list[str] | None:
    """Return the names of ``self.layers[-1].weight.data``: what is indexed is left open (an empty name)."""
    names: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            if node.attr != "data":
                names.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Name):
            names.append(node.id)
            return names[::-1]
        elif isinstance(node, ast.Subscript | ast.Call):
            return ["", *names[::-1]]
        else:
            return None


def _ends(chain: list[str] | None, parts: list[str]) -> bool:
    """Say whether a name ends in what is written behind the first variable."""
    tail = (chain or [])[1:]
    return bool(tail) and parts[-len(tail) :] == tail


def _named(around: tuple[ast.AST, ...], name: str) -> bool:
    """Say whether the conditions around a line let a name pass: each of them without texts, or with one of its."""
    for node, within in pairwise(around):
        if isinstance(node, ast.If) and within not in node.orelse:
            texts = [
                c.value
                for c in ast.walk(node.test)
                if isinstance(c, ast.Constant) and isinstance(c.value, str)
            ]
            if texts and not any(text in name for text in texts):
                return False
    return True


def _hands_over(call: ast.Call, helper: str, parts: list[str]) -> bool:
    """Say whether a call gives a helper the module or parameter of a name, or applies it to it."""
    applied = sources.called(call) == "apply" and isinstance(call.func, ast.Attribute)
    if applied:
        given = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        if not any(
            isinstance(a, ast.Name | ast.Attribute)
            and _chain(a) is not None
            and (_chain(a) or [""])[-1] == helper
            for a in call.args
        ):
            return False
    elif sources.called(call) == helper:
        given = list(call.args)
    else:
        return False
    for argument in given:
        tail = (_chain(argument) or [""])[1:]
        places = range(len(parts) - len(tail) + 1)
        if any(parts[i : i + len(tail)] == tail for i in places):
            return True
    return False

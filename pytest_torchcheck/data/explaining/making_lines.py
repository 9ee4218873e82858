"""The user's lines that make a loader, a sampler or a split, or change what a dataset holds, read from the files at hand.

A dataset, a sampler and a dict of a loader's arguments do not say where they were made. The files
that may say it are that of the contract and that of the dataset's class; a line counts where it is
the only one that fits.
"""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from ... import sources
from .declared_lines import loader_line, said

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Location
    from ..plan import Part

_SIZED = ("batch_size", "shuffle", "drop_last", "num_workers")
_ARGUMENTS = frozenset(inspect.signature(DataLoader).parameters)
_MOST = 2
_SHORT = 40


def files_of(part: Part, declared: Location | None) -> tuple[str, ...]:
    """Return the user's files in which the parts of a dataset's loading may be put together."""
    places = [
        declared,
        part.class_line,
        sources.of_object(part.plan.collate_fn) if part.plan.collate_fn else None,
    ]
    return tuple(
        dict.fromkeys(p.file for p in places if p is not None and sources.rank(p.file) == 2)
    )


def loader_made(part: Part, declared: Location | None) -> Location | None:
    """Return the one line that makes this loader without a collate function: a DataLoader's call, or its arguments."""
    found = [
        sources.of_line(file, node.lineno)
        for file, node, told in _loaders(part, declared)
        if "collate_fn" not in told
    ]
    return found[0] if len(found) == 1 else None


def loader_told(
    part: Part, declared: Location | None, words: tuple[str, ...] = ("drop_last",)
) -> Location | None:
    """Return the line that tells a part's loader something; the declaration where none is found.

    Followed from the contract as :func:`~.declared.loader_line` does, else the one call or dict of
    arguments in the files at hand that says what this loader was told.
    """
    place = loader_line(declared, part.role, words)
    if place is not None and place is not declared:
        return place
    found = [
        (file, node, told)
        for file, node, told in _loaders(part, declared)
        if set(words) & told.keys()
    ]
    if len(found) != 1:
        found = found or list(_loaders(part, declared))
    if len(found) != 1:
        return place
    file, node, told = found[0]
    line = next((told[word].lineno for word in words if word in told), node.lineno)
    return sources.of_line(file, line)


def _loaders(
    part: Part, declared: Location | None
) -> Iterator[tuple[str, ast.Call | ast.Dict, dict[str, ast.expr]]]:
    """Yield the calls of DataLoader, and the dicts of its arguments, that say in constants what this loader was told."""
    plan = part.plan
    for file in files_of(part, declared):
        for node in sources.nodes(file):
            if isinstance(node, ast.Call) and sources.called(node) == "DataLoader":
                told: dict[str, ast.expr] = said(node)
                if any(k.arg is None for k in node.keywords):
                    continue  # **arguments: the dict that they come from may fit
            elif isinstance(node, ast.Dict) and node.keys:
                told = said(node)
                if "batch_size" not in told or not told.keys() <= _ARGUMENTS:
                    continue
            else:
                continue
            plain = {
                k: v.value for k, v in told.items() if k in _SIZED and isinstance(v, ast.Constant)
            }
            unsaid = {"shuffle": False, "drop_last": False, "num_workers": 0}
            unsaid = {k: v for k, v in unsaid.items() if k not in told}
            if all(getattr(plan, name) == value for name, value in {**unsaid, **plain}.items()):
                yield file, node, told


def sampler_made(
    part: Part, sampler: Any, declared: Location | None, *, per_class: bool = False
) -> tuple[tuple[Location, ...], str, tuple[Location, ...]]:
    """Return the line that calls a sampler's class, the name of what it is given first, and the lines that assign that.

    Args:
        part: What the sampler is for.
        sampler: Of a class of torch.
        declared: Where the contract is declared.
        per_class: Whether it was given a weight for each class: ``weights[labels]`` is then not
            what it was given.

    Returns:
        Two lines, and nothing else, where it may have been either of them.
    """
    name = type(sampler).__name__
    calls = [
        (file, node)
        for file in files_of(part, declared)
        for node in sources.nodes(file)
        if isinstance(node, ast.Call) and sources.called(node) == name
    ]
    if len(calls) > 1:
        calls = [call for call in calls if _may_have_made(call[1], sampler, per_class)]
    places = tuple(sources.of_line(file, call.lineno) for file, call in calls)
    if len(calls) != 1:
        return places if len(calls) <= _MOST else (), "", ()
    file, call = calls[0]
    given = _given(call)
    while isinstance(given, ast.Call) and given.args:  # torch.as_tensor(weights) is made of weights
        given = given.args[0]
    if not isinstance(given, ast.Name):
        text = "" if given is None else ast.unparse(given)
        return places, text if len(text) <= _SHORT else "", ()
    scope = sources.function_around(file, call.lineno) or sources.tree_of(file)
    lines = [
        node.lineno
        for node in sources.own_nodes(scope)
        if isinstance(node, ast.Assign)
        and node.lineno < call.lineno
        and any(isinstance(t, ast.Name) and t.id == given.id for t in node.targets)
    ]
    return places, given.id, tuple(sources.of_line(file, line) for line in lines[-_MOST:])


def _given(call: ast.Call) -> ast.expr | None:
    """Return what a sampler is made of: its first argument."""
    named = (k.value for k in call.keywords if k.arg in ("weights", "data_source", "dataset"))
    return call.args[0] if call.args else next(named, None)


def _may_have_made(call: ast.Call, sampler: Any, per_class: bool) -> bool:
    """Say whether a call fits a sampler by the constants it is given, and by what it draws from."""
    given = _given(call)
    if (
        per_class
        and isinstance(given, ast.Subscript)
        and not isinstance(given.slice, ast.Constant | ast.Slice)
    ):
        return False
    return all(
        getattr(sampler, keyword.arg, keyword.value.value) == keyword.value.value
        for keyword in call.keywords
        if keyword.arg is not None and isinstance(keyword.value, ast.Constant)
    )


def replaced_from_outside(
    part: Part, declared: Location | None
) -> Iterator[tuple[str, str, Location]]:
    """Yield the attributes that a dataset's ``__getitem__`` calls and that a line outside of its class assigns.

    Yields:
        The attribute, the object as that line writes it (``val_set.dataset``), and the line.
    """
    dataset = part.own
    called = _called_attributes(type(dataset)) & set(vars(dataset))
    for file in files_of(part, declared) if called else ():
        for node in (each for each in sources.nodes(file) if isinstance(each, ast.Assign)):
            for target in node.targets:
                if not isinstance(target, ast.Attribute) or target.attr not in called:
                    continue
                if _is_dataset(file, target.value, type(dataset).__name__):
                    owner = ast.unparse(target.value)
                    yield target.attr, owner, sources.of_line(file, node.lineno)


def _is_dataset(file: str, owner: ast.expr, name: str) -> bool:
    """Say whether an object is ``something.dataset``, or a variable that was given a call of the dataset's class."""
    if isinstance(owner, ast.Attribute):
        return owner.attr == "dataset"
    return isinstance(owner, ast.Name) and any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and sources.called(node.value) == name
        and any(isinstance(t, ast.Name) and t.id == owner.id for t in node.targets)
        for node in sources.nodes(file)
    )


def _called_attributes(cls: type) -> set[str]:
    """Return the attributes of ``self`` that ``__getitem__`` calls."""
    found = sources.parsed(getattr(cls, "__getitem__", None))
    return {
        node.func.attr
        for node in (ast.walk(found[0]) if found is not None else ())
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    }

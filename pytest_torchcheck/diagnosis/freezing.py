"""Which of the user's lines switch gradients off, or choose what is frozen, read from the source."""

from __future__ import annotations

import inspect
import linecache
import re
from typing import TYPE_CHECKING

from torch import nn

from .. import sources
from ..findings import Culprit, Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..subject import Subject

_SWITCH = re.compile(r"\.requires_grad\s*=(?!=)|\brequires_grad_\(")
_ON = re.compile(
    r"\.requires_grad\s*=\s*True\s*(#.*)?$|requires_grad_\((\s*|True|requires_grad=True)\)"
)
_LITERAL = re.compile(r"""["']([\w.]+)["']""")
_CONDITION = re.compile(r"^\s*(if|elif|for|while|with)\b")
_MOST = 3


def switched_off(subject: Subject, name: str) -> list[Location]:
    """Return the lines that may switch a parameter's gradient off, the likeliest first.

    A line of a class that owns the parameter comes first; then those of the user's files that hold the
    model's classes and the contract's functions, first of all those with a text that stands in the name.

    Args:
        subject: Whose model.
        name: Qualified name of the parameter.
    """
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        owner = subject.model.get_submodule(".".join(parts[:depth]))
        for cls in type(owner).__mro__:
            place = sources.of_object(cls)
            if place is None or not sources.rank(place.file):
                continue
            found = sources.search(
                cls,
                r"requires_grad\s*=\s*(?!=|True\b)|requires_grad_\((?!\)|True\b|requires_grad=True\b)",
            )
            if found is not None:
                return [found]
    lines = switches(subject)
    fitting = [place for place in lines if _names(place, name)]
    return (fitting or lines)[:_MOST]


def switches(subject: Subject) -> list[Location]:
    """Return the lines of the user's files that switch gradients off, or on by a condition."""
    return [
        sources.of_line(file, number)
        for file in sorted(_files(subject))
        for number, text in enumerate(linecache.getlines(file), 1)
        if _SWITCH.search(text) and not _ON.search(text)
    ]


def culprits(places: list[Location]) -> list[Culprit]:
    """Return lines that switch gradients as culprits, each with the condition that it stands under."""
    found = [*places]
    for place in places:
        if (above := _condition(place)) is not None and above not in found:
            found.append(above)
    return [
        Culprit(kind="call", name="requires_grad", detail="chooses what is frozen", location=place)
        for place in found
    ]


def _files(subject: Subject) -> set[str]:
    from ..loop.closures import functions_of

    contract = subject.contract
    things: list[object] = [type(module) for module in subject.model.modules()]
    model = contract.model if not isinstance(contract.model, nn.Module) else None
    things += functions_of(contract.optimizer, contract.train_step, model)
    return set(_own_files(things))


def _own_files(things: list[object]) -> Iterator[str]:
    for thing in things:
        try:
            file = inspect.getsourcefile(thing)  # type: ignore[arg-type]
        except (TypeError, OSError):
            continue
        if file is not None and sources.rank(file) == 2:
            yield file


def _names(place: Location, name: str) -> bool:
    """Say whether a line, or the condition above it, holds a text that stands in a parameter's name."""
    above = _condition(place)
    text = place.text + (above.text if above is not None else "")
    return any(literal in name for literal in _LITERAL.findall(text))


def _condition(place: Location) -> Location | None:
    """Return the nearest line above that opens the block a line stands in, where it names something."""
    indent = len(linecache.getline(place.file, place.line)) - len(
        linecache.getline(place.file, place.line).lstrip()
    )
    for number in range(place.line - 1, max(0, place.line - 6), -1):
        text = linecache.getline(place.file, number)
        depth = len(text) - len(text.lstrip())
        if text.strip() and depth < indent:
            if _CONDITION.match(text) and _LITERAL.search(text):
                return sources.of_line(place.file, number)
            return None
    return None

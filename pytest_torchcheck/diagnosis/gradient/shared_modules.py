"""Parameters that a model knows by two names, of one module or of a shallow copy, and that one of them froze."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from ...findings import Location
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """One module that the model knows by two names, or two that hold the same parameters, frozen through the second.

    Attributes:
        name, other: The module in the parameter's name, and the one through which it was frozen.
        own, shared: What is one object: these modules, or by its two names what they hold first.
        is_module: Whether it is the modules.
        location: The line that gives ``other`` what ``name`` holds.
    """

    name: str
    other: str
    own: str
    shared: str
    is_module: bool
    location: Location | None


def frozen_through(subject: Subject, name: str, texts: Sequence[str]) -> Alias | None:
    """Return the other name of the modules around a parameter, where what froze it names that one only.

    Args:
        subject: Whose model.
        name: Of the parameter.
        texts: The line that froze it, and the head of the loop around it.
    """
    model = subject.model
    held = [one for _, one in model.named_parameters(remove_duplicate=False)]
    if sum(one is subject.named_parameters()[name] for one in held) < 2:
        return None
    for path, other in _pairs(model, name):
        ours, theirs = path.rpartition(".")[2], other.rpartition(".")[2]
        if any(named(theirs, text) for text in texts) and not any(
            named(ours, text) for text in texts
        ):
            is_module = model.get_submodule(path) is model.get_submodule(other)
            leaf = "" if is_module else f".{next(iter(_held(model.get_submodule(path))))}"
            return Alias(
                name=path, other=other, own=path + leaf, shared=other + leaf, is_module=is_module,
                location=aliasing_line(subject, other, ours),
            )  # fmt: skip
    return None


def _pairs(model: nn.Module, name: str) -> Iterator[tuple[str, str]]:
    """Yield the modules around a parameter with others of the same kind that hold the same, the outermost first."""
    modules = dict(model.named_modules(remove_duplicate=False))
    parts = name.split(".")
    for depth in range(1, len(parts)):
        path = ".".join(parts[:depth])
        own = modules[path]
        for other, module in modules.items():
            if other == path or path.startswith(f"{other}.") or other.startswith(f"{path}."):
                continue
            if other and (module is own or (type(module) is type(own) and _same(module, own))):
                yield path, other


def _same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = _held(one), _held(other)
    return len(mine) > 0 and mine == theirs


def _held(module: nn.Module) -> dict[str, int]:
    return {name: id(p) for name, p in module.named_parameters(remove_duplicate=False)}


def named(name: str, text: str) -> bool:
    """Say whether a text has a name as a word of its own."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def aliasing_line(subject: Subject, name: str, source: str = "") -> Location | None:
    """Return the line that gives a module one more name: the one that assigns it what is there already.

    Args:
        subject: Whose model.
        name: Of the module.
        source: Attribute of what it is given, or a shallow copy of it; no deep copy gives the same parameters.
    """
    owner_name, _, leaf = name.rpartition(".")
    owner = type(subject.model.get_submodule(owner_name))
    plain = sources.search(owner, rf"\.{re.escape(leaf)}\s*=\s*[\w.]+\s*(#.*)?$")
    if plain is not None:
        return plain
    lines = sources.matches(owner, rf"\.{re.escape(leaf)}(\.\w+)?\s*=(?!=)") if source else []
    made = [place for place in lines if named(source, place.text.partition("=")[2])]
    shallow = [place for place in made if "deepcopy" not in place.text]
    return next(iter(shallow), None) or sources.of_parameter(subject.model, name)

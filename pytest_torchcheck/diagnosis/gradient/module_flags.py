"""``module.requires_grad = False``: an attribute that a module does not have, so that setting it freezes nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...verdicts import violated
from .freezing import files_of_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ...findings import Location
    from ...subject import Subject


_FLAG = r"\.requires_grad\b"
_SETS = re.compile(r"([\w.\]\[]+)\.requires_grad\s*=(?!=)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A module with an attribute ``requires_grad`` that says other than all of its parameters.

    Attributes:
        names: Qualified names of the modules, of one line.
        value: What was set.
        parameters: How many parameters they have.
        location: The line that sets it, where one is found.
    """

    names: tuple[str, ...]
    value: bool
    parameters: int
    location: Location | None


def idle_flags(subject: Subject) -> list[Flag]:
    """Find modules on which ``requires_grad`` was set as a plain attribute, to no effect on any parameter.

    A class that reads or sets ``self.requires_grad`` has such a flag of its own, and is left out;
    so is one that the user's code reads elsewhere. Nothing is run.
    """
    found: dict[tuple[Location | None, bool], list[tuple[str, nn.Module]]] = {}
    for name, module in subject.model.named_modules():
        value = vars(module).get("requires_grad")
        if not isinstance(value, bool) or _has_its_own(type(module)):
            continue
        parameters = list(module.parameters())
        if not parameters or any(parameter.requires_grad == value for parameter in parameters):
            continue
        setting, reading = _lines(subject, name)
        if not reading:
            found.setdefault((setting, value), []).append((name, module))
    return [
        Flag(
            names=tuple(name or "the model" for name, _ in group),
            value=value,
            parameters=len({id(p) for _, module in group for p in module.parameters()}),
            location=place,
        )
        for (place, value), group in found.items()
    ]


def _has_its_own(kind: type) -> bool:
    if hasattr(kind, "requires_grad"):
        return True
    return any(
        sources.search(cls, r"\bself\.requires_grad\b") is not None
        for cls in kind.__mro__
        if sources.is_no_tools_class(cls)
    )


def _lines(subject: Subject, name: str) -> tuple[Location | None, list[Location]]:
    """Return the line that sets the flag of a module, and those that read one of that name.

    A line of a class around the module comes before the other lines of the user's files.
    """
    last = name.rpartition(".")[2]
    parts = name.split(".")
    owners = [
        type(subject.model.get_submodule(".".join(parts[:depth]))) for depth in range(len(parts))
    ]
    places = [place for owner in reversed(owners) for place in sources.matches(owner, _FLAG)]
    for file in sorted(files_of_model(subject)):
        places += [place for place in sources.file_matches(file, _FLAG) if place not in places]
    sets: list[tuple[str, Location]] = []
    reads: list[Location] = []
    for place in places:
        assigned = _SETS.search(place.text)
        if assigned is not None:
            sets.append((assigned[1], place))
        elif last and re.search(rf"\b{re.escape(last)}{_FLAG}", place.text):
            reads.append(place)
    fitting = [
        p for target, p in sets if target.rpartition(".")[2] == last or _of_modules(target, p)
    ]
    return next(iter(fitting), None), reads


def _of_modules(target: str, place: Location) -> bool:
    """Say whether what a line sets is the variable of a loop over modules."""
    above = sources.line_above(place, rf"\bfor\s+(\w+\s*,\s*)?{re.escape(target)}\s+in\b", 3)
    return above is not None and "parameters" not in above.text


def idle(flag: Flag) -> Finding:
    """Report a flag that does nothing."""
    first, many = flag.names[0], len(flag.names) > 1
    at = on_line(flag.location)
    does = "trains" if flag.value else "freezes"
    still = "are still frozen" if flag.value else "still require a gradient"
    shown = ", ".join(flag.names[:3]) + (
        f" and {len(flag.names) - 3} more" if flag.names[3:] else ""
    )
    return violated(
        "requires-grad-of-module",
        f"requires_grad = {flag.value} on {shown} {does} nothing: modules have no such attribute",
        culprits=tuple(
            Culprit("module", name, f"requires_grad={flag.value}", flag.location)
            for name in flag.names[:4]
        ),
        observed=f"{flag.parameters} parameters {still}",
        cause=("requires_grad is an attribute of tensors; on a module it is a new attribute that "
            "nothing reads"),
        because=f"vars({first}) holds requires_grad={flag.value}, and every parameter of {'these' if many else 'it'} "
        f"has requires_grad={not flag.value}",
        fix=f"call {first if first != 'the model' else 'model'}.requires_grad_({flag.value}){at}",
    )  # fmt: skip


def flags(subject: Subject) -> Iterator[Finding]:
    """Report every flag that does nothing."""
    yield from map(idle, idle_flags(subject))

"""Parameters that a comprehension or a loop left out of what an optimizer was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...findings import Culprit
from .making import making
from .used_up_iterators import used_up

if TYPE_CHECKING:
    import ast

    from ...findings import Location
    from ...subject import Subject
    from .making import Making
    from .used_up_iterators import UsedUp

from .given_parameters import MOST, Given, given_to_optimizers


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Where a parameter would have to be added.

    Attributes:
        location: The line.
        words: What the line does, as a clause.
        culprits: It and the other lines that give the optimizer parameters, and the one that makes it.
        fix: The edit, where another one than to add the parameter there is called for.
    """

    location: Location
    words: str
    culprits: tuple[Culprit, ...]
    fix: str = ""


def left_out(subject: Subject, name: str) -> LeftOut | None:
    """Return where a parameter that no optimizer holds would have to be added; None where the source does not say.

    That is the condition that chooses among parameters of which it is one, else the last statement
    that adds any.
    """
    made = making(subject)
    every = given_to_optimizers(made, subject.model, name)
    if (spent := _spent(made, every)) is not None:
        return LeftOut(
            location=spent.made, words=spent.cause, culprits=spent.culprits, fix=spent.fix
        )
    found = [g for g in every if g.adds]
    if not found:
        return None
    choosing = next((g for g in found if g.conditions), None)
    first = choosing or found[-1]
    words = "a condition selects them" if choosing else "the last line that adds any"
    culprits: dict[tuple[str, int], Culprit] = {}
    for given in (first, *reversed(found)):
        detail = "a condition selects" if given.conditions else "passes parameters to it"
        for line in given.conditions[:2] or [given.place]:
            at = (line.file, line.line)
            culprits.setdefault(at, Culprit("call", "parameters", detail, line))
    kept = list(culprits.values())[:MOST]
    for line in made.optimizers[-1:]:
        if (line.file, line.line) not in culprits:
            kept.append(Culprit("optimizer", "optimizer", "is created here", line))
    return LeftOut(
        location=first.place, words=f"{words}: line {first.place.line}", culprits=tuple(kept)
    )


def spent_of(subject: Subject, name: str) -> UsedUp | None:
    """Return the iterator through which a parameter was chosen after nothing was left in it, or None."""
    made = making(subject)
    return _spent(made, given_to_optimizers(made, subject.model, name))


def _spent(made: Making, found: list[Given]) -> UsedUp | None:
    """Return an iterator that was used up in a function that gave the optimizer parameters, and read again there."""
    lines = {(p.file, p.line) for p in made.lines}
    for given in found:
        file = given.location.file

        def ran(node: ast.stmt, file: str = file) -> bool:
            return any((file, n) in lines for n in range(node.lineno, (node.end_lineno or 0) + 1))

        if spent := used_up(file, given.statement.lineno, ran):
            return spent[0]
    return None

"""Loops of a user's own step over an iterator that an earlier line has used up: they run no turn."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import sources
from ..record.tracing import find_line, line_of
from ..state import seed_everything
from ..subject.gradients import clear_gradients
from .naming import is_spent, iterator_lines

if TYPE_CHECKING:
    from types import FrameType

    from ..findings import Location
    from ..subject import Subject


@dataclass(frozen=True, slots=True)
class SpentLoop:
    """A ``for`` over an iterator without elements left.

    Attributes:
        name: Of the iterator.
        loop: The line of the ``for``.
        emptied: The line that took the last element.
        made: The line that makes the iterator, or None where no line, or more than one, could be.
    """

    name: str
    loop: Location
    emptied: Location
    made: Location | None


def spent_loop(subject: Subject) -> SpentLoop | None:
    """Run one step line by line; return the first loop over an iterator that was used up before."""
    emptied: dict[tuple[int, str], Location] = {}
    found: list[SpentLoop] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event == "call":
            return False
        file, here = frame.f_code.co_filename, line_of(frame.f_code, line)
        ran = sources.statement(file, line)
        if isinstance(ran, ast.For) and isinstance(ran.iter, ast.Name) and ran.lineno == line:
            name = ran.iter.id
            by = emptied.get((id(frame), name))
            if by is not None and by != here:
                made, _ = iterator_lines(file, name, frame.f_locals.get(name))
                found.append(SpentLoop(name, here, by, made))
                return True
        for name, value in frame.f_locals.items():
            if is_spent(value):
                emptied.setdefault((id(frame), name), here)
        return False

    with subject.pristine(steps=True, train=True) as model:
        made = subject.make_optimizer(model)
        clear_gradients(model)
        seed_everything(subject.seed)
        find_line(lambda: subject.train_step(model, made, subject.batch().clone()), watcher)
    return found[0] if found else None

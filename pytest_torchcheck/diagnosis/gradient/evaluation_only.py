"""Parameters that are read in evaluation mode and not in training, and the line from which the two modes part."""

from __future__ import annotations

import ast
import itertools
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit
from ...functions.discovery import is_compiled
from ...lean import dataclass
from ...probes.stand_ins import read_with
from ...record.lines import traced
from ...record.tracing import line_of
from ...state import seed_everything
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import CodeType, FrameType

    from ...findings import Location
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOnly:
    """A parameter that evaluation alone reads.

    Attributes:
        location: The line to change: the guard, or the statement that assigned the variable which it tests; the line
            that reads, where no guard is seen.
        fact: What was seen, as a clause.
        fix: What to change, without the end of the sentence.
        culprits: The lines that have to do with it.
    """

    location: Location
    fact: str
    fix: str
    culprits: tuple[Culprit, ...]


@dataclass(slots=True)
class _Call:
    """One call of a function of the user's: the lines that it ran, and the call and its line that it came from."""

    code: CodeType
    outer: _Call | None
    called: int = 0
    lines: list[int] = field(default_factory=list)


def read_in_evaluation(subject: Subject, names: Collection[str]) -> dict[str, Location]:
    """Return which parameters, of those that no training forward reads, one in evaluation mode does, and on which line.

    Args:
        subject: Its model runs once.
        names: Of the parameters.
    """
    if not names or is_compiled(subject.model):
        return {}
    batch = subject.batch().clone()
    with subject.pristine(train=False, seeded=True) as model, torch.no_grad():
        found = read_with(lambda: subject.call(model, batch), model, [], {}, set(names))
    return {name: line for name, line in found.items() if line is not None}


def evaluation_only(subject: Subject, line: Location) -> EvaluationOnly:
    """Say why only evaluation comes to a line that reads a parameter.

    Args:
        subject: Its model runs four times, line by line: what another seed changes is no matter of the mode.
        line: The one that reads.
    """
    read = Culprit("call", line.text, "reads it, in evaluation mode only", line)
    parted = [_parted(subject, line, seed) for seed in (0, 1)]
    if parted[0] is None or parted[0] != parted[1]:
        return EvaluationOnly(
            location=line,
            fact=f"line {line.line} reads it there, and no operation does in training",
            fix=f"read it in training too (line {line.line})",
            culprits=(read,),
        )
    code, guard, training, evaluation, assigned = parted[0]
    at = line_of(code, guard)
    place = at if assigned is None else line_of(code, assigned)
    culprits = [Culprit("call", "condition", "decides by the mode", at), read]
    if assigned is not None:
        culprits.insert(0, Culprit("call", place.text, "assigns what it tests", place))
    return EvaluationOnly(
        location=place,
        fact=f"line {line.line} reads it there; after line {guard} training runs line {training}, and "
        f"evaluation line {evaluation}",
        fix=f"let training come to line {line.line} too, by the condition on line {place.line}",
        culprits=tuple(culprits),
    )


_Parted = tuple["CodeType", int, int, int, "int | None"]
"""A function, the last line that both modes run, the next one of each, and the line that assigned what it tests."""


def _parted(subject: Subject, line: Location, seed: int) -> _Parted | None:
    """Return where the function that evaluation reads in, or one that calls it, runs other lines than in training."""
    trained, evaluated = (_calls(subject, seed, train=train) for train in (True, False))
    reading: _Call | None = next(
        (c for c in evaluated if line.line in c.lines and _is_in(c.code, line)), None
    )
    target = line.line
    while reading is not None:
        same = [c for c in evaluated if c.code is reading.code]
        others = [c for c in trained if c.code is reading.code]
        if others:
            number = next(i for i, c in enumerate(same) if c is reading)
            return _fork(reading, others[number], target) if len(others) == len(same) else None
        if reading.outer is not None:  # training does not come here: what called it decides
            target = reading.outer.lines[reading.called]
        reading = reading.outer
    return None


def _is_in(code: CodeType, line: Location) -> bool:
    return line_of(code, line.line).file == line.file


def _fork(evaluated: _Call, trained: _Call, target: int) -> _Parted | None:
    """Return the last condition on the way to a line of an evaluation from which training never went that way."""
    if target in trained.lines:
        return None
    following: dict[int, list[int]] = {}
    for one, after in itertools.pairwise(trained.lines):
        following.setdefault(one, []).append(after)
    file, lines = evaluated.code.co_filename, evaluated.lines
    for at in range(lines.index(target) - 1, -1, -1):
        if lines[at] not in following:
            continue
        ways = following[lines[at]]
        guard = sources.statement(file, lines[at])
        if lines[at + 1] in ways or not isinstance(guard, ast.If | ast.While):
            return None
        assigned = _assigning(file, guard.test, lines[:at])
        return evaluated.code, guard.lineno, ways[0], lines[at + 1], assigned
    return None


def _assigning(file: str, test: ast.expr, ran: list[int]) -> int | None:
    """Return the last line that ran and assigned the one variable that a condition consists of."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if not isinstance(test, ast.Name):
        return None
    for line in reversed(ran):
        statement = sources.statement(file, line)
        written = () if statement is None else sources.writes(statement)
        if statement is not None and any(
            isinstance(target, ast.Name) and target.id == test.id for target, _ in written
        ):
            return statement.lineno
    return None


def _calls(subject: Subject, seed: int, *, train: bool) -> list[_Call]:
    """Run one forward line by line and list the calls of the user's functions, in order."""
    found: list[_Call] = []
    running: dict[FrameType, _Call] = {}

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            running[frame].lines.append(frame.f_lineno)
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if event != "call" or sources.rank(frame.f_code.co_filename) < 2:
            return None
        outer = frame.f_back
        while outer is not None and outer not in running:
            outer = outer.f_back
        call = running.get(frame)  # a generator comes back
        if call is None:
            above = None if outer is None else running[outer]
            call = _Call(frame.f_code, above, 0 if above is None else len(above.lines) - 1)
            running[frame] = call
            found.append(call)
        return local

    batch = subject.batch().clone()
    with subject.pristine() as model, torch.no_grad():
        model.train(train)
        seed_everything(subject.seed + seed)
        try:
            with traced(enter):
                subject.call(model, batch)
        except SubjectError:
            return []
        finally:
            running.clear()
    return found

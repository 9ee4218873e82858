"""Results that nothing reads: the statement that loses one, and what would have read it."""

from __future__ import annotations

import ast
import os
from typing import TYPE_CHECKING

from ... import sources
from ...findings import Culprit
from ...lean import dataclass
from ...record.tracing import find_line
from ...runs.again import forward_and_loss
from ...runs.liveness.taking import takings
from ...text.wording import names_text
from ...verdicts import suspicious, violated
from .passed_on import passed_by
from .unread import bound_names, leaves, lines_of, reads, statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from ...findings import Finding, Location
    from ...probes.numbers.views import IdleChoice
    from ...runs.liveness.idle_rows import IdleRows
    from ...runs.liveness.taking import Taking
    from ...runs.liveness.unread import OnlyLast, Unread
    from ...subject import Subject


_FIXES = {
    "dropped": "assign the result, as in h = {text}, or delete the statement",
    "bound": "use {name} where it was meant to be used, or delete the line",
    "overwritten": "let line {again} read {name}, or delete line {line}",
}


def result(subject: Subject, lost: Unread, *, loss: bool = False) -> Finding:
    """Explain a result that its function loses, in the forward or in the loss."""
    short = lost.text if len(lost.text) <= 60 else f"{lost.text[:57]}..."
    again = lost.again.line if lost.again is not None else 0
    slip = "" if lost.again is None else f"; line {again} reads its sibling once more"
    summary, cause = {
        "dropped": (
            f"the result of {short} is dropped",
            f"{lost.op} returns a new tensor and leaves its input as it is",
        ),
        "bound": (
            f"{lost.name} is computed and never read",
            f"no line of the function reads {lost.name}{slip}",
        ),
        "overwritten": (
            f"{lost.name} is computed and bound again before anything reads it",
            f"line {again} binds {lost.name} again, and no line between reads it",
        ),
    }[lost.kind]
    place = lost.location
    told = lost.name or lost.op
    culprits = [Culprit("tensor", told, "is never read", place)]
    if lost.again is not None:
        detail = "binds the name again" if lost.kind == "overwritten" else "reads its sibling again"
        culprits.append(Culprit("tensor", told, detail, lost.again))
    elif lost.kind == "bound":
        culprits += _past(subject, lost)
    return violated(
        "result-unread",
        summary,
        culprits=culprits,
        location=lost.again if lost.kind == "bound" and lost.again else place,
        observed=f"line {place.line} computes {short}",
        cause=cause,
        because=f"no operation of the loss was given the result of {lost.op}"
        if loss
        else f"no operation of a forward was given the result of {lost.op}, in train mode or in eval mode",
        fix=_FIXES[lost.kind].format(text=short, name=lost.name, again=again, line=place.line),
    )


def only_last(subject: Subject, found: OnlyLast) -> Finding:
    """Explain a loop over positions of which the last turn's result alone is read."""
    line = found.location.line
    return violated(
        "result-unread",
        f"of the {found.size} positions of {found.path} along dimension {found.dim} only the last one counts",
        culprits=[
            Culprit("call", found.text, "its earlier results are not read", found.location),
            Culprit("input", found.path, "counts at its last position only"),
        ],
        observed=f"line {line} computes {found.text} {found.calls} times in one forward; no operation uses the "
        f"first {found.calls - 1} results",
        cause="each turn replaces the result of the one before it without reading it",
        because=f"other values at all positions but the last leave every output bit-equal, in both modes; another "
        f"value at the last one does not (in two samples of {found.size} positions)",
        fix=f"give line {line} what the turn before it computed, or collect the results and use them all",
    )


def idle_choice(subject: Subject, idle: IdleChoice) -> Finding:
    """Explain an index that chooses among copies of one entry."""
    made = idle.made or idle.location
    line = f" on line {made.line}" if made is not None else ""
    return violated(
        "result-unread",
        f"the index of {idle.op} has no influence: dimension {idle.dim} holds {idle.shape[idle.dim]} equal entries",
        culprits=[
            Culprit("call", "repeat", "makes the copies", made),
            Culprit("call", idle.op, "chooses among them", idle.location),
        ],
        location=made,
        observed=f"{idle.op} chooses along dimension {idle.dim} of {list(idle.shape)}",
        cause=f"the copies{line} stand along the dimension that is indexed",
        because="in another batch and at other weights these entries are equal too, while those of two samples differ; "
        f"before the copies{line} no entries are",
        fix=f"insert the new dimension elsewhere{line}, so that {idle.op} indexes the entries and not their copies",
    )


def _past(subject: Subject, lost: Unread) -> list[Culprit]:
    """Return the first line that reads what an unread result was computed from, as its only reader."""
    with subject.pristine():
        lines, _ = passed_by(lost.location, forward_and_loss(subject))
    detail = f"is read here; {lost.name}, which is computed from it, is not"
    return [Culprit("tensor", n, detail, line) for n, line in lines[:1]]


def rows(subject: Subject, idle: IdleRows) -> Finding:
    """Explain a part of a layer's outputs that reaches no output of the model."""
    module = idle.name.rpartition(".")[0] or "the model"
    taken = takings(subject, idle.name)
    with subject.pristine():
        lost = missed(taken, forward_and_loss(subject)) if taken else None
    summary = f"outputs {idle.text} of {module} go nowhere"
    because = (
        f"their gradients are exactly 0, and with other weights in these {idle.count} of {idle.total} "
        "rows every output is bit-equal"
    )
    culprit = Culprit("parameter", idle.name, f"rows {idle.text}")
    observed = f"{idle.name} has {idle.total} rows; no gradient comes to rows {idle.text}"
    if lost is None:
        return suspicious(
            "features-unread",
            summary,
            culprits=[culprit],
            location=taken[-1].place if taken else None,
            observed=observed,
            cause="what is computed from them reaches no output; another configuration may read it",
            because=because,
            fix=f"use them in the forward, or give {module} fewer outputs",
        )
    return violated(
        "features-unread",
        summary,
        culprits=[
            culprit,
            Culprit("tensor", lost.name, "is not read", lost.made),
        ],
        location=lost.place,
        observed=observed,
        cause=lost.cause,
        because=because,
        fix=f"{lost.fix or f'use {lost.name} where it was meant to be used'}, or give {module} fewer outputs",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Parts that nothing reads, though the source reads others beside them.

    Attributes:
        name: What holds them: ``gates``, ``parts[2]``, ``chunk``.
        made: The line that takes them out of the whole.
        place: The line that was to read them.
        cause: How they are missed.
        fix: What to do there.
    """

    name: str
    made: Location
    place: Location
    cause: str
    fix: str = ""


def missed(takings: list[Taking], run: Callable[[], object]) -> Missed | None:
    """Say how the source goes past a part of what some calls take apart; None where that may be meant.

    Args:
        takings: The calls, all of one layer's outputs.
        run: Runs them again.
    """
    split = {(one.place.file, one.place.line, one.op): one for one in takings if one.items > 1}
    for one in split.values():
        same = [t for t in takings if (t.op, t.place) == (one.op, one.place)]
        never = [n for n in one.unread if all(n in t.unread for t in same)]
        if 0 < len(never) < one.items and (found := _of_items(one, never, run)) is not None:
            return found
    return _taken_twice([one for one in takings if one.items == 1])


def _taken_twice(takings: list[Taking]) -> Missed | None:
    """Find the call that takes what another one has, where there are as many calls as parts."""
    for number, later in enumerate(takings):
        earlier = next((t for t in takings[:number] if t.region == later.region), None)
        if earlier is None or len(takings) < later.share:
            continue
        function = sources.function_around(later.place.file, later.place.line)
        if function is None or (
            earlier.place == later.place and not _several(function, later.place)
        ):
            continue
        first, last = earlier.place.line, later.place.line
        return Missed(
            name=sources.assigned_name(later.place) or later.op,
            made=earlier.place,
            place=later.place,
            cause=f"line {last} takes the part that line {first} has taken, and none takes these"
            if first != last
            else f"line {last} takes one part twice, and none takes these",
            fix=f"take them on line {last}",
        )
    return None


def _several(function: ast.AST, place: Location) -> bool:
    """Say whether a line that runs once takes several parts."""
    here = [s for s in statements(function) if place.line in lines_of(s)]
    loops = [n for n in ast.walk(function) if isinstance(n, ast.For | ast.While)]
    taking = [n for s in here for n in ast.walk(s) if isinstance(n, ast.Subscript | ast.Call)]
    return len(taking) > 1 and not any(sources.holds(loop, place.line) for loop in loops)


def _of_items(one: Taking, never: list[int], run: Callable[[], object]) -> Missed | None:
    place = one.place
    statement = sources.statement(place.file, place.line)
    function = sources.function_around(place.file, place.line)
    if function is None or statement is None:
        return None
    if isinstance(statement, ast.For):
        bare = one.op.rpartition(".")[2]
        name = _loop_variable(statement, lambda given: f".{bare}(" in ast.unparse(given))
        return None if name is None else _in_loop(place, statement, name, never, run)
    if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
        return None
    target = statement.targets[0]
    if isinstance(target, ast.Tuple):
        return _unpacked(place, function, statement, target, never)
    if not isinstance(target, ast.Name) or leaves(function, target.id):
        return None
    return _of_list(one, function, target.id, never, run)


def _unpacked(
    place: Location, function: ast.AST, statement: ast.Assign, target: ast.Tuple, never: list[int]
) -> Missed | None:
    names = [n.id if isinstance(n, ast.Name) else "_" for n in target.elts]
    lost = next((names[n] for n in never if n < len(names)), "_")
    if lost.startswith("_") or reads(function, lost) or leaves(function, lost):
        return None
    siblings = (
        [s.lineno for s in statements(function) for _ in range(reads(s, name))]
        for name in names
        if name not in (lost, "_")
    )
    slip = next((lines[-1] for lines in siblings if len(lines) > 1), None)
    again = "" if slip is None else f"; line {slip} reads its sibling once more"
    return Missed(
        name=lost,
        made=place,
        place=place if slip is None else sources.of_line(place.file, slip, place.function),
        cause=f"{lost}, unpacked on line {statement.lineno}, is never read{again}",
    )


def _of_list(
    one: Taking, function: ast.AST, name: str, never: list[int], run: Callable[[], object]
) -> Missed | None:
    """Explain parts that stand in a list: the loop that goes past them, or the index that stands twice."""
    place = one.place
    indices: dict[int, list[ast.stmt]] = {}
    for statement in statements(function):
        for node in ast.walk(statement):
            if (index := _constant_index(node, name)) is not None:
                indices.setdefault(index % one.items, []).append(statement)
    if any(n in indices for n in never):
        return None  # a branch that did not run reads them
    for loop in (n for n in sources.own_nodes(function) if isinstance(n, ast.For)):
        variable = _loop_variable(loop, lambda given: bool(reads(given, name)))
        inside = [s for s in statements(loop) if reads(s, name)]
        if loop.lineno > place.line and (variable or inside):
            return _in_loop(place, loop, variable or name, never, run)
    if len(indices) < 2:
        return None  # one part of several may be all that is wanted
    twice = [found[-1].lineno for found in indices.values() if len(found) > 1]
    line = min((n for n in twice if n > place.line), default=place.line)
    lost = names_text([f"{name}[{n}]" for n in never])
    again = f"; line {line} reads its sibling once more" if line != place.line else ""
    return Missed(
        name=f"{name}[{never[0]}]",
        made=place,
        place=sources.of_line(place.file, line, place.function),
        cause=f"{lost}, made on line {place.line}, {_are(never)} never read{again}",
    )


def _in_loop(
    place: Location, loop: ast.For, name: str, never: list[int], run: Callable[[], object]
) -> Missed:
    """Find the statement that runs in the iterations which do not read a variable, in place of one that does."""
    body = [s for s in statements(loop) if s.lineno > loop.lineno]
    readers = [s for s in body if reads(s, name)]
    with_it, without = set[int](), set[int]()
    for lines in _iterations(place, loop, run):
        (with_it if any(s.lineno in lines for s in readers) else without).update(lines)
    bound = {n for s in readers for n in bound_names(s)}
    ran = [s for s in body if s.lineno in without]
    instead = [s for s in ran if bound.intersection(bound_names(s))]
    instead += [s for s in ran if s.lineno not in with_it]
    if not ran:  # every iteration reads it, under a condition perhaps
        instead = [s for s in readers if any(isinstance(n, ast.IfExp) for n in ast.walk(s))]
    line = instead[0].lineno if instead else loop.lineno
    which = (" and " if len(never) == 2 else ", ").join(f"number {n}" for n in never)
    return Missed(
        name=name,
        made=place,
        place=sources.of_line(place.file, line, place.function),
        cause=f"of the parts that line {place.line} makes, counted from 0, {which} {_are(never)} never read: line {line} "
        + (f"runs without {name}" if instead else "does not come to it"),
    )


def _are(never: list[int]) -> str:
    return "is" if len(never) == 1 else "are"


def _iterations(place: Location, loop: ast.For, run: Callable[[], object]) -> list[set[int]]:
    """Return the lines of each iteration of a loop that ran."""
    found: list[set[int]] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event == "call" or os.path.abspath(frame.f_code.co_filename) != place.file:
            return False
        if line == loop.lineno:
            found.append(set())
        elif found and sources.holds(loop, line):
            found[-1].add(line)
        return False

    find_line(run, watcher)
    return [lines for lines in found if lines]


def _loop_variable(loop: ast.For, is_it: Callable[[ast.expr], bool]) -> str | None:
    """Return the variable of a loop that goes over what a predicate knows, through ``enumerate`` and ``zip``."""

    def match(target: ast.expr, given: ast.expr) -> str | None:
        if not is_it(given):
            return None
        called = getattr(given.func, "id", "") if isinstance(given, ast.Call) else ""
        if called in ("enumerate", "zip") and isinstance(target, ast.Tuple):
            args = given.args  # type: ignore[attr-defined]
            inner: Iterable[ast.expr] = target.elts[1:] if called == "enumerate" else target.elts
            found = (match(t, a) for t, a in zip(inner, args, strict=False))
            return next(filter(None, found), None)
        return target.id if isinstance(target, ast.Name) else None

    return match(loop.target, loop.iter)


def _constant_index(node: ast.AST, name: str) -> int | None:
    """Return the number by which an expression picks an item of a variable."""
    if not isinstance(node, ast.Subscript) or getattr(node.value, "id", "") != name:
        return None
    try:
        index = ast.literal_eval(node.slice)
    except (ValueError, TypeError, SyntaxError):
        return None
    return index if isinstance(index, int) else None

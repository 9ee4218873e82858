"""Results that nothing uses: the variable that holds one, the calls that could have taken it, and what was taken in its place."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ... import sources
from ...findings import Culprit
from ...probes.recorded.divergence import record
from ...probes.recorded.watch import name_of
from ...record.modes import Functions
from ...record.tracing import find_line
from ...runs.again import forward_and_loss
from ..lines.omitted_arguments import edit, without_names
from ..lines.overwritten import overwritten
from ..lines.passed_on import handed_on, passed_by
from ..lines.unread import unread, unread_names, unread_values

if TYPE_CHECKING:
    from types import FrameType

    from ...findings import Location
    from ...probes.recorded.operations import Trace
    from ...probes.recorded.watch import Op
    from ...subject import Subject


def bound(subject: Subject, place: Location) -> tuple[str, str, list[Culprit]]:
    """Say which variable holds the result that a line of the user's computes and is not read: cause, fix, culprits."""
    with subject.pristine():
        name, anew = overwritten(place, forward_and_loss(subject))
    with subject.pristine():
        names = unread_names(place, forward_and_loss(subject)) or ((name,) if anew else ())
    if not names:
        return "", "", []
    with subject.pristine():
        calls = without_names(place, names, forward_and_loss(subject))
    if anew is not None and name == names[0]:  # behind that line the variable holds another value
        calls = [one for one in calls if place.line < one.location.line <= anew.line]
    told = next((one.name for one in calls), names[0])
    cause = "" if told.startswith("_") else f": {told} is never read after line {place.line}"
    culprits = [one.culprit("is never read") for one in calls]
    fix = f"{edit(calls)}, or drop the part that computes it" if calls else ""
    if anew is not None:
        when = "" if anew != place else " in the next iteration of the loop"
        cause = f": line {anew.line} reassigns {name}{when} before it is read"
        fix = fix or f"let line {anew.line} read {name}, or drop the part that computes it"
        if anew not in (place, *(one.location for one in calls)):
            detail = "reassigned before it is read"
            culprits.append(Culprit("tensor", name, detail, anew))
    if culprits or anew is not None or told.startswith("_"):
        return cause, fix, culprits
    if (slip := _slip(subject, place)) is not None:
        return slip
    return cause, fix, _passed_by(subject, place, told)


def received(subject: Subject, op: Op, place: Location) -> tuple[list[Culprit], str]:
    """Return the last module that is given a result which no operation reads, at the line that names it; and a fix.

    Where conditional expressions there name it and choose something else, the last of them comes first.
    """
    made: dict[int, torch.Tensor] = {}
    ran: list[int] = []
    last: tuple[FrameType, str, nn.Module] | None = None

    def around(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and name_of(func) == op.name:
            at = sources.of_frame(sys._getframe(2))
            if at is not None and (at.file, at.line) == (place.file, place.line):
                made[id(result)] = result
        return result

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        nonlocal last
        owner = frame.f_locals.get("self")
        if event == "call" and isinstance(owner, nn.Module):
            given = (n for n, v in frame.f_locals.items() if id(v) in made and made[id(v)] is v)
            if (name := next(given, None)) is not None:
                last = frame, name, owner
                ran.clear()
        elif event != "call" and last is not None and frame is last[0]:
            ran.append(line)
        return False

    with subject.pristine() as model, Functions(around):
        find_line(forward_and_loss(subject), watcher)
    if last is None:
        return [], ""
    frame, name, owner = last
    code, paths = frame.f_code, {id(m): n for n, m in model.named_modules()}
    reading = [n for n in dict.fromkeys(ran) if _names(code.co_filename, n, name)]
    choices = (at for n in reading for at in _choosing(code.co_filename, n, name))
    chosen = list(dict.fromkeys(choices))[-_MOST:]
    lines = chosen[::-1] or [*reading, code.co_firstlineno][:1]
    places = [sources.of_line(code.co_filename, n, code.co_qualname) for n in lines]
    path = f"{paths.get(id(owner), type(owner).__name__)} ({type(owner).__name__})"
    detail = f"receives it as {name}, and no operation there reads it"
    fix = f"use it in an operation from line {lines[0]} on"
    if chosen:
        several = len(lines) > 1
        listed = " and ".join(map(str, lines[::-1]))
        detail += (
            f": line{'s' * several} {listed} choose{'s' * (not several)} something else instead"
        )
        fix = f"let line {lines[0]} choose {name}, or drop the part that computes it"
    beside = [Culprit("tensor", name, "is not chosen here", at) for at in places[1:]]
    return [Culprit("module", path, detail, places[0]), *beside], fix


def _choosing(file: str, line: int, name: str) -> list[int]:
    """Return the lines of the conditional expressions in a statement of which one branch, not both, is a variable."""
    found = sources.statement(file, line)
    choices = (n for n in ast.walk(found) if isinstance(n, ast.IfExp)) if found else ()
    return [
        n.lineno for n in choices if (getattr(n.body, "id", ""), getattr(n.orelse, "id", "")).count(name) == 1
    ]  # fmt: skip


def _names(file: str, line: int, name: str) -> bool:
    """Say whether a plain statement on a line reads a variable."""
    plain = not hasattr(sources.statement(file, line), "body")
    return plain and name in sources.names_read(file, line)


def entry_read(subject: Subject, place: Location) -> tuple[str, Location] | None:
    """Return the dict or list that holds a result which is not read, and the one line that reads an entry of it.

    None where the line puts it in none, and where nothing, or more than one line behind the loop that
    fills it, reads entries.
    """
    function = sources.function_around(place.file, place.line)
    name = sources.assigned_name(place)
    made = [sources.statement(place.file, place.line)]
    made += [
        n for n in sources.own_nodes(function) if isinstance(n, ast.stmt) and n.lineno > place.line
    ]
    stores = (_stored_in(node, name if node is not made[0] else "") for node in made)
    held = next((one for one in stores if one), "")
    if not held:
        return None
    loops = sources.around(place.file, place.line, ast.For)
    filled = max((loop.end_lineno or 0 for loop in loops[:1]), default=place.line)
    reads = {
        node.lineno
        for node in sources.own_nodes(function)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node.value) == held
        and node.lineno > filled
    }
    ran: set[int] = set()

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event != "call" and line in reads and frame.f_code.co_filename == place.file:
            ran.add(line)
        return False

    with subject.pristine():
        find_line(forward_and_loss(subject), watcher)
    if len(ran) != 1:
        return None
    return held, sources.of_line(place.file, ran.pop(), place.function)


def _stored_in(node: ast.stmt | None, name: str) -> str:
    """Return the variable in which a statement puts a value, that of ``name`` where one is given."""
    target: ast.expr | None = None
    value: ast.expr | None = None
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        target, value = node.targets[0], node.value
    elif isinstance(node, ast.Expr) and sources.called(node.value) in ("append", "add", "insert"):
        assert isinstance(node.value, ast.Call)
        target, value = node.value.func, next(iter(node.value.args[-1:]), None)
    if not isinstance(target, ast.Subscript | ast.Attribute) or not isinstance(
        target.value, ast.Name
    ):
        return ""
    same = not name or (isinstance(value, ast.Name) and value.id == name)
    return target.value.id if same and target.value.id != "self" else ""


def _slip(subject: Subject, place: Location) -> tuple[str, str, list[Culprit]] | None:
    """Say the same of a variable in the place of which a sibling is read once more."""
    with subject.pristine():
        found = unread(place, forward_and_loss(subject))
    if found is None or found.slip is None:
        return None
    culprit = Culprit("call", found.sibling, f"read where {found.name} is not", found.slip)
    return (
        (
            f": {found.name} is never read after line {place.line}, and line {found.slip.line} "
            f"reads {found.sibling} {found.times}"
        ),
        (
            f"read {found.name} instead of one {found.sibling} on line {found.slip.line}, or "
            "drop the part that computes it"
        ),
        [culprit],
    )


def _passed_by(subject: Subject, place: Location, unused: str) -> list[Culprit]:
    """Return the lines that read what a result was computed from, and the one that comes back without it."""
    with subject.pristine():
        lines, back = passed_by(place, forward_and_loss(subject))
    seen = [
        Culprit("tensor", name, f"read here; {unused}, which is computed from it, is not", line)
        for name, line in lines[:2]
    ]
    if back is None or any(one.location == back for one in seen):
        return seen
    detail = f"returned here; {unused} is never read"
    return [*seen, Culprit("call", "return", detail, back)][:2]


def picked(subject: Subject, op: Op, place: Location) -> tuple[str, str, list[Culprit]]:
    """Say what uses the indices that a ranking gave and whether its values are left unread: cause, fix, culprits."""
    if op.name.rpartition(".")[2] not in RANKING:
        return "", "", []
    users = picking(subject, op)
    with subject.pristine():
        values = unread_values(place, forward_and_loss(subject))
    places = [user.location for user in users if user.location is not None]
    cause = fix = ""
    if values:
        named = "" if values.startswith("_") else f" ({values})"
        cause = f": only its indices are used, its values{named} are never read"
    if places:
        scores = values if values and not values.startswith("_") else "the scores at these indices"
        fix = (
            f"make the selection on line {places[0].line} depend on the scores: multiply it by "
            f"{scores}, or use softmax, or a straight-through estimator"
        )
    culprits = [Culprit("call", user.name, "uses the indices", user.location) for user in users]
    return cause, fix, [*culprits[:1], *_handed_on(subject, places), *culprits[1:]][:3]


def _handed_on(subject: Subject, places: list[Location]) -> list[Culprit]:
    """Return the first line that gives on, as it is, what one of some lines assigns."""
    for place in places:
        with subject.pristine():
            name, line = handed_on(place, forward_and_loss(subject))
        if line is not None:
            detail = "passed on without the scores"
            return [Culprit("tensor", name, detail, line)]
    return []


RANKING = frozenset(
    {"topk", "sort", "argsort", "argmax", "argmin", "max", "min", "msort", "kthvalue", "median", "mode"}
)  # fmt: skip
"""Bare names of operations that compare scores and return their indices as integers."""
_MOST = 3


def picking(subject: Subject, op: Op) -> list[Op]:
    """Return the operations that turn the indices which one gave into numbers again, in the order of the run.

    Args:
        subject: Whose forward and loss are run once more.
        op: The operation; its line and name tell it in this run.

    Returns:
        Up to three, one for each line; none where the indices are not used, or where it gives none.
    """
    with subject.pristine() as model:
        trace = record(forward_and_loss(subject), model)
        return _users(trace, op)


def _users(trace: Trace, op: Op) -> list[Op]:
    indices: set[int] = set()
    users: list[Op] = []
    for step in trace.steps:
        whole = {p for p in step.results if not _floats(trace, p)}
        if (step.op.name, step.op.location) == (op.name, op.location):
            indices |= whole
        elif indices & set(step.operands):
            indices |= whole
            if len(whole) < len(step.results) and step.op.location is not None:
                users.append(step.op)
    lines = {user.location: user for user in reversed(users) if user.location != op.location}
    return sorted(lines.values(), key=lambda user: user.index)[:_MOST]


def _floats(trace: Trace, place: int) -> bool:
    dtype: torch.dtype = trace.values[place].dtype
    return dtype.is_floating_point or dtype.is_complex

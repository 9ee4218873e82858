"""How a value goes on from the line that computes it, which lines go past one, and at which a function returns."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...record.lines import traced
from ...record.tracing import find_line
from ...subject.errors import SubjectError
from .unread import (
    bound_names,
    lines_run,
    located,
    names_of,
    running_after,
    target_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from ...findings import Location
    from ...subject import Subject


_OUTWARD = frozenset({"shape", "size", "dim", "ndim", "device", "dtype", "numel", "is_cuda"})
_GIVING = (ast.Assign, ast.AnnAssign, ast.Return)


def handed_on(
    place: Location, run: Callable[[], object], *, depth: int = 3
) -> tuple[str, Location | None]:
    """Return the variable that a statement assigns, and the first line after it that copies or returns it as it is.

    Of a statement that returns what it computes: the line that gets it, or that hands it on from
    there. Arguments as of :func:`~pytest_torchcheck.diagnosis.lines.unread.unread`, with how many
    functions to leave at most. No line where the variable is assigned anew before, or never handed
    on.
    """
    if (found := located(place)) is None:
        return "", None
    function, statement = found
    if isinstance(statement, ast.Return):
        above = _returned_to(place, function, run)
        if above is None or depth == 0:
            return function.name, above
        name, line = handed_on(above, run, depth=depth - 1)
        return name or function.name, line or above
    if not (name := target_of(statement)):
        return "", None
    for later in running_after(function, statement, lines_run(place, function, run)):
        given = getattr(later, "value", None) if isinstance(later, _GIVING) else None
        parts = given.elts if isinstance(given, ast.Tuple | ast.List) else [given]
        if any(isinstance(part, ast.Name) and part.id == name for part in parts):
            return name, sources.of_line(place.file, later.lineno, place.function)
        if isinstance(later, ast.stmt) and name in names_of(later):
            break
    return name, None


def _returned_to(place: Location, function: ast.AST, run: Callable[[], object]) -> Location | None:
    """Return the user's line to which a function came back from the one at a place, the first time."""
    found: list[Location | None] = []
    until = sys._getframe()

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        code = frame.f_code
        same = os.path.abspath(code.co_filename) == place.file and line == place.line
        if same and event == "return" and code.co_name == getattr(function, "name", ""):
            found.append(sources.of_frame(frame.f_back, until=until))
        return bool(found)

    find_line(run, watcher)
    return found[0] if found else None


def passed_by(
    place: Location, run: Callable[[], object]
) -> tuple[list[tuple[str, Location]], Location | None]:
    """Return the lines after a place that read what its statement computes with, and the one at which its function comes back.

    ``h = self.block(x)``, and later ``return self.head(x)``: where h is never read, these take x
    past it. Reads of a shape or dtype do not count. Arguments as of
    :func:`~pytest_torchcheck.diagnosis.lines.unread.unread`.
    """
    if (at := located(place)) is None:
        return [], None
    function, statement = at
    after = running_after(function, statement, lines_run(place, function, run))
    own = _arguments(place, function) | set(bound_names(function))
    own &= _computed_with(statement)
    found: dict[int, tuple[str, Location]] = {}
    for later in after:
        for name in sorted(_computed_with(later) & own):
            line = sources.of_line(place.file, later.lineno, place.function)
            found.setdefault(later.lineno, (name, line))
        own -= set(bound_names(later))  # from here on another value
    back = [s for s in after if isinstance(s, ast.Return)]
    last = sources.of_line(place.file, back[-1].lineno, place.function) if back else None
    return list(found.values()), last


def _arguments(place: Location, function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Return the parameters of a function, without the object of a method."""
    classes = sources.around(place.file, place.line, ast.ClassDef)
    method = any(function in one.body for one in classes)
    return frozenset(sources.parameters(function)[method:])


def _computed_with(node: ast.AST) -> set[str]:
    """Return the variables whose values a part of a function reads."""
    asked = {
        id(n.value)
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and n.attr in _OUTWARD and isinstance(n.value, ast.Name)
    }
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in asked]
    return {n.id for n in names if isinstance(n.ctx, ast.Load)}


def loss_returned(subject: Subject) -> Location | None:
    """Return the line at which the user's loss comes back; None where that cannot be seen."""
    loss = subject.contract.loss
    if loss is None or isinstance(loss, str):
        return None
    return _returned(subject, type(loss).forward if isinstance(loss, torch.nn.Module) else loss)


def forward_returned(subject: Subject) -> Location | None:
    """Return the line at which the model's own forward comes back; None where that cannot be seen."""
    return _returned(subject, type(subject.model).forward)


def _returned(subject: Subject, function: Callable[..., Any]) -> Location | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not sources.rank(code.co_filename):
        return None
    key = f"returned {id(code)}"
    if key not in subject.cache:
        subject.cache[key] = _last_line(subject, code)
    found: Location | None = subject.cache[key]
    return found


def _last_line(subject: Subject, code: CodeType) -> Location | None:
    found: list[int] = []

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "return":
            found.append(frame.f_lineno)
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        return local if event == "call" and frame.f_code is code else None

    batch = subject.batch().clone()
    try:
        pristine = subject.pristine(train=True, seeded=True)
        with pristine as model, torch.no_grad(), traced(enter):
            output = subject.call(model, batch)
            if subject.contract.loss is not None:
                subject.compute_loss(output, batch)
    except SubjectError:
        return None  # what it raises is told elsewhere
    if not found:
        return None
    return sources.of_line(code.co_filename, found[-1], getattr(code, "co_qualname", code.co_name))

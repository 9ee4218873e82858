"""Results of the forward that its source drops, gives a name that nothing reads, or takes apart unread."""

from __future__ import annotations

import ast
import linecache
from typing import TYPE_CHECKING, Literal

import torch

from ... import sources
from ...lean import dataclass
from ...objects import trees
from ...probes.recorded.unread import UnreadWatch
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from ..facts import outputs
from ..training.observation import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...batches import Batch
    from ...findings import Location
    from ...probes.recorded.unread import Place
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A result that nothing reads.

    Attributes:
        kind: ``dropped`` by a statement that only computes it, ``bound`` to a name that its function never
            reads, or ``overwritten`` by a later statement that binds the name again.
        op: The function of torch that made it.
        text: What computes it, as the source says it.
        name: The variable, where it has one.
        location: The line.
        again: The line that binds the name again, or that reads once more a name that is bound beside it.
    """

    kind: Literal["dropped", "bound", "overwritten"]
    op: str
    text: str
    name: str
    location: Location
    again: Location | None = None


def unread_results(subject: Subject) -> list[Unread]:
    """Return the results that no operation reads in train or in eval mode, whatever branch would.

    Cost: nothing where the shared observation saw every result read; else a forward, and one more where the
        source loses a result.
    """
    if not observe(subject).signals.unread:
        return []
    told = {p: one for p in in_training(subject).unread if (one := judged(p))}
    elsewhere = _watched(subject, train=False).read if told else set()
    left = (one for place, one in told.items() if place not in elsewhere)
    return list({(one.location.file, one.location.line, one.op): one for one in left}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyLast:
    """Positions of an input that only results are computed from which nothing reads.

    Attributes:
        path: Of the input.
        dim: Its dimension.
        size: How many positions it has; the last one alone counts.
        calls: How often the line runs.
        text: What computes the results, as the source says it.
        location: The line.
    """

    path: str
    dim: int
    size: int
    calls: int
    text: str
    location: Location


def only_last(subject: Subject) -> OnlyLast | None:
    """Return an input of which the last position alone counts, where a line computes the others' part for nothing.

    A loop over the positions whose every turn replaces the result of the one before it computes all of
    them, and uses the last. Where the state is passed on, the earlier ones count too.

    Cost: nothing where the shared observation saw every result read, or no line has results of which the last
    alone is read; else up to 5 forwards of two samples for each dimension as long as that line runs often.
    """
    if not observe(subject).signals.unread or not (last := in_training(subject).last):
        return None
    few, other = (subject.few(b) or b for b in (subject.batch(), subject.batch(1)))
    batch_axes = subject.source.axes(subject.source.batch_symbol or "")
    for path, tensor in few.input_leaves():
        if not isinstance(tensor, torch.Tensor):
            continue
        for dim in range(tensor.dim()):
            size = tensor.shape[dim]
            places = [p for p, n in last.items() if n in (size, size - 1) and None not in p.span]
            if dim == batch_axes.get(path) or not places:
                continue
            fresh = other.tensors()[path]
            index = (torch.arange(size) < size - 1).view(-1, *(1 for _ in tensor.shape[dim + 1 :]))
            but_last = torch.where(index.to(tensor.device), fresh, tensor)
            alone = torch.where(index.to(tensor.device), tensor, fresh)
            if moves(subject, few, path, alone, train=False) and not any(
                moves(subject, few, path, but_last, train=train) for train in (False, True)
            ):
                return _told(places[0], path, dim, size, last[places[0]])
    return None


def moves(subject: Subject, batch: Batch, path: str, value: torch.Tensor, *, train: bool) -> bool:
    """Say whether another value of an input changes an output; so says a model that refuses it."""
    changed = batch.map(lambda where, leaf: value if where == path else leaf, targets=False)
    try:
        before, after = (outputs(subject, b, train=train) for b in (batch, changed))
    except SubjectError:
        return True
    return any(name not in after or not trees.same(t, after[name]) for name, t in before.items())


def _told(place: Place, path: str, dim: int, size: int, calls: int) -> OnlyLast | None:
    line, _, start, end = place.span
    assert line is not None
    where = sources.of_line(place.file, line, place.function)
    whole = linecache.getline(place.file, line).encode()
    text = whole[start:end].decode() if place.span[0] == place.span[1] else where.text
    return OnlyLast(path=path, dim=dim, size=size, calls=calls, text=text, location=where)


@remembered("unread-in-training")
def in_training(subject: Subject) -> UnreadWatch:
    """Return which results a forward in training mode reads."""
    return _watched(subject, train=True)


def lost_results(run: Callable[[], object]) -> list[Unread]:
    """Run a loss and return its results that the source loses; a name that is never read may be there for a debugger.

    Args:
        run: Takes no arguments.
    """
    watch = UnreadWatch()
    with torch.enable_grad(), watch:
        result = run()
    del result
    known = map(judged, watch.unread)
    return [one for one in known if one is not None and one.kind != "bound"]


def lost_in_loss(subject: Subject) -> list[Unread]:
    """Return the results of the declared loss that its source loses. Cost: 1 forward and its loss."""
    if not callable(subject.contract.loss):
        return []
    batch = subject.batch().clone()
    try:
        with subject.pristine(train=True, seeded=True) as model:
            output = subject.call(model, batch)
            return lost_results(lambda: subject.compute_loss(output, batch))
    except SubjectError:
        return []  # which backward reports


def _watched(subject: Subject, *, train: bool) -> UnreadWatch:
    """Run a forward in one mode and see which results are read."""
    with subject.pristine() as model:
        model.train(train)
        seed_everything(subject.seed)
        batch = subject.batch().clone()
        watch = UnreadWatch()
        with torch.enable_grad(), watch:
            output = subject.call(model, batch)
        del output
    return watch


def judged(place: Place) -> Unread | None:
    """Say how the source loses the result of a call; None where it reads it, or may."""
    statement, around = _around(place)
    if statement is None or around is None:
        return None
    where = sources.of_line(place.file, statement.lineno, place.function)
    if isinstance(statement, ast.Expr) and _is(statement.value, place):
        text = _text(place.file, statement.value)
        return Unread(kind="dropped", op=place.op, text=text, name="", location=where)
    name = next((n for n, value in bindings(statement) if _is(value, place)), "_")
    if name.startswith("_"):
        return None
    bound = not reads(around, name)
    again = (_slip if bound else _bound_again)(around, statement, name)
    if not bound and again is None:
        return None
    return Unread(
        kind="bound" if bound else "overwritten",
        op=place.op,
        text=next(_text(place.file, v) for n, v in bindings(statement) if n == name),
        name=name,
        location=where,
        again=None if again is None else sources.of_line(place.file, again, place.function),
    )


def _slip(function: ast.AST, statement: ast.stmt, name: str) -> int | None:
    """Return the line that reads once more a name that a statement binds beside one that nothing reads."""
    siblings = [n for n, _ in bindings(statement)]
    if isinstance(statement, ast.Assign):
        siblings = siblings if len(siblings) > 1 else _unpacked(statement)
    lines = (_lines_reading(function, n) for n in siblings if n != name)
    return next((found[-1] for found in lines if len(found) > 1), None)


def _text(file: str, value: ast.expr) -> str:
    """Return an expression as it is written."""
    if value.lineno != value.end_lineno:
        return ast.unparse(value)
    line = linecache.getline(file, value.lineno).encode()
    return line[value.col_offset : value.end_col_offset].decode()


def _is(value: ast.expr, place: Place) -> bool:
    """Say whether an expression, or what a condition chooses of it, is the call at a place."""
    if isinstance(value, ast.IfExp):
        return _is(value.body, place) or _is(value.orelse, place)
    own = value.lineno, value.end_lineno, value.col_offset, value.end_col_offset
    return own == place.span


def _bound_again(function: ast.AST, statement: ast.stmt, name: str) -> int | None:
    """Return the line of the same block that binds a name again, where nothing between reads it."""
    for node in ast.walk(function):
        for block in (getattr(node, part, None) for part in ("body", "orelse", "finalbody")):
            if not isinstance(block, list) or statement not in block:
                continue
            for later in block[block.index(statement) + 1 :]:
                if reads(later, name):
                    return None
                if any(bound == name for bound, _ in bindings(later)):
                    return int(later.lineno)
                if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(later)):
                    return None  # bound under a condition
    return None


def _around(place: Place) -> tuple[ast.stmt | None, ast.AST | None]:
    """Return the innermost statement and function around the expression at a place."""
    line, end, column, _ = place.span
    if line is None or end is None or column is None:
        return None, None
    around = [
        node
        for node in sources.around(place.file, line, ast.stmt)
        if (node.lineno, node.col_offset) <= (line, column)
        and end <= (node.end_lineno or node.lineno)
    ]
    innermost = max(around, key=lambda node: (node.lineno, node.col_offset), default=None)
    return innermost, sources.function_around(place.file, line)


def bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Iterate over the variables that a statement assigns, with what it assigns to each; not what it unpacks."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target, value = statement.target, statement.value
    else:
        return
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, part in zip(target.elts, value.elts, strict=False):
            if isinstance(name, ast.Name):
                yield name.id, part


def _unpacked(statement: ast.Assign) -> list[str]:
    """Return the variables that a statement unpacks one result into."""
    target = statement.targets[0]
    if len(statement.targets) > 1 or not isinstance(target, ast.Tuple) or isinstance(statement.value, ast.Tuple):  # fmt: skip
        return []
    return [n.id for n in target.elts if isinstance(n, ast.Name)] if all(isinstance(n, ast.Name) for n in target.elts) else []  # fmt: skip


def _lines_reading(function: ast.AST, name: str) -> list[int]:
    """Return the lines on which a function reads a variable, in order, once for each time."""
    found = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
    return sorted(n.lineno for n in found if isinstance(n.ctx, ast.Load))


def reads(function: ast.AST, name: str) -> bool:
    """Say whether a function reads a variable anywhere, or lets others do so."""
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal) and name in node.names:
            return True
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") == name:
            return True
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("locals", "vars", "eval", "exec"):  # fmt: skip
            return True
    return False

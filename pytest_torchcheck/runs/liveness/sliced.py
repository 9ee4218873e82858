"""Parts of an input or a value without influence, because a line takes others of its parts again."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...lean import dataclass
from ...objects import trees
from ...probes.recorded.slices import Moving, SliceWatch
from ...subject.errors import SubjectError
from ..facts import outputs
from ..training.observation import observe
from .unread import moves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...probes.recorded.slices import Sliced
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadPart:
    """Entries of an input, or of a value, that nothing reads.

    Attributes:
        path: Of the input; empty where it is a value that the forward computes.
        sliced: The expression that takes other entries again.
        start: The variable at which the parts begin; empty where it is another expression.
        text: The expression, as the source says it.
        value: What it takes parts of.
    """

    path: str
    sliced: Sliced
    start: str
    text: str
    value: str


def unread_part(subject: Subject) -> UnreadPart | None:
    """Return entries without influence, where a line slices an input or a value into parts that would fill it.

    Parts that lie side by side are as long as all of the dimension. Where two of them begin at one place, others
    are left out. An input of which a part is left out on purpose is not sliced into such parts.

    Cost: nothing where the shared observation saw no part that was sliced off again; else a forward, and up to seven
        more where one expression takes parts that would fill a dimension.
    """
    if not (shapes := observe(subject).signals.repeated):
        return None
    leaves = {p: t for p, t in subject.batch().input_leaves() if isinstance(t, torch.Tensor)}
    for sliced in _sliced(subject, shapes):
        if (written := _advancing(sliced)) is None:
            continue
        alike = [path for path, leaf in leaves.items() if tuple(leaf.shape) == sliced.shape]
        path = next((p for p in alike if _without_influence(subject, p, sliced)), "")
        if path or _without_effect(subject, sliced):
            start, text, value = written
            return UnreadPart(path=path, sliced=sliced, start=start, text=text, value=value)
    return None


def _sliced(subject: Subject, shapes: set[tuple[int, ...]]) -> Iterator[Sliced]:
    """Run a forward in training mode and see which expressions take parts of tensors of these shapes."""
    watch = SliceWatch(shapes)
    with subject.pristine(train=True, seeded=True) as model:
        batch = subject.batch().clone()
        with torch.enable_grad(), watch:
            subject.call(model, batch)
    yield from watch.found()


def _advancing(sliced: Sliced) -> tuple[str, str, str] | None:
    """Return where the parts begin, the expression and its tensor, if they are written as parts that follow each other.

    ``x[:, start : start + width]`` is, ``x[:, :width]`` is not: it may be meant to begin at 0 each time.
    Where all parts are one, only the first form says that they were to be others.
    """
    line, end, first, last = sliced.position
    nodes = [] if line is None else sources.around(sliced.file, line, ast.expr)
    place = line, end, first, last
    node = next(
        (n for n in nodes if (n.lineno, n.end_lineno, n.col_offset, n.end_col_offset) == place),
        None,
    )
    lower, width = _bounds(node)
    if node is None or lower is None or isinstance(lower, ast.Constant):
        return None
    name = lower.id if isinstance(lower, ast.Name) else ""
    same = len(set(sliced.spans)) == 1
    follows = isinstance(node, ast.Call) or any(
        isinstance(n, ast.Name) and n.id == name for n in ast.walk(width)
    )
    if same and not (name and follows):
        return None
    value = node.func if isinstance(node, ast.Call) else node
    taken = value.value if isinstance(value, ast.Subscript | ast.Attribute) else value
    if isinstance(node, ast.Call) and len(node.args) > 3:  # torch.narrow
        taken = node.args[0]
    return name, ast.unparse(node), ast.unparse(taken)


def _bounds(node: ast.expr | None) -> tuple[ast.expr | None, ast.expr]:
    """Return where a slice begins, and its end or its length."""
    nothing = ast.Constant(None)
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        cuts = [p for p in parts if isinstance(p, ast.Slice) and (p.lower or p.upper)]
        if len(cuts) == 1:
            return cuts[0].lower, cuts[0].upper or nothing
    if isinstance(node, ast.Call) and len(node.args) >= 3:
        return node.args[-2], node.args[-1]
    return None, nothing


def _without_influence(subject: Subject, path: str, sliced: Sliced) -> bool:
    """Say whether other values of the entries that are left out change no output in either mode, and others do."""
    batch, other = subject.batch(), subject.batch(1)
    own, fresh = (dict(b.input_leaves())[path] for b in (batch, other))
    dim = sliced.spans[0][0]
    mask = torch.zeros(own.shape[dim], dtype=torch.bool)
    for start, stop in sliced.unread:
        mask[start:stop] = True
    mask = mask.view(-1, *(1 for _ in own.shape[dim + 1 :])).to(own.device)
    left, read = torch.where(mask, fresh, own), torch.where(mask, own, fresh)
    if trees.same(left, own) or not moves(subject, batch, path, read, train=False):
        return False
    return not any(moves(subject, batch, path, left, train=train) for train in (False, True))


def _without_effect(subject: Subject, sliced: Sliced) -> bool:
    """Say whether the same holds where the entries are moved in the forward, just before they are first read."""

    def differs(*, left: bool, train: bool) -> bool:
        before = outputs(subject, train=train)
        batch = subject.batch().clone()
        with subject.pristine(train=train, seeded=True) as model, torch.no_grad():
            with Moving(sliced, left=left):
                made = trees.tensors(subject.call(model, batch))
            return any(p not in made or not trees.same(t, made[p]) for p, t in before.items())

    try:
        return differs(left=False, train=False) and not any(
            differs(left=True, train=train) for train in (False, True)
        )
    except SubjectError:
        return False

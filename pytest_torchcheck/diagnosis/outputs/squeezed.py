"""A ``squeeze()`` that names no dimension: of a batch of one sample it drops the batch, and another line fails for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from ... import sources
from ...explanation import on_line
from ..crashes.layers import Dropped, behind, dropped_by, makers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...explanation import Explanation
    from ..crashes.history import Op
    from ..crashes.scene import Scene

_TOLD = (RuntimeError, IndexError, ValueError, AssertionError)


def with_squeeze(scene: Scene, found: Explanation) -> Explanation:
    """Let the line that dropped the batch dimension be the cause, where one did on the way to what failed."""
    told = isinstance(scene.error, _TOLD) and "CUDA" not in scene.message
    if not told or scene.batch_size() != 1 or scene.phase not in ("forward", "loss"):
        return found
    lost = next(_lost(scene), None)
    if lost is None or lost.culprit.location == found.location:
        return found
    line = on_line(found.location)
    known = lost.words in found.cause
    others = [c for c in found.culprits if c.location != lost.culprit.location]
    return replace(
        found,
        cause=found.cause if known else f"{lost.words}; then{line} {found.cause}",
        fix=lost.fix,
        culprits=(lost.culprit, *scene.call_culprit(detail="needs the dimension"), *others)[:4],
        location=lost.culprit.location,
    )


def _lost(scene: Scene) -> Iterator[Dropped]:
    op = scene.failing_op
    last = makers(op.inputs) if op is not None else _named(scene)
    for one in behind(last):
        lost = dropped_by(scene, one) if one.name == "squeeze" and one.inputs else None
        if lost is not None and lost.batch:
            yield lost


def _named(scene: Scene) -> list[Op]:
    """Return what made tensors of the shapes that the failing line names, where the line itself failed and no call of torch's."""
    again, place, frame = scene.replay(), scene.location, scene.frame
    if again is None or place is None or frame is None:
        return []
    read = sources.names_read(place.file, place.line)
    values = [frame.f_locals[n] for n in read if isinstance(frame.f_locals.get(n), Tensor)]
    shapes = {tuple(value.shape) for value in values}
    return [op for op in reversed(again.ops) if any(fact.shape in shapes for fact in op.outputs)]

"""What uses the indices that a sort, a top-k or an argmax gave: the lines at which a gradient could have been kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...probes.recorded.divergence import record
from ...runs.again import forward_and_loss

if TYPE_CHECKING:
    import torch

    from ...probes.recorded.operations import Trace
    from ...probes.recorded.watch import Op
    from ...subject import Subject

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

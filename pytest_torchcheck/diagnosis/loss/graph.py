"""A loss without the model's graph, explained: it is a new tensor, or something on the way to it cuts the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...findings import Culprit, Finding
from ...record.tracing import find_line, line_of
from ...runs.again import forward_and_loss
from ...verdicts import violated
from ..gradient.cuts import CAUSES, fix_of, last_stop
from ..lines.passed_on import loss_returned
from .consumed import culprit, loss_line

if TYPE_CHECKING:
    from types import FrameType

    from ...findings import Location
    from ...subject import Subject


def recreated(subject: Subject) -> Finding:
    """Explain a loss that is a new leaf."""
    place = _made_line(subject)
    return violated(
        "loss-recreated",
        "the loss is a new tensor without the model's graph",
        culprits=[culprit(subject, "a leaf", place)],
        location=place,
        observed="loss.is_leaf is True and it requires a gradient",
        cause="the loss is rebuilt from its value, which cuts the graph",
        because="its grad_fn is None: torch.tensor(...) and requires_grad_() cut the graph "
        "without an error",
        fix="return the computed tensor itself",
    )


def _made_line(subject: Subject) -> Location | None:
    """Return the line that first holds the tensor which the loss gives back; None where none does."""
    first: dict[int, tuple[object, Location]] = {}
    made: list[object] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event != "call":
            for value in frame.f_locals.values():
                if isinstance(value, torch.Tensor) and id(value) not in first:
                    first[id(value)] = (value, line_of(frame.f_code, line))
        return False

    with subject.pristine():
        run = forward_and_loss(subject)
        find_line(lambda: made.append(run()), watcher)
    held = first.get(id(made[0])) if made else None
    return loss_returned(subject) if held is None else held[1]


def disconnected(subject: Subject) -> Finding:
    """Explain a loss that requires no gradient by the last operation that loses one on the way to it."""
    cut = last_stop(subject)
    place = None if cut is None else cut.region or cut.location
    culprits = [culprit(subject, "requires_grad=False")]
    if cut is not None and cut.op is not None:
        culprits.insert(
            0,
            Culprit("call", cut.op.name, "cuts the graph", cut.location),
        )
    return violated(
        "loss-disconnected",
        "the loss does not depend on the model's parameters",
        culprits=culprits,
        location=place or loss_line(subject),
        observed="loss.requires_grad is False, though parameters require gradients",
        cause="the graph is cut between the parameters and the loss"
        if cut is None
        else CAUSES[cut.kind],
        because="the loss has no grad_fn" if cut is None else cut.fact,
        fix="drop .detach(), .item(), argmax or no_grad between output and loss"
        if cut is None
        else fix_of(cut.kind, cut.location).format(names="..."),
        evidence={} if cut is None else {"kind": cut.kind},
    )

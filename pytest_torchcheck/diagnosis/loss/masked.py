"""A masked model that is trained on the tokens that it is given, explained."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...explanation import on_line
from ...findings import Culprit, Finding
from ...probes.loss.own import labels_of
from ...record.tracing import find_line
from ...verdicts import violated
from .consumed import declared_loss_line
from .labels import made_lines
from .target_origins import marking_lines

if TYPE_CHECKING:
    from types import FrameType

    import torch

    from ...findings import Location
    from ...subject import Subject


def visible(
    subject: Subject,
    left: torch.Tensor,
    counted: int,
    hidden: tuple[int, int],
    names: tuple[str, str],
    because: str,
) -> Finding:
    """Explain labels that count where the model is given the token, and nowhere where another one hides it.

    Args:
        subject: The model.
        left: bool, where labels do not count, padding left out.
        counted: How many count.
        hidden: The token that hides others, and how often it stands.
        names: The paths of the labels and of what the model is given.
        because: What shows that it hides others.
    """
    mask, times = hidden
    name, line = _marked(subject, left, names[0])
    made = made_lines(subject)
    line = line or (made[0].location if made else None)
    return violated(
        "visible-labels",
        "the labels that count are the tokens that the model sees, and none counts where a token is "
        f"hidden (by {mask})",
        culprits=[
            *[Culprit("tensor", name, "is ignored where tokens are hidden", line)] * bool(name),
            Culprit("target", names[0], f"equals {names[1]} wherever it counts", line),
            *made,
        ],
        location=line or declared_loss_line(subject),
        observed=f"at all of {counted} positions that count, the label is the token of {names[1]} there; of "
        f"{int(left.sum())} that do not, {times} hold {mask}, which never counts",
        cause="the labels of the hidden tokens are ignored in place of those of the visible ones",
        because=f"{because}; the gradient of the loss favours the token that stands there, and the "
        "output at a position changes with it: the model learns to copy",
        fix=f"negate the selection{on_line(line)}: ignore the labels of the tokens that the model is given",
    )


def _marked(subject: Subject, left: torch.Tensor, path: str) -> tuple[str, Location | None]:
    """Return the name and the line of the statement that marks labels as ignored; nothing where it is not known.

    Of several, the one that a training step runs.
    """
    marks = labels_of(subject.batch())[path][left].unique().tolist()
    contract = subject.contract
    things = (contract.batch, contract.train_step, contract.loss, type(subject.model))
    lines = marking_lines(marks[0], *things) if len(marks) == 1 else []
    if len(lines) > 1:
        ran = _run_by_step(subject, [line for _, line in lines])
        lines = [one for one in lines if one[1] in ran]
    return lines[0] if len(lines) == 1 else ("", None)


def _run_by_step(subject: Subject, lines: list[Location]) -> set[Location]:
    """Return which of some lines a training step runs."""
    places = {(line.file, line.line): line for line in lines}
    ran: set[Location] = set()

    def watcher(frame: FrameType, _: str, number: int) -> bool:
        place = places.get((os.path.abspath(frame.f_code.co_filename), number))
        ran.update([] if place is None else [place])
        return False

    with subject.pristine(steps=True, train=True, seeded=True) as model:

        def run() -> None:
            subject.train_step(model, subject.make_optimizer(model), subject.batch().clone())

        find_line(run, watcher)
    return ran

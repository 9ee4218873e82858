"""Values of the targets that a mask or lengths beside them exclude have no say in the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...codes import loss as explain
from ...probes.positions.padded_targets import padded_targets, read_padding
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, not_applicable, passed
from .targets import loss_of_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...subject import Subject


def excluded_targets(subject: Subject) -> Iterator[Finding]:
    """Change the padded values of a target by how far they lie behind the last real one of their row.

    They hold one number, and a mask or lengths among the targets mark them. A loss that ignores those that are
    further off, and compares an output with the first as it does with real ones, reads the mask at another
    place than the values.
    """
    loss = "the batch is drawn" if subject.batch().origin == "drawn" else loss_of_output(subject)
    if isinstance(loss, str):
        yield not_applicable(loss)
        return
    known = [*padded_targets(loss.targets())]
    if not known:
        yield not_applicable(
            "no target holds padded values beside a mask or lengths that mark them"
        )
        return
    for padded in known:
        try:
            found = read_padding(loss, padded)
        except SubjectError:
            yield inconclusive(f"the loss refuses other values of {padded.path}")
            return
        if found is not None:
            yield explain.padding_read(subject, loss, found)
            return
    names = ", ".join(dict.fromkeys(padded.path for padded in known))
    yield passed(f"the loss reads no padded value of {names} that a mask excludes, or all of them")

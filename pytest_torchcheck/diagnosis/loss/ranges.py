"""Targets that a loss of torch's is not defined for, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...explanation import on_line
from ...findings import Culprit, Finding
from ...objects import trees
from ...verdicts import suspicious, violated
from .consumed import declared_loss_line
from .labels import made_lines

if TYPE_CHECKING:
    from ...probes.loss.ranges import Range
    from ...runs.losses.consumption import Consumed
    from ...subject import Subject

_MARKED: Final = {
    (-1.0, 1.0): ("the labels are -1 and 1, as for a margin loss", "map them to 0 and 1: (y + 1) / 2"),
    (0.0, 255.0): ("the targets are pixels of a mask, 0 and 255", "divide the targets by 255"),
    (1.0, 2.0): ("the labels start at one", "subtract 1 from the labels"),
}  # fmt: skip


_OTHER: Final = {
    "-1 or 1": (
        "the targets are 0 and 1, as for a binary cross entropy",
        "map them to -1 and 1: 2 * y - 1",
        "torch defines {function} for -1 and 1: a target of 0 is neither of the two",
    ),
    "each class of a row once": (
        "the targets mark classes by their place, and the loss reads them as class indices",
        "pass the indices of the classes of each sample, and -1 after them, or use multilabel_soft_margin_loss",
        "a row names a class more than once",
    ),
}


def beyond_the_range(subject: Subject, used: Consumed, found: Range, *, certain: bool) -> Finding:
    """Explain targets that a loss of torch's is not defined for.

    Where not ``certain``, targets of 0 and 1 that the loss made may leave out samples on purpose.
    """
    low, high = found.outside[0], found.outside[-1]
    values = f"{low:g}..{high:g}" if len(found.outside) > 2 else f"{low:g} and {high:g}"
    function = used.function.removeprefix("F.")
    must = f"must be {found.allowed}".replace("between 0 and 1", "in 0..1")
    stated = f"are {values}, but {must}"
    if found.allowed in _OTHER:
        cause, fix, because = _OTHER[found.allowed]
        because = because.format(function=function)
        if found.allowed != "-1 or 1":
            stated, certain = "name a class of a row more than once", True
    else:
        whole = high > 1 and all(value == int(value) for value in found.outside)
        cause, fix = _MARKED.get(
            (low, high),
            ("the targets are class indices", "use cross_entropy with an output per class, or one-hot targets")
            if whole
            else ("the targets are not probabilities", "scale the targets into 0..1"),
        )  # fmt: skip
        because = "outside 0..1 the loss has no lower bound: it keeps falling as the logit grows"
        certain = True
    given = [t.double() for t in trees.tensors(subject.batch().targets).values() if t.numel()]
    if any(float(t.min()) == low and float(t.max()) == high for t in given):
        culprits = made_lines(subject)
        place = next((c.location for c in culprits if c.location is not None), None)
        where = " where the data is read"
    else:
        culprits, place = (), used.place  # the loss makes them of others
        where = on_line(place)
        if "0..1" in must and all(float(t.min()) >= 0 and float(t.max()) <= 1 for t in given):
            fix = "pass the targets of the batch as they are"
    place = place or used.place or declared_loss_line(subject)
    return (violated if certain else suspicious)(
        "label-range",
        f"targets of {function} {stated}",
        culprits=culprits or (Culprit("target", "targets", values, place),),
        location=place,
        observed=f"target {list(used.shape)}, {values}",
        cause=cause,
        because=because,
        fix=fix + where,
    )

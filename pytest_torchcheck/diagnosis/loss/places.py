"""Losses that weigh samples by their places, and losses with a gradient that no target decides, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import listed
from ...findings import Culprit, Finding
from ...verdicts import suspicious, violated
from .consumed import loss_line

if TYPE_CHECKING:
    from ...findings import Location
    from ...probes.loss.places import ByPlace, Deaf
    from ...probes.loss.slopes import LossOfOutput
    from ...subject import Subject


def by_place(subject: Subject, found: ByPlace) -> Finding:
    """Explain a loss in which the weight of a sample is that of its place in the batch."""
    place = _place(subject, r"\[0\]|\[:|\[-|arange|linspace|weight|enumerate|\*\*")
    sure = found.far and found.any_size
    return (violated if sure else suspicious)(
        "weight-by-place",
        "the weight of a sample in the loss depends on its place in the batch",
        culprits=[Culprit("loss", "loss", "weighs by place", place)],
        location=place,
        observed=f"moved with its targets to place {found.place}, sample {found.sample} has a gradient of the same "
        f"direction and {found.factor:.4g} times the length",
        cause="the loss multiplies each sample by a number that belongs to the place",
        because="outputs and targets were moved together; the gradient of every sample kept its direction, so "
        "the samples do not interact",
        fix="weigh samples by what they are (their class, a weight in the batch), or take the plain mean",
        evidence={"factors": list(found.others)},
    )


def deaf_gradient(subject: Subject, loss: LossOfOutput | None, found: Deaf) -> Finding:
    """Explain a loss whose value follows the targets, and whose gradient does not."""
    place = (
        _place(subject, r"\.detach\(|no_grad|\.data\b|\.item\(")
        if loss is not None
        else sources.search(type(subject.model).forward, r"\.detach\(|no_grad|\.data\b|\.item\(")
        or sources.of_own_class(subject.model)
    )
    paths = listed(list(found.paths))
    return violated(
        "gradient-without-targets",
        f"the loss changes with {paths}, its gradient does not",
        culprits=[
            *(Culprit("target", path, "does not reach the gradient") for path in found.paths),
            Culprit("loss", "loss", "has the gradient of something else", place),
        ],
        location=place,
        observed=f"{len(found.values)} other targets give losses from {min(found.values):.4g} to "
        f"{max(found.values):.4g} instead of {found.base:.4g}, and the same gradient each time",
        cause="the part of the loss that compares with the targets is cut off from its gradient",
        because="only the targets were changed, to very different ones, with the same outputs and seed",
        fix="compute the term that compares with the targets from the output without detach(), no_grad() or .data",
    )


def _place(subject: Subject, pattern: str) -> Location | None:
    """Return the line of the loss that matches, else its own."""
    loss = subject.contract.loss
    found = sources.search(loss, pattern) if callable(loss) else None
    return found or loss_line(subject)

"""Why one output suits all targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...findings import Culprit, Finding
from ...verdicts import violated
from .consumed import loss_line

if TYPE_CHECKING:
    from ...runs.losses.suiting import Suited
    from ...subject import Subject


def one_suits_all(subject: Subject, found: Suited) -> Finding:
    """Explain a loss that is at its lowest for one output, whatever the labels are."""
    place = loss_line(subject)
    return violated(
        "targets-ignored",
        f"one {found.path} for all samples brings the loss to its floor: labels of {found.idle} have no part in it",
        culprits=[
            Culprit("target", found.target, f"has no effect where it is {found.idle}", place)
        ],
        location=place,
        observed=f"the loss is {found.before:.4g} as the model is, and {found.after:.2g} for one number in every entry",
        cause=f"the weight of a label is the label itself, or a mask drops all that are {found.idle}",
        because=f"the gradient is exactly 0 at every label of {found.idle}, which are {found.share:.0%} of the labels",
        fix=f"give labels of {found.idle} a weight above 0; pos_weight= weighs the others against them",
        evidence={"idle": found.idle},
    )

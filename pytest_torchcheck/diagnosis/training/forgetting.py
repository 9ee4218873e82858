"""Averages of weights that are the latest weights, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...explanation import on_line
from ...findings import Culprit, Finding
from ...loop.replay import where_changed
from ...text.wording import counted
from ...verdicts import violated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...subject import Subject


def forgets(subject: Subject, kept: Mapping[str, float], pairs: Mapping[str, str]) -> Finding:
    """Explain an average that each update replaces almost entirely by the trained weights.

    Args:
        subject: Whose step.
        kept: By tensor of the average, which part of its value an update keeps.
        pairs: By tensor of the average, the trained parameter that it was copied from.
    """
    name = max(kept, key=lambda name: kept[name])
    place = where_changed(subject, name, before=1)  # the first update may be a plain copy
    share = kept[name]
    return violated(
        "average-forgets",
        f"{name} is to average {pairs[name]} over steps, and keeps {share:.3g} of its value in each",
        culprits=[Culprit("parameter", each, "keeps nothing", place) for each in kept],
        location=place,
        observed=f"in two updates one after the other, {counted(len(kept), 'copy', 'copies')} of trained weights "
        f"moved {1 - share:.3g} of the way to them",
        cause="the average is the latest weights; most likely the decay and its complement are swapped"
        f"{on_line(place)}",
        because="every update leaves the same small part of the old value; a decay that warms up would change, and "
        "a plain copy would leave nothing",
        fix=f"keep {1 - share:.3g} of the average and add {share:.3g} of the weights, as in "
        f"average.lerp_(weight, {share:.3g}){on_line(place)}",
        evidence={"kept": dict(kept)},
    )

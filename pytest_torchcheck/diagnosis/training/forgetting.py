"""Averages of weights that are the latest weights, or without the statistics that belong to them, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...loop.replay import lines_of_step, where_changed
from ...text.wording import counted, names_text
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...findings import Location
    from ...runs.training.dropped_statistics import DroppedStatistics
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


def dropped(subject: Subject, found: DroppedStatistics) -> Finding:
    """Explain running statistics that stay as they were built, while copies train the weights beside them."""
    weight = f"{found.norms[0]}.weight"
    written = where_changed(subject, weight)
    place = (_walks_parameters(subject, written) if written is not None else None) or written
    buffers = [f"{name}.running_mean" for name in found.norms]
    keep, worse = "keeps its" if len(buffers) == 1 else "keep their", ""
    if found.losses is not None:
        kept, own = found.losses
        worse = f", and the loss is {kept:.4g} in place of {own:.4g}"
    made = violated if subject.contract.loss is not None else suspicious
    return made(
        "average-statistics",
        f"{names_text(buffers)} {keep} initial values, while each step moves {weight}",
        culprits=[
            Culprit("buffer", name, "does not follow the copies' statistics", place)
            for name in buffers
        ],
        location=place,
        observed=f"copies of {counted(len(found.norms), 'norm')} are called {counted(found.calls, 'time')} in training "
        "mode in a step and are gone after it; the model's own are not called",
        cause="the model takes over the parameters of the copies; running statistics are buffers, and are lost "
        "with them",
        because=f"after 3 steps, outputs in evaluation mode are off by {found.apart:.1%} of the largest from "
        f"those with the batch's own statistics{worse}",
        fix=f"take over the buffers of the copies too{on_line(place)}: average state_dict() in place of parameters(), "
        "or gather the statistics anew after each round (torch.optim.swa_utils.update_bn)",
        evidence={"norms": list(found.norms), "apart": found.apart},
    )


def _walks_parameters(subject: Subject, written: Location) -> Location | None:
    """Return the line of the step that goes through parameters one by one."""
    ran = lines_of_step(subject, written.file)
    lines = sources.file_matches(
        written.file, r"\bnamed_parameters\(|(\bfor\b|\bzip\().*\bparameters\("
    )
    return next((line for line in lines if line.line in ran), None)

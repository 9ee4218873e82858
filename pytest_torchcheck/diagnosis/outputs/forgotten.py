"""Running statistics that hold little but the last batch, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...text.wording import names_text
from ...verdicts import suspicious

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...subject import Subject


def forgotten(subject: Subject, kept: Mapping[str, float]) -> Finding:
    """Explain norms that keep less than a tenth of their running statistics in each step: some are published so.

    Args:
        subject: Whose model.
        kept: By name of the norm, the share that a training forward keeps.
    """
    name, share = next(iter(kept.items()))
    place = sources.of_parameter(subject.model, name)
    momentum = getattr(subject.model.get_submodule(name), "momentum", 1 - share)
    return suspicious(
        "statistics-forgotten",
        f"the running statistics of {names_text(list(kept))} keep {share:.1%} of what they held in each step",
        culprits=[
            Culprit("module", n, "forgets", sources.of_parameter(subject.model, n)) for n in kept
        ],
        location=place,
        observed=f"of two training forwards on one batch, the second moves {name}.running_mean by {share:.1%} of "
        "what the first does",
        cause=f"momentum={momentum:g} weighs the new batch: evaluation uses the statistics of the last batches alone",
        because="torch computes running = (1 - momentum) * running + momentum * batch; other frameworks have "
        "it the other way round",
        fix=f"write momentum={1 - momentum:.3g}{on_line(place)}",
    )

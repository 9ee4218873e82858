"""Where an optimizer loses what it keeps of earlier gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit
from ...probes.holding.holders import lines_run
from ...text.wording import names_text
from ...verdicts import violated

if TYPE_CHECKING:
    from ...findings import Finding, Location
    from ...runs.training.forgetting import Forgetting
    from ...subject import Subject


def forgets(subject: Subject, found: Forgetting) -> Finding:
    """Explain an optimizer with a momentum whose step depends on no earlier gradient."""
    name, kind = type(found.optimizer).__name__, type(found.optimizer)
    with subject.pristine(steps=True):
        made = _made_again(found.optimizer, found.kept)
    place = made or sources.of_object(kind.step)
    kept = names_text(list(found.kept)) if found.kept else ""
    cause = (
        f"{kept} of each parameter {'is' if len(found.kept) == 1 else 'are'} set anew in each step"
        if made is not None
        else f"{name}.step does not use {kept or 'any state'} of the step before"
    )
    return violated(
        "momentum-lost",
        f"{name} has {found.option}, and its step does not depend on earlier gradients",
        culprits=[Culprit("optimizer", name, found.option, place)]
        + [Culprit("optimizer", key, "does not last", made) for key in found.kept],
        location=place,
        observed="after other gradients in the three steps before, the fourth step from the same values is "
        "bit-equal",
        cause=cause,
        because="an average over steps makes the fourth step follow the first three gradients",
        fix=f"set {kept} only where self.state[p] does not hold it yet"
        if made is not None
        else "keep the average in self.state[p], and read it in the next step",
        evidence={"kept": list(found.kept), "option": found.option},
    )


def _made_again(optimizer: torch.optim.Optimizer, kept: tuple[str, ...]) -> Location | None:
    """Return the line that gives a state its first value, where a later step runs it again."""
    held: list[Any] = [p for g in optimizer.param_groups for p in g["params"]]
    for p in held:
        p.grad = torch.zeros_like(p)
    with lines_run() as ran:
        optimizer.step()
    pattern = "|".join(rf"\[[\"']{key}[\"']\]\s*=[^=]" for key in kept)
    places = sources.matches(type(optimizer), pattern) if kept else []
    return next((place for place in places if (place.file, place.line) in ran), None)

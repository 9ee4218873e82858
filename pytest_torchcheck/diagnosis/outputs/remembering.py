"""What a model keeps of one call and gives out in the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...findings import Culprit, Finding
from ...runs.facts import forward_facts
from ...runs.remembering import remembered
from ...text.wording import names_text
from ...verdicts import violated
from .eval_lines import keeping_lines

if TYPE_CHECKING:
    from ...subject import Subject

_MOST = 6
"""How many attributes are restored one by one."""


def remembers(subject: Subject, moved: list[str]) -> Finding:
    """Explain an output that depends on the batch that was evaluated before."""
    kept = forward_facts(subject).keeps
    guilty = next((name for name in kept[:_MOST] if not remembered(subject, [name])), "")
    lines = {culprit.name: culprit for culprit in keeping_lines(subject)}
    named = [lines[name] for name in ([guilty] if guilty else kept) if name in lines]
    if guilty and not named:
        named = [Culprit("tensor", guilty, "kept from one call to the next")]
    place = named[0].location if named else None
    what = guilty or names_text(list(kept))
    return violated(
        "eval-remembers",
        f"{names_text(moved)} depends on earlier evaluations: {what} is kept from them",
        culprits=named or [Culprit("output", moved[0], "differs")],
        location=place or sources.of_object(type(subject.model).forward),
        observed="after another batch of the same sizes, the base batch gives other values than "
        "alone",
        cause=f"{what} is computed from the data of one call and used in the next",
        because=f"with {guilty} restored between the two calls, the outputs equal those of the "
        "batch alone"
        if guilty
        else f"the same batch twice gives equal outputs, and a call changes {what}",
        fix=f"compute {what} in each call, or cache it by all that its values depend on, not by a "
        "shape alone",
        evidence={"outputs": list(moved), "kept": list(kept)},
    )

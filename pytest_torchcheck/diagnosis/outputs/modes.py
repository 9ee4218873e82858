"""Train and eval mode that compute something else, and statistics that do not settle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...findings import Culprit
from ...runs.variants.settling import Quiet, quiet
from ...state import seed_everything
from ...text.wording import have, names_text
from ...verdicts import suspicious, violated
from . import eval_lines, places

if TYPE_CHECKING:
    from ...findings import Finding
    from ...subject import Subject

_MOST = 4


def growing(subject: Subject, names: list[str], ratio: float) -> Finding:
    """Explain statistics that move further away with each call on one batch."""
    culprits = _buffers(subject, names, "grows")
    return violated(
        "statistics-grow",
        f"{names_text(names)} {have(names, 'grows')} with each training forward on the same batch",
        culprits=culprits,
        observed=f"at fixed weights each change is {abs(ratio):.3g} times the change before",
        cause="the average moves away from what it follows: its update has the wrong sign or rate",
        because="an average of one and the same batch comes nearer to it with each call, at any momentum",
        fix="move towards the batch: average += momentum * (batch - average)",
        evidence={"buffers": list(names)},
    )


def differ(subject: Subject, names: list[str], distance: float) -> Finding:
    """Explain statistics with which evaluation gives something else than training, once they have settled."""
    culprits = _buffers(subject, names, "settles elsewhere")
    return violated(
        "statistics-biased",
        f"once {names_text(names)} {'has' if len(names) == 1 else 'have'} settled, eval mode gives something else than train mode",
        culprits=culprits,
        observed=f"outputs of one batch differ by {distance:.3g} (relative) after the statistics have settled on it",
        cause="what is averaged in training is not what evaluation takes it for",
        because=(
            "evaluation reads these buffers, training writes them, and at fixed weights on one batch they "
            "settle at what training computes"
        ),
        fix="average the quantity that the training branch uses, or read it in eval mode as it was averaged",
        evidence={"buffers": list(names)},
    )


def modes(subject: Subject, distance: float) -> Finding:
    """Explain outputs that differ between the modes for no reason that torch's layers give."""

    def training() -> Any:
        copy = subject.batch().clone()
        seed_everything(subject.seed)
        with torch.no_grad(), Quiet():
            quiet(subject.model)
            return subject.call(subject.model, copy)

    place = places.first_difference(
        subject, training, eval_lines.eval_run(subject, subject.batch()), allowed=1e-4
    )
    return suspicious(
        "modes-differ",
        "train and eval mode compute something else, dropout and batch statistics aside",
        culprits=place.culprits() if place else (),
        location=place.location if place else None,
        observed=f"outputs of one batch differ by {distance:.3g} (relative)",
        cause="a branch on self.training changes the result, not only its noise",
        because=(place.fact if place and place.fact else "")
        or "torch's own dropout and norms were in eval mode in both runs, and no random number was drawn",
        fix="compute the same in both modes, or skip this check and say why they differ",
    )


def _buffers(subject: Subject, names: list[str], detail: str) -> list[Culprit]:
    """Name buffers, the first few with the lines that write them."""
    found = []
    for number, name in enumerate(names):
        place = eval_lines.writing_line(subject, name, train=True) if number < _MOST else None
        where = place.location if place else None
        found.append(Culprit("buffer", name, detail, where))
    return found

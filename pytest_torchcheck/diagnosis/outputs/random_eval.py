"""Randomness in eval mode: a layer for training that stays on, or a draw that the model means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...findings import Culprit
from ...probes.perturbing import find_perturbations
from ...state import seed_everything
from ...text.wording import have, names_text
from ...verdicts import suspicious, violated
from . import eval_lines

if TYPE_CHECKING:
    from ...findings import Finding
    from ...probes.perturbing import Perturbation
    from ...subject import Subject


def random_in_eval(subject: Subject, moved: list[str], gap: float) -> Finding:
    """Explain randomness in eval mode.

    ``violated`` for dropout and noise, which are for training alone; ``suspicious`` for every other
    draw: nearly all models that sample a latent, a step of a diffusion, a mask or a token in eval
    mode mean to.

    Args:
        subject: The model.
        moved: Paths of the outputs that differ between two seeds.
        gap: Their largest absolute difference.
    """
    observed = f"{names_text(moved)} {have(moved, 'differs')} by up to {gap:.3g} between two seeds"
    disturbed = _perturbations(subject)
    if disturbed:
        return _still_on(disturbed[0], observed)
    place = eval_lines.drawing_line(subject)
    op = place.op if place else ""
    where = place.location if place else None
    culprits = []
    if op:
        culprits.append(Culprit("call", op, "draws in eval mode", where))
    if place and place.module:
        culprits.append(Culprit("module", place.module, op, where))
    return suspicious(
        "random-in-eval",
        f"the output is random in eval mode{f': {op} is called' if op else ''}",
        culprits=culprits or [Culprit("output", moved[0], "random")],
        location=where or sources.of_object(type(subject.model).forward),
        observed=observed,
        cause="random numbers are drawn in eval mode; this is correct for a model that samples",
        because=place.fact if place else "same input, eval mode, another seed: a different output",
        fix="declare promises.Stochastic(reason=...) if the model samples, otherwise draw only "
        "if self.training",
    )


def _perturbations(subject: Subject) -> tuple[Perturbation, ...]:
    batch = subject.batch().clone()
    with subject.pristine() as model, torch.no_grad():
        model.eval()
        seed_everything(subject.seed + 12345)
        return find_perturbations(lambda: subject.call(model, batch), model)


def _still_on(found: Perturbation, observed: str) -> Finding:
    """Explain a layer that disturbs values in eval mode as well."""
    cause, because, fix = {
        "dropout": (
            "dropout is applied in both modes",
            f"{found.op} drew numbers while training was False",
            f"pass training=self.training to {found.op}",
        ),
        "mask": (
            "hand-written dropout is applied in both modes",
            (
                "this line multiplies by a random mask, and the kept values are scaled by "
                f"{found.scale:.4g}"
            ),
            "apply the mask only if self.training",
        ),
        "noise": (
            "noise is added in both modes",
            f"the outputs of {found.module} are its input on average, over many draws",
            "return the input unchanged unless self.training",
        ),
    }[found.kind]
    culprits = [Culprit("call", found.op, "draws in eval mode", found.location)]
    if found.module:
        culprits.append(Culprit("module", found.module, found.op, found.location))
    return violated(
        "random-in-eval",
        f"the output is random in eval mode: {found.op} is active",
        culprits=culprits,
        location=found.location,
        observed=observed,
        cause=cause,
        because=because,
        fix=fix,
    )

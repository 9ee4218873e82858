"""Modes that disagree, statistics that do not settle, and randomness in eval mode."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Finding
from ...probes.perturbing import find_perturbations
from ...runs.variants.settling import Quiet, apart_with, quiet
from ...state import seed_everything
from ...text.wording import have, names_text
from ...verdicts import suspicious, violated
from ..lines.conditions import deciding
from ..lines.parts_read import other_part
from . import eval_lines, places

if TYPE_CHECKING:
    from ...probes.perturbing import Perturbation
    from ...subject import Subject


_MOST = 4
_TRIED = 4
"""How many kinds of buffers are given other values one by one."""
_ROUNDING = 1e-3


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
    part = other_part(subject, names)
    if part is not None:
        culprits.insert(0, Culprit("buffer", part.name, "another part is read", part.location))
    return violated(
        "statistics-biased",
        (
            f"once {names_text(names)} {'has' if len(names) == 1 else 'have'} settled, eval "
            "mode gives something else than train mode"
        ),
        culprits=culprits,
        location=None if part is None else part.location,
        observed=f"outputs of one batch differ by {distance:.3g} (relative) after the statistics have settled on it",
        cause="what is averaged in training is not what evaluation takes it for"
        if part is None
        else f"evaluation reads another part of {part.name} than training does",
        because="evaluation reads these buffers, training writes them, and at fixed weights on one batch they "
        "settle at what training computes"
        if part is None
        else f"line {part.location.line} takes {part.size} entries from number {part.first} on; in training, parts of "
        f"this buffer begin at {', '.join(map(str, part.wanted))}",
        fix="average the quantity that the training branch uses, or read it in eval mode as it was averaged"
        if part is None
        else f"read the same part of {part.name} in both modes: check the offset on line {part.location.line}",
        evidence={"buffers": list(names)},
    )


def modes(subject: Subject, distance: float) -> Finding:
    """Explain outputs that differ between the modes for no reason that torch's layers give."""
    copy = subject.batch().clone()

    def training() -> Any:
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
        cause="a branch on self.training changes the computation itself, not only its randomness",
        because=(place.fact if place and place.fact else "")
        or "torch's own dropout and norms were in eval mode in both runs, and no random number was drawn",
        fix="compute the same in both modes, or skip this check and say why they differ",
    )


def part_with_statistics(
    subject: Subject, statistics: dict[str, torch.Tensor], distance: float
) -> Finding:
    """Explain modes that agree at the first running statistics and at no others: a norm is applied in two ways."""
    alike: dict[tuple[str, torch.Size], dict[str, torch.Tensor]] = {}
    for name, value in statistics.items():  # a norm and its copy move together
        alike.setdefault((name.rpartition(".")[2], value.shape), {})[name] = value
    tried = list(alike.values())[:_TRIED]
    deciding = [n for group in tried if apart_with(subject, group) > _ROUNDING for n in group]
    deciding = deciding or list(statistics)
    kind = deciding[0].rpartition(".")[2]
    place = eval_lines.buffer_line(subject, deciding[0])
    return violated(
        "modes-differ",
        f"train and eval mode agree at the first running statistics, and differ once {kind} has moved",
        culprits=[Culprit("buffer", name, "read in eval mode", place) for name in deciding[:_MOST]],
        observed=f"with other values in {names_text(deciding[:_MOST])} the outputs differ by "
        f"{distance:.3g} (relative)",
        cause=f"the code for eval mode uses {kind} differently than the norm layer does",
        because="both modes read the same statistics: torch's norms and dropout were in eval mode in "
        "both runs, and at the first statistics the outputs are equal",
        fix="normalise as the norm does: (x - running_mean) / sqrt(running_var + eps) * weight + bias",
        evidence={"buffers": deciding},
    )


def _buffers(subject: Subject, names: list[str], detail: str) -> list[Culprit]:
    """Name buffers, the first few with the lines that write them."""
    found = []
    for number, name in enumerate(names):
        place = eval_lines.writing_line(subject, name, train=True) if number < _MOST else None
        where = place.location if place else None
        found.append(Culprit("buffer", name, detail, where))
    return found


def random_in_eval(subject: Subject, moved: list[str], gap: float) -> Finding:
    """Explain randomness in eval mode.

    ``violated`` for dropout and noise, which are for training alone, unless the call itself passes
    ``training=True``; ``suspicious`` for every other draw: nearly all models that sample a latent, a step
    of a diffusion, a mask or a token in eval mode mean to.

    Args:
        subject: The model.
        moved: Paths of the outputs that differ between two seeds.
        gap: Their largest absolute difference.
    """
    observed = f"{names_text(moved)} {have(moved, 'differs')} by up to {gap:.3g} between two seeds"
    disturbed = _perturbations(subject)
    if disturbed:
        return _still_on(subject, disturbed[0], observed)
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


def _dropping(subject: Subject, found: Perturbation) -> tuple[str, str, str]:
    """Say why one of torch's functions still drops values: cause, fact and fix."""
    owner = subject.model.get_submodule(found.module)
    if found.module and type(owner).__module__.startswith("torch.nn.modules."):
        return (
            f"{found.module} is in train mode in the forward of an evaluation",
            f"{found.module} drew numbers after model.eval()",
            f"leave {found.module} in the mode that model.eval() sets",
        )
    called = found.op.rpartition(".")[2]
    fix = f"pass training=self.training to {found.op}"
    if "attention" in called:
        fix = f"pass dropout_p=0.0 to {found.op} unless self.training"
    elif found.location is None or not re.search(rf"\b{called}\(", found.location.text):
        fix = "let it draw only if self.training"
    return (
        "dropout is applied in both modes",
        f"{found.op} drew numbers while training was False",
        fix,
    )


def _still_on(subject: Subject, found: Perturbation, observed: str) -> Finding:
    """Explain a layer that disturbs values in eval mode too; ``suspicious`` where its call says so itself."""
    cause, because, fix = {
        "dropout": _dropping(subject, found),
        "mask": (
            "hand-written dropout is applied in both modes",
            (
                "this line multiplies by a random mask, and the kept values are scaled by "
                f"{found.scale:.4g}"
            ),
            "apply the mask only if self.training",
        ),
        "jitter": (
            "values are multiplied by random numbers in both modes",
            "the factors on this line are drawn in eval mode, and are 1 on average",
            "multiply by them only if self.training",
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
    guards = deciding(found.location) if found.location is not None else ()
    culprits += [Culprit("call", "condition", "decides whether it runs", at) for at in guards]
    name = found.op.rpartition(".")[2]
    meant = found.kind == "dropout" and sources.says(found.location, name, "training", True, 2)
    if meant:  # as the pre-net of Tacotron 2 and Monte Carlo dropout have it
        because += ": training=True is written here"
        fix = f"declare promises.Stochastic(reason=...) if this is meant, otherwise {fix}"
    return (suspicious if meant else violated)(
        "random-in-eval",
        f"the output is random in eval mode: {found.op} is active",
        culprits=culprits,
        location=found.location,
        observed=observed,
        cause=cause,
        because=because,
        fix=fix,
    )

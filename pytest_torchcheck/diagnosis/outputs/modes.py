"""Modes that disagree, statistics that do not settle, randomness in eval mode, and what calls keep."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding, Location
from ...probes.holding.holders import lines_run
from ...probes.perturbing import find_perturbations
from ...runs.facts import forward_facts
from ...runs.remembering import outlived, remembered, trained_otherwise
from ...runs.variants.settling import Quiet, apart_with, quiet
from ...state import seed_everything
from ...text.wording import have, names_text
from ...verdicts import suspicious, violated
from ..lines.conditions import deciding
from . import eval_lines, places
from .eval_lines import keeping_lines, reading_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...batches import Batch
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
    return violated(
        "statistics-biased",
        (
            f"once {names_text(names)} {'has' if len(names) == 1 else 'have'} settled, eval "
            "mode gives something else than train mode"
        ),
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
    """Explain a layer that disturbs values in eval mode as well."""
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


_RESTORED = 6
"""How many attributes are restored one by one."""


def remembers(
    subject: Subject, moved: list[str], kept: Sequence[str], other: Batch | None = None
) -> Finding:
    """Explain an output that depends on the batch that was evaluated before.

    Args:
        subject: Whose model.
        moved: The outputs.
        kept: What a call keeps.
        other: The batch before, where it is of other sizes.
    """
    guilty = next(
        (name for name in kept[:_RESTORED] if not remembered(subject, [name], other=other)), ""
    )
    named = _keepers(subject, [guilty] if guilty else kept, other)
    sizes = "the same sizes"
    if other is not None:
        sizes = "sizes " + ", ".join(f"{name}={size}" for name, size in other.sizes.items())
    read = reading_line(subject, guilty, other) if guilty and other is not None else None
    if read is not None:
        named = [*named, Culprit("tensor", guilty, "is read", read)]
    place = named[0].location if named else None
    if (key := _key_line(subject, place)) is not None:
        named, place = [*named, Culprit("call", key.text, "makes the key", key)], key
    listed = [guilty] if guilty else list(kept)
    what = names_text(listed)
    return violated(
        "eval-remembers",
        f"{names_text(moved)} depends on earlier evaluations: {what} {'is' if len(listed) == 1 else 'are'} kept from them",
        culprits=named or [Culprit("output", moved[0], "differs")],
        location=place or sources.of_object(type(subject.model).forward),
        observed=f"after another batch of {sizes}, the base batch gives other values than alone",
        cause=f"{what} {'is' if len(listed) == 1 else 'are'} computed from the {'data' if other is None else 'sizes'} "
        "of one call and used in the next",
        because=f"with {guilty} restored between the two calls, the outputs equal those of the "
        "batch alone"
        if guilty
        else f"the same batch twice gives equal outputs, and a call changes {what}",
        fix=f"compute {what} in each call, or "
        + (
            "cache it by all that its values depend on, not by a shape alone"
            if other is None
            else f"let its key{on_line(key)} hold all that the values depend on"
            if key is not None
            else "keep one for each size"
            + (
                f", or read the part of it that holds for this size on line {read.line}"
                if read
                else ""
            )
        ),
        evidence={"outputs": list(moved), "kept": list(kept)},
    )


def _key_line(subject: Subject, place: Location | None) -> Location | None:
    """Return the line that makes the key under which a line keeps what it computes, the last of those that run."""
    name = re.search(r"\[\s*(\w+)\s*\]\s*=[^=]", place.text) if place is not None else None
    if place is None or name is None:
        return None
    with lines_run() as ran:
        subject.forward()
    above = (n for file, n in ran if file == place.file and place.line - _FAR < n < place.line)
    made = (sources.of_line(place.file, n, place.function) for n in sorted(above, reverse=True))
    return next((line for line in made if re.match(rf"{name[1]}\s*=[^=]", line.text)), None)


_FAR = 20
"""Lines between a key and its use."""


def overwrites(subject: Subject, lost: dict[str, str]) -> Finding:
    """Explain outputs that the next call writes to.

    Args:
        subject: Whose model.
        lost: By the paths of the outputs, the attribute whose memory they share, or an empty string.
    """
    kept = list(dict.fromkeys(name for name in lost.values() if name))
    named, what = _keepers(subject, kept) if kept else [], names_text(list(lost))
    place = next((one.location for one in named if one.location is not None), None)
    return violated(
        "output-overwritten",
        f"the next call overwrites {what}",
        culprits=[*(Culprit("output", path, "is overwritten") for path in lost), *named],
        location=place or sources.of_object(type(subject.model).forward),
        observed=f"an evaluation of other data changes the values of {what} of the one before",
        cause=f"{what} {have(list(lost), 'shares')} the memory of {names_text(kept)}, which each call "
        "writes to"
        if kept
        else "every call writes its result to the same memory",
        because="the first output was held, and compared with a copy after the second call",
        fix="return a copy, as clone() makes it, or a new tensor in each call",
    )


def trains_otherwise(subject: Subject, moved: list[str]) -> Finding:
    """Explain a training forward that an evaluation before it changes."""
    kept = list(forward_facts(subject).keeps)
    alone = next(([n] for n in kept[:_RESTORED] if not trained_otherwise(subject, [n])), kept)
    restored = len(alone) == 1 or not trained_otherwise(subject, kept)
    named, what = _keepers(subject, alone), names_text(alone)
    return violated(
        "eval-remembers",
        f"a training forward gives another {names_text(moved)} after an evaluation: {what} "
        f"{'is' if len(alone) == 1 else 'are'} kept from it",
        culprits=named or [Culprit("output", moved[0], "differs")],
        location=(named[0].location if named else None)
        or sources.of_object(type(subject.model).forward),
        observed="weights, seed and batch are the same; an evaluation in between changes the outputs, a "
        "training forward in between does not",
        cause=f"a forward in eval mode sets {what}, and train() does not restore it",
        because=f"with {what} restored after the evaluation, the training forward gives what it gave"
        if restored
        else f"an eval forward changes {what}",
        fix="compute what depends on the mode in each call, in a local variable",
        evidence={"outputs": list(moved), "kept": kept},
    )


def stale_after_load(subject: Subject) -> Finding:
    """Explain outputs of earlier weights that a model gives after a load."""
    kept = list(forward_facts(subject).keeps)
    alone = next(([name] for name in kept[:_RESTORED] if not outlived(subject, [name])), kept)
    named, what = _keepers(subject, alone), names_text(alone)
    made, other = violated, "other weights"
    if not outlived(subject, constants=False):
        # training and seeds leave what it is made of as it is: only another configuration loads other values
        made, other = suspicious, "other values of what no training changes"
    return made(
        "stale-after-load",
        f"load_state_dict() leaves {what} as the weights before it made it: the outputs are not the saved model's",
        culprits=named,
        location=(named[0].location if named else None)
        or sources.of_object(type(subject.model).forward),
        observed=f"in eval mode: a forward with {other}, load_state_dict(), and a forward that "
        "differs from the saved model's",
        cause=f"a forward in eval mode keeps {what}, and a load does not clear it",
        because=f"with {what} cleared after the load, or without the forward before it, the outputs are equal"
        if len(alone) == 1 or not outlived(subject, alone)
        else "without the forward before the load, the outputs are equal",
        fix=f"clear {what} in a hook: self.register_load_state_dict_post_hook",
        evidence={"kept": kept},
    )


def _keepers(subject: Subject, names: Sequence[str], batch: Batch | None = None) -> list[Culprit]:
    """Name attributes with the lines at which an eval forward binds or lengthens them."""
    lines = {culprit.name: culprit for culprit in keeping_lines(subject, batch=batch)}
    named = [lines[name] for name in names if name in lines]
    if len(names) == 1 and not named:
        return [Culprit("tensor", names[0], "kept from one call to the next")]
    return named

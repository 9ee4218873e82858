"""What a forward keeps from one call to the next: outputs of earlier batches, shapes, weights and modes."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding, Location
from ...probes.holding.holders import lines_run
from ...runs.facts import forward_facts
from ...runs.remembering import outlived, remembered, trained_otherwise
from ...runs.training.observation import observe
from ...runs.variants.largest import sizes_of
from ...subject.errors import SubjectError
from ...text.wording import have, names_text
from ...verdicts import suspicious, violated
from .eval_lines import keeping_lines, reading_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...batches import Batch
    from ...subject import Subject

_RESTORED = 6
"""How many attributes are restored one by one."""


def remembers(
    subject: Subject,
    moved: list[str],
    kept: Sequence[str],
    other: Batch | None = None,
    base: Batch | None = None,
) -> Finding:
    """Explain an output that depends on the batch that was evaluated before.

    Args:
        subject: Whose model.
        moved: The outputs.
        kept: What a call keeps.
        other: The batch before, where it is of other sizes.
        base: The batch whose output depends on it; the base batch by default.
    """
    tried = ((n, remembered(subject, [n], other=other, base=base)) for n in kept[:_RESTORED])
    guilty = next((name for name, found in tried if not found), "")
    named = _keepers(subject, [guilty] if guilty else kept, other)
    sizes = "the same sizes"
    if other is not None:
        sizes = f"sizes {sizes_of(other)}"
    read = reading_line(subject, guilty, other) if guilty and other is not None else None
    if read is not None:
        named = [*named, Culprit("tensor", guilty, "is read", read)]
    place = named[0].location if named else None
    if (key := _key_line(subject, place)) is not None:
        named, place = [*named, Culprit("call", key.text, "makes the key", key)], key
    listed = [guilty] if guilty else list(kept)
    what = names_text(listed)
    with contextlib.suppress(SubjectError):  # the training step that shows it may raise
        if late := observe(subject).late:
            return _created(subject, moved, late)
    return violated(
        "eval-remembers",
        f"{names_text(moved)} depends on earlier evaluations: {what} "
        f"{'is' if len(listed) == 1 else 'are'} kept from them",
        culprits=named or [Culprit("output", moved[0], "differs")],
        location=place or sources.of_object(type(subject.model).forward),
        observed=f"after another batch of {sizes}, "
        + ("the base batch" if base is None else f"one of sizes {sizes_of(base)}")
        + " gives other values than alone",
        cause=f"{what} {'is' if len(listed) == 1 else 'are'} computed from the {'data' if other is None else 'sizes'} "
        "of one call and used in the next",
        because=f"with {guilty} restored between the two calls, the outputs equal those of the "
        "batch alone"
        if guilty
        else f"the same batch twice gives equal outputs, and a call changes {what}",
        fix=f"compute {what} in each call, or {_kept_better(other, key, read)}",
        evidence={"outputs": list(moved), "kept": list(kept)},
    )


def _kept_better(other: Batch | None, key: Location | None, read: Location | None) -> str:
    """Say how to keep a value for what it holds for."""
    if other is None:
        return "cache it by all that its values depend on, not by a shape alone"
    part = f", or read the part of it that holds for this size on line {read.line}" if read else ""
    if key is not None:
        return f"let its key{on_line(key)} hold all that the values depend on"
    return f"keep one for each size{part}"


def _created(subject: Subject, moved: list[str], late: Sequence[str]) -> Finding:
    """Explain an output that depends on when the first forward created parameters."""
    places = {name: sources.of_parameter(subject.model, name) for name in late}
    names = names_text(list(late))
    return violated(
        "eval-remembers",
        f"{names_text(moved)} depends on earlier evaluations: the first forward creates {names}",
        culprits=[
            Culprit("parameter", n, "created in forward", place) for n, place in places.items()
        ],
        location=next((p for p in places.values() if p is not None), None)
        or sources.of_object(type(subject.model).forward),
        observed="after another batch, the base batch gives other values than alone",
        cause=f"the call that comes first initialises {names}, with the random numbers of then",
        because=f"{names} {have(list(late), 'exists')} after a forward, and not before",
        fix="create them in __init__, or use a lazy layer such as nn.LazyLinear",
        evidence={"outputs": list(moved), "kept": list(late)},
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
    cleared = not outlived(subject, switched=True)
    if cleared:  # who loads before eval(), as most programs do, never meets it
        made = suspicious
    return made(
        "stale-after-load",
        f"load_state_dict() leaves {what} as the weights before it made it: the outputs are not the saved model's",
        culprits=named,
        location=(named[0].location if named else None)
        or sources.of_object(type(subject.model).forward),
        observed=f"in eval mode: a forward with {other}, load_state_dict(), and a forward that "
        "differs from the saved model's",
        cause=f"a forward in eval mode keeps {what}, and a load does not clear it; "
        "train() does, so that only a load in eval mode after a forward meets it"
        if cleared
        else f"a forward in eval mode keeps {what}, and a load does not clear it",
        because=f"with {what} cleared after the load, or without the forward before it, the outputs are equal"
        if len(alone) == 1 or not outlived(subject, alone)
        else "without the forward before the load, the outputs are equal",
        fix=f"clear {what} in a hook: self.register_load_state_dict_post_hook"
        + ("; or call train() and eval() after a load" if cleared else ""),
        evidence={"kept": kept},
    )


def _keepers(subject: Subject, names: Sequence[str], batch: Batch | None = None) -> list[Culprit]:
    """Name attributes with the lines at which an eval forward binds or lengthens them."""
    lines = {culprit.name: culprit for culprit in keeping_lines(subject, batch=batch)}
    named = [lines[name] for name in names if name in lines]
    if len(names) == 1 and not named:
        return [Culprit("tensor", names[0], "kept from one call to the next")]
    return named

"""What moves in the first step only, and what is frozen only once ``train()`` was called."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ... import sources
from ...culprits import parameter
from ...findings import Culprit
from ...runs.training.later_steps import STEPS, moving_without
from ...text.wording import names_text
from ...verdicts import suspicious, violated
from ..outputs.eval_lines import keeping_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...findings import Finding
    from ...subject import Subject

_CALLS_TRAIN = r"(?<!super\(\))\.train\("


def stops(subject: Subject, names: list[str]) -> Finding:
    """Explain parameters that move in the first step only."""
    kept = keeping_lines(subject, train=True)[:4]
    guilty = next((c for c in kept if moving_without(subject, names, c.name)), None)
    step = subject.contract.train_step
    place = sources.of_parameter(subject.model, names[0])
    if step is not None:
        place = sources.of_object(step) or place
    one = len(names) == 1
    return violated(
        "weight-stops",
        f"{names_text(names)} {'changes' if one else 'change'} only in the first training step",
        culprits=[
            *([guilty] if guilty is not None else []),
            *(parameter(subject, name, "changes once") for name in names[:8]),
        ],
        location=guilty.location if guilty is not None else place,
        observed=f"bit-equal after each of the steps 2 to {STEPS}, at a learning rate above 0",
        cause=f"{guilty.name} is computed in the first forward and used in all later ones, so its "
        "inputs are trained only once"
        if guilty is not None
        else "the first step changes the model, the optimizer or the step itself",
        because=f"with {guilty.name} restored after each step, "
        f"{'it changes' if one else 'they change'} in later steps too"
        if guilty is not None
        else (
            f"the first step changes {'it' if one else 'them'}; each later one on the same batch "
            "does not"
        ),
        fix=f"compute {guilty.name} in each forward, or freeze the parameters that it is computed "
        "from"
        if guilty is not None
        else (
            "do the same in each step: look for values cached, compiled or reassigned in the "
            "first one"
        ),
        evidence={"parameters": list(names)},
    )


def frozen_by_train(subject: Subject, names: list[str]) -> Finding:
    """Explain what is frozen by an overridden ``train()``, and moves in steps before which nobody calls it."""
    setters = [
        place
        for cls in {type(module): None for module in subject.model.modules()}
        if (own := vars(cls).get("train")) is not None
        and (place := sources.of_user_object(own)) is not None
    ]
    step = subject.contract.train_step
    called = step is None or _calls_train(step)
    made = suspicious if called else violated
    return made(
        "frozen-by-train",
        f"{names_text(names)} {'is' if len(names) == 1 else 'are'} frozen only when train() is "
        "called, and the step does not call it",
        culprits=[
            *(parameter(subject, name, "changes as built") for name in names[:8]),
            *_built(subject, names[0]),
        ],
        location=setters[0] if setters else sources.of_own_class(subject.model),
        observed="changed by two steps on the model as the factory returns it; unchanged after "
        "model.train()",
        cause="an overridden train() freezes it, but the constructor does not",
        because="a new module is already in training mode, so a loop need not call train()",
        fix="freeze it in __init__ too, or call model.train() before the first step",
        evidence={"tensors": list(names)},
    )


def _built(subject: Subject, name: str) -> list[Culprit]:
    """Return the line that builds the module whose ``train()`` freezes a tensor: there it can be frozen too."""
    parts = name.split(".")
    paths = [".".join(parts[:depth]) for depth in range(1, len(parts))]
    owner = next((p for p in paths if "train" in vars(type(subject.model.get_submodule(p)))), None)
    place = sources.of_parameter(subject.model, owner) if owner else None
    made = Culprit(kind="module", name=owner or "", detail="is built here", location=place)
    return [made] if place is not None else []


def _calls_train(step: Callable[..., object]) -> bool:
    """Say whether the file of a step calls ``train()`` somewhere, or is one of tests, whose loop stands elsewhere."""
    place = sources.of_object(step)
    if place is None or re.match(r"(test_|conftest)", Path(place.file).name):
        return True
    return any("def " not in line.text for line in sources.file_matches(place.file, _CALLS_TRAIN))

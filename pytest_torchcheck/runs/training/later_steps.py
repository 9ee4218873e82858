"""Steps after the first, and steps of a model as its factory leaves it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...objects import trees
from ...state import seed_everything
from ...state.tensors import named_tensors
from ...subject.errors import SubjectError
from ...subject.gradients import gradient_stats
from ...subject.optimizers import step_schedulers
from ..remembering import kept_value, put_value

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...subject import Subject
    from .steps import Trajectory

STEPS = 9
"""Enough for parts that take turns: a critic that is trained several times for one step of the generator."""


def stopped(subject: Subject, made: Trajectory) -> tuple[str, ...]:
    """Return the parameters that the first of some steps moves and no later one does, bit by bit; cached.

    Siblings of one that moves (the experts of a mixture) are left out, and all where the learning
    rate falls to 0.
    """
    known = {n for n in made.resting if made.moved.get(n, 0.0) > 0.0}
    known = {n for n in known if not subject.is_promised("Frozen", n)}
    known = {n for n in known if not subject.is_promised("MayLackGradient", n)}
    if not known or made.error is not None or len(made.losses) < 2 or not all(made.rates[1:]):
        return ()
    if "stopped" not in subject.cache:
        subject.cache["stopped"] = _without_siblings(known, _moving_later(subject, known))
    found: tuple[str, ...] = subject.cache["stopped"]
    return found


def _without_siblings(names: set[str], moving: set[str]) -> tuple[str, ...]:
    active = {_family(name) for name in moving}
    return tuple(sorted(n for n in names - moving if _family(n) not in active))


def _family(name: str) -> str:
    family = re.sub(r"\d+", "*", name)
    return family if family != name else f"{name}:"


def _moving_later(
    subject: Subject, names: Collection[str], forget: Collection[str] = ()
) -> set[str]:
    """Return which parameters some step after the first moves, or gives a gradient too small to move it.

    Args:
        subject: Whose step.
        names: Parameters to look at; their numbered siblings are looked at too.
        forget: Attributes of the model that are put back after each step.
    """
    families = {_family(name) for name in names}
    found: set[str] = set()
    with subject.pristine(steps=True, train=True) as model:
        before = {path: kept_value(model, path) for path in forget}
        seed_everything(subject.seed)
        made = subject.make_optimizer(model)
        for step in range(STEPS):
            old = {
                name: parameter.detach().clone()
                for name, parameter in model.named_parameters()
                if _family(name) in families
            }
            seed_everything(subject.seed + step)
            try:
                loss = subject.train_step(model, made, subject.batch().clone())
            except SubjectError:
                return set(names)  # another check tells it
            if subject.contract.train_step is None:
                step_schedulers(made, loss)
            for path, value in before.items():
                put_value(model, path, value)
            if step == 0:
                continue
            now = dict(model.named_parameters())
            found |= {n for n, t in old.items() if n not in now or not trees.same(t, now[n])}
            stats = gradient_stats(model)
            found |= {n for n in old if n in stats and stats[n].kind == "zero"}
    return found


def moving_without(subject: Subject, names: Collection[str], attribute: str) -> bool:
    """Say whether all of some parameters move in later steps where an attribute is put back after each step."""
    return set(names) <= _moving_later(subject, names, (attribute,))


def moved_as_built(subject: Subject, names: Collection[str]) -> tuple[str, ...]:
    """Return the parameters and buffers that two steps move on the model as its factory leaves it.

    Neither ``train()`` nor a seed is called in between, as in a loop that never calls them.
    """
    with subject.pristine(steps=True) as model:
        before = {n: t.detach().clone() for n, t in named_tensors(model).items() if n in names}
        seed_everything(subject.seed)
        made = subject.make_optimizer(model)
        try:
            for _ in range(2):
                subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return ()  # the steps in training mode tell it
        now = named_tensors(model)
        return tuple(n for n, t in before.items() if n in now and not trees.same(t, now[n]))

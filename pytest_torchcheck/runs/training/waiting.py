"""Parameters that a schedule holds at a learning rate of 0 until it is their turn, as in gradual unfreezing."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of, schedulers_of, step_schedulers

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...subject import Subject

_LONG: Final = 1000
"""Calls of a schedule within which a group's turn comes; a wait of more is not told from a rate left at 0."""


def waiting(subject: Subject, names: Collection[str]) -> set[str]:
    """Return which parameters belong to a group whose rate a schedule holds at 0 now and raises later.

    The schedule alone is stepped: no forward runs. Where the optimizer function returns none, but the group shows
    that one drives it, the schedule belongs to the step and cannot be asked.

    Cost: nothing where no group has a rate of 0.
    """
    with subject.pristine(steps=True) as model:
        try:
            made = subject.make_optimizer(model)
        except SubjectError:
            return set()
        held = {id(p): name for name, p in model.named_parameters() if name in names}
        groups = [
            group
            for optimizer in optimizers_of(made)
            for group in optimizer.param_groups
            if group.get("lr") == 0.0 and group.get("initial_lr", 0.0) > 0.0
        ]
        resting = [g for g in groups if any(id(p) in held for p in g["params"])]
        turned = [] if schedulers_of(made) else list(resting)
        with warnings.catch_warnings():
            # torch wants the optimizer's step before the schedule's
            warnings.simplefilter("ignore")
            for _ in range(_LONG if len(turned) < len(resting) else 0):
                step_schedulers(made, 1.0)
                turned += [g for g in resting if g["lr"] > 0.0 and all(g is not t for t in turned)]
                if len(turned) == len(resting):
                    break
        return {held[id(p)] for g in turned for p in g["params"] if id(p) in held}

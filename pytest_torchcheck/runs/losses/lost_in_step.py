"""Losses that a training step computes and replaces before anything reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ... import sources
from ...probes.recorded.unread import UnreadWatch
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..liveness.unread import judged
from .in_steps import step_evidence

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...findings import Location
    from ...probes.recorded.unread import Place
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLoss:
    """A line that computes numbers with a gradient, not all of which anything reads.

    Attributes:
        calls: How often it ran in one step.
        lost: How many of its results nothing read.
        location: The line.
        again: The line that binds the variable again; None where the same line does, in a loop.
    """

    calls: int
    lost: int
    location: Location
    again: Location | None


def lost_loss(subject: Subject) -> LostLoss | None:
    """Return a loss that the declared step computes itself and loses.

    One whose name it never reads may be there for a debugger.

    Cost: nothing where the step calls a single loss function; else one step.
    """
    seen = step_evidence(subject)
    if subject.contract.train_step is None or seen is None or len(seen.consumed) < 2:
        return None
    watch = _Losses()
    with subject.pristine(steps=True, train=True) as model:
        seed_everything(subject.seed)
        try:
            made = subject.make_optimizer(model)
            with watch:
                returned = subject.train_step(model, made, subject.batch().clone())
            del returned
        except SubjectError:
            return None
    for place, lost in watch.missed.items():
        calls = watch.made[place]
        again = None
        if lost == calls:
            known = judged(place)
            if known is None or known.kind != "overwritten":
                continue
            again = known.again
        elif watch.in_order(place) != [False] * lost + [True]:
            continue  # a turn may be left before its end, by an early stop for one
        where = sources.of_line(place.file, place.span[0] or 0, place.function)
        return LostLoss(calls=calls, lost=lost, location=where, again=again)
    return None


class _Losses(UnreadWatch):
    """Follows the numbers with a gradient that no module computes."""

    def in_order(self, place: Place) -> list[bool]:
        """Return of each number that a line made whether it was read."""
        return self._reads.in_order(place)

    def backward_called(self, root: Tensor) -> None:
        """Count what a backward pass begins at as read."""
        self._reads.given([root])

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Note a number with a gradient that the step itself computes."""
        number = isinstance(result, Tensor) and not result.dim() and result.requires_grad
        if number and not self.scopes:
            super().after(func, args, kwargs, result, token)

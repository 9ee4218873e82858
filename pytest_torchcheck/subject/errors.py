"""What the user's code raised, in which phase of a step, and how to do it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from .. import deadline
from ..codes.undecided import NOT_MEASURABLE
from ..interrupts import UserCodeError
from ..text.printable import message_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..batches import Batch


Phase = Literal[
    "build", "listing", "batch", "forward", "loss", "backward", "step", "data", "promise"
]


LossKind = Literal["user", "probe"]


class SubjectError(UserCodeError):
    """The user's code raised.

    Attributes:
        phase: Where in the step.
        error: What was raised.
        batch: What the model was called with, or None.
        rerun: Does the same again, for probes; an :class:`Again` can do it on another device.
    """

    def __init__(
        self,
        phase: Phase,
        error: BaseException,
        batch: Batch | None = None,
        rerun: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(f"{phase}: {type(error).__name__}: {message_of(error)}")
        self.phase, self.error, self.batch, self.rerun = phase, error, batch, rerun


class NothingToDifferentiate(RuntimeError):
    """The contract declares no loss, and no output is floating-point: there is nothing to train on."""


class UnmeasurableError(SubjectError):
    """What a check needs cannot be had of this model, through no fault of it; the check is inconclusive.

    Args:
        reason: What cannot be had, and why.
        code: Of the finding.
    """

    def __init__(self, reason: str, code: str = NOT_MEASURABLE) -> None:
        super().__init__("build", TypeError(reason))
        self.reason, self.code = reason, code


class Again:
    """Does once more what raised: here, or on another device with a model and a batch made for it.

    Args:
        here: Does it on the same model and device.
        prepare: Makes a model and a batch for a device, and what does it with them.

    Attributes:
        model, batch: Those of the other device, once it was asked for.
    """

    def __init__(
        self,
        here: Callable[[], Any],
        prepare: Callable[[str], tuple[nn.Module, Batch, Callable[[], None]]],
    ) -> None:
        self._here, self._prepare = here, prepare
        self._there: Callable[[], None] | None = None
        self.model: nn.Module | None = None
        self.batch: Batch | None = None

    def __call__(self, device: str | None = None) -> Any:
        """Do it here, or on ``device``."""
        deadline.keep()
        if device is None:
            return self._here()
        if self._there is None:
            self.model, self.batch, self._there = self._prepare(device)
        return self._there()

"""Take training steps as the user does: calls of the train step, or some batches of a trainer's own loop."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

from ..adapters import LoopUnavailableError
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..subject.gradients import clear_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from ..adapters import Loop, Scheduled
    from ..batches import Batch
    from ..subject import Subject


class _EnoughError(Exception):
    """Ends a trainer's loop from within."""


class StepWatch:
    """Told of every step; what it returns from :meth:`after` ends the run where it is True."""

    def before(self, step: int) -> None:
        """A step is about to be taken."""

    def after(self, step: int, value: Any) -> bool:
        """A step was taken; ``value`` is its loss."""
        return False

    def scheduled(self, found: Sequence[Scheduled]) -> None:
        """A trainer told what it does to its schedulers."""


@contextlib.contextmanager
def begun(subject: Subject) -> Iterator[tuple[nn.Module, Any]]:
    """Lend the model as a training begins, without gradients or warnings; everything is put back.

    Yields:
        The model in training mode, and what the optimizer function returned; a trainer makes its own.
    """
    with subject.pristine(steps=True) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of some of what is recorded here
        clear_gradients(model)
        model.train()
        seed_everything(subject.seed)
        yield model, None if subject.contract.loop is not None else subject.make_optimizer(model)


def take_steps(subject: Subject, model: nn.Module, made: Any, count: int, watch: StepWatch) -> None:
    """Take steps on the base batch; where the contract has a trainer, one step is one of its optimizer.

    Args:
        subject: Whose steps.
        model: In its training state.
        made: What the optimizer function returned; a trainer makes its own.
        count: How many steps.
        watch: Told of every one.

    Raises:
        SubjectError: A step raised.
        LoopUnavailableError: The trainer's loop cannot be run here.
    """
    loop = subject.contract.loop
    if loop is not None:
        parts: Callable[[int], Batch] = lambda place: subject.batch().clone()  # noqa: E731
        run_loop(subject, loop, model, parts, count, watch, window=loop.window)
        return
    for step in range(count):
        watch.before(step)
        seed_everything(subject.seed + step)
        if watch.after(step, subject.train_step(model, made, subject.batch().clone())):
            return


def run_loop(
    subject: Subject,
    loop: Loop,
    model: nn.Module,
    batches: Callable[[int], Batch],
    count: int,
    watch: StepWatch,
    *,
    window: int,
) -> None:
    """Run a trainer's loop for ``count`` windows of ``window`` batches each."""
    teller = _Teller(subject, watch, window)
    try:
        with subject.phase("step", subject.batch()):
            loop.run(model, batches, count * window, teller, window=window)
        teller.finish()
    except SubjectError as error:
        if isinstance(error.error, LoopUnavailableError):
            raise error.error from None
        if not isinstance(error.error, _EnoughError):
            raise


class _Teller:
    """Makes steps of the batches that a trainer's loop tells of."""

    def __init__(self, subject: Subject, watch: StepWatch, window: int) -> None:
        self.subject, self.watch, self.window = subject, watch, window
        self.open: int | None = None
        self.value: Any = None

    def before(self, place: int) -> None:
        step, first = divmod(place, self.window)
        if first == 0:
            self.finish()  # told of what the step has left, generators included
        seed_everything(self.subject.seed + place)
        if first == 0:
            self.watch.before(step)
            self.open = step

    def after(self, place: int, loss: Any) -> None:
        self.value = loss

    def finish(self) -> None:
        """Tell of the step that is over; what a loop does after a step's last batch still belongs to it."""
        if self.open is not None:
            step, self.open = self.open, None
            if self.watch.after(step, self.value):
                raise _EnoughError

    def scheduled(self, found: Sequence[Scheduled]) -> None:
        self.watch.scheduled(found)

"""What is timed of a contract: forward, inference or a training step, with the device's work awaited."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ..state import isolated, seed_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..batches import Batch
    from ..declared.speeds import Kind
    from ..subject import Subject


@contextlib.contextmanager
def repeated(subject: Subject, kind: Kind) -> Iterator[Callable[..., Any]]:
    """Give what is to be repeated, on the base batch or on one that is given; the model is put back afterwards.

    Args:
        subject: Whose model, on its device and dtype.
        kind: ``forward`` in training mode with a graph, ``inference`` in evaluation mode without one, or
            ``training-step``: the contract's own, else forward, loss, backward and the optimizer's step.

    Raises:
        SubjectError: The model cannot be built, or the batch not made.
    """
    with isolated(), subject.pristine(steps=True) as model:
        base = subject.batch().clone()
        seed_everything(subject.seed)
        model.train(kind != "inference")
        optimizer = subject.make_optimizer(model) if kind == "training-step" else None

        def once(batch: Batch = base) -> None:
            if optimizer is not None:
                subject.train_step(model, optimizer, batch)
            else:
                with torch.set_grad_enabled(kind == "forward"):
                    subject.call(model, batch)
            if subject.device.type != "cpu":
                torch.accelerator.synchronize(subject.device)

        yield once

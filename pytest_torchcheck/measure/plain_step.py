"""The step that is measured: the user's own, or a plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ..objects import trees
from ..probes.memory.allocations import STOPS
from ..stepping import take_step
from ..subject.losses import no_gradient
from ..subject.optimizers import clear_by, stepping_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..batches import Batch
    from ..subject import Subject


StepKind = Literal["training", "inference"]


def user_step(
    subject: Subject, model: nn.Module, batch: Batch, step: StepKind
) -> Callable[[], Any]:
    """Return a run of the step to measure: the declared one, the plain one, or a forward alone."""
    if step == "inference":
        model.eval()

        def infer() -> Any:
            with torch.no_grad():
                return subject.call(model, batch)

        run: Callable[[], Any] = infer
    else:
        model.train()
        optimizer = _make_optimizer(subject, model)

        def train() -> Any:
            if subject.contract.train_step is None and subject.contract.loss is None:
                return plain_step(subject, model, optimizer, batch)
            return subject.train_step(model, optimizer, batch)

        run = train

    def bounded() -> Any:
        return run()

    STOPS.add(
        bounded.__code__
    )  # lines outside the step, such as the test's own, are not part of it
    return bounded


def _make_optimizer(subject: Subject, model: nn.Module) -> Any:
    return subject.make_optimizer(model)


STOPS.add(_make_optimizer.__code__)


def plain_step(subject: Subject, model: nn.Module, optimizer: Any, batch: Batch) -> None:
    """Do a training step where no loss is declared: the sum of every output, which adds next to nothing."""
    clear_by(stepping_in(optimizer))
    output = subject.call(model, batch)
    found = [t for t in trees.floats(output).values() if t.requires_grad]
    if not found:
        raise no_gradient(output, batch)
    total = found[0].sum()
    for tensor in found[1:]:
        total = total + tensor.sum()
    with subject.phase("backward", batch):
        (total.real if total.is_complex() else total).backward()
    with subject.phase("step", batch):
        for each in stepping_in(optimizer):
            take_step(each, lambda: _summed(subject, model, batch.clone()))


def _summed(subject: Subject, model: nn.Module, batch: Batch) -> torch.Tensor:
    """Run a forward and backward of the summed outputs, for an optimizer that evaluates the loss itself."""
    with torch.enable_grad():
        outputs = trees.floats(subject.call(model, batch)).values()
        total = torch.stack([t.sum() for t in outputs if t.requires_grad]).sum()
        (total.real if total.is_complex() else total).backward()
    return total.detach()

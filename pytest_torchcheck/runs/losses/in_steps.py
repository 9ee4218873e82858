"""The losses that the user's own training step computes: what it calls, subtracts and adds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...objects import trees
from ...probes.loss.consumption import LossWatch
from ...probes.recorded.watch import tensors_in
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from .consumption import LossEvidence, describe, stretched

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from ...subject import Subject


class _StepWatch(LossWatch):
    """Counts what the modules return that the step itself calls as outputs.

    Args:
        module: Names are qualified relative to it.
        targets: Tensors of the batch's targets.
    """

    def __init__(self, module: nn.Module, targets: Iterable[Tensor]) -> None:
        super().__init__(module)
        self.between((), targets)

    def module_left(self, module: nn.Module, args: Any, result: Any) -> None:
        """Take the outputs of a module that no other module called."""
        if len(self.scopes) == 1:
            self.between(list(tensors_in(result)), ())


@remembered("step-loss")
def step_evidence(subject: Subject) -> LossEvidence | None:
    """Watch the loss functions of one training step; None where the step raises. Cached.

    There is no one loss of a step, so that its value, and gradients towards what the functions were
    given, are not part of it. A broadcast is part of it where a loss function makes it, or where
    both an output and a target grow.
    """
    batch = subject.batch().clone()
    with subject.pristine(steps=True) as model:
        model.train()
        seed_everything(subject.seed)
        watch = _StepWatch(model, trees.tensors(batch.targets).values())
        try:
            made = subject.make_optimizer(model)
            with watch:
                subject.train_step(model, made, batch)
        except SubjectError:
            return None  # weights-update explains it
        return LossEvidence(
            shape=(),
            dtype="",
            value=math.nan,
            leaf=False,
            connected=True,
            consumed=tuple(describe(call, None, model) for call in watch.calls),
            broadcasts=stretched(watch),
            dead=tuple(watch.derivatives.found),
            logs=tuple(watch.logs),
        )

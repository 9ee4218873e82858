"""What a model does after a training forward, and where one that was restarted does something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...lean import dataclass
from ...objects import trees
from ...runs.outputs import gap, outputs_of
from ...runs.variants.settling import other_statistics
from ...state import seed_everything
from ...state.tensors import named_tensors

if TYPE_CHECKING:
    from torch import nn

    from ...runs.outputs import Outputs
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """Where a restored model first does not do what the trained one does.

    Attributes:
        mode: ``evaluation`` or ``training``.
        path, distance: The output that differs most, and by how much.
        overwritten: Parameters and saved buffers that only the restored one's training forward
            writes to, or replaces: it moves them more than twice as far, and by much of their size.
    """

    mode: str
    path: str
    distance: float
    overwritten: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """What a model does next: its outputs in eval and training mode, and how far that moves what it writes to."""

    evaluated: Outputs
    training: Outputs
    written: dict[str, float]

    def against(self, other: After) -> Parted | None:
        """Return where the other one differs, or None."""
        if (found := gap(other.evaluated, self.evaluated)) is not None:
            return Parted(mode="evaluation", path=found[0], distance=found[1])
        if (found := gap(other.training, self.training)) is not None:
            overwritten = tuple(
                name
                for name, by in sorted(other.written.items())
                if name not in self.written or by > max(2 * self.written[name], _REPLACED)
            )
            return Parted(
                mode="training", path=found[0], distance=found[1], overwritten=overwritten
            )
        return None


def after(subject: Subject, model: nn.Module) -> After:
    """Evaluate another batch, and run it in training mode; call it inside ``pristine``."""
    other = other_statistics(subject)
    evaluated = outputs_of(subject, model, other)
    before = {name: tensor.detach().clone() for name, tensor in named_tensors(model).items()}
    model.train()
    seed_everything(subject.seed)
    with torch.no_grad():
        training = trees.tensors(subject.call(model, other.clone()))
    return After(
        evaluated=evaluated,
        training={path: trees.dense(tensor).clone() for path, tensor in training.items()},
        written={
            name: trees.apart(before[name], tensor)
            for name, tensor in named_tensors(model).items()
            if name in before and not trees.same(before[name], tensor)
        },
    )


_REPLACED = 0.25
"""Of the size of a value: a running average moves less in one step."""

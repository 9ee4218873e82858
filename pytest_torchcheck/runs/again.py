"""A run repeated under a probe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..state import seed_everything
from ..subject.gradients import clear_gradients

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..subject import Subject


def forward_and_loss(
    subject: Subject, *, index: int = 0, backward: bool = False
) -> Callable[[], torch.Tensor]:
    """Return a function that runs forward and loss again, for probes; call it inside ``pristine``."""

    def run() -> torch.Tensor:
        batch = subject.batch(index).clone()
        model = subject.model
        clear_gradients(model)
        model.train()
        seed_everything(subject.seed)
        with torch.enable_grad():
            loss = subject.compute_loss(subject.call(model, batch), batch)
            if backward:
                loss.backward()
        return loss

    return run

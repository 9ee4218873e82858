"""Detection models of torchvision's protocol: ``forward(images, targets=None)`` gives losses in train mode, predictions else."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from .base import Adapted

if TYPE_CHECKING:
    from torch import nn

    from ..batches import Batch
    from .base import Declared


class _Detection:
    def recognises(self, declared: Declared) -> bool:
        # no base class says it: torchvision's own models share but the signature
        if declared.declares("loss", "train_step"):
            return False
        cls = declared.cls if _is_labelled(declared.batch) else declared.known
        forward: Any = getattr(cls, "forward", None)
        try:
            _, *taken = inspect.signature(forward).parameters.values()
        except (TypeError, ValueError):
            return False
        return [p.name for p in taken] == ["images", "targets"] and taken[1].default is None

    def adapt(self, declared: Declared) -> Adapted:
        return Adapted(fields={"loss": "output", "batch_dim": None}, call=call)


def _is_labelled(batch: Any) -> bool:
    """Say whether real data is a list of images and a list of dicts: reason enough to build a factory's model."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        return False
    images, targets = batch
    return all(
        isinstance(part, tuple | list) and bool(part) and isinstance(part[0], kind)
        for part, kind in ((images, Tensor), (targets, Mapping))
    )


ADAPTER: Final = _Detection()


def call(model: nn.Module, batch: Batch) -> Any:
    """Give images and targets in train mode, for the dict of losses; the images alone in eval mode."""
    if batch.kwargs:
        keywords = dict(batch.kwargs)
        targets = keywords.pop("targets", batch.targets)
        return model(**keywords, targets=targets) if model.training else model(**keywords)
    if len(batch.args) == 2 and batch.targets is None:
        return model(*batch.args) if model.training else model(batch.args[0])
    return model(*batch.args, batch.targets) if model.training else model(*batch.args)

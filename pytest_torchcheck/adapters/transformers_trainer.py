"""The Trainer of Hugging Face transformers: its model, collated batches, loss and optimizer come under contract."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from .base import Adapted, AdapterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..batches import Batch
    from .base import Declared

CLASS: Final = "transformers.trainer:Trainer"


class _Trainer:
    def recognises(self, declared: Declared) -> bool:
        return declared.is_a(CLASS)

    def adapt(self, declared: Declared) -> Adapted:
        trainer = declared.model
        fields: dict[str, Any] = {"model": trainer.model}
        if not declared.declares("optimizer"):
            fields["optimizer"] = _optimizer_of(trainer)
        if not declared.declares("batch", "inputs"):
            if trainer.train_dataset is None:
                raise AdapterError(
                    "batch: the Trainer has no train_dataset to take batches from; give it one, or "
                    "batch={...} as its data collator makes it"
                )
            fields["batch"] = functools.partial(_batch, trainer)
        if declared.declares("loss", "train_step"):
            return Adapted(fields=fields)
        fields["loss"] = "output"
        return Adapted(fields=fields, call=_call_of(trainer))


ADAPTER: Final = _Trainer()


def _batch(trainer: Any, seed: int) -> tuple[dict[str, Any], None]:
    """Return a batch as the Trainer makes it: items of its dataset, through its data collator."""
    dataset = trainer.train_dataset
    rows = trainer.args.per_device_train_batch_size
    items = [
        dataset[(seed * rows + place) % len(dataset)] for place in range(min(rows, len(dataset)))
    ]
    return dict(trainer.data_collator(items)), None


def _call_of(trainer: Any) -> Callable[[nn.Module, Batch], Any]:
    def call(model: nn.Module, batch: Batch) -> Any:
        """Return ``{"loss": ...}`` of ``compute_loss`` in train mode, the model's own output in eval mode."""
        if not model.training:
            return model(*batch.args, **batch.kwargs)
        return {"loss": trainer.compute_loss(model, dict(batch.kwargs))}

    return call


def _optimizer_of(trainer: Any) -> Any:
    @functools.wraps(type(trainer).create_optimizer)
    def optimizer(model: nn.Module) -> Any:
        before = trainer.model, trainer.optimizer
        trainer.model, trainer.optimizer = model, None
        try:
            return trainer.create_optimizer()
        finally:
            trainer.model, trainer.optimizer = before

    return optimizer

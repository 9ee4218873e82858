"""LightningModule: ``training_step`` gives the loss, ``configure_optimizers`` the optimizers; no Trainer is needed.

With a Trainer beside it the training step's checks watch that one's own loop. Without one, and for
single calls, the model is trained as a Trainer would in one process: in train mode a call is its
``training_step``, in eval mode its ``forward``. What a Trainer gives it is stood in for while it
runs: ``self.log`` does nothing, ``self.optimizers()`` and ``self.manual_backward()`` work,
``self.trainer`` knows the numbers of a short run.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

import torch

from ..batches import Batch
from ..batches.read import read
from ..subject.losses import own_loss
from ..subject.optimizers import optimizers_of, schedulers_of
from .base import Adapted, AdapterError, Declared
from .lightning_hooks import all_optimizers, attached, configured
from .lightning_trainer import loop_of, module_of, promises_of, trainer_of

CLASSES: Final = (
    "lightning.pytorch.core.module:LightningModule",
    "pytorch_lightning.core.module:LightningModule",
)
_OWN_STEP: Final = (
    "optimizer_step", "optimizer_zero_grad", "backward", "lr_scheduler_step", "on_train_batch_start",
    "on_train_batch_end", "on_before_zero_grad", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "configure_gradient_clipping",
)  # fmt: skip
"""Methods that, where a module overrides one, make its step differ from the plain one."""


class _Lightning:
    def recognises(self, declared: Declared) -> bool:
        return declared.is_a(*CLASSES) or trainer_of(declared) is not None

    def adapt(self, declared: Declared) -> Adapted:
        trainer = trainer_of(declared)
        fields: dict[str, Any] = {}
        if trainer is not None and declared.model is trainer:
            fields["model"] = module_of(declared, trainer)
            declared = Declared(fields["model"], declared.fields)
        cls: Any = declared.cls
        if trainer is not None and not declared.is_a(*CLASSES):
            raise AdapterError(
                f"model: a lightning Trainer trains a LightningModule; got {getattr(cls, '__name__', declared.model)}"
            )
        without: dict[str, str] = {}
        if not declared.declares("optimizer") and _overrides(cls, "configure_optimizers"):
            fields["optimizer"] = _optimizer_of(cls)
        if declared.declares("loss", "train_step") or not _overrides(cls, "training_step"):
            return Adapted(fields=fields)  # the model is used by its forward, as any other
        if not declared.declares("inputs", "batch"):
            if not _overrides(cls, "train_dataloader"):
                raise AdapterError(
                    f"batch: {cls.__name__} has no train_dataloader(); give what its training_step takes, "
                    "such as batch=(x, y), or specs: inputs='B 4', targets=Labels('B', classes=3)"
                )
            fields["batch"] = functools.partial(_of_loader, declared.built)
            if trainer is not None and not declared.declares("dataset", "loader"):
                fields |= _data_of(declared.built)
        manual = declared.built is not None and not declared.built.automatic_optimization
        fields["loss"] = "output"
        if manual or any(_overrides(cls, name) for name in _OWN_STEP):
            fields["train_step"] = _step_of(cls)
        if manual:
            without["overfit"] = (
                "training_step optimizes by itself, often several losses against each other: "
                "no single one need fall"
            )
        loop = None
        if trainer is not None:
            loop = loop_of(trainer, cls, _form, manual)
            fields["promises"] = promises_of(trainer)
        return Adapted(fields=fields, call=call, without=without, loop=loop)


ADAPTER: Final = _Lightning()


def call(model: Any, batch: Batch) -> Any:
    """Return ``{"loss": ...}`` of the training step in train mode, what the forward gives in eval mode."""
    if not model.training and _overrides(type(model), "forward"):
        return _forward(model, batch)
    with attached(model, None) as losses:
        returned = model.training_step(_form(batch), *_place(model))
    if model.automatic_optimization:
        return {"loss": own_loss(returned)}
    if not losses:
        raise TypeError(
            f"{type(model).__name__}.training_step called no self.manual_backward(loss); with "
            "automatic_optimization = False that is what trains"
        )
    return {"loss": torch.stack([loss.sum() for loss in losses]).sum()}


def _forward(model: Any, batch: Batch) -> Any:
    """Call the forward with as many of the batch's parts as it takes."""
    if batch.kwargs:
        taken = inspect.signature(type(model).forward).parameters
        if any(p.kind is p.VAR_KEYWORD for p in taken.values()) or all(
            name in taken for name, p in taken.items() if name in batch.kwargs
        ):
            known = {name: value for name, value in batch.kwargs.items() if name in taken}
            if known or any(p.kind is p.VAR_KEYWORD for p in taken.values()):
                return model(**(known or batch.kwargs))
        return model(dict(batch.kwargs))
    positional = [
        p
        for p in inspect.signature(type(model).forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ][1:]
    needed = sum(p.default is p.empty for p in positional)
    if needed == 1 and len(batch.args) > 1 and batch.targets is None:
        return model(batch.args[0])  # a batch of three and more parts: the first is the input
    return model(*batch.args)


def _form(batch: Batch) -> Any:
    """Return the batch as a loader gives it to ``training_step``."""
    if batch.kwargs:
        targets = batch.targets
        return {**batch.kwargs, **targets} if isinstance(targets, dict) else (
            dict(batch.kwargs) if targets is None else (dict(batch.kwargs), targets)
        )  # fmt: skip
    inputs = batch.args[0] if len(batch.args) == 1 else batch.args
    return inputs if batch.targets is None else (inputs, batch.targets)


def _place(model: Any) -> tuple[int, ...]:
    """Return the number of the batch, where ``training_step`` takes it."""
    taken = list(inspect.signature(type(model).training_step).parameters.values())
    return (0,) if len(taken) > 2 else ()


def _of_loader(model: Any, seed: int) -> Any:
    with attached(model, None):
        loader = model.train_dataloader()
    return read(loader, seed)


def _data_of(model: Any) -> dict[str, Any]:
    """Return the datasets of the module's own loaders, and the loaders."""
    found: dict[str, Any] = {}
    with attached(model, None):
        for role, name in (("train", "train_dataloader"), ("eval", "val_dataloader")):
            if _overrides(type(model), name):
                found[role] = getattr(model, name)()
    loaders = {k: one for k, one in found.items() if isinstance(one, torch.utils.data.DataLoader)}
    if "train" not in loaders:
        return {}
    return {"dataset": {role: one.dataset for role, one in loaders.items()}, "loader": loaders}


def _optimizer_of(cls: Any) -> Any:
    @functools.wraps(cls.configure_optimizers)  # findings name the user's lines
    def optimizer(model: Any) -> Any:
        with attached(model, None):
            made = model.configure_optimizers()
        return configured(made) if model.automatic_optimization else all_optimizers(made)

    return optimizer


def _step_of(cls: Any) -> Any:
    @functools.wraps(cls.training_step)
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor | None:
        return _step(model, optimizer, inputs, targets)

    return train_step


def _step(model: Any, made: Any, inputs: Any, targets: Any) -> torch.Tensor | None:
    """Do one training step with the module's hooks, in the order of a Trainer."""
    by_name = isinstance(inputs, dict)
    batch = _form(
        Batch(args=() if by_name else inputs, kwargs=inputs if by_name else {}, targets=targets)
    )
    optimizers = optimizers_of(made)
    with attached(model, made) as losses:
        model.on_train_batch_start(batch, 0)
        loss: torch.Tensor | None = None
        if not model.automatic_optimization:
            returned = model.training_step(batch, *_place(model))
            loss = torch.stack([each.detach().sum() for each in losses]).sum() if losses else None
        else:
            optimizer = optimizers[0]
            returned = None

            def closure() -> torch.Tensor:
                nonlocal loss, returned
                returned = model.training_step(batch, *_place(model))
                value = own_loss(returned)
                model.on_before_zero_grad(optimizer)
                model.optimizer_zero_grad(0, 0, optimizer)
                model.on_before_backward(value)
                model.backward(value)
                model.on_after_backward()
                model.on_before_optimizer_step(optimizer)
                model.configure_gradient_clipping(optimizer)
                loss = value.detach()
                return value

            model.optimizer_step(0, 0, optimizer, closure)
            for scheduler in schedulers_of(made):
                model.lr_scheduler_step(scheduler, None)
        model.on_train_batch_end(returned, batch, 0)
    return loss


def _overrides(cls: type, name: str) -> bool:
    """Say whether the user's class defines a method of LightningModule."""
    for base in cls.__mro__:
        if name in vars(base):
            return not base.__module__.startswith(
                ("lightning.", "pytorch_lightning.", "torch.nn.modules")
            )
    return False

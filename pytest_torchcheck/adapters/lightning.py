"""LightningModule: ``training_step`` gives the loss, ``configure_optimizers`` the optimizers; no Trainer is needed.

With a Trainer beside it the training step's checks watch that one's own loop. Without one, and for single calls, the model is trained as a Trainer would in one process: in train mode a call is its ``training_step``, in eval mode its
``forward``. What a Trainer gives it is stood in for while it runs: ``self.log`` does nothing, ``self.optimizers()`` and
``self.manual_backward()`` work, ``self.trainer`` knows the numbers of a short run.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import nn

from ..batches import Batch
from ..batches.read import read
from ..subject import optimizers_of, own_loss, schedulers_of
from .base import Adapted, AdapterError, Declared
from .lightning_trainer import loop_of, module_of, promises_of, trainer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


CLASSES: Final = (
    "lightning.pytorch.core.module:LightningModule",
    "pytorch_lightning.core.module:LightningModule",
)
STEPS: Final = 10_000
"""Length of the training that ``self.trainer`` tells, for schedules made from it: more steps than any check takes."""
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
    with _attached(model, None) as losses:
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
    with _attached(model, None):
        loader = model.train_dataloader()
    return read(loader, seed)


def _data_of(model: Any) -> dict[str, Any]:
    """Return the datasets of the module's own loaders, and the loaders."""
    found: dict[str, Any] = {}
    with _attached(model, None):
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
        with _attached(model, None):
            made = model.configure_optimizers()
        return configured(made) if model.automatic_optimization else _all(made)

    return optimizer


def configured(made: Any) -> list[Any]:
    """Return the optimizers that ``configure_optimizers`` gave, and the schedulers that step with every batch.

    Args:
        made: In any of the forms that Lightning takes: an optimizer, several, a dict or several of them with
            ``optimizer`` and ``lr_scheduler``, or a pair of lists.
    """
    found: list[Any] = list(optimizers_of(_without_schedulers(made)))
    found += [scheduler for scheduler, interval in _schedulers(made) if interval == "step"]
    return found


def _all(made: Any) -> list[Any]:
    """Return the optimizers and every scheduler, for a module that steps them by itself."""
    return [*configured(made), *(s for s, interval in _schedulers(made) if interval != "step")]


def _without_schedulers(made: Any) -> Any:
    if isinstance(made, dict):
        return made.get("optimizer")
    if isinstance(made, list | tuple):
        return [_without_schedulers(each) for each in made]
    return made


def _schedulers(made: Any) -> list[tuple[Any, str]]:
    """Return schedulers with their interval; those of a metric step only after an evaluation."""
    if isinstance(made, torch.optim.lr_scheduler.LRScheduler):
        plateau = isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau)
        return [(made, "metric" if plateau else "epoch")]
    if isinstance(made, dict) and "scheduler" in made:
        found = _schedulers(made["scheduler"])
        interval = str(made.get("interval", "epoch"))
        each_step = interval == "step" and made.get("frequency", 1) == 1
        return [(s, "step" if each_step and how != "metric" else how) for s, how in found]
    if isinstance(made, dict):
        return _schedulers(made.get("lr_scheduler"))
    if isinstance(made, list | tuple):
        return [pair for each in made for pair in _schedulers(each)]
    return []


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
    with _attached(model, made) as losses:
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


class _Run:
    """Stands in for ``self.trainer``: the numbers of a short run in one process."""

    def __init__(self, made: Any) -> None:
        self.optimizers = [] if made is None else optimizers_of(made)
        self.max_steps = self.estimated_stepping_batches = self.num_training_batches = STEPS
        self.max_epochs, self.current_epoch, self.global_step = 1, 0, 0
        self.accumulate_grad_batches, self.gradient_clip_val = 1, None
        self.world_size = self.num_devices = self.num_nodes = 1
        self.global_rank = self.local_rank = 0
        self.is_global_zero = self.training = self.barebones = True
        self.validating = self.testing = self.predicting = self.sanity_checking = False
        self.callback_metrics: dict[str, Any] = {}
        self.logged_metrics: dict[str, Any] = {}
        self.callbacks: list[Any] = []
        self.loggers: list[Any] = []
        self.logger = self.datamodule = self.train_dataloader = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"self.trainer.{name}: a contract runs without a Trainer, and what stands in for it knows "
            f"{', '.join(sorted(vars(self)))}"
        )


class _Idle:
    """An optimizer or scheduler that changes nothing, for a step of which only the losses are wanted."""

    def __init__(self, real: Any) -> None:
        self._real = real

    @property
    def optimizer(self) -> _Idle:
        """As a LightningOptimizer has one."""
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Leave the gradients."""

    def step(self, *args: Any, closure: Any = None, **keywords: Any) -> Any:
        """Evaluate the closure at most."""
        closure = next((each for each in args if callable(each)), closure)
        return None if closure is None else closure()

    def toggle_model(self, sync_grad: bool = True) -> contextlib.AbstractContextManager[None]:
        """Leave ``requires_grad``."""
        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_real"], name)


class _Optimizers:
    """What ``self.optimizers()`` and its like give while the module runs."""

    def __init__(self, model: nn.Module, made: Any, losses: list[torch.Tensor]) -> None:
        self.model, self.losses, self.made = model, losses, made
        self.frozen: list[nn.Parameter] = []

    @property
    def live(self) -> bool:
        """Whether steps are real."""
        return self.made is not None

    def given(self, kind: Callable[[Any], list[Any]]) -> Any:
        """Return the one, or the list, of a kind: real ones, or new ones that change nothing."""
        if self.live:
            found = kind(self.made)
        else:
            found = [
                _Idle(each) for each in kind(_all(cast("Any", self.model).configure_optimizers()))
            ]
        return found[0] if len(found) == 1 else found

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        return self.given(optimizers_of)

    def lr_schedulers(self) -> Any:
        return self.given(schedulers_of) or None

    def manual_backward(self, loss: torch.Tensor, *args: Any, **keywords: Any) -> None:
        self.losses.append(loss)
        if self.live:
            loss.backward(*args, **keywords)

    def toggle_optimizer(self, optimizer: Any) -> None:
        if self.live:
            own = {id(p) for group in optimizer.param_groups for p in group["params"]}
            others = [p for p in self.model.parameters() if id(p) not in own and p.requires_grad]
            self.frozen += others
            for parameter in others:
                parameter.requires_grad_(False)

    def untoggle_optimizer(self, optimizer: Any) -> None:
        while self.frozen:
            self.frozen.pop().requires_grad_(True)

    def clip_gradients(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        if not self.live or gradient_clip_val is None:
            return
        owned = [p for group in optimizer.param_groups for p in group["params"]]
        if gradient_clip_algorithm == "value":
            nn.utils.clip_grad_value_(owned, gradient_clip_val)
        else:
            nn.utils.clip_grad_norm_(owned, gradient_clip_val)

    @staticmethod
    def log(*args: Any, **keywords: Any) -> None:
        """Nothing is logged."""


@contextlib.contextmanager
def _attached(model: Any, made: Any) -> Iterator[list[torch.Tensor]]:
    """Stand in for a Trainer while the module runs; give the losses that it hands to ``manual_backward``.

    Args:
        model: The module.
        made: Its optimizers and schedulers, or None where it is only to compute its losses.
    """
    losses: list[torch.Tensor] = []
    stand_in = _Optimizers(model, made, losses)
    changed = {
        "_trainer": _Run(made),
        "log": stand_in.log,
        "log_dict": stand_in.log,
        **{
            name: getattr(stand_in, name)
            for name in (
                "optimizers", "lr_schedulers", "manual_backward", "toggle_optimizer", "untoggle_optimizer", "clip_gradients",
            )
        },
    }  # fmt: skip
    before = {name: vars(model)[name] for name in changed if name in vars(model)}
    vars(model).update(changed)
    try:
        yield losses
    finally:
        for name in changed:
            vars(model).pop(name, None)
        vars(model).update(before)

"""What a Trainer gives a LightningModule, stood in for while one of its methods runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import nn

from ..subject.optimizers import optimizers_of, schedulers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


STEPS: Final = 10_000
"""Length of the training that ``self.trainer`` tells, for schedules made from it: more steps than any check takes."""


def configured(made: Any) -> list[Any]:
    """Return the optimizers that ``configure_optimizers`` gave, and the schedulers that step with every batch.

    Args:
        made: In any of the forms that Lightning takes: an optimizer, several, a dict or several of
            them with ``optimizer`` and ``lr_scheduler``, or a pair of lists.
    """
    found: list[Any] = list(optimizers_of(_without_schedulers(made)))
    found += [scheduler for scheduler, interval in _schedulers(made) if interval == "step"]
    return found


def all_optimizers(made: Any) -> list[Any]:
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
                _Idle(each)
                for each in kind(all_optimizers(cast("Any", self.model).configure_optimizers()))
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
def attached(model: Any, made: Any) -> Iterator[list[torch.Tensor]]:
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

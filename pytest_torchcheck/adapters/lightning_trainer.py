"""Lightning's own Trainer: its loop trains the module for some batches, with its precision, accumulation, clipping and schedules."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import sys
from typing import TYPE_CHECKING, Any, Final

from .. import promises
from .base import AdapterError, Loop, LoopUnavailableError, Scheduled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..batches import Batch
    from .base import Declared, Watch

TRAINERS: Final = (
    "lightning.pytorch.trainer.trainer:Trainer",
    "pytorch_lightning.trainer.trainer:Trainer",
)
_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")
LENGTH: Final = 1000
"""Batches of an epoch where only a batch is declared."""
_NO_LIMIT: Final = 1000
"""Epochs that Lightning trains for where nobody says how many: no length that a schedule could be held to."""


def trainer_of(declared: Declared) -> Any:
    """Return the Lightning Trainer of a contract, or None."""
    for given in (declared.fields.get("trainer"), declared.model):
        if _base(given) is not None:
            return given
    return None


def module_of(declared: Declared, trainer: Any) -> Any:
    """Return the module that a contract is about: the declared one, else that which the Trainer has fitted.

    Raises:
        AdapterError: There is none.
    """
    if declared.model is not trainer:
        return declared.model
    found = trainer.lightning_module
    if found is None:
        raise AdapterError(
            "model: a lightning Trainer holds no module before fit(); give model=MyModule() beside trainer="
        )
    return found


def loop_of(trainer: Any, cls: Any, form: Callable[[Batch], Any], manual: bool) -> Loop:
    """Return a Trainer's loop.

    Args:
        trainer: As declared; it is not run itself.
        cls: Class of the module.
        form: Makes of a batch what a loader gives.
        manual: Whether the module optimizes by itself.
    """
    return Loop(
        run=functools.partial(_run, trainer, form),
        window=1 if manual else int(trainer.accumulate_grad_batches),
        mixed=not str(trainer.precision).startswith(("32", "64")),
        name=type(trainer).__name__,
        defined=cls.training_step,
        clips=_own(cls, "configure_gradient_clipping"),
    )


def _own(cls: Any, name: str) -> Any:
    """Return a method where it is not Lightning's."""
    function = getattr(cls, name)
    return (
        None if function.__module__.startswith(("lightning.", "pytorch_lightning.")) else function
    )


def promises_of(trainer: Any) -> tuple[promises.Promise, ...]:
    """Return what a Trainer's settings promise."""
    limit, how = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
    by_norm = how is None or str(getattr(how, "value", how)) == "norm"
    return (promises.ClipsGradients(float(limit)),) if limit and by_norm else ()


def _base(trainer: Any) -> type | None:
    """Return Lightning's own class of a Trainer; None for what is none."""
    for place in TRAINERS:
        module, _, name = place.partition(":")
        cls = getattr(sys.modules.get(module), name, None)
        if isinstance(cls, type) and isinstance(trainer, cls):
            return cls
    return None


class _StoppedError(Exception):
    """Ends a fit: enough batches were trained on."""


class _Feed:
    """What the loop reads: the contract's batches, in epochs of the loader's length that never end within a run."""

    def __init__(self, batch: Callable[[int], Any], length: int) -> None:
        self.batch, self.length = batch, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return (self.batch(place) for place in range(self.length))


def _run(
    trainer: Any,
    form: Callable[[Batch], Any],
    model: Any,
    batches: Callable[[int], Batch],
    count: int,
    watch: Watch,
    *,
    window: int,
) -> None:
    """Fit with a Trainer of the same settings that writes nothing; validate once after two steps."""
    home = next((p.device for p in model.parameters()), None)
    there = trainer.strategy.root_device
    if home is None or home.type != there.type:
        raise LoopUnavailableError(f"it trains on {there}, this check runs on {home}")
    if trainer.world_size > 1:
        raise LoopUnavailableError(f"it trains in {trainer.world_size} processes")
    before = dict(vars(model))
    own = _length(model, trainer)
    feed = _Feed(
        lambda place: form(batches(min(place, count - 1))),
        max(own, count + 1, 2 * window + 1),
    )
    try:
        with _quiet():
            twin = _twin(
                trainer, _teller(trainer, watch, count, window, len(feed)), home.type, window
            )
            with contextlib.suppress(_StoppedError):
                twin.fit(model, train_dataloaders=feed)
    finally:
        vars(model).clear()
        vars(model).update(before)


def _twin(trainer: Any, teller: Any, device: str, window: int) -> Any:
    """Make a Trainer of the same settings, without files, progress bar and summary."""
    base: Any = _base(trainer)
    kept = []
    for callback in trainer.callbacks:
        if type(callback).__module__.startswith(("lightning.", "pytorch_lightning.")):
            continue  # checkpoints, bars, monitors: none of them trains
        try:
            kept.append(copy.deepcopy(callback))
        except Exception:  # one that holds what cannot be copied sees this run as it is
            kept.append(callback)
    package = base.__module__.removesuffix(".trainer.trainer")
    loggers = sys.modules.get(f"{package}.loggers.logger")
    dummy = getattr(loggers, "DummyLogger", None)
    own_plugin = not type(trainer.precision_plugin).__module__.startswith(
        ("lightning.", "pytorch_lightning.")
    )
    return base(
        accelerator=device,
        devices=1,
        precision=None if own_plugin else trainer.precision,
        plugins=[copy.deepcopy(trainer.precision_plugin)] if own_plugin else None,
        max_epochs=trainer.max_epochs,
        max_steps=trainer.max_steps,
        accumulate_grad_batches=window,
        gradient_clip_val=trainer.gradient_clip_val,
        gradient_clip_algorithm=trainer.gradient_clip_algorithm,
        callbacks=[*kept, teller],
        logger=dummy() if dummy is not None and trainer.loggers else False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=2 if trainer.limit_val_batches else 0,
        val_check_interval=2 * window,
        check_val_every_n_epoch=None,
    )


def _teller(trainer: Any, watch: Watch, count: int, window: int, length: int) -> Any:
    """Make the callback that tells of every batch and ends the fit."""
    base: Any = _base(trainer)
    package = sys.modules[base.__module__.removesuffix(".trainer.trainer")]

    class Teller(package.Callback):  # type: ignore[misc, name-defined]
        place = 0

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if self.place == count:
                watch.scheduled(_scheduled(trainer, window, length))
                raise _StoppedError
            watch.before(self.place)

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            loss: Any = outputs.get("loss") if isinstance(outputs, dict) else outputs
            # Lightning has divided it by the batches that it accumulates
            watch.after(self.place, loss * window if hasattr(loss, "dim") else None)
            self.place += 1

    return Teller()


def _scheduled(trainer: Any, window: int, length: int) -> Sequence[Scheduled]:
    """Return how a Trainer steps its schedulers until it is done; nothing where it says no end."""
    epochs, most = trainer.max_epochs, trainer.max_steps
    per_epoch = math.ceil(length / window)
    if most is not None and most > 0:
        steps = most
        epochs = max(1, math.ceil(most / per_epoch))
    elif epochs is not None and 0 < epochs != _NO_LIMIT:
        steps = per_epoch * epochs
    else:
        return ()
    if not trainer.lightning_module.automatic_optimization:
        return ()
    found = []
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau:
            continue
        calls = {"step": steps // config.frequency, "epoch": epochs // config.frequency}
        if config.interval in calls:
            other = "epoch" if config.interval == "step" else "step"
            found.append(
                Scheduled(
                    scheduler=config.scheduler,
                    interval=config.interval,
                    calls=calls[config.interval],
                    otherwise=calls[other],
                )
            )
    return found


def _length(model: Any, trainer: Any) -> int:
    """Return how many batches an epoch has, by the module's own loader where it has one."""
    function = type(model).train_dataloader
    if function.__module__.startswith(("lightning.", "pytorch_lightning.")):
        return LENGTH
    try:
        length = len(model.train_dataloader())
    except Exception:  # a stream has no length, and a loader may need setup() first
        return LENGTH
    limit = trainer.limit_train_batches
    if isinstance(limit, float):
        return max(1, int(length * limit))
    return max(1, min(length, limit)) if limit else max(1, length)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning's log lines back."""
    loggers = [logging.getLogger(name) for name in (*_PACKAGES, "lightning.fabric")]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)

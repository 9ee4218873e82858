"""The Trainer of Hugging Face transformers: its model, data, loss and optimizer, and its own loop, come under contract."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .. import promises
from .base import Adapted, AdapterError, Loop, LoopUnavailableError, Scheduled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from ..batches import Batch
    from .base import Declared, Watch

CLASS: Final = "transformers.trainer:Trainer"
_QUIET: Final = {
    "save_strategy": "no", "report_to": [], "disable_tqdm": True, "push_to_hub": False, "load_best_model_at_end": False,
    "auto_find_batch_size": False, "eval_on_start": False, "torch_compile": False, "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False, "dataloader_prefetch_factor": None, "resume_from_checkpoint": None,
}  # fmt: skip
"""Arguments of a run that writes no file, prints nothing and starts no process."""
_EVALUATED: Final = 2
"""Batches of the evaluation between two steps."""


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
        if not declared.declares("dataset", "loader"):
            fields |= _data_of(trainer)
        if declared.declares("loss", "train_step"):
            return Adapted(fields=fields)
        fields["loss"] = "output"
        if trainer.args.max_grad_norm and trainer.args.max_grad_norm > 0:
            fields["promises"] = (promises.ClipsGradients(trainer.args.max_grad_norm),)
        loop = Loop(
            run=functools.partial(_run, trainer),
            window=trainer.args.gradient_accumulation_steps,
            mixed=bool(trainer.args.bf16 or trainer.args.fp16),
            name=type(trainer).__name__,
            defined=_own_function(trainer, "compute_loss", "training_step", "get_batch_samples"),
            clips=_own_function(trainer, "training_step", "_clip_grad_norm"),
            graded=_graded_by(trainer),
            causal="CausalLM" in type(trainer.model).__name__
            or "LMHead" in type(trainer.model).__name__,
        )
        return Adapted(fields=fields, call=_call_of(trainer), loop=loop)


ADAPTER: Final = _Trainer()


def _is_map_style(dataset: Any) -> bool:
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _data_of(trainer: Any) -> dict[str, Any]:
    """Return the Trainer's datasets, and how its loaders read them."""
    found = {
        role: dataset
        for role, dataset in (("train", trainer.train_dataset), ("eval", trainer.eval_dataset))
        if _is_map_style(dataset) and not isinstance(dataset, Mapping) and len(dataset)
    }
    if "train" not in found:
        return {}
    args = trainer.args
    shared = {"num_workers": args.dataloader_num_workers, "drop_last": args.dataloader_drop_last}
    loaders = {
        "train": {"batch_size": args.per_device_train_batch_size, "shuffle": True, **shared},
        "eval": {"batch_size": args.per_device_eval_batch_size, **shared, "drop_last": False},
    }
    read = {role: _read_by(trainer, dataset) for role, dataset in found.items()}
    return {
        "dataset": {role: dataset for role, (dataset, _) in read.items()},
        "loader": {role: {**loaders[role], "collate_fn": read[role][1]} for role in found},
    }


def _read_by(trainer: Any, dataset: Any) -> tuple[Any, Any]:
    """Return a dataset and a collator as the Trainer's loaders use them: without columns that the model does not take."""
    if type(dataset).__module__.partition(".")[0] == "datasets":
        return trainer._remove_unused_columns(dataset), trainer.data_collator
    return dataset, trainer._get_collator_with_removed_columns(trainer.data_collator)


def _batch(trainer: Any, seed: int) -> tuple[dict[str, Any], None]:
    """Return a batch as the Trainer makes it: items of its dataset, through its data collator."""
    dataset, collate = _read_by(trainer, trainer.train_dataset)
    rows = trainer.args.per_device_train_batch_size
    if not _is_map_style(dataset):
        stream = iter(dataset)
        items = [item for _, item in zip(range((seed % 4 + 1) * rows), stream, strict=False)][
            -rows:
        ]
    else:
        items = [
            dataset[(seed * rows + place) % len(dataset)]
            for place in range(min(rows, len(dataset)))
        ]
    return dict(collate(items)), None


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
        trainer.model, trainer.optimizer = model, _own_optimizer(before[1])
        try:
            return trainer.create_optimizer()
        finally:
            trainer.model, trainer.optimizer = before

    return optimizer


def _own_optimizer(optimizer: Any, scheduler: Any = None) -> Any:
    """Return copies of what the user made, on the same parameters; nothing where the Trainer makes its own."""
    given = getattr(
        optimizer, "optimizer", optimizer
    )  # a Trainer that has trained holds it wrapped
    if given is None:
        return None if scheduler is None else (None, None)
    held = {id(p): p for group in given.param_groups for p in group["params"]}
    made = copy.deepcopy((given, scheduler), held)
    return made[0] if scheduler is None else made


def _own_function(trainer: Any, *names: str) -> Any:
    """Return the first of a Trainer's functions that the user has written, or None."""
    if "compute_loss" in names and trainer.compute_loss_func is not None:
        return trainer.compute_loss_func
    for name in names:
        function = getattr(type(trainer), name, None)
        if function is not None and not function.__module__.startswith("transformers."):
            return function
    return None


def _graded_by(trainer: Any) -> Callable[[nn.Module, Batch], tuple[Any, Any]]:
    def graded(model: nn.Module, batch: Batch) -> tuple[Any, Any]:
        """Return the Trainer's loss of a batch, and the logits that it came from."""
        returned = trainer.compute_loss(model, dict(batch.kwargs), return_outputs=True)
        loss, output = returned if isinstance(returned, tuple) else (returned, None)
        if isinstance(output, Mapping):
            return loss, output.get("logits")
        return loss, getattr(output, "logits", None)

    return graded


class _Feed:
    """What the loop reads: the contract's batches, as many per epoch as the Trainer's own loader has."""

    def __init__(self, batches: Callable[[int], Batch], length: int) -> None:
        self.batches, self.length, self.place = batches, length, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(self.length):
            batch = self.batches(self.place)
            self.place += 1
            yield dict(batch.kwargs)


def _run(
    trainer: Any,
    model: nn.Module,
    batches: Callable[[int], Batch],
    count: int,
    watch: Watch,
    *,
    window: int,
) -> None:
    """Have a twin of the Trainer train: same class and arguments, no files, no reports; evaluate once in between."""
    home = next((p.device for p in model.parameters()), None)
    if home is None or home.type != trainer.args.device.type:
        raise LoopUnavailableError(f"it trains on {trainer.args.device}, this check runs on {home}")
    if trainer.args.deepspeed or trainer.args.fsdp or trainer.args.n_gpu > 1:
        raise LoopUnavailableError("it shards or replicates the model over processes or GPUs")
    twin = copy.copy(trainer)
    for name, value in vars(trainer).items():
        if type(value) in (dict, list, set):
            setattr(twin, name, copy.copy(value))
    twin.args = _quiet(trainer.args, window)
    twin.model = twin.model_wrapped = model
    twin.optimizer, twin.lr_scheduler = (
        _own_optimizer(trainer.optimizer, trainer.lr_scheduler)
        if trainer.optimizer is not None and trainer.lr_scheduler is not None
        else (_own_optimizer(trainer.optimizer), None)
    )
    twin.create_accelerator_and_postprocess()
    length = _length(trainer, window, count)
    feed = _Feed(lambda place: batches(min(place, count - 1)), length)
    twin.get_train_dataloader = lambda: feed
    twin.eval_dataset = _few(trainer.eval_dataset, trainer.args.per_device_eval_batch_size)
    twin.training_step = _told(twin.training_step, watch, count)
    _attach(twin, trainer, count // window)
    with _forward_kept(model), _quiet_logs():
        twin.train()
        if twin.lr_scheduler is not None:
            epochs = int(-(-twin.args.num_train_epochs // 1)) if twin.args.max_steps <= 0 else 1
            scheduler = getattr(twin.lr_scheduler, "scheduler", twin.lr_scheduler)
            total = int(twin.state.max_steps)
            if type(scheduler).__name__ != "ReduceLROnPlateau":
                watch.scheduled(
                    [
                        Scheduled(
                            scheduler=scheduler,
                            interval="step",
                            calls=total,
                            otherwise=epochs,
                        )
                    ]
                )


def _told(training_step: Any, watch: Watch, count: int) -> Any:
    """Wrap the Trainer's training step, so that every batch is told of."""
    place = 0

    @functools.wraps(training_step)
    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal place
        if place < count:
            watch.before(place)
        loss = training_step(*args, **kwargs)
        if place < count:
            watch.after(place, loss)
        place += 1
        return loss

    return step


def _quiet(args: Any, window: int) -> Any:
    """Return a copy of the arguments for a run that leaves nothing behind."""
    made = copy.copy(args)
    for name, value in {**_QUIET, "gradient_accumulation_steps": window}.items():
        if hasattr(made, name):
            with contextlib.suppress(AttributeError):
                object.__setattr__(made, name, value)
    for name in ("save_strategy", "eval_strategy"):
        kind = type(getattr(args, name))
        if hasattr(kind, "NO"):
            object.__setattr__(made, name, kind.NO)
    return made


def _length(trainer: Any, window: int, count: int) -> int:
    """Return how many batches an epoch of the Trainer's own has."""
    dataset = trainer.train_dataset
    if not _is_map_style(dataset):
        return count + window
    rows = trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps
    return max(1, int(len(dataset) * window) // max(int(rows), 1))


def _few(dataset: Any, rows: int) -> Any:
    """Return the first batches of an evaluation set, or of each of several."""
    from torch.utils.data import Subset

    if isinstance(dataset, Mapping):
        return {name: _few(each, rows) for name, each in dataset.items()}
    if not _is_map_style(dataset) or not len(dataset):
        return None
    most = min(len(dataset), _EVALUATED * rows)
    return (
        dataset.select(range(most)) if hasattr(dataset, "select") else Subset(dataset, range(most))
    )


def _attach(twin: Any, trainer: Any, steps: int) -> None:
    """Give the twin the user's callbacks, and one that evaluates after two steps and stops after the last."""
    package = sys.modules["transformers"]
    callbacks = package.trainer_callback

    class Stop(package.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            if state.global_step == 2 and twin.eval_dataset is not None:
                control.should_evaluate = True
            if state.global_step >= steps:
                control.should_training_stop = True
            return control

    kept = []
    for callback in trainer.callback_handler.callbacks:
        module = type(callback).__module__
        flow = isinstance(callback, callbacks.DefaultFlowCallback)
        if flow or not module.startswith("transformers."):
            try:
                kept.append(copy.deepcopy(callback))
            except Exception:  # one that holds what cannot be copied sees this run as it is
                kept.append(callback)
    twin.control = package.TrainerControl()
    twin.state = package.TrainerState()
    twin.callback_handler = callbacks.CallbackHandler(
        [*kept, Stop()], twin.model, twin.processing_class, twin.optimizer, twin.lr_scheduler
    )


@contextlib.contextmanager
def _forward_kept(model: nn.Module) -> Iterator[None]:
    """Take off what accelerate puts onto a model: a forward under autocast."""
    before = set(vars(model))
    own = vars(model).get("forward")
    try:
        yield
    finally:
        for name in set(vars(model)) - before:
            delattr(model, name)
        if own is not None:
            model.forward = own


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """Keep the Trainer's own log lines back."""
    logging = sys.modules["transformers"].utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)

"""The runs of a subject in which leaks are looked for: its training step, its calls without gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...measure.plain_step import plain_step
from ...state import seed_everything
from ...subject.gradients import clear_gradients
from ...subject.optimizers import optimizers_of
from .leaks import Leak, find_leak

if TYPE_CHECKING:
    from ...findings import Location
    from ...subject import Subject

IGNORED_BYTES = 1024
"""Detached bytes per step that are no leak: a history of losses, say."""


def training_leak(subject: Subject) -> Leak | None:
    """Look for what the user's step, or the plain one, leaves behind; cached."""
    key = ("leak", "training")
    if key not in subject.cache:
        with subject.pristine(steps=True) as model:
            clear_gradients(model)
            model.train()
            seed_everything(subject.seed)
            optimizer = subject.make_optimizer(model)
            batch = subject.batch()
            for group in (g for o in optimizers_of(optimizer) for g in o.param_groups):
                if "history_size" in group:  # a bounded history fills for as long as it is
                    group["history_size"] = 1

            def step() -> None:
                _train(subject, model, optimizer, batch.clone())

            functions = [
                f for f in (subject.contract.train_step, subject.contract.loss) if callable(f)
            ]
            subject.cache[key] = find_leak(step, model, ignore_bytes=IGNORED_BYTES, code=functions)
    found: Leak | None = subject.cache[key]
    return found


def _train(subject: Subject, model: torch.nn.Module, optimizer: Any, batch: Any) -> None:
    if subject.contract.train_step is None and subject.contract.loss is None:
        plain_step(subject, model, optimizer, batch)
    else:
        subject.train_step(model, optimizer, batch)


def inference_leak(subject: Subject) -> Leak | None:
    """Look for what calls in eval mode without gradients leave behind."""
    with subject.pristine(train=False) as model:
        seed_everything(subject.seed)
        batch = subject.batch()

        def call() -> None:
            with torch.no_grad():
                subject.call(model, batch.clone())

        return find_leak(call, model, steps=3, warmup=2, ignore_bytes=IGNORED_BYTES)


def is_certain(leak: Leak, subject: Subject) -> bool:
    """Say whether a leak is one: graphs and hooks are; detached tensors where the model itself keeps them."""
    if leak.kind != "tensors":
        return True
    metric = any("torchmetrics" in type(m).__module__ for m in subject.model.modules())
    return leak.holder.startswith(type(subject.model).__name__) and not metric


def grad_line(subject: Subject) -> Location | None:
    """Return the line of the model's classes that turns gradients on, else where its forward begins."""
    for module in subject.model.modules():
        found = sources.search(
            type(module), r"enable_grad|set_grad_enabled|requires_grad_\(|inference_mode\(False"
        )
        if found is not None and sources.rank(found.file) > 0:
            return found
    return sources.of_object(type(subject.model).forward)

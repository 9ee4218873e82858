"""Micro-batches: a batch in parts, with unequal counts of targets, and a user's micro step called on them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..specs import Labels
from ..subject.errors import UnmeasurableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..batches import Batch
    from ..subject import Subject

_COUNTS = (
    "n",
    "steps",
    "n_steps",
    "n_micro",
    "accumulate",
    "accumulation",
    "accumulation_steps",
    "micro_batches",
)
_TOTALS = (
    "total",
    "count",
    "tokens",
    "n_tokens",
    "num_tokens",
    "num_items",
    "num_items_in_batch",
    "n_items",
    "valid",
    "denominator",
)
_PLACES = ("i", "k", "index", "idx", "step", "micro", "place")


def call_micro_step(
    function: Callable[..., Any],
    model: nn.Module,
    optimizer: Any,
    part: Batch,
    place: int,
    n: int,
    whole: int,
) -> None:
    """Call a user's micro step by the names of its arguments; run backward on what it returns, if it did not.

    ``(model, inputs, targets)`` are given by place; further ones by their names.

    Args:
        function: The micro step.
        model: The model.
        optimizer: Given as an argument with "optim" in its name.
        part: The micro-batch.
        place: Its number, given as ``i``, ``index``, ``step`` or the like.
        n: How many there are, given as ``n``, ``steps``, ``accumulate`` or the like.
        whole: Valid targets of the whole batch, given as ``total``, ``count``, ``num_items`` or the
            like.
    """
    inputs: Any = part.kwargs if part.kwargs and not part.args else part.args
    known: dict[str, Any] = {
        **dict.fromkeys(_COUNTS, n), **dict.fromkeys(_TOTALS, whole), **dict.fromkeys(_PLACES, place),
    }  # fmt: skip
    given: dict[str, Any] = {}
    places: list[Any] = [model, inputs, part.targets]
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if "optim" in name:
            given[name] = optimizer
        elif name in known and len(places) < 3:
            given[name] = known[name]
        elif places:
            given[name] = places.pop(0)
        elif parameter.default is parameter.empty:
            raise UnmeasurableError(
                f"micro_step needs {name!r}, of which its name does not tell what it is; call it n_micro for the number "
                "of micro-batches, total for the targets of the whole batch, or give it a default"
            )
    before = {name: p.grad for name, p in model.named_parameters()}
    value = function(**given)
    untouched = all(p.grad is before[name] for name, p in model.named_parameters())
    if isinstance(value, torch.Tensor) and value.requires_grad and untouched:
        torch.autograd.backward(value)


def divisible(subject: Subject, n: int) -> Batch:
    """Return the base batch with a size that ``n`` divides: unequal parts are another question."""
    batch = subject.batch()
    symbol = subject.source.batch_symbol
    size = batch.sizes.get(symbol, 0) if symbol is not None else 0
    if symbol is None or size % n == 0:
        return batch
    if size > n:
        return subject.source.rows(batch, torch.arange(size - size % n))
    return subject.at(**{symbol: 2 * n}) or batch


def parts_of(subject: Subject, batch: Batch, n: int) -> list[Batch]:
    """Cut a batch into ``n`` parts as :func:`torch.chunk` does."""
    symbol = subject.source.batch_symbol
    size = batch.sizes.get(symbol, 0) if symbol is not None else 0
    if size < 2:
        return [batch]
    return [subject.source.rows(batch, index) for index in torch.arange(size).chunk(n)]


def _ignored(subject: Subject) -> int | None:
    spec = subject.contract.targets
    return spec.ignore_index if isinstance(spec, Labels) else None


def with_unequal_counts(subject: Subject, batch: Batch) -> Batch | None:
    """Mark ever more targets as ignored from the first sample to the last, never all of a sample."""
    ignore = _ignored(subject)
    targets = batch.targets
    if (
        ignore is None
        or not isinstance(targets, torch.Tensor)
        or targets.is_floating_point()
        or targets.dim() < 2
    ):
        return None
    rows, width = targets.shape[0], targets[0].numel()
    if rows < 2 or width < 2:
        return None
    keep = torch.linspace(1.0, 1.0 / width, rows).mul(width).round().clamp_min(1).long()
    marked = (torch.arange(width)[None] >= keep[:, None]).reshape(targets.shape)
    changed = torch.where(marked, torch.full_like(targets, ignore), targets)
    return batch.map(lambda path, leaf: changed if leaf is targets else leaf)


def valid_targets(subject: Subject, batch: Batch) -> int:
    """Count the targets that are not ignored; the samples where targets are no labels."""
    targets = batch.targets
    if not isinstance(targets, torch.Tensor):
        return max(batch.sizes.values(), default=1)
    if targets.is_floating_point():
        return len(targets)
    ignore = _ignored(subject)
    return int((targets != (-100 if ignore is None else ignore)).sum())


def counts_of(subject: Subject, batch: Batch, n: int) -> tuple[int, ...]:
    """Return how many targets count in each of ``n`` parts; nothing where targets are no labels."""
    targets = batch.targets
    if not isinstance(targets, torch.Tensor) or targets.is_floating_point():
        return ()
    return tuple(valid_targets(subject, part) for part in parts_of(subject, batch, n))

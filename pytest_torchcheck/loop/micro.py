"""Call a user's micro step, whatever arguments it takes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchcheck.batches import Batch

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
    before = {name: p.grad for name, p in model.named_parameters()}
    value = function(**given)
    untouched = all(p.grad is before[name] for name, p in model.named_parameters())
    if isinstance(value, torch.Tensor) and value.requires_grad and untouched:
        torch.autograd.backward(value)

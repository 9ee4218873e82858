"""Small configurations of public models, with what their users would declare: a batch and a loss.

`python -m tests.models.zoo` lists them, `python -m tests.models.zoo NAME` holds one to the default
checks (`--plain` runs one plain training step only).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

# a function returns the fields of a contract; its libraries are imported when it is called
ZOO: dict[str, Callable[[], dict[str, Any]]] = {}


def public(library: str, name: str | None = None) -> Callable[[Any], Any]:
    """Register a function that returns a contract's fields as LIBRARY.FUNCTION."""

    def register(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        ZOO[f"{library}.{name or function.__name__}"] = function
        return function

    return register


def ids(*shape: int, high: int = 50) -> torch.Tensor:
    """Return token ids from 3 on: the first three are special in most vocabularies."""
    return torch.randint(3, high, shape)


def labels(*shape: int, classes: int = 5) -> torch.Tensor:
    """Return class labels."""
    return torch.randint(0, classes, shape)


def over_tokens(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of logits `[B, T, C]` and targets `[B, T]`."""
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets)

"""The fields of a contract as type checkers and editors see them behind ``@contract(``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

    from ..promises import Promise
    from .limits import Kind, Overfit, Speed


class Fields(TypedDict, total=False):
    """The arguments of :class:`~pytest_torchcheck.Contract` but for ``model``."""

    inputs: Any
    targets: Any
    sizes: Mapping[str, Any] | None
    batch: Any
    output: Any
    output_range: tuple[float, float] | None
    loss: Callable[..., Any] | str | None
    optimizer: Callable[[nn.Module], Any] | None
    train_step: Callable[..., Any] | None
    trainer: Any
    promises: Sequence[Promise]
    functions: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] | None
    dataset: Any
    loader: Any
    memory: int | str | Mapping[str, int | str] | None
    growth: Mapping[str, float] | None
    flops: float | str | None
    speed: Mapping[Kind, Speed] | None
    devices: Sequence[str] | None
    dtypes: Sequence[str | torch.dtype] | None
    ranks: int | None
    overfit: Overfit | None
    batch_dim: int | None
    skip: Mapping[str, str] | None
    budget: float | None
    changes: Mapping[str, Any] | None
    name: str | None

"""Promises about data, ranks and devices."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable
from .base import Promise, function_of


@dataclass(frozen=True, slots=True)
class SharesData(Promise):
    """Ranks split the samples of each epoch evenly, in a different order each time.

    Attributes:
        run: ``(model, optimizer)``: the user's own loop over two epochs or more, on every rank with
            the wrapped model; it makes its loaders itself, as in training.
    """

    run: Callable[..., Any]

    def __post_init__(self) -> None:
        function_of("SharesData", "run", self.run, "run(model, optimizer)")


@dataclass(frozen=True, slots=True)
class Checkpoints(Promise):
    """What the ranks save with the wrapped model, one process loads into the plain one.

    Attributes:
        save: ``(model, path)``: called on every rank with the wrapped model.
        load: ``(model, path)``: called with a plain model.
    """

    save: Callable[..., Any]
    load: Callable[..., Any]

    def __post_init__(self) -> None:
        function_of("Checkpoints", "save", self.save, "save(model, path)")
        function_of("Checkpoints", "load", self.load, "load(model, path)")


@dataclass(frozen=True, slots=True)
class FullyShards(Promise):
    """Sharded by FSDP2 (``fully_shard``), the model computes what it computes in one process.

    Attributes:
        wrap: ``(model)``: shards the model in place, as the user's training does; by default every
            module of a ``ModuleList`` and the model itself are sharded.
        meta: Whether the model can also be built on meta, sharded, given memory (``to_empty``) and
            then its state_dict; a function ``(model)`` where more than ``to_empty`` is needed.
    """

    wrap: Callable[..., Any] | None = None
    meta: bool | Callable[..., Any] = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.wrap is not None:
            function_of("FullyShards", "wrap", self.wrap, "wrap(model)")
        if not isinstance(self.meta, bool):
            function_of("FullyShards", "meta", self.meta, "meta(model)")


@dataclass(frozen=True, slots=True)
class CapturesGraph(Promise):
    """The forward can be captured as a CUDA graph and replayed with new inputs."""

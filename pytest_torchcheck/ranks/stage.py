"""What a stage in a module of its own may ask of the rank that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

    from pytest_torchcheck.batches import Batch

    from .comparing import Gradients
    from .sending import Program


class Rank(Protocol):
    """One rank: its place in the group, the program that was sent to it, and what it has measured so far."""

    folder: Path
    rank: int
    world: int
    program: Program
    dtype: torch.dtype | None
    reference: Gradients

    def enter(self, stage: str) -> None:
        """Say that a stage begins."""

    def leave(self, **found: Any) -> None:
        """Leave what a stage found, as plain data."""

    def build(
        self, seed: int | None = None, *, double: bool = True, synchronised: bool = False
    ) -> nn.Module:
        """Build the model in training mode."""

    def batch(self, batch: Batch, *, double: bool = True) -> Batch:
        """Return a copy of a batch on the rank's device, in float64 unless ``double`` is False."""

    def wrap(self, model: nn.Module, *, unused: bool) -> nn.Module:
        """Wrap the model for the group."""

    def once(self, model: nn.Module, batch: Batch, scale: float = 1.0) -> Any:
        """Run forward, loss and backward, and return the output."""

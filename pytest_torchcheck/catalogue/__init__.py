"""The catalogue: what every check promises, needs and costs, without importing the functions that check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import gradients_and_losses, outputs, state_and_numbers, training_and_data
from .check import Check

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Check", "catalogue"]

_CATALOGUE: dict[str, Check] = {
    each.name: each
    for part in (gradients_and_losses, outputs, state_and_numbers, training_and_data)
    for each in part.CHECKS
}


def catalogue() -> Mapping[str, Check]:
    """Return every check by name, in the order in which they run."""
    return dict(_CATALOGUE)

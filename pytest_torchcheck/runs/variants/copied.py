"""A subject of another model, declared as the subject's own is."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from ...subject import Subject

if TYPE_CHECKING:
    from torch import nn


def of_model(subject: Subject, model: nn.Module) -> Subject:
    """Return a subject of a copy of the model, on the same device, dtype, batches and seed.

    Args:
        subject: Whose model was copied.
        model: The copy, with weights of its own.
    """
    contract = copy.copy(subject.contract)
    contract.model = model
    dtype = None if subject.dtype is None else str(subject.dtype).removeprefix("torch.")
    device, examples = str(subject.device), subject.examples
    made = Subject(contract, device=device, dtype=dtype, seed=subject.seed, examples=examples)
    if "rows" in subject.cache:  # they follow from the sizes, not from the weights
        made.cache["rows"] = subject.cache["rows"]
    return made

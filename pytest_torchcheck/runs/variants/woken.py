"""The model with other values in the weights that start at zero, for what they hide at first."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch

from ...explanation import listed
from ...objects import trees
from ...state import is_lazy
from ...subject import Subject
from ...subject.errors import SubjectError
from ...subject.remembered import remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from ...findings import Finding

_TINY = 1e-2
"""Largest value of a scale that starts so small that what it multiplies is hidden."""


def also_woken(
    subject: Subject, check: Callable[[Subject], Iterator[Finding]]
) -> Iterator[Finding]:
    """Run a check of a property that holds for all weights, and once more where some of them hide a part of the model.

    A head, a gate or a residual scale that starts at zero multiplies what stands before it by nothing: what
    mixes samples there, or draws, is not seen before the first steps. What the second run finds is told;
    what it could not do is not.

    Args:
        subject: The model as built.
        check: The check.
    """
    found = list(check(subject))
    held = all(f.status in ("passed", "inconclusive") for f in found)
    if not held or (other := woken(subject)) is None:
        yield from found
        return
    again, names = other
    try:
        more = [f for f in check(again) if f.status in ("violated", "suspicious")]
    except SubjectError:
        more = []  # the model as built runs: other weights are ours
    for finding in more:
        told = (
            f"{finding.because}; seen with other values in {listed(names, 3)}, which start at zero"
        )
        yield finding.replace(because=told)
    if not more:
        yield from found


def promise_woken(
    subject: Subject, check: Callable[..., Finding], *declared: Any
) -> Iterator[Finding]:
    """Do the same with a check that holds a subject to one promise.

    Args:
        subject: The model as built.
        check: Called with a subject and what is declared.
        declared: The promise.
    """

    def run(other: Subject) -> Iterator[Finding]:
        yield check(other, *declared)

    yield from also_woken(subject, run)


@remembered("woken")
def woken(subject: Subject) -> tuple[Subject, list[str]] | None:
    """Return a subject of a copy whose trainable weights that start at zero are drawn, and their names.

    None where no weight starts so, or where the model cannot be copied; cached.
    """
    names = hidden(subject)
    model = subject.copy_model() if names else None
    if model is None:
        return None
    _draw(model, names, subject.seed)
    contract = copy.copy(subject.contract)
    contract.model = model
    dtype = None if subject.dtype is None else str(subject.dtype).removeprefix("torch.")
    device, examples = str(subject.device), subject.examples
    made = Subject(contract, device=device, dtype=dtype, seed=subject.seed, examples=examples)
    if "rows" in subject.cache:  # they follow from the sizes, not from the weights
        made.cache["rows"] = subject.cache["rows"]
    return made, names


@remembered("hiding-weights")
def hidden(subject: Subject) -> list[str]:
    """Name the trainable weights that start at zero, or near it where they scale something; cached."""
    return [name for name, p in subject.model.named_parameters() if _hides(name, p)]


def _hides(name: str, parameter: nn.Parameter) -> bool:
    """Say whether what a parameter multiplies is hidden at first: a zero weight, or a scale that starts tiny."""
    plain = parameter.requires_grad and parameter.is_floating_point() and not is_lazy(parameter)
    if (
        not plain
        or not trees.computable(parameter.detach())
        or not parameter.numel()
        or name.endswith("bias")
    ):
        return False
    low, high = (float(v) for v in parameter.detach().aminmax())
    return low == high and abs(high) <= _TINY


def _draw(model: nn.Module, names: list[str], seed: int) -> None:
    """Draw matrices as layers are initialised, and scales around a half."""
    generator = torch.Generator().manual_seed(seed)
    known = dict(model.named_parameters())
    with torch.no_grad():
        for name in names:
            tensor = known[name]
            noise = torch.randn(tensor.shape, generator=generator).to(tensor)
            if tensor.dim() > 1:
                tensor.copy_(noise / math.sqrt(tensor.numel() / tensor.shape[0]))
            else:
                tensor.copy_(0.5 + 0.1 * noise)

"""The model with other weights: where they start at zero, and in float64 with all moved a little."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch

from ...explanation import listed
from ...objects import trees
from ...objects.kinds import here
from ...state import is_lazy
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from .copied import of_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from ...findings import Finding
    from ...subject import Subject

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
    return of_model(subject, model), names


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


_JITTER = 0.05  # of the root mean square of a parameter
_PART = 2**18  # elements of a large parameter that are moved at a time
_FROM_ZERO = 0.02  # of a parameter that is zero throughout


@contextlib.contextmanager
def jittered(subject: Subject, *, seed: int, frozen: bool = True) -> Iterator[nn.Module]:
    """Give the model in float64 with every parameter moved at random by a twentieth of its size.

    Zero-initialised heads and ties at the first weights are gone there. The pristine state comes
    back afterwards. Batches must be moved by ``batch.to(dtype=torch.float64)``; new tensors are
    float64 by default.

    Args:
        subject: Whose model.
        seed: Decides the directions.
        frozen: Whether parameters move that do not train.
    """
    # in_double puts back other storage; parameters in float64 already keep theirs
    wide = any(p.dtype in (torch.float64, torch.complex128) for p in subject.model.parameters())
    kept = subject.pristine(steps=True) if wide else contextlib.nullcontext()
    with kept, subject.in_double() as model:
        torch.set_default_dtype(torch.float64)
        jitter(model, seed=seed, frozen=frozen)
        yield model


@torch.no_grad()
def jitter(model: nn.Module, *, seed: int, frozen: bool = True) -> None:
    """Move every parameter, or every one that trains, at random by a twentieth of its size, alike in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in map(here, model.parameters()):
        if parameter.device.type == "meta" or not parameter.numel():
            continue
        if not (frozen or parameter.requires_grad):
            continue
        if parameter.is_floating_point() or parameter.is_complex():
            _move(parameter, generator)


def _move(parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Move one parameter at random; a large one by parts, so that no other tensor is as large as it is."""
    parts: list[torch.Tensor] = [parameter]
    if parameter.numel() > _PART and parameter.is_contiguous():
        size = float(torch.linalg.vector_norm(parameter.view(-1))) / math.sqrt(parameter.numel())
        parts = list(parameter.view(-1).split(_PART))
    else:
        size = float(torch.linalg.vector_norm(parameter)) / math.sqrt(parameter.numel())
    for part in parts:
        # numbers of float32 do, and cost a seventh
        narrow = torch.complex64 if part.is_complex() else torch.float32
        noise = torch.randn(part.shape, generator=generator, dtype=narrow).to(part.device)
        part.add_(noise, alpha=_JITTER * size or _FROM_ZERO)

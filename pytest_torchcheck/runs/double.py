"""The model in float64 with its weights moved a little: what holds there holds by structure."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ..subject import Subject

_JITTER = 0.05  # of the root mean square of a parameter
_PART = 2**18  # elements of a large parameter that are moved at a time
_FROM_ZERO = 0.02  # of a parameter that is zero throughout


@contextlib.contextmanager
def jittered(subject: Subject, *, seed: int) -> Iterator[nn.Module]:
    """Give the model in float64 with every parameter moved at random by a twentieth of its size.

    Zero-initialised heads and ties at the first weights are gone there. The pristine state comes
    back afterwards. Batches must be moved by ``batch.to(dtype=torch.float64)``; new tensors are
    float64 by default.

    Args:
        subject: Whose model.
        seed: Decides the directions.
    """
    # in_double puts back other storage; parameters in float64 already keep theirs
    wide = any(p.dtype in (torch.float64, torch.complex128) for p in subject.model.parameters())
    kept = subject.pristine(steps=True) if wide else contextlib.nullcontext()
    with kept, subject.in_double() as model:
        torch.set_default_dtype(torch.float64)
        jitter(model, seed=seed)
        yield model


@torch.no_grad()
def jitter(model: nn.Module, *, seed: int) -> None:
    """Move every parameter at random by a twentieth of its size, the same way in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.device.type == "meta" or not parameter.numel():
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

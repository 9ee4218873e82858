"""The gradients of a model's parameters as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ..objects import trees


@dataclass(frozen=True, slots=True, kw_only=True)
class GradStat:
    """What one parameter's gradient is like.

    Attributes:
        name: Qualified name, the first one of tied parameters.
        kind: ``none``; ``zero`` when every element is exactly 0; ``live`` otherwise.
        norm: Euclidean norm; NaN or infinite where the gradient is.
        finite: Whether every element is finite.
    """

    name: str
    kind: Literal["none", "zero", "live"]
    norm: float = 0.0
    finite: bool = True
    sparse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Evidence of one forward, loss and backward in training mode.

    Attributes:
        loss: Value of the scalar loss.
        connected: Whether the loss requires a gradient.
        stats: Of every parameter that requires a gradient, by name.
        outputs: Path, shape, dtype and ``requires_grad`` of every output tensor.
    """

    loss: float
    connected: bool
    stats: dict[str, GradStat]
    outputs: tuple[tuple[str, tuple[int, ...], str, bool], ...]

    def names(self, *kinds: str) -> list[str]:
        """Names of the parameters whose gradient is of these kinds."""
        return [stat.name for stat in self.stats.values() if stat.kind in kinds]

    @property
    def norm(self) -> float:
        """Norm over all parameters."""
        return math.sqrt(sum(stat.norm**2 for stat in self.stats.values()))


def clear_gradients(model: nn.Module) -> None:
    """Set every gradient to None, so that a stale one cannot pass for a new one."""
    for parameter in model.parameters():
        parameter.grad = None


def gradient_stats(model: nn.Module) -> dict[str, GradStat]:
    """Describe the gradient of every parameter that requires one and has elements."""
    named = {n: p.grad for n, p in model.named_parameters() if p.requires_grad and p.numel()}
    plain = {name: grad for name, grad in named.items() if grad is not None and _is_plain(grad)}
    norms = dict(zip(plain, _norms(list(plain.values())), strict=True))
    return {name: _stat(name, grad, norms.get(name)) for name, grad in named.items()}


def _is_plain(grad: torch.Tensor) -> bool:
    """Say whether the norm of a gradient may be computed together with those of others, with the same bits."""
    return (
        type(grad) is torch.Tensor
        and grad.layout == torch.strided
        and grad.device.type == "cpu"
        and grad.dtype in (torch.float32, torch.float64)
        and grad.is_contiguous()
        and not grad.is_neg()
    )


def _norms(grads: list[torch.Tensor]) -> list[float]:
    """Return the Euclidean norms of many gradients, by one call for each dtype."""
    found: dict[int, float] = {}
    for dtype in {grad.dtype for grad in grads}:
        same = [grad for grad in grads if grad.dtype == dtype]
        norms = torch.stack(torch._foreach_norm(same)).tolist()
        found |= {id(grad): norm for grad, norm in zip(same, norms, strict=True)}
    return [found[id(grad)] for grad in grads]


def _stat(name: str, grad: torch.Tensor | None, norm: float | None) -> GradStat:
    """Describe one gradient.

    Args:
        name: Of its parameter.
        grad: The gradient.
        norm: Its norm, where that is known.
    """
    if grad is None:
        return GradStat(name=name, kind="none")
    sparse = grad.layout != torch.strided
    if grad.device.type == "meta":
        return GradStat(name=name, kind="live", norm=float("nan"), sparse=sparse)
    if norm is not None and 0.0 < norm < math.inf:
        return GradStat(name=name, kind="live", norm=norm)
    values = grad.coalesce().values() if grad.layout == torch.sparse_coo else grad
    if norm is None:
        norm = float(torch.linalg.vector_norm(trees.dense(values).flatten(), dtype=_wide(values)))
    if norm == 0.0 and bool((values != 0).any()):
        norm = float(values.abs().max())  # the squares underflowed
    return GradStat(
        name=name,
        kind="zero" if norm == 0.0 else "live",
        norm=norm,
        finite=math.isfinite(norm) or bool(torch.isfinite(values).all()),
        sparse=sparse,
    )


def _wide(values: torch.Tensor) -> torch.dtype | None:
    return torch.float32 if values.dtype in (torch.float16, torch.bfloat16) else None

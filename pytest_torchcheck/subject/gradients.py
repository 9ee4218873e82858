"""The gradients of a model's parameters as numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ..declared.callables import loss_of
from ..lean import dataclass
from ..objects import trees

if TYPE_CHECKING:
    from collections.abc import Sequence


_PICKED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GradStat:
    """What one parameter's gradient is like.

    Attributes:
        name: Qualified name, the first one of tied parameters.
        kind: ``none``; ``zero`` when every element is exactly 0; ``live`` otherwise.
        norm: Euclidean norm; NaN or infinite where the gradient is.
        finite: Whether every element is finite.
        picked: Of a weight, some elements, divided by the norm: multiples of each other for two gradients
            along one line.
    """

    name: str
    kind: Literal["none", "zero", "live"]
    norm: float = 0.0
    finite: bool = True
    sparse: bool = False
    picked: tuple[float, ...] = ()


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
        return GradStat(name=name, kind="live", norm=norm, picked=_picked(grad, norm))
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


def _picked(grad: torch.Tensor, norm: float) -> tuple[float, ...]:
    """Return a few elements of a weight's gradient, none of a vector's or of a weight with fewer elements."""
    if grad.dim() < 2 or grad.numel() < _PICKED:
        return ()
    return tuple(x / norm for x in _some(grad))


def _some(tensor: torch.Tensor) -> list[float]:
    every = (tensor.numel() - 1) // (_PICKED - 1)
    found: list[float] = tensor.detach().view(-1)[::every][:_PICKED].tolist()
    return found


def _wide(values: torch.Tensor) -> torch.dtype | None:
    return torch.float32 if values.dtype in (torch.float16, torch.bfloat16) else None


def is_gone(gradient: torch.Tensor | None) -> bool:
    """Say whether a gradient is None or all zeros."""
    if gradient is None or gradient.is_meta:
        return gradient is None
    values = gradient.coalesce().values() if gradient.layout == torch.sparse_coo else gradient
    return not bool(torch.count_nonzero(values))


_WRITES = "loss-writes"


def loss_of_leaves(loss: Any, output: Any, targets: Any, known: dict[Any, Any]) -> Any:
    """Call a loss; where it writes to the output in place, which takes a leaf ill, on copies of the leaves.

    What a model returns is no leaf, and may be written to.

    Args:
        loss: The loss.
        output: What it is given; some checks give it leaves, whose gradient they ask for.
        targets: The targets.
        known: Keeps whether the loss is one of these.
    """
    if not known.get(_WRITES):
        try:
            return loss_of(loss, output, targets)
        except RuntimeError as error:
            if "leaf Variable that requires grad" not in str(error) or not _leaves(output):
                raise
        known[_WRITES] = True
    copies = {id(t): t.clone() for t in _leaves(output)}
    made = trees.substitute(output, copies) if copies and torch.is_grad_enabled() else None
    return loss_of(loss, output if made is None else made, targets)


def _leaves(output: Any) -> list[torch.Tensor]:
    return [
        t
        for t in trees.floats(output).values()
        if t.requires_grad and t.is_leaf and not isinstance(t, nn.Parameter)
    ]


class OneLine:
    """Follows which weights have a gradient along one line in every step, or along themselves, beside others.

    Args:
        model: Before the first step.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = {
            name: _some(p)
            for name, p in model.named_parameters()
            if p.requires_grad and p.dim() > 1 and p.numel() >= _PICKED and _is_plain(p.detach())
        }
        self._first: dict[str, tuple[float, ...]] = {}
        self._kept: set[str] = set()
        self._radial: set[str] = set()
        self._turned = False

    def look(self, stats: dict[str, GradStat]) -> None:
        """See the gradients of a step."""
        now = {name: stat.picked for name, stat in stats.items() if any(stat.picked)}
        if not self._first:
            self._first, self._kept = now, set(now)
            own = self._weights.keys() & now.keys()
            self._radial = {name for name in own if _like(self._weights[name], now[name])}
            return
        known = self._first.keys() & now.keys()
        kept = {name for name in self._kept & now.keys() if _like(self._first[name], now[name])}
        self._turned = self._turned or bool(known - kept)
        self._kept = kept

    @property
    def names(self) -> frozenset[str]:
        """The weights; none where all keep their line, as where nothing moves."""
        radial = self._radial if len(self._radial) < len(self._first) else set()
        return frozenset(radial | (self._kept if self._turned else set()))


def _like(one: Sequence[float], other: Sequence[float]) -> bool:
    """Say whether two selections are multiples of each other, up to what float32 rounds; one number alone is none."""
    most = max(range(len(one)), key=lambda i: abs(one[i]))
    if not one[most] or not other[most] or sum(map(bool, one)) < 2:
        return False
    scale = one[most] / other[most]
    return all(abs(a - scale * b) <= 1e-4 * abs(one[most]) for a, b in zip(one, other, strict=True))

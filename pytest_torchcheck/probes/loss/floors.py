"""The lowest value that a loss could take, read from the autograd graph of one evaluation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ...lean import dataclass

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.graph import Node

_SAME = (
    "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Permute", "Transpose", "T", "Alias",
    "Clone", "Index", "Select", "Slice", "Gather", "ToCopy", "Expand", "MaskedSelect", "IndexSelect",
    "Flatten", "Split", "Unbind",
)  # fmt: skip
"""Operations that move or pick elements and change none."""
_NOT_NEGATIVE = (
    "Abs", "Norm", "LinalgVectorNorm", "Exp", "Softplus", "Relu", "Sqrt", "MseLoss", "L1Loss",
    "SmoothL1Loss", "HuberLoss", "ClampMin",
)  # fmt: skip
_UNIT = ("Softmax", "Sigmoid")
_NLL = ("NllLoss", "NllLoss2D")
_LINEAR = (
    *_SAME, *_NLL, "LogSoftmax", "Stack", "Cat", "Neg", "Sum", "Mean", "KlDiv", "MaskedFill", "Add", "Sub", "Mul", "Div",
)  # fmt: skip
_DEPTH = 200


@dataclass(frozen=True, slots=True)
class _Range:
    """Bounds of every element, apart from log-softmax terms."""

    low: float
    high: float


_ANY = _Range(-math.inf, math.inf)
_NONE = _Range(0.0, 0.0)


class Floor:
    """The analytic floor of a loss: make it before the backward, read ``value`` after it.

    Terms that are linear in the result of a ``log_softmax`` (cross entropy with hard, soft,
    weighted or smoothed labels) have a floor that follows from their weights, which a hook sees in
    the backward: the lowest ``-sum(t * log p)`` over distributions ``p`` is the entropy of ``t``,
    scaled by its sum. Of other terms the bounds are followed through sums, means, products with
    constants, squares and torch's losses.

    Args:
        loss: A scalar that requires a gradient.
    """

    def __init__(self, loss: Tensor) -> None:
        self._entropies: dict[Node, float] = {}
        self._now: dict[Node, float] = {}
        self._uniform: dict[Node, float] = {}
        self._handles: list[Any] = []
        self._bounded, self._shift, self._linear = True, False, True
        self._loss = float(loss.detach())
        node = loss.grad_fn
        found = _ANY if node is None else self._bounds(node, linear=True, depth=0)
        self._rest = found.low
        if not math.isfinite(self._rest):
            self.release()

    @property
    def value(self) -> float | None:
        """The floor; None where it is not known, or where no backward has run."""
        if not math.isfinite(self._rest) or not self._bounded:
            return None
        if any(math.isnan(entropy) for entropy in self._entropies.values()):
            return None
        lowest = sum(self._entropies.values())
        if not self._shift:
            return self._rest + lowest
        # what is left of a linear loss is its constant
        return self._loss - sum(self._now.values()) + lowest if self._linear else None

    @property
    def uniform(self) -> float | None:
        """The lowest value for scores that are the same in every sample and position; None where it is not known.

        Who gets below it has scores that follow the inputs. It is the entropy of the labels of all samples together.
        """
        if self.value is None or not self._uniform:
            return None
        return self.value + sum(self._uniform.values()) - sum(self._entropies.values())

    def release(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _bounds(self, node: Node | None, *, linear: bool, depth: int) -> _Range:
        if node is None or depth > _DEPTH:
            return _ANY
        kind = _kind(node)
        parts = [following for following, _ in node.next_functions]

        def of(part: Node | None, *, straight: bool = linear) -> _Range:
            return self._bounds(part, linear=straight, depth=depth + 1)

        if kind not in _LINEAR:
            self._linear = False
        if kind in _NOT_NEGATIVE:
            return _Range(0.0, math.inf)
        if kind in _UNIT:
            return _Range(0.0, 1.0)
        if kind == "LogSoftmax":
            return self._logarithms(node) if linear else _Range(-math.inf, 0.0)
        if kind == "LogSigmoid":
            return _Range(-math.inf, 0.0)
        if kind == "Pow":
            return _power(node)
        if kind in _SAME or kind == "Neg":
            inner = of(parts[0])
            return inner if kind != "Neg" else _scaled(inner, -1.0, -1.0)
        if kind in ("Stack", "Cat"):
            inners = [of(part) for part in parts]
            return _Range(min(i.low for i in inners), max(i.high for i in inners))
        if kind in ("Sum", "Mean"):
            inner = of(parts[0])
            return inner if kind == "Mean" else _summed(inner)
        if kind in _NLL:
            # of what is no logarithm of probabilities nothing is known
            inner = of(parts[0])
            if inner == _NONE:
                return _NONE
            return _Range(-inner.high, math.inf) if inner.high <= 0 else _ANY
        if kind in ("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"):
            return _Range(_binary(node), math.inf)
        if kind == "KlDiv":
            # target * (log target - input): linear in the input, beside a constant
            return self._shifted(of(parts[0]))
        if kind == "MaskedFill":
            return self._shifted(of(parts[0]))
        if kind in ("Add", "Sub"):
            return self._added(node, kind, [of(part) for part in parts])
        if kind in ("Mul", "Div"):
            return _product(node, kind, parts, of)
        return _ANY

    def _added(self, node: Node, kind: str, terms: list[_Range]) -> _Range:
        if len(terms) != 2:
            return _ANY
        if any(following is None for following, _ in node.next_functions):
            return self._shifted(terms[0] if node.next_functions[0][0] is not None else terms[1])
        alpha = float(getattr(node, "_saved_alpha", 1) or 1) * (-1 if kind == "Sub" else 1)
        first, second = terms[0], _scaled(terms[1], alpha, alpha)
        return _Range(first.low + second.low, first.high + second.high)

    def _shifted(self, inner: _Range) -> _Range:
        """Return the bounds of a term with an unknown constant added."""
        self._shift = True
        return inner if inner == _NONE else _ANY

    def _logarithms(self, node: Node) -> _Range:
        if node not in self._entropies:
            self._entropies[node] = math.nan

            def see(gradients: tuple[Tensor | None, ...]) -> None:
                if gradients[0] is not None:
                    gradient = gradients[0].detach().to(torch.float64)
                    dim = int(getattr(node, "_saved_dim", -1))
                    self._entropies[node] = self._entropy(gradient, _dim(dim))
                    rest = [d for d in range(gradient.dim()) if d != _dim(dim) % gradient.dim()]
                    whole = gradient.sum(rest, keepdim=True) if rest else gradient
                    self._uniform[node] = self._entropy(whole, _dim(dim))
                    logarithms = node._saved_result.detach()  # type: ignore[attr-defined]
                    terms = (gradient * logarithms)[gradient != 0]
                    self._now[node] = float(terms.sum())

            self._handles.append(node.register_prehook(see))
        return _NONE

    def _entropy(self, gradient: Tensor, dim: int) -> float:
        """Return the lowest sum of ``gradient * log p`` over distributions ``p`` along ``dim``."""
        weights = -gradient
        slack = 1e-6 * float(weights.abs().max()) if weights.numel() else 0.0
        if bool((weights < -slack).any()):
            self._bounded = False
            return math.nan
        weights = weights.clamp_min(0)
        total = weights.sum(dim, keepdim=True)
        return float((torch.xlogy(weights, total) - torch.xlogy(weights, weights)).sum())


def _kind(node: Node) -> str:
    return node.name().rsplit("::", 1)[-1].rstrip("0123456789").removesuffix("Backward")


def _dim(saved: int) -> int:
    """Return a saved dimension, which is unsigned where it was negative."""
    return saved - 2**64 if saved >= 2**63 else saved


def _power(node: Node) -> _Range:
    exponent = getattr(node, "_saved_exponent", None)
    even = isinstance(exponent, int | float) and exponent % 2 == 0
    return _Range(0.0, math.inf) if even else _ANY


def _summed(inner: _Range) -> _Range:
    """Return the bounds of a sum of unknown length."""
    low = 0.0 if inner.low >= 0 else -math.inf
    return _Range(low, 0.0 if inner.high <= 0 else math.inf)


def _scaled(inner: _Range, low: float, high: float) -> _Range:
    """Return the bounds of a product with something between ``low`` and ``high``."""
    ends = [
        0.0 if bound == 0 or factor == 0 else bound * factor
        for bound in (inner.low, inner.high)
        for factor in (low, high)
    ]
    return _Range(min(ends), max(ends))


def _product(node: Node, kind: str, parts: list[Node | None], of: Any) -> _Range:
    live = [place for place, part in enumerate(parts) if part is not None]
    if len(live) == 2:
        first, second = (of(part, straight=False) for part in parts)
        if kind == "Mul" and first.low >= 0 and second.low >= 0:
            return _Range(0.0, math.inf)
        return _ANY
    if len(live) != 1 or (kind == "Div" and live[0] != 0):
        return _ANY
    constant = getattr(node, "_saved_self" if live[0] == 1 else "_saved_other", None)
    if isinstance(constant, int | float):
        low = high = float(constant)
    elif isinstance(constant, torch.Tensor) and constant.numel() and not constant.is_complex():
        low, high = float(constant.detach().min()), float(constant.detach().max())
    else:
        return _ANY
    if kind == "Div":
        if low <= 0 <= high:
            return _ANY
        low, high = min(1 / low, 1 / high), max(1 / low, 1 / high)
    return _scaled(of(parts[live[0]]), low, high)


def _reduced(node: Node, each: Tensor) -> float:
    """Reduce the floors of elements as the loss does; the lowest where it does not."""
    match int(getattr(node, "_saved_reduction", 1)):
        case 0:
            return float(each.min()) if each.numel() else 0.0
        case 1:
            return float(each.mean()) if each.numel() else 0.0
    return float(each.sum())


def _binary(node: Node) -> float:
    """Return the lowest binary cross entropy of the targets that a node has saved."""
    saved = getattr(node, "_saved_target", None)
    if not isinstance(saved, torch.Tensor):
        return -math.inf
    target = saved.detach().to(torch.float64)
    if bool(((target < 0) | (target > 1)).any()):
        return -math.inf
    positive = getattr(node, "_saved_pos_weight", None)
    up = target if positive is None else target * positive.detach().to(torch.float64)
    down = 1 - target
    both = up + down
    each = torch.xlogy(both, both) - torch.xlogy(up, up) - torch.xlogy(down, down)
    weight = getattr(node, "_saved_weight", None)
    if weight is not None:
        each = each * weight.detach().to(torch.float64)
    return _reduced(node, each)

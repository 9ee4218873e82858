"""Weights whose gradient points along one line whatever the data are: seen in the steps, then asked of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...objects import trees
from ...probes.loss.arguments import by_step
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from .steps import trajectory

if TYPE_CHECKING:
    from ...batches import Batch
    from ...subject import Subject

_LEAST = 4  # samples: two of them on each side
_LINE = 1e-4  # of the gradient: what is left of it beside the line
_NOISE = 0.3  # of an input's spread


@remembered("untaught")
def untaught(subject: Subject) -> tuple[str, ...]:
    """Name the weights that no data train; cached.

    The gradient of a weight that the data reach through one number only, such as its sum, is a multiple
    of one matrix, whatever the samples are. That of any other weight points elsewhere for other samples. Asked
    where the steps that were taken anyway show such a weight beside others: of each half of the batch, and of
    other inputs. Where these give nothing to compare, nothing is said.
    """
    left = set(trajectory(subject).one_line)
    few = subject.few(subject.batch(), _LEAST, aligned=True) if left else None
    if few is not None and _kept_in(subject, few, left) == ():
        return ()  # what some samples turn, more of them do not turn back
    return (_kept_in(subject, subject.batch(), left) if left else None) or ()


def _kept_in(subject: Subject, whole: Batch, left: set[str]) -> tuple[str, ...] | None:
    """Name those of some weights whose gradients stay along one line; None where there is nothing to compare.

    Args:
        subject: Whose step.
        whole: The batch whose halves are compared, and that with other inputs.
        left: The weights.
    """
    batches = _others(subject, whole)
    base = _gradients(subject, whole) if batches else {}
    turned = False
    for batch in batches if base else ():
        if not (other := _gradients(subject, batch)):
            return None
        both = base.keys() & other.keys()
        left = {n for n in left & both if _along(base[n], other[n])}
        if not left:  # further steps would tell nothing
            return ()
        turned = turned or any(not _along(base[n], other[n]) for n in both - left)
    return tuple(name for name in base if name in left) if turned else None


def _gradients(subject: Subject, batch: Batch) -> dict[str, torch.Tensor]:
    """Return the gradients that a step leaves, of weights, not of biases; empty where it raises."""
    try:
        if subject.contract.train_step is None:
            with subject.backward(batch):
                named = subject.named_parameters().items()
                return {n: p.grad.clone() for n, p in named if p.grad is not None and p.dim() > 1}
        look = by_step(subject, batch)
    except SubjectError:
        return {}
    found = {k.removeprefix("gradient "): t for k, t in look.items() if k.startswith("gradient ")}
    return {name: gradient for name, gradient in found.items() if gradient.dim() > 1}


def _others(subject: Subject, batch: Batch) -> list[Batch]:
    """Return both halves of the batch, each as often as fills it, and the batch with other numbers as inputs.

    Empty where the samples cannot be chosen, or where what is no number is the same for all of them: a weight
    that these select would get its gradient by them alone.
    """
    symbol = subject.source.batch_symbol
    size = 0 if symbol is None else batch.sizes.get(symbol, 0)
    axes = {} if symbol is None else subject.source.axes(symbol)
    inputs = {p: t for p, t in batch.input_leaves() if isinstance(t, torch.Tensor)}
    if size < _LEAST or not all(trees.computable(t) for t in inputs.values()):
        return []
    for path, tensor in inputs.items():
        if not tensor.is_floating_point() and path in axes:
            first = tensor.narrow(axes[path], 0, 1)
            if bool((tensor == first).all()):
                return []
    places = torch.arange(size)
    half = size // 2
    halves = [places % half, half + places % (size - half)]
    moved = batch.clone()
    generator = torch.Generator().manual_seed(0)
    for _, tensor in moved.input_leaves():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel():
            spread = float(tensor.std()) if tensor.numel() > 1 else 0.0
            noise = torch.randn(tensor.shape, generator=generator).to(tensor)
            with torch.no_grad():
                tensor.add_(noise * _NOISE * (spread or 1.0))
    return [*(subject.source.rows(batch, index) for index in halves), moved]


def _along(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two gradients are multiples of each other, and neither is zero."""
    a, b = (trees.dense(t).detach().double().flatten() for t in (one, other))
    length = float(a.norm())
    if not length or not float(b.norm()) or a.shape != b.shape:
        return False
    rest = b - a * (float(a @ b) / length**2)
    return float(rest.norm()) <= _LINE * float(b.norm())

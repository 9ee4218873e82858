"""Outputs and steps in half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..objects import trees
from ..state import seed_everything
from ..text.printable import message_of

if TYPE_CHECKING:
    from ..batches import Batch
    from ..subject import Subject
    from .outputs import Outputs

_NO_KERNEL = (
    "not implemented for 'Half'",
    "not implemented for 'BFloat16'",
    "not implemented for 'ComplexHalf'",
)


def evaluate(subject: Subject, model: torch.nn.Module, batch: Batch) -> Outputs:
    """Return the floating outputs of a model in eval mode, detached."""
    model.eval()
    with torch.no_grad():
        return {
            path: trees.dense(t) for path, t in trees.floats(subject.call(model, batch)).items()
        }


def step_in(subject: Subject, model: torch.nn.Module, batch: Batch) -> bool:
    """Say whether a training step of this model makes NaN or infinity."""
    model.train()
    for parameter in model.parameters():
        parameter.grad = None
    loss = subject.compute_loss(subject.call(model, batch), batch)
    if loss.requires_grad:
        with subject.phase("backward", batch):
            loss.sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return not all(bool(torch.isfinite(trees.dense(t)).all()) for t in (loss.detach(), *grads))


def breaks(tensor: torch.Tensor, exact: torch.Tensor | None) -> bool:
    """Say whether an output is not finite where the exact one is: a mask's -inf is meant."""
    bad = ~torch.isfinite(tensor)
    if exact is not None and exact.shape == tensor.shape:
        bad &= torch.isfinite(exact)
    return bool(bad.any())


def no_kernel(error: BaseException) -> bool:
    """Say whether an error only means that this device has no kernel for a low-precision dtype."""
    return any(text in message_of(error) for text in _NO_KERNEL)


LOST = 0.5  # relative error of a low-precision output in which no digit is right


SENSITIVE = 30.0


def rounded(subject: Subject, model: torch.nn.Module, batch: Batch, exact: Outputs) -> float:
    """Return how far random rounding of the weights moves the outputs, the largest of three draws."""
    assert subject.dtype is not None
    eps = torch.finfo(subject.dtype).eps
    generator = torch.Generator().manual_seed(subject.seed)
    weights = [(p, p.detach().clone()) for p in model.parameters() if p.is_floating_point()]
    largest = 0.0
    for _ in range(3):
        with torch.no_grad():
            for parameter, value in weights:
                noise = torch.randn(value.shape, generator=generator, dtype=value.dtype).to(
                    value.device
                )
                parameter.copy_(value * (1 + eps * noise))
        seed_everything(subject.seed)
        for path, tensor in evaluate(subject, model, batch.clone()).items():
            if path in exact and exact[path].shape == tensor.shape:
                largest = max(
                    largest, trees.worst(tensor, exact[path]) / max(trees.scale(exact[path]), 1e-30)
                )
    return largest

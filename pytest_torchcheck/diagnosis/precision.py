"""Runs in low precision: what overflows, what loses its digits, measured against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import sources, trees
from ..findings import Culprit, Finding
from ..printable import message_of
from ..state import seed_everything
from ..verdicts import passed, suspicious, violated
from .numerics import Outputs, culprits_of, in_double, overflowing, place_of

if TYPE_CHECKING:
    from ..batches import Batch
    from ..probes.finiteness import NonFinite
    from ..subject import Subject

_NO_KERNEL = (
    "not implemented for 'Half'",
    "not implemented for 'BFloat16'",
    "not implemented for 'ComplexHalf'",
)
_LOST = 0.5  # relative error of a low-precision output in which no digit is right


_SENSITIVE = 30.0


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


def accuracy(subject: Subject, dtype: str, outputs: Outputs, exact: Outputs) -> Finding:
    """Compare the error with what rounding the weights and inputs alone does in float64."""
    errors = {
        path: trees.worst(
            outputs[path].nan_to_num(posinf=0, neginf=0), tensor.nan_to_num(posinf=0, neginf=0)
        )
        / max(trees.scale(tensor), 1e-30)
        for path, tensor in exact.items()
        if path in outputs and outputs[path].shape == tensor.shape
    }
    if not errors:
        return passed(f"outputs, loss and gradients are finite in {dtype}")
    path = max(errors, key=lambda key: errors[key])
    worst = errors[path]
    evidence: dict[str, Any] = {"relative_error": errors}
    if worst < _LOST:
        return passed(
            f"finite in {dtype}; relative error at most {worst:.2g}, in {path}", evidence=evidence
        )
    noise = in_double(subject, lambda model, batch: rounded(subject, model, batch, exact))
    if noise is None or worst < _SENSITIVE * noise:
        return passed(
            f"finite in {dtype}; relative error {worst:.2g} in {path}, as far as rounding the weights alone moves it",
            evidence=evidence,
        )
    if (found := overflowing(subject, subject.batch())) is not None:
        return overflow(subject, dtype, path, found, train=False, error=worst)
    return suspicious(
        "precision-lost",
        f"{path} has no correct digit in {dtype}",
        culprits=[Culprit(kind="output", name=path, detail=f"relative error {worst:.2g}")],
        location=sources.of_object(type(subject.model).forward),
        observed=f"relative error {worst:.2g} against float64; rounding weights and inputs to {dtype} alone moves it by {noise:.2g}",
        cause=f"an intermediate result loses its digits in {dtype} (a long sum, a difference of large numbers, a counter)",
        because=f"the error is {worst / max(noise, 1e-30):.3g} times what rounding the weights does",
        fix="compute sums, means, norms and positions in float32",
        evidence=evidence,
    )


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


def no_kernel(error: BaseException) -> bool:
    """Say whether an error only means that this device has no kernel for a low-precision dtype."""
    return any(text in message_of(error) for text in _NO_KERNEL)


def overflow(
    subject: Subject,
    dtype: str,
    what: str,
    found: NonFinite | None,
    *,
    train: bool,
    error: float | None = None,
) -> Finding:
    """Explain a low-precision run whose values leave the range of the dtype.

    Args:
        subject: In low precision.
        dtype: Its name.
        what: The output, loss or gradient that shows it.
        found: The operation to blame.
        train: The mode of the run.
        error: Relative error of ``what``, where it is finite again.
    """
    op, place = place_of(found)
    limit = torch.finfo(getattr(torch, dtype)).max
    backward = found is not None and found.phase == "backward"
    then = (
        f"; {found.then} then makes it NaN" if found is not None and found.then is not None else ""
    )
    return violated(
        "precision-overflow",
        (f"{what} is not finite" if error is None else f"{what} has no correct digit")
        + f" in {dtype}: {op} "
        + ("overflows" if found is not None and found.kind == "inf" else "makes the first NaN")
        + (" in the backward" if backward else ""),
        culprits=culprits_of(found, ()),
        location=place,
        observed=f"{what} holds NaN or infinity in {dtype} ({'training' if train else 'eval'} mode), and none in float64 with "
        "the same weights"
        if error is None
        else f"relative error {error:.2g} against float64; an infinity on the way is divided by, so that the output is finite",
        cause=f"{dtype} holds magnitudes up to {limit:g}, and {op} goes beyond, or divides by what it rounds to 0",
        because=(found.fact + then) if found is not None else "the same step in float64 is finite",
        fix=f"compute this operation in float32{f', line {place.line}' if place else ''}, or scale its input down",
        evidence={"result": found.result, "kernel": found.kernel, "count": found.count}
        if found is not None
        else {},
    )

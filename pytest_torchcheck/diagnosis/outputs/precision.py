"""Runs in low precision: what overflows, what loses its digits, measured against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Finding
from ...verdicts import suspicious, violated
from .numerics import culprits_of, overflowing, place_of

if TYPE_CHECKING:
    from ...probes.numbers.nonfinite import NonFinite
    from ...subject import Subject


def digits_lost(
    subject: Subject, dtype: str, path: str, *, worst: float, noise: float, evidence: dict[str, Any]
) -> Finding:
    """Explain an output in which no digit is right, though rounding the weights alone moves it far less."""
    if (found := overflowing(subject, subject.batch())) is not None:
        return overflow(subject, dtype, path, found, train=False, error=worst)
    return suspicious(
        "precision-lost",
        f"{path} has no correct digit in {dtype}",
        culprits=[Culprit("output", path, f"relative error {worst:.2g}")],
        location=sources.of_object(type(subject.model).forward),
        observed=f"relative error {worst:.2g} against float64; rounding only weights and inputs "
        f"to {dtype} changes it by {noise:.2g}",
        cause=f"an intermediate result loses its digits in {dtype} (a long sum, a difference of "
        "large numbers, a counter)",
        because=f"the error is {worst / max(noise, 1e-30):.3g} times that of rounding the weights",
        fix="compute sums, means, norms and positions in float32",
        evidence=evidence,
    )


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
        observed=f"{what} holds NaN or inf in {dtype} ({'training' if train else 'eval'} mode), but "
        "not in float64 with the same weights"
        if error is None
        else (
            f"relative error {error:.2g} against float64; an intermediate value is inf, and "
            "dividing by it makes the output finite"
        ),
        cause=f"{dtype} holds magnitudes up to {limit:g}, and {op} exceeds it, or divides by a "
        "value rounded to 0",
        because=(found.fact + then) if found is not None else "the same step in float64 is finite",
        fix=f"compute this operation in float32{f', line {place.line}' if place else ''}, or scale its input down",
        evidence={"result": found.result, "kernel": found.kernel, "count": found.count}
        if found is not None
        else {},
    )

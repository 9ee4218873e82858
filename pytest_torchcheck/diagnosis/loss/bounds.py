"""A loss that has no lowest value, explained."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...findings import Culprit, Finding
from ...probes.recorded.operations import aligned, record
from ...verdicts import violated
from .consumed import loss_line

if TYPE_CHECKING:
    from ...findings import Location
    from ...probes.loss.slopes import LossOfOutput
    from ...probes.recorded.operations import Trace
    from ...probes.recorded.watch import Op
    from ...subject import Subject


def unbounded(
    subject: Subject,
    loss: LossOfOutput,
    path: str,
    part: tuple[int, int] | None,
    sign: float,
    lowest: float,
    passed: tuple[Location, ...],
) -> Finding:
    """Explain a loss that falls without end as one output grows.

    Args:
        subject: Whose loss.
        loss: The loss as a function of the output.
        path: Of the output.
        part: A dimension of it and a place there, or all of it.
        sign: Which way it grows.
        lowest: The loss with the output's bias shifted by 1000.
        passed: Lines of clamps without effect, which were left out for that.
    """
    term = _falling_term(loss, path, part, sign)
    place = (term.location if term is not None else None) or loss_line(subject)
    way = "+inf" if sign > 0 else "-inf"
    name = path if part is None else f"{path}[{', '.join([':'] * part[0] + [str(part[1])])}]"
    without = f", and without the clamp on line {passed[-1].line}" if passed else ""
    return violated(
        "loss-unbounded",
        f"the loss falls without end as {name} goes to {way}",
        culprits=[
            Culprit(kind="output", name=name, detail=f"goes to {way}", location=place),
            Culprit(kind="loss", name="loss", detail="has no lowest value", location=place),
        ],
        observed=f"with {name} shifted by {sign * 1e3:g}{without}, the loss of a training forward is {lowest:.4g}",
        cause=f"a term in {name} has the wrong sign: it rewards what it should limit",
        because=f"the loss falls by as much for any targets when {name} is shifted that way",
        fix="compare the signs on this line with the formula; a KL divergence to a standard normal is "
        "0.5 * (exp(log_var) + mean**2 - 1 - log_var), a Gaussian likelihood "
        "0.5 * (log_var + (target - mean)**2 / exp(log_var))",
    )


def _falling_term(
    loss: LossOfOutput, path: str, part: tuple[int, int] | None, sign: float
) -> Op | None:
    """Return the last operation on single elements that falls with the output: the term as it is summed."""

    def traced(by: float) -> Trace:
        return record(lambda: loss.shifted(path, by, part).run()[0])

    def form(shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape without the dimension that a loss may divide into several quantities."""
        return shape if part is None else (*shape[: part[0]], *shape[part[0] + 1 :])

    first, then = traced(0.0), traced(sign * 1e3)
    shape = tuple(loss.outputs[path].shape)
    term = None
    for a, b in aligned(first, then):
        if a is None or b is None:
            continue
        for one, two in zip(a.results, b.results, strict=True):
            before, after = first.values[one], then.values[two]
            if len(before.shape) != len(shape) or form(before.shape) != form(shape):
                continue
            if before.values is None or after.values is None:
                continue
            if float((after.values - before.values).sum()) < -math.prod(form(shape)):
                term = a.op
    return term

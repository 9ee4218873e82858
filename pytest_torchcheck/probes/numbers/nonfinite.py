"""What made a number that is not finite, and which tensors hold one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..recorded.watch import Op, readable

if TYPE_CHECKING:
    from torch import Tensor

    from ...findings import Location


Origin = Literal["computed", "constant", "given", "uninitialised"]
"""Where a non-finite number comes from: ``computed`` by an operation on finite ones (or on infinities
written on purpose); ``constant`` written on purpose, as a mask's -inf; ``given`` with an input,
parameter or
buffer; ``uninitialised`` memory of ``torch.empty`` that was never written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """The operation at which numbers stop being finite.

    Attributes:
        kind: What it made.
        phase: Whether it ran in the forward or in the backward.
        origin: See :data:`Origin`.
        op: The operation; in the backward the forward operation whose gradient it computes.
        location: The user's line of ``op``.
        module: Qualified name of the module in whose forward it runs.
        kernel: The operator below it, such as ``aten.div`` in the backward of a square root.
        fact: What it was given, as a clause: ``sqrt of 0 in 3 of 8 elements``.
        result: Dtype and shape of what it made, such as ``float16 [8, 7, 24]``.
        count: How many elements of it are not finite.
        upward: Whether an infinity of plus is among it.
        then: Where an infinity became the NaN that was seen, the operation that did this.
        written: Where an infinity that was written on purpose, or given, became the NaN (``0 *
            inf``; a row of nothing but -inf), the event that brought it in.
        hidden: Where only gradients are not finite: the forward operation that dropped what ``op``
            gave, so that the outputs are finite (``torch.where``, a mask, an index).
    """

    kind: Literal["nan", "inf"]
    phase: Literal["forward", "backward"]
    origin: Origin
    op: Op
    location: Location | None
    module: str
    kernel: str
    fact: str
    result: str
    count: int
    upward: bool = False
    then: Op | None = None
    written: NonFinite | None = None
    hidden: Op | None = None


def readable_values(tensor: Tensor) -> bool:
    """Say whether a tensor has floating numbers that can be looked at."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and readable(tensor)
        and tensor.numel() > 0
    )


def any_nonfinite(tensors: list[Tensor]) -> bool:
    """Say whether one of these tensors holds a NaN or an infinity."""
    return any(holds_nonfinite(tensor) for tensor in tensors)


def holds_nonfinite(tensor: Tensor) -> bool:
    """Say whether a tensor can be read and holds a NaN or an infinity."""
    return readable_values(tensor) and not bool(tensor.detach().isfinite().all())

"""Samples that meet in the grid of a rounding only: one quantisation scale for all of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ..probes.recorded.watch import name_of
from ..record.modes import Observer
from ..subject.errors import SubjectError
from .outputs import gaps_between, outputs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..batches import Batch
    from ..subject import Subject
    from .outputs import Rows

_ROUNDING: Final = frozenset({"round", "floor", "ceil", "trunc", "fix"})
_FAKED: Final = "fake_quantize_per_"
_CASTS: Final = frozenset({"char", "byte", "short", "int"})
_WHOLE: Final = (torch.int8, torch.uint8, torch.int16, torch.int32)
_SAME: Final = 1e-5
"""Relative difference that float32 leaves where values are divided by a scale and multiplied by it again."""


class Unrounded(Observer):
    """Leave out what rounds: values go on as they are.

    Attributes:
        left_out: How many calls.
    """

    def __init__(self) -> None:
        self.left_out = 0

    def around(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        """Return the first operand of what rounds it; run everything else."""
        bare = name_of(func).rpartition(".")[2].rstrip("_")
        if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
            return func(*args, **kwargs)
        whole = bare == "to" and any(v in _WHOLE for v in (*args[1:], *kwargs.values()))
        if bare in _ROUNDING or bare in _CASTS or bare.startswith(_FAKED) or whole:
            self.left_out += 1
            return args[0]
        return func(*args, **kwargs)


def apart_by_rounding(
    subject: Subject, first: Batch, second: Batch, rows: Rows, of_first: torch.Tensor, of_second: torch.Tensor
) -> bool:  # fmt: skip
    """Say whether samples of two batches that differ are the same where nothing is rounded.

    Args:
        subject: The model; it runs once for each batch.
        first: A batch.
        second: Another one.
        rows: Where the samples stand in the outputs.
        of_first: int64 ``[n]``, samples of the first batch.
        of_second: int64 ``[n]``, those of the second that they are compared with.
    """
    unrounded = Unrounded()
    try:
        with subject.pristine() as model, unrounded:
            mine = outputs_of(subject, model, first)
        with subject.pristine() as model, unrounded:
            theirs = outputs_of(subject, model, second)
    except SubjectError:
        return False
    gaps = gaps_between(mine, theirs, rows, of_first, of_second)
    return unrounded.left_out > 0 and all(gap <= _SAME for gap in gaps.values())

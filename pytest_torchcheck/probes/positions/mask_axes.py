"""A padding mask that is laid along the queries of an attention instead of its keys: where, and at which line it is laid so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..recorded.watch import Watch, name_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from ...findings import Location

_COMPARISONS = frozenset(
    {"eq", "ne", "lt", "gt", "le", "ge", "__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidMask:
    """A mask that meets scores of every query and key.

    Attributes:
        shape: Of the mask as it meets them; its last size is 1.
        scores: Their shape, ``[..., queries, keys]``.
        op: The operation at which they meet.
        location: The line that gave the mask its dimensions.
        met: The line at which they meet.
    """

    shape: tuple[int, ...]
    scores: tuple[int, ...]
    op: str
    location: Location | None
    met: Location | None


def find_query_mask(
    run: Callable[[], object], module: nn.Module, masks: Iterable[Tensor], length: int
) -> LaidMask | None:
    """Find a padding mask that hides queries instead of keys.

    Args:
        run: One forward.
        module: The model.
        masks: The mask inputs that the forward gets; what compares integers counts as one too.
        length: Number of positions: of the scores' last two sizes.

    Returns:
        The first one; None where there is none, or where another mask hides keys.
    """
    watch = _MaskWatch(module, masks, length)
    with torch.no_grad(), watch:
        run()
    return None if watch.hides_keys else watch.found


class _MaskWatch(Watch):
    """Follows what is computed of masks alone, and looks where it meets anything else."""

    def __init__(self, module: nn.Module, masks: Iterable[Tensor], length: int) -> None:
        super().__init__(module)
        self.found: LaidMask | None = None
        self.hides_keys = False
        self._length = length
        # by id, which the tensor beside it keeps from being used again
        self._laid: dict[int, tuple[Tensor, Location | None]] = {id(m): (m, None) for m in masks}

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Mark what comes of masks alone, and compare shapes where a mask meets floats."""
        given = list(tensors_in((args, kwargs)))
        laid = [self._laid[id(tensor)] for tensor in given if id(tensor) in self._laid]
        others = [tensor for tensor in given if id(tensor) not in self._laid and tensor.dim()]
        name = name_of(func)
        if not laid:
            if name.rpartition(".")[2] in _COMPARISONS and not any(
                t.is_floating_point() for t in given
            ):
                self._mark(result, self.locate())
            return
        scores = [t for t in others if t.is_floating_point()]
        if not scores:
            mask, line = laid[0]
            same = all(t.shape == mask.shape for t in tensors_in(result))
            self._mark(result, line if same and line is not None else self.locate())
            return
        for mask, line in laid:
            for score in scores:
                size = self._length
                if size < 2 or score.dim() < 3 or tuple(score.shape[-2:]) != (size, size):
                    continue
                last = tuple(mask.shape[-2:])
                self.hides_keys |= bool(last) and last[-1] == size
                if self.found is None and last == (size, 1):
                    self.found = LaidMask(
                        shape=tuple(mask.shape),
                        scores=tuple(score.shape),
                        op=name,
                        location=line,
                        met=self.locate(),
                    )

    def _mark(self, result: Any, line: Location | None) -> None:
        for tensor in tensors_in(result):
            self._laid[id(tensor)] = (tensor, line)

"""The lines of a collate function that make the fields of its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...objects import trees
from ...probes.recorded.watch import Watch
from .pairing import collated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...findings import Location
    from ..plan import Part


def making_lines(
    part: Part, chosen: Sequence[int], seed: int, fields: Sequence[torch.Tensor], *, batch: int = 0
) -> list[Location | None]:
    """Collate samples once more; return the line that first makes each of some tensors, by their values.

    Args:
        part: A dataset and how it is read.
        chosen, seed, batch: Those with which the fields came out.
        fields: Of the batch.
    """
    watch = _Making(fields)

    def run(collate: Callable[[Any], Any], samples: Any) -> Any:
        with watch:
            return collate(samples)

    collated(part, chosen, seed, run, batch=batch)
    return [watch.lines.get(place) for place in range(len(fields))]


class _Making(Watch):
    def __init__(self, fields: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._fields = fields
        self.lines: dict[int, Location | None] = {}

    def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
        """Note the line whose result is one of the tensors."""
        for place, field in enumerate(self._fields):
            if isinstance(result, torch.Tensor) and trees.same(result.detach(), field):
                self.lines.setdefault(place, self.locate())

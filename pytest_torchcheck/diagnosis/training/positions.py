"""Which module counts positions, in a model whose output does not follow their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit
from ...probes.recorded.watch import Watch, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...batches import Batch
    from ...findings import Location
    from ...subject import Subject


class _Counting(Watch):
    """Notes the calls of ``torch.arange``: the module, its line, the line that calls it, and how many numbers it counts."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.found: list[tuple[str, Location | None, Location | None, int]] = []

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Note a call."""
        if name_of(func) != "torch.arange" or not self.scopes or not self.scopes[-1].name:
            return
        own = [f for f in self.frames() if sources.rank(f.f_code.co_filename)]
        caller = sources.of_frame(own[1]) if len(own) > 1 else None
        self.found.append((self.scopes[-1].name, self.locate(), caller, len(result)))


def order_unseen(subject: Subject) -> tuple[list[Culprit], str] | None:
    """Say which module counts other positions than those in which the samples differ.

    Only where the samples of the base batch are rearrangements of each other along one dimension.

    Returns:
        The culprits, the line that calls the module first, and the fact; None where this is not the case.
    """
    length = _rearranged(subject, subject.batch())
    if length is None:
        return None
    with (
        subject.pristine(train=False, seeded=True) as model,
        torch.no_grad(),
        _Counting(model) as watch,
    ):
        subject.call(model, subject.batch().clone())
    other = [one for one in watch.found if one[3] != length]
    if not other or len(other) != len(watch.found):
        return None
    name, place, caller, count = other[0]
    called = [] if caller is None else [Culprit("call", name, "is called here", caller)]  # fmt: skip
    counted = Culprit("module", name, f"counts {count} positions", place)
    return [*called, counted], f"{name} counts {count} positions, and the samples have {length}"


def _rearranged(subject: Subject, batch: Batch) -> int | None:
    """Return the length of the dimension along which all samples hold the same values in another order."""
    axes = subject.source.axes(subject.source.batch_symbol or "")
    for path, leaf in batch.input_leaves():
        if path not in axes or not isinstance(leaf, torch.Tensor) or leaf.dim() < 2:
            continue
        values = leaf.detach().movedim(axes[path], 0)
        ordered = values.sort(dim=1).values
        if values.shape[1] > 1 and torch.equal(ordered, ordered[:1].expand_as(ordered)):
            return int(values.shape[1])
    return None

"""The lines that shift targets against outputs, by leaving out the first ones, or take them in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...probes.recorded.watch import Watch, storage_of
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...verdicts import violated

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...findings import Location
    from ...probes.loss.regrouping import Regrouped
    from ...subject import Subject


class _Shifts(Watch):
    """Finds the calls that give a part of a tensor which begins later than the part that they were given."""

    def __init__(self, shifted: torch.Tensor) -> None:
        super().__init__()
        self._storage = storage_of(shifted)
        self.lines: dict[Location, None] = {}

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See one call."""
        given = args[0] if args else None
        if not isinstance(given, torch.Tensor) or not isinstance(result, torch.Tensor):
            return
        if self._storage is None or {storage_of(given), storage_of(result)} != {self._storage}:
            return
        later = result.storage_offset() > given.storage_offset() and result.dim() == given.dim()
        if later and (line := self.locate()) is not None:
            self.lines[line] = None


def shifting_lines(subject: Subject, path: str) -> list[Location]:
    """Return the user's lines at which a forward and its loss leave out the first targets, in their order.

    A target that is copied before it is shifted is not followed.

    Args:
        subject: Whose loss.
        path: Of the targets.
    """
    batch = subject.batch().clone()
    target = batch.tensors().get(path)
    if not isinstance(target, torch.Tensor):
        return []
    watch = _Shifts(target)
    with subject.pristine(train=True) as model, torch.no_grad():
        seed_everything(subject.seed)
        try:
            with watch:
                subject.compute_loss(subject.call(model, batch), batch)
        except SubjectError:
            return []
    return list(watch.lines)


def regrouped(seen: Regrouped) -> Finding:
    """Explain a step that mixes samples with others of the batch, and their targets with those of still others."""
    one, two = seen.inputs, seen.targets
    name = "" if two.location is None else sources.assigned_name(two.location)
    return violated(
        "target-of-another-sample",
        "the training step takes inputs and targets of the batch in two different orders",
        location=two.location,
        culprits=[
            Culprit("call", name or two.name, "takes targets in an order of its own", two.location),
            Culprit("call", one.name, "takes inputs in another order", one.location),
        ],
        observed=f"the orders name different samples at {seen.apart} of {seen.size} places",
        cause=f"the targets are taken in another order{on_line(two.location)} than the inputs{on_line(one.location)}",
        because=f"{one.name} put inputs of the batch in one order, {two.name} its targets in another, and neither "
        "takes both in the same",
        fix=f"draw one order, and index inputs and targets with it{on_line(two.location)}",
    )

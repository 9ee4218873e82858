"""The operations of one run as plain data, and the first of them whose result the other version does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ..findings import Location
from ..objects import trees
from ..probes.positions.spread import origin
from ..probes.recorded.operations import Snapshot, Step, Trace, differing, record
from ..probes.recorded.watch import Op
from ..subject.errors import SubjectError
from .running import Way, batch_for, line_of, prepared
from .sketch import without_fill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..batches import Batch
    from ..subject import Subject
    from .running import Load

LIMIT_BYTES: Final = 256 * 2**20


def trace(subject: Subject, batch: Batch, load: Load, way: Way, *, seed: int) -> Trace:
    """Record forward and loss of a run; what it returns is its output, then the loss where there is one."""
    with prepared(subject, load, way, seed) as model:
        own = batch_for(batch, way)

        def passes() -> Any:
            output = subject.call(model, own)
            if subject.contract.loss is None:
                return output
            try:
                return output, subject.compute_loss(output, own)
            except SubjectError:
                return output

        return record(passes, model, limit_bytes=LIMIT_BYTES)


def plain_trace(found: Trace) -> dict[str, Any]:
    """Return a trace as what ``torch.load`` reads with ``weights_only=True``."""
    return {
        "steps": [
            {
                "name": step.op.name, "module": step.op.module, "class": step.op.module_class,
                "line": line_of(step.op.location), "operands": list(step.operands),
                "results": list(step.results), "numbers": [float(n) for n in step.numbers],
            }
            for step in found.steps
        ],
        "values": [
            {"shape": list(one.shape), "dtype": str(one.dtype), "values": one.values}
            for one in found.values
        ],
        "outputs": list(found.outputs),
    }  # fmt: skip


def trace_of_plain(data: Mapping[str, Any]) -> Trace:
    """Rebuild a trace from :func:`plain_trace`."""
    made = Trace(
        values=[
            Snapshot(
                tuple(one["shape"]),
                getattr(torch, one["dtype"].removeprefix("torch.")),
                one["values"],
            )
            for one in data["values"]
        ],
        outputs=tuple(data["outputs"]),
    )
    for index, one in enumerate(data["steps"]):
        place = None if one["line"] is None else Location(**one["line"])
        op = Op(
            index=index, name=one["name"], location=place, module=one["module"],
            module_class=one["class"],
        )  # fmt: skip
        step = Step(op, tuple(one["operands"]), tuple(one["results"]), tuple(one["numbers"]))
        made.steps.append(step)
        made.makers.update(dict.fromkeys(step.results, step))
    return made


def parting(mine: Trace, other: Trace, allowed: float) -> Step | None:
    """Find the operation of a run that makes what the other run does not have, on the way to an output.

    Operations are not paired, since a refactoring changes them: a value counts as the same where
    the other run has one of equal elements, in any shape and order. A detour that leads to the same
    value is no parting.

    Args:
        mine: The run that is searched.
        other: The other version's run on the same weights, inputs and random state.
        allowed: Relative difference that is rounding.
    """
    known = _Values(other, allowed)

    def unlike(place: int) -> bool:
        return not known.has(mine.values[place])

    starts = [place for place in mine.outputs if unlike(place)]
    for start in starts:
        step, _ = origin(mine, start, unlike)
        if step is not None:
            return step
    return None


class _Values:
    """What a run had, to be asked for equal elements."""

    def __init__(self, found: Trace, allowed: float) -> None:
        self.allowed = allowed
        self._by_size: dict[int, list[tuple[tuple[float, ...], Snapshot]]] = {}
        for snapshot in found.values:
            if snapshot.values is not None:
                entry = (_signature(snapshot.values), snapshot)
                self._by_size.setdefault(snapshot.values.numel(), []).append(entry)

    def has(self, wanted: Snapshot) -> bool:
        """Say whether some value has the same elements; True where nothing was kept to compare."""
        if wanted.values is None:
            return True
        mine = _signature(wanted.values)
        for signature, other in self._by_size.get(wanted.values.numel(), []):
            if not _near(mine, signature, self.allowed):
                continue
            assert other.values is not None
            if other.shape != wanted.shape or not bool(
                differing(wanted.values, other.values, self.allowed).any()
            ):
                return True
        return False


def _signature(values: torch.Tensor) -> tuple[float, ...]:
    """Return numbers that do not depend on shape and order: how many are finite, their norm, their sum and extremes."""
    dense = without_fill(trees.dense(values))
    flat = (torch.view_as_real(dense) if dense.is_complex() else dense).reshape(-1).double()
    finite = flat[flat.isfinite()]
    if not finite.numel():
        return (0.0, 0.0, 0.0, 0.0, 0.0)
    norm = float(torch.linalg.vector_norm(finite))
    ends = float(finite.min()), float(finite.max())
    return (float(finite.numel()), norm, float(finite.sum()), *ends)


def _near(one: tuple[float, ...], two: tuple[float, ...], allowed: float) -> bool:
    if one[0] != two[0]:
        return False
    scale = max(one[1], two[1]) * max(one[0], 1.0) ** 0.5
    return all(abs(a - b) <= allowed * scale for a, b in zip(one[1:], two[1:], strict=True))

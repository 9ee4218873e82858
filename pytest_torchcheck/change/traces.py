"""What two versions of a model give on the same weights: equal, rounded or changed, and from where on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from ..findings import Location
from ..lean import dataclass
from ..objects import trees
from ..probes.positions.spread import origin
from ..probes.recorded.operations import Snapshot, Step, Trace, differing, record
from ..probes.recorded.watch import Op
from ..subject.errors import SubjectError
from .running import Way, batch_for, line_of, prepared
from .sketch import without_fill

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..batches import Batch
    from ..subject import Subject
    from .running import Load, Outcome
    from .sketch import Sketch

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


ALLOWED: Final = 1e-9
"""Relative difference in float64 that is rounding: a million times that of one operation."""
NARROW: Final = 1e-5
"""The same where the model computes in float32 in a run in float64."""

_SMALL: Final = 1e-4
"""Share of the largest magnitude of their kind below which gradients are measured by that magnitude."""
_SPREAD: Final = 1e-3
"""Share of the distance from evaluation mode that is rounding."""
_STILL: Final = 1e-8
"""Squared distance, over the mean square, that is rounding."""
_STEPS: Final = 1e-5
_OF_STEPS: Final = 100
"""Least relative difference of updates that counts, and times what is allowed elsewhere: the first step of Adam
has about the sign of the gradient, also where that is nearly zero."""

Kind = Literal["error", "structure", "output", "loss", "gradient", "statistics", "update", "module"]
KINDS: Final[tuple[Kind, ...]] = (
    "error", "structure", "output", "loss", "gradient", "statistics", "update", "module",
)  # fmt: skip
"""What can differ, in the order in which it is reported; modules only say where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value that differs.

    Attributes:
        kind: What it is.
        name: Its path or name.
        gap: Largest difference over largest magnitude; inf where they cannot be compared.
        fact: What was measured, as a clause.
        line: The user's line that raised.
    """

    kind: Kind
    name: str
    gap: float
    fact: str = ""
    line: Location | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one way of running came to.

    Attributes:
        way: The way.
        standing: ``bits``, ``rounding``, ``changed``, or ``drawn``: other random numbers, so that
            nothing is compared.
        differences: Those that decide, the first kind first.
    """

    way: Way
    standing: Literal["bits", "rounding", "changed", "drawn"]
    differences: tuple[Difference, ...] = ()

    @property
    def gap(self) -> float:
        """The largest relative difference."""
        return max((one.gap for one in self.differences), default=0.0)


def differences(
    old: Outcome, new: Outcome, names: Mapping[str, str], allowed: float = 0.0
) -> tuple[Difference, ...]:
    """Compare two runs.

    Args:
        old: Of the reference.
        new: Of the model as it is.
        names: New name of every parameter and buffer of the old version, where it has another.
        allowed: Relative difference that does not count; at 0.0 other bits do.
    """
    if old.error or new.error:
        if old.error:  # nothing that worked is lost
            return ()
        return (Difference(kind="error", name="", gap=float("inf"), fact=new.error, line=new.line),)
    found: list[Difference] = []
    paths = [p for p in (*old.outputs, *old.others) if p not in new.outputs and p not in new.others]
    more = [p for p in (*new.outputs, *new.others) if p not in old.outputs and p not in old.others]
    found += [_shape(path, "is gone") for path in paths] + [_shape(path, "is new") for path in more]
    for path, then in old.outputs.items():
        if (now := new.outputs.get(path)) is not None:
            found += _compared("output", path, then, now, allowed)
    for path, told in old.others.items():
        if (shown := new.others.get(path)) not in (None, told):
            found.append(_shape(path, f"was {told}, is {shown}"))
    if old.loss is not None and new.loss is not None:
        least = _SMALL * max((one.scale for one in old.outputs.values()), default=0.0)
        found += _compared("loss", "loss", old.loss, new.loss, allowed, least)
    found += _named("gradient", old.gradients, new.gradients, names, allowed)
    found += _named("statistics", old.buffers, new.buffers, names, allowed)
    steps = max(_OF_STEPS * allowed, _STEPS) if allowed else 0.0
    found += _named("update", old.updates, new.updates, names, steps, share=1.0)
    if found:
        found += _named("module", old.modules, new.modules, {}, allowed)
    return tuple(sorted(found, key=lambda one: KINDS.index(one.kind)))


def _shape(path: str, fact: str) -> Difference:
    return Difference(kind="structure", name=path, gap=float("inf"), fact=fact)


def _compared(
    kind: Kind, name: str, then: Sketch, now: Sketch, allowed: float, least: float = 0.0
) -> list[Difference]:
    if then.shape != now.shape:
        return [_shape(name, f"has shape {list(now.shape)}, had {list(then.shape)}")]
    if then.dtype != now.dtype:
        return [_shape(name, f"is {now.dtype}, was {then.dtype}")]
    if then.same(now):
        return []
    gap = then.gap(now, least)
    if allowed and gap <= allowed:
        return []
    return [Difference(kind=kind, name=name, gap=gap)]


def _named(
    kind: Kind,
    old: Mapping[str, Sketch | None],
    new: Mapping[str, Sketch | None],
    names: Mapping[str, str],
    allowed: float,
    share: float = _SMALL,
) -> list[Difference]:
    """Compare what both versions have; a parameter without a gradient has one of zero."""
    found: list[Difference] = []
    least = share * max((one.scale for one in old.values() if one is not None), default=0.0)
    for name, then in old.items():
        other = names.get(name, name)
        if other not in new:
            continue
        now = new[other]
        if then is not None and now is not None:
            if then.shape == now.shape:
                found += _compared(kind, other, then, now, allowed, least)
        elif (given := then or now) is not None and given.scale > least:
            had = "had one" if then is not None else "had none"
            fact = f"has no gradient, {had}" if now is None else f"has a gradient, {had}"
            found.append(Difference(kind=kind, name=other, gap=float("inf"), fact=fact))
    return found


def of_noise(
    old: Mapping[str, Sequence[float]], new: Mapping[str, Sequence[float]]
) -> tuple[Difference, ...]:
    """Compare two results of :func:`~.running.noise`, at six standard errors.

    The model's output decides; modules only say where, since a refactoring may move what draws.
    """
    found = []
    for name, (before, error) in old.items():
        after, other = new.get(name, (before, error))
        gap = abs(after - before)
        if gap > 6 * math.hypot(error, other) + _SPREAD * max(before, after) + _STILL:
            fact = f"differs from evaluation mode by {after:.3g} of its mean square, by {before:.3g} before"
            kind: Kind = "module" if name else "output"
            found.append(Difference(kind=kind, name=name or "output", gap=gap, fact=fact))
    if not any(one.kind == "output" for one in found):
        return ()
    return tuple(sorted(found, key=lambda one: KINDS.index(one.kind)))

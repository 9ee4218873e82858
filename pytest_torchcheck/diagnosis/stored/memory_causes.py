"""Why a step holds more than it was to: each reason with the bytes that it explains and its line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Location
from ...lean import dataclass
from ...probes.memory.profile import NOWHERE, Holding, MemoryProfile
from ...text.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...measure.steps import Tracked
    from ...probes.holding.leaks import Leak
    from ...subject import Subject

_PARAMETER_BYTES = 2**28  # up to which parameters are compared by value, which needs the real model
_FLOATS = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "complex128": 16,
    "complex64": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason for memory that need not be there.

    Attributes:
        bytes: How much it explains.
        cause, because, fix: As in a finding.
        culprit: What is at fault, with its line.
    """

    bytes: int
    cause: str
    because: str
    fix: str
    culprit: Culprit


def find_causes(
    subject: Subject, everything: MemoryProfile, tracked: Tracked, leak: Callable[[], Leak | None]
) -> list[Cause]:
    """Return what could be saved, the most first."""
    holdings = everything.largest
    found = [
        *_wide_state(subject, holdings),
        *_wide_activations(holdings),
        *_kept(holdings, leak),
        *_square(holdings, everything.sizes, _widths(subject)),
        *_doubled(subject, holdings),
        *_unused(subject, tracked, holdings),
    ]
    return sorted((c for c in found if c.bytes > 0), key=lambda c: -c.bytes)


def _wide_state(subject: Subject, holdings: Sequence[Holding]) -> Iterator[Cause]:
    """Optimizer state in a wider dtype than its parameter."""
    parameters = {h.name: h for h in holdings if h.category == "parameters"}
    wide = []
    for state in holdings:
        owner = parameters.get(state.name.rpartition(" of ")[2])
        if state.category != "optimizer_state" or owner is None or state.shape != owner.shape:
            continue
        if _FLOATS.get(state.dtype, 0) > _FLOATS.get(owner.dtype, 99):
            wide.append((state, owner))
    if not wide:
        return
    excess = sum(
        state.bytes - state.bytes * _FLOATS[o.dtype] // _FLOATS[state.dtype] for state, o in wide
    )
    state, owner = max(wide, key=lambda pair: pair[0].bytes)
    line = state.location
    if (
        line is None or line == owner.location
    ):  # made inside torch: the user's line is the optimizer's
        line = sources.of_object(subject.contract.optimizer) if subject.contract.optimizer else line
    yield Cause(
        bytes=excess,
        cause=f"the optimizer keeps its state in {state.dtype} for parameters in {owner.dtype}",
        because=f"{len(wide)} states are wider than their parameters: {state.describe()}, "
        f"{owner.name} is {owner.dtype}; that costs {format_bytes(excess)}",
        fix=f"keep the state in {owner.dtype}, or raise the ceiling by {format_bytes(excess)}",
        culprit=Culprit("optimizer", state.name, state.describe(), line),
    )


def _wide_activations(holdings: Sequence[Holding]) -> Iterator[Cause]:
    """Activations in a wider dtype than the rest of the model computes in."""
    usual = _usual_dtype(holdings)
    if usual is None:
        return
    wide = [
        h
        for h in holdings
        if h.category in ("activations", "temporaries")
        and h.phase in ("forward", "loss", "backward", "earlier")
        and _FLOATS.get(h.dtype, 0) > _FLOATS[usual]
    ]
    if not wide:
        return
    excess = sum(h.bytes - h.bytes * _FLOATS[usual] // _FLOATS[h.dtype] for h in wide)
    casts = [h for h in wide if "_to_copy" in h.op] or wide
    first = max(casts, key=lambda h: h.bytes)
    yield Cause(
        bytes=excess,
        cause=f"activations are stored in {first.dtype} although the model computes in {usual}",
        because=f"{len(wide)} tensors at the peak are {first.dtype}, the largest "
        f"{first.describe()} of "
        f"{format_bytes(first.bytes)}; in {usual} they would hold {format_bytes(excess)} less",
        fix=f"keep this tensor in {usual}, or cast it in chunks inside the loss",
        culprit=Culprit("tensor", tensor_name(first), first.describe(), first.location),
    )


def _usual_dtype(holdings: Sequence[Holding]) -> str | None:
    """Return the narrowest floating dtype with a good part of the activations, else that of the parameters."""
    totals: dict[str, int] = {}
    for h in holdings:
        if h.category in ("activations", "parameters") and h.dtype in _FLOATS:
            totals[h.dtype] = totals.get(h.dtype, 0) + h.bytes
    whole = sum(totals.values())
    common = [dtype for dtype, count in totals.items() if count >= 0.1 * whole]
    return min(common, key=lambda dtype: _FLOATS[dtype], default=None)


def _kept(holdings: Sequence[Holding], find: Callable[[], Leak | None]) -> Iterator[Cause]:
    """Tensors of an earlier step."""
    old = [
        h
        for h in holdings
        if h.phase == "earlier" and h.category in ("activations", "temporaries", "other")
    ]
    excess = sum(h.bytes for h in old)
    if not old or excess < 1024:
        return
    largest = max(old, key=lambda h: h.bytes)
    leak = find()
    line = leak.location if leak is not None and leak.location is not None else largest.location
    holder = f" by {leak.holder}" if leak is not None and leak.holder else ""
    yield Cause(
        bytes=excess,
        cause=f"tensors of an earlier step are kept{holder}",
        because=f"{len(old)} tensors at the peak were created one step earlier, "
        f"{format_bytes(excess)} in total; the largest is {largest.describe()} of "
        f"{tensor_name(largest)}",
        fix="delete or detach the tensors kept from step to step",
        culprit=Culprit("tensor", tensor_name(largest), f"kept from an earlier step{holder}", line),
    )


def _widths(subject: Subject) -> frozenset[int]:
    """Sizes that the model's own weights have: a dimension of such a size may be a width, not a symbol."""
    return frozenset(n for parameter in subject.model.parameters() for n in parameter.shape)


def _square(
    holdings: Sequence[Holding], sizes: Mapping[str, int], widths: frozenset[int]
) -> Iterator[Cause]:
    """Tensors with two dimensions of the same symbol."""
    counts: dict[int, list[str]] = {}
    for name, size in sizes.items():
        counts.setdefault(size, []).append(name)
    found = []
    for h in holdings:
        if h.category not in ("activations", "temporaries") or h.phase == "optimizer":
            continue
        # 3 is a kernel or a colour more often than a size
        twice = next(
            (
                n
                for n in h.shape
                if n > 3 and n in counts and n not in widths and h.shape.count(n) >= 2
            ),
            None,
        )
        if twice is not None and len(counts[twice]) == 1:
            found.append((h, counts[twice][0]))
    if not found:
        return
    total = sum(h.bytes for h, _ in found)
    largest, symbol = max(found, key=lambda pair: pair[0].bytes)
    yield Cause(
        bytes=total,
        cause=f"a tensor over all pairs of {symbol} is created: its size is quadratic in {symbol}",
        because=f"{len(found)} tensors at the peak have {symbol}={sizes[symbol]} twice in their "
        f"shape, {format_bytes(total)} in total; the largest is {largest.describe()}",
        fix="use scaled_dot_product_attention for attention, or work in chunks, so that the "
        "pairs never exist all at once"
        if "softmax" in largest.op
        or "bmm" in largest.op
        or largest.shape[-1:] == largest.shape[-2:-1] != ()
        else "work in chunks, so that the pairs never exist all at once",
        culprit=Culprit("tensor", tensor_name(largest), largest.describe(), largest.location),
    )


def _doubled(subject: Subject, holdings: Sequence[Holding]) -> Iterator[Cause]:
    """Parameters with the same values as others, in a storage of their own."""
    if sum(h.bytes for h in holdings if h.category == "parameters") > _PARAMETER_BYTES:
        return
    by_shape: dict[Any, list[tuple[str, torch.Tensor]]] = {}
    for name, parameter in subject.model.named_parameters():
        if parameter.numel() >= 16 and parameter.device.type != "meta":
            by_shape.setdefault((tuple(parameter.shape), parameter.dtype), []).append(
                (name, parameter)
            )
    for group in by_shape.values():
        for place, (name, values) in enumerate(group):
            twin = next(
                (other for other, tensor in group[:place] if torch.equal(values, tensor)), None
            )
            if twin is None or bool(
                (parameter == parameter.flatten()[0]).all()
            ):  # ones and zeros are no copies
                continue
            excess = _owned_bytes(holdings, name)
            yield Cause(
                bytes=excess,
                cause=f"{name} is a copy of {twin}: the same values are stored twice",
                because=f"both are {list(values.shape)} with equal values in two storages; {name} "
                "costs "
                f"{format_bytes(excess)} with gradient and optimizer state",
                fix=f"share one parameter ({name} = {twin}), or remove one",
                culprit=Culprit("parameter", name, f"equal to {twin}", _making_line(subject, name)),
            )


def _making_line(subject: Subject, name: str) -> Location | None:
    """Return the line that puts a parameter in its place: ``self.head.weight = ...`` before ``self.head = ...``."""
    owner: Any = subject.model
    parts = name.split(".")
    for depth, part in enumerate(parts):
        path = re.escape(".".join(parts[depth:]))
        for cls in type(owner).__mro__:
            if "." in path and (found := sources.search(cls, rf"\.{path}\s*=[^=]")) is not None:
                return found
        owner = getattr(owner, part, None)
    return sources.of_parameter(subject.model, name)


def _unused(subject: Subject, tracked: Tracked, holdings: Sequence[Holding]) -> Iterator[Cause]:
    """Trainable parameters that never get a gradient."""
    allocations = tracked.tracker.allocations()
    with_gradient = {a.name.removesuffix(".grad") for a in allocations if a.category == "gradients"}
    if not with_gradient:
        return
    idle = [
        h
        for h in holdings
        if h.category == "parameters"
        and h.name not in with_gradient
        and not subject.is_promised("Frozen", h.name)
    ]
    idle = [h for h in idle if h.name in tracked.trainable]
    if not idle:
        return
    excess = sum(_owned_bytes(holdings, h.name) for h in idle)
    largest = max(idle, key=lambda h: h.bytes)
    yield Cause(
        bytes=excess,
        cause=f"{largest.name} is never used: it received no gradient",
        because=f"{len(idle)} trainable parameters received no gradient in two steps; they take "
        f"{format_bytes(excess)}",
        fix=f"remove {largest.name}, or use it",
        culprit=Culprit("parameter", largest.name, "never used", largest.location),
    )


def _owned_bytes(holdings: Sequence[Holding], name: str) -> int:
    names = {name, f"{name}.grad"}
    return sum(h.bytes for h in holdings if h.name in names or h.name.endswith(f" of {name}"))


def general_cause(everything: MemoryProfile, name: str) -> Cause:
    """Name the line that holds most of what counts."""
    holdings = [
        h for h in everything.largest if name not in everything.category_peaks or h.category == name
    ]
    by_line: dict[Location, list[Holding]] = {}
    for h in holdings:
        by_line.setdefault(h.location or NOWHERE, []).append(h)
    named = {line: held for line, held in by_line.items() if line != NOWHERE} or by_line
    line, held = max(
        named.items(), key=lambda pair: sum(h.bytes for h in pair[1]), default=(NOWHERE, [])
    )
    total = sum(h.bytes for h in held)
    largest = max(held, key=lambda h: h.bytes, default=None)
    category = largest.category.replace("_", " ") if largest is not None else "memory"
    return Cause(
        bytes=total,
        cause=f"a step uses more memory than declared, most of it on one line ({category})"
        if total > 0.3 * everything.peak_bytes
        else "a step uses more memory than declared, on many lines",
        because=f"tensors of this line take {format_bytes(total)} of "
        f"{format_bytes(everything.peak_bytes)} at the peak"
        + (f", the largest {largest.describe()}" if largest is not None else ""),
        fix=advice(largest),
        culprit=Culprit(
            "tensor" if largest is None or not largest.name else "parameter",
            tensor_name(largest) if largest is not None else "memory",
            f"{format_bytes(total)} at the peak",
            None if line == NOWHERE else line,
        ),
    )


def advice(largest: Holding | None) -> str:
    """Return what to do about the kind of tensor that holds most."""
    if largest is None or largest.category in ("activations", "temporaries"):
        return (
            "use activation checkpointing, a smaller batch (accumulated over several) or "
            "autocast, or raise the ceiling"
        )
    if largest.category == "optimizer_state":
        return "use an optimizer with less state, or raise the ceiling"
    return "make the model smaller, or raise the ceiling"


def tensor_name(holding: Holding) -> str:
    """Return a tensor's qualified name, else the operation that made it and the module."""
    if holding.name:
        return holding.name
    op = holding.op.removeprefix("aten.").partition(".")[0]
    return f"{op} in {holding.module}" if holding.module else op or "tensor"

"""How a contract's cost grows with one symbol: the exact peaks at several sizes, and their law."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, cast

from ..declared.limits import DeclarationError
from ..lean import dataclass
from ..probes.memory.fake import Unmeasurable
from ..probes.memory.profile import NOWHERE, Holding, MemoryProfile
from ..probes.memory.replay import build_profile, location_of
from ..text.units import format_seconds
from .fit import Law, fit_power
from .memory import attempt
from .repeated import seconds_at, upper_power
from .steps import FlopShare, Tracked, subject_for, track

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..contracts import Contract
    from ..declared.limits import Kind
    from ..findings import Location
    from ..probes.memory.allocations import Allocation
    from ..probes.memory.profile import Category
    from ..probes.memory.tracker import MemoryTracker
    from ..subject import Subject
    from .plain_step import StepKind

_POINTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How the memory and the work of a step grow with one symbol.

    Attributes:
        symbol: Its name.
        sizes: The sizes measured, ascending; the other symbols stayed as they are.
        bytes: Peak of a step at each size.
        transient_bytes: At each size, the peak of what grows with the batch: without parameters,
            buffers, gradients and the optimizer's own. It is what the power is taken from, since
            small batches hide behind the optimizer.
        power: The highest power of the symbol in the memory, also in a tensor that stays beneath
            the peak at these sizes.
        exact: Whether the bytes are those of a polynomial to the last one.
        law: The polynomial, such as ``64.0 KiB·T² + 1.5 MiB·T``.
        fastest: The largest of the tensors that grow with the highest power, at the largest size,
            or None.
        fastest_power: The power of that tensor alone.
        lines: Power and bytes of each line at the largest size, the fastest first.
        flops, flops_power: The same for floating-point operations.
        parameters: Elements of the parameters at each size; they should not depend on it.
        seconds: Least time of a step at each size, where it was asked for.
        time_power: The power by which it grows between the third largest size and the largest; calls and
            Python keep it below that of the work at small sizes.
        fake: Whether nothing was allocated.
    """

    symbol: str
    sizes: tuple[int, ...]
    bytes: tuple[int, ...]
    transient_bytes: tuple[int, ...]
    power: float
    exact: bool
    law: str
    fastest: Holding | None = None
    fastest_power: float = 0.0
    lines: tuple[tuple[Location, float, int], ...] = ()
    flops: tuple[int, ...] = ()
    flops_power: float = 0.0
    flops_law: str = ""
    parameters: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    time_power: float = 0.0
    fake: bool = True
    profiles: tuple[MemoryProfile, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        """Return the laws, and what grows fastest."""
        place = self.fastest.location if self.fastest is not None else None
        where = "" if place is None else f", {place.file}:{place.line}: {place.text}"
        rows = [f"memory  {self.law}", f"work    {self.flops_law}"]
        if self.seconds:
            work = upper_power(self.sizes, self.flops)
            rows.append(
                f"time    {self.symbol}^{self.time_power:g} up to {format_seconds(self.seconds[-1])}, where "
                f"the work grows as {self.symbol}^{work:g}"
            )
        if self.fastest is not None:
            rows.append(
                f"fastest {self.fastest.describe()}, {self.symbol}^{self.fastest_power:g}{where}"
            )
        rows.append(f"at {self.symbol} = {', '.join(map(str, self.sizes))}")
        return "\n".join(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain types only."""
        return {
            "symbol": self.symbol,
            "sizes": list(self.sizes),
            "bytes": list(self.bytes),
            "transient_bytes": list(self.transient_bytes),
            "power": self.power,
            "exact": self.exact,
            "law": self.law,
            "flops": list(self.flops),
            "flops_power": self.flops_power,
            "flops_law": self.flops_law,
            "parameters": list(self.parameters),
            "seconds": list(self.seconds),
            "time_power": self.time_power,
            "fake": self.fake,
        }


def measure_growth(
    contract: Contract,
    symbol: str,
    *,
    sizes: Sequence[int] | None = None,
    at: Mapping[str, int] | None = None,
    step: StepKind = "training",
    fake: bool = True,
    device: str = "cpu",
    dtype: str | None = None,
    seed: int = 0,
    time: bool = False,
) -> Growth:
    """Measure how memory, floating-point operations and, if asked for, time grow with one symbol.

    Args:
        contract: The contract.
        symbol: A symbol of its inputs, such as ``"T"``.
        sizes: Three sizes or more; six within the symbol's range by default.
        at: Sizes of the other symbols.
        step: ``"training"`` or ``"inference"``.
        fake: Allocate nothing.
        device: Where to run for real.
        dtype: Name of the floating dtype; the contract's first one, else the model's own, by default.
        seed: Decides the batch.
        time: Run the step for real at each size too, and time it.

    Raises:
        DeclarationError: There is no such symbol, or there are fewer than three sizes.
        Unmeasurable: The step cannot run on fake tensors, or its batch cannot be made.
    """
    subject = subject_for(contract, device=device, dtype=dtype, seed=seed)
    try:
        found = grow(subject, symbol, sizes=sizes, at=at, step=step, fake=fake)
        if not time:
            return found
        kind: Kind = "training-step" if step == "training" else "inference"
        seconds = seconds_at(subject, symbol, found.sizes, kind, at or {})
        return replace(found, seconds=seconds, time_power=upper_power(found.sizes, seconds))
    finally:
        subject.close()


def growth_sizes(contract: Contract, symbol: str) -> tuple[int, ...]:
    """Return up to six sizes of a symbol, evenly spaced up to the largest that is allowed.

    Raises:
        DeclarationError: There is no such symbol.
    """
    known = contract.source.symbols if contract.source is not None else {}
    if symbol not in known:
        raise DeclarationError(
            f"growth: no input has the symbol {symbol!r}; symbols are: {', '.join(sorted(known)) or 'none'}"
        )
    span = known[symbol]
    if span.relation is not None:
        return ()
    values = [value for value in span.values if value >= 1]
    if len(values) < 3:
        return ()
    points = min(_POINTS, len(values))
    apart = (len(values) - 1) // (points - 1)
    return tuple(values[len(values) - 1 - apart * back] for back in range(points - 1, -1, -1))


def grow(
    subject: Subject,
    symbol: str,
    *,
    sizes: Sequence[int] | None = None,
    at: Mapping[str, int] | None = None,
    step: StepKind = "training",
    fake: bool = True,
    explained: bool = False,
) -> Growth:
    """Measure growth on a subject; see :func:`measure_growth` and :func:`~.memory.attempt`."""
    chosen = (
        tuple(sorted(set(sizes))) if sizes is not None else growth_sizes(subject.contract, symbol)
    )
    _require_three(chosen, symbol)
    peaks, transient, flops, parameters = [], [], [], []
    runs: list[Tracked] = []
    for size in chosen:

        def run(size: int = size) -> Tracked:
            return track(subject, at={**(at or {}), symbol: size}, fake=fake, step=step, flops=True)

        tracked = attempt(run, explained=explained)
        growing = build_profile(
            tracked.tracker, device=tracked.profile.device, fake=fake, largest=-1, transient=True
        )
        peaks.append(tracked.profile.peak_bytes)
        transient.append(growing)
        flops.append(tracked.flops or 0)
        parameters.append(tracked.parameters)
        runs.append(tracked)
    counts = [profile.peak_bytes for profile in transient]
    fastest, power = _fastest(transient[-2], transient[-1], chosen[-2:])
    law = fit_power(chosen, counts, highest=power if fastest is not None else None)
    beneath = _beneath(runs, chosen, above=law.power, least=transient[-1].peak_bytes // 100)
    text, exact, reached = law.text(symbol), law.exact, law.power
    if beneath is not None:
        fastest, power = beneath
        exact, reached = True, power
        text += f", with a tensor of {symbol}^{power:g} beneath the peak, which it becomes at larger sizes"
    work = fit_power(chosen, flops)
    return Growth(
        symbol=symbol,
        sizes=chosen,
        bytes=tuple(peaks),
        transient_bytes=tuple(counts),
        power=reached,
        exact=exact,
        law=text,
        fastest=fastest,
        fastest_power=power,
        lines=_lines(transient[-2], transient[-1], chosen[-2:]),
        flops=tuple(flops),
        flops_power=work.power,
        flops_law=work.text(symbol, "FLOP"),
        parameters=tuple(parameters),
        fake=fake,
        profiles=tuple(run.profile for run in runs),
    )


def _require_three(chosen: tuple[int, ...], symbol: str) -> None:
    """Raise where a law is asked for with fewer than three sizes."""
    if len(chosen) < 3:
        raise DeclarationError(
            f"growth[{symbol!r}]: a law needs three sizes or more; declare a range, sizes={{{symbol!r}: (low, high)}}"
        )


def _power(before: int, after: int, sizes: Sequence[int]) -> float:
    """Return the local power between two sizes, in tenths."""
    if before <= 0 or after <= 0:
        return 0.0
    return round(math.log(after / before) / math.log(sizes[1] / sizes[0]), 1)


def _key(holding: Holding) -> tuple[Any, ...]:
    place = holding.location
    line = (place.file, place.line) if place is not None else None
    return holding.op, holding.phase, holding.module, holding.name, line, len(holding.shape)


def _fastest(
    before: MemoryProfile, after: MemoryProfile, sizes: Sequence[int]
) -> tuple[Holding | None, float]:
    """Match the tensors live at two sizes and return the largest of those that grow fastest."""
    earlier: dict[tuple[Any, ...], list[Holding]] = {}
    for holding in before.largest:
        earlier.setdefault(_key(holding), []).append(holding)
    best: tuple[float, int, Holding] | None = None
    for holding in after.largest:  # the largest first, in both
        matches = earlier.get(_key(holding))
        if not matches:
            continue
        power = _power(matches.pop(0).bytes, holding.bytes, sizes)
        if holding.bytes >= 0.001 * after.peak_bytes and (
            best is None or (power, holding.bytes) > best[:2]
        ):
            best = (power, holding.bytes, holding)
    return (None, 0.0) if best is None else (best[2], best[0])


def _beneath(
    runs: Sequence[Tracked], sizes: Sequence[int], *, above: float, least: int
) -> tuple[Holding, float] | None:
    """Find the tensor of a step that grows faster than its peak did: at larger sizes the peak is this tensor.

    Only tensors that every size makes as often, and whose bytes are exactly a polynomial, count.

    Args:
        runs: The measured steps.
        sizes: Their sizes.
        above: The power of the peak.
        least: Bytes at the largest size below which a tensor is too small to matter.
    """
    made = [_born(run.tracker) for run in runs]
    best: tuple[int, int, Allocation] | None = None
    for key, last in made[-1].items():
        same = [found.get(key, []) for found in made]
        if any(len(each) != len(last) for each in same):
            continue
        for row in zip(*same, strict=True):
            largest = row[-1]
            if largest.size < least or (best is not None and largest.size <= best[1]):
                continue
            law = fit_power(sizes, [allocation.size for allocation in row])
            if law.exact and law.power > above + 0.5 and law.coefficients[-1] > 0:
                best = (int(law.power), largest.size, largest)
    if best is None:
        return None
    power, size, found = best
    kind = cast("Category", found.category or "temporaries")
    return Holding(
        bytes=size,
        category=kind,
        phase=found.phase,
        name=found.name,
        module=found.module,
        op=found.op,
        shape=found.shape,
        dtype=str(found.dtype).removeprefix("torch."),
        location=None if found.site is None else location_of(found.site),
    ), float(power)


def _born(tracker: MemoryTracker) -> dict[tuple[Any, ...], list[Allocation]]:
    """Return what the last step before its optimizer made, by operation and line, in order."""
    found: dict[tuple[Any, ...], list[Allocation]] = {}
    for allocation, change in tracker.log[tracker.steps[-1] :]:
        if change > 0 and allocation.phase != "optimizer":
            line = None if allocation.site is None else allocation.site[1]
            shape = len(allocation.shape)
            key = (allocation.op, allocation.phase, allocation.module, line, shape)
            found.setdefault(key, []).append(allocation)
    return found


def _lines(
    before: MemoryProfile, after: MemoryProfile, sizes: Sequence[int]
) -> tuple[tuple[Location, float, int], ...]:
    made = [
        (location, _power(before.by_line.get(location, 0), count, sizes), count)
        for location, count in after.by_line.items()
        if location != NOWHERE and before.by_line.get(location)
    ]
    made.sort(key=lambda entry: (-entry[1], -entry[2]))
    return tuple(made)


__all__ = ["FlopShare", "Growth", "Law", "Unmeasurable", "grow", "growth_sizes", "measure_growth"]

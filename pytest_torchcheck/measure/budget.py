"""What fits: a step stopped at a budget, and the largest batch that stays below one."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import torch

from .. import sources
from ..codes import memory as explain
from ..declared.limits import DeclarationError
from ..findings import ContractViolation
from ..lean import dataclass
from ..probes.memory.allocations import OutOfBudget
from ..probes.memory.profile import Holding, MemoryProfile
from ..probes.memory.replay import build_profile
from ..text.printable import message_of
from ..text.units import parse_bytes
from .memory import attempt
from .steps import StepFailed, Tracked, subject_for, track

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..contracts import Contract
    from ..findings import Location
    from ..subject import Subject
    from .plain_step import StepKind

_HIGHEST = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The moment at which a step ran out of memory.

    Attributes:
        phase: In which phase.
        op: The operation that asked for more.
        location: Its line.
        live_bytes: Live at that moment, what was asked for included where it is known.
        budget_bytes: What was allowed, or None where the device itself refused.
        largest: The ten largest live tensors, each with its line.
        profile: Everything that was live then, by category, module and line.
    """

    phase: str
    op: str
    location: Location | None
    live_bytes: int
    budget_bytes: int | None
    largest: tuple[Holding, ...]
    profile: MemoryProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """The largest size whose step fits a budget.

    Attributes:
        symbol: The symbol that was searched.
        size: The largest size that fits; 0 where none does.
        budget_bytes: The budget.
        profile: Of the step at that size, or of the smallest size where none fits.
        next_bytes: Peak at the next larger size, or None where the range ends.
        tried: Peak of every size that was measured.
    """

    symbol: str
    size: int
    budget_bytes: int
    profile: MemoryProfile = field(repr=False)
    next_bytes: int | None
    tried: Mapping[int, int]


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error is the device's refusal to allocate, or a budget's."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in message_of(error)
    )


def describe_failure(failed: StepFailed) -> OutOfMemory:
    """Describe the moment at which a tracked step ran out of memory.

    Args:
        failed: With :func:`is_out_of_memory` true of its error.
    """
    tracker = failed.tracker
    profile = build_profile(tracker, fake=failed.fake, moment=tracker.failed_at)
    budget = tracker.budget if isinstance(failed.error, OutOfBudget) else None
    return OutOfMemory(
        phase=profile.peak_phase,
        op="" if tracker.running is None else str(tracker.running),
        location=sources.of_error(failed.error),
        live_bytes=profile.peak_bytes,
        budget_bytes=budget,
        largest=profile.largest,
        profile=profile,
    )


def run_within(
    contract: Contract,
    budget: int | str,
    *,
    at: Mapping[str, int] | None = None,
    step: StepKind = "training",
    fake: bool = True,
    dtype: str | None = None,
    seed: int = 0,
) -> OutOfMemory | MemoryProfile:
    """Run a step as if the device had only so much memory.

    Args:
        contract: The contract.
        budget: Bytes, or text such as ``"8 GiB"``.
        at: Sizes of symbols.
        step: ``"training"`` or ``"inference"``.
        fake: Allocate nothing.
        dtype: Name of the floating dtype.
        seed: Decides the batch.

    Returns:
        The profile where it fits; else the moment at which it does not.

    Raises:
        Unmeasurable: The step cannot run on fake tensors.
    """
    subject = subject_for(contract, dtype=dtype, seed=seed)
    allowed = parse_bytes(budget, what="budget")

    def run() -> Tracked:
        return track(subject, at=at, fake=fake, step=step, budget=allowed)

    try:
        return attempt(run).profile
    except OutOfBudget as error:
        failed = error.__cause__
        assert isinstance(failed, StepFailed)
        return describe_failure(failed)
    finally:
        subject.close()


def assert_fits(
    contract: Contract,
    budget: int | str,
    *,
    at: Mapping[str, int] | None = None,
    step: StepKind = "training",
    dtype: str | None = None,
    seed: int = 0,
) -> MemoryProfile:
    """Assert that a step fits a device that is not there; nothing is allocated.

    Args:
        contract: The contract.
        budget: Memory of the device: bytes, or text such as ``"80 GB"``.
        at: Sizes of symbols.
        step: ``"training"`` or ``"inference"``.
        dtype: Name of the floating dtype.
        seed: Decides the batch.

    Returns:
        The profile, when it fits.

    Raises:
        ContractViolation: It does not: the phase, the largest live tensors by line, and the largest
            batch that would fit.
        Unmeasurable: The step cannot run on fake tensors.
    """
    __tracebackhide__ = True
    found = run_within(contract, budget, at=at, step=step, dtype=dtype, seed=seed)
    if isinstance(found, MemoryProfile):
        return found
    fits = None
    if contract.source is not None and contract.source.batch_symbol is not None:
        others = {
            name: size for name, size in (at or {}).items() if name != contract.source.batch_symbol
        }
        fits = largest_batch(contract, budget, at=others, step=step, dtype=dtype, seed=seed)
    raise ContractViolation(
        [explain.out_of_memory(found, fits).replace(check="fits", contract=contract.name)]
    ) from None


def largest_batch(
    contract: Contract,
    budget: int | str,
    *,
    symbol: str | None = None,
    at: Mapping[str, int] | None = None,
    step: StepKind = "training",
    dtype: str | None = None,
    seed: int = 0,
) -> LargestBatch:
    """Find the largest batch whose step fits a budget, with nothing allocated.

    The peaks of two sizes predict the next size to try, since a peak is nearly affine in the batch; the
    answer is always one that was measured, with its larger neighbour.

    Args:
        contract: The contract.
        budget: Bytes, or text such as ``"80 GB"``.
        symbol: What to search; the batch's symbol by default. Sizes beyond the declared range are tried.
        at: Sizes of the other symbols.
        step: ``"training"`` or ``"inference"``.
        dtype: Name of the floating dtype.
        seed: Decides the batch.

    Raises:
        DeclarationError: There is no such symbol.
        Unmeasurable: The step cannot run on fake tensors.
    """
    allowed = parse_bytes(budget, what="budget")
    subject = subject_for(contract, dtype=dtype, seed=seed)
    try:
        return search(subject, allowed, symbol=symbol, at=at, step=step)
    finally:
        subject.close()


def search(
    subject: Subject,
    allowed: int,
    *,
    symbol: str | None = None,
    at: Mapping[str, int] | None = None,
    step: StepKind = "training",
) -> LargestBatch:
    """Find the largest size that fits, on a subject; see :func:`largest_batch`."""
    source = subject.contract.source
    name = symbol or (source.batch_symbol if source is not None else None)
    if source is None or name is None or name not in source.symbols:
        known = sorted(source.symbols) if source is not None else []
        raise DeclarationError(
            f"largest_batch: there is no symbol {symbol or 'of a batch'!r}; symbols are: {', '.join(known) or 'none'}"
        )
    profiles: dict[int, MemoryProfile] = {}

    def peak(size: int) -> int:
        if size not in profiles:
            profiles[size] = attempt(
                lambda: track(subject, at={**(at or {}), name: size}, fake=True, step=step)
            ).profile
        return profiles[size].peak_bytes

    low, high = 0, _HIGHEST + 1  # fits (0 is no size at all), does not fit
    if peak(1) > allowed:
        high = 1
    else:
        low = 1
        size = 2
        while high - low > 1:
            if peak(size) <= allowed:
                low = size
            else:
                high = size
            if high - low > 1:
                size = _next(profiles, low, high, allowed)
    return LargestBatch(
        symbol=name,
        size=low,
        budget_bytes=allowed,
        profile=profiles[max(low, 1)],
        next_bytes=profiles[high].peak_bytes if high in profiles else None,
        tried={size: profile.peak_bytes for size, profile in sorted(profiles.items())},
    )


def _next(profiles: Mapping[int, MemoryProfile], low: int, high: int, allowed: int) -> int:
    """Predict the largest size that fits, between one that does and one that does not.

    The ends and the measured peak nearest to the budget give a polynomial, which is exact as long as the
    peak stays at the same moment of the step; where it is not, every third try halves the rest.
    """
    if (
        high > _HIGHEST
    ):  # no end yet: as the last two sizes say, but never far beyond what was measured
        below = max(size for size in profiles if size < low)
        slope = (profiles[low].peak_bytes - profiles[below].peak_bytes) / (low - below)
        guess = low + int((allowed - profiles[low].peak_bytes) / slope) if slope > 0 else low * 8
        return min(_HIGHEST, max(low + 1, min(guess, low * 16)))
    if len(profiles) % 3 == 2:
        return (low + high) // 2
    others = [size for size in profiles if size not in (low, high)]
    nearest = sorted(others, key=lambda size: abs(profiles[size].peak_bytes - allowed))[:1]
    known = [low, high, *nearest]
    peaks = [profiles[size].peak_bytes for size in known]
    fits, breaks = low, high
    while breaks - fits > 1:
        middle = (fits + breaks) // 2
        if _through(known, peaks, middle) <= allowed:
            fits = middle
        else:
            breaks = middle
    return max(low + 1, fits)


def _through(sizes: Sequence[int], values: Sequence[int], at: int) -> float:
    """Evaluate the polynomial through some points (Lagrange)."""
    total = 0.0
    for i, x in enumerate(sizes):
        term = float(values[i])
        for j, other in enumerate(sizes):
            if i != j:
                term *= (at - other) / (x - other)
        total += term
    return total


__all__ = [
    "LargestBatch",
    "OutOfMemory",
    "assert_fits",
    "describe_failure",
    "is_out_of_memory",
    "largest_batch",
    "run_within",
    "search",
]

"""Memory and work of a step stay under their ceilings, grow as promised, and nothing is left behind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...codes import memory as explain
from ...codes.undecided import NOT_MEASURABLE
from ...findings import Culprit, Finding
from ...measure.budget import (
    LargestBatch,
    describe_failure,
    is_out_of_memory,
    search,
)
from ...measure.evidence import evidence
from ...measure.growth import grow, growth_sizes
from ...measure.memory import attempt
from ...measure.steps import StepFailed, Tracked, track
from ...probes.memory.fake import Unmeasurable
from ...probes.memory.fake import explain as why_not
from ...subject import Subject
from ...subject.errors import SubjectError
from ...text.units import format_bytes, format_flops
from ...text.wording import at_sizes
from ...verdicts import inconclusive, not_applicable, passed
from .leaks import leak_of_steps

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping


_REAL_RATIO = 64  # times the base batch up to which a step that cannot be faked is run for real
_TOLERANCE = 0.25  # of a power that no polynomial fits exactly


def peak_memory(subject: Subject) -> Iterator[Finding]:
    """Compare peak, phases and categories with the ceilings."""
    tracked = yield from _measured(subject)
    if tracked is None:
        return
    profile = tracked.profile
    limits = subject.contract.memory
    broken: dict[str, tuple[int, int]] = {}
    for name, allowed in limits.items():
        found = profile.of(name)
        if name == "total" and profile.allocator_peak_bytes is not None:
            found = profile.allocator_peak_bytes
        if found > allowed:
            broken[name] = found, allowed
    if broken:
        yield explain.over_ceiling(
            subject,
            tracked,
            broken,
            fits=lambda: _fitting(subject, broken["total"][1]),
            leak=lambda: leak_of_steps(subject),
        )
        return
    told = ", ".join(
        f"{_word(name)} {format_bytes(profile.of(name))} of {format_bytes(n)}"
        for name, n in limits.items()
    )
    how = "on fake tensors" if profile.fake else f"on {subject.device.type}"
    yield passed(f"{told}, measured {how}{at_sizes(profile.sizes)}", evidence=evidence(profile))


def memory_growth(subject: Subject) -> Iterator[Finding]:
    """Fit the exact peaks at several sizes of each declared symbol."""
    for symbol, declared in subject.contract.growth.items():
        sizes = growth_sizes(subject.contract, symbol)
        if len(sizes) < 3:
            yield inconclusive(
                f"the growth with {symbol} needs three sizes; declare sizes={{{symbol!r}: "
                f"(low, high)}}"
            )
            continue
        try:
            found = grow(subject, symbol, sizes=sizes)
        except Unmeasurable as error:
            if not _affordable(subject, {symbol: sizes[-1]}):
                yield _cannot(error)
                continue
            try:
                found = grow(subject, symbol, sizes=sizes, fake=False, explained=True)
            except Unmeasurable as second:
                yield _cannot(second)
                continue
        if found.power > declared + (0 if found.exact else _TOLERANCE):
            yield explain.grows_too_fast(found, declared)
        elif not any(found.transient_bytes):
            yield inconclusive(f"no tensor of the step was observed at any size of {symbol}")
        else:
            yield passed(
                f"memory follows {found.law}, work {found.flops_law}, at {symbol} = "
                f"{', '.join(map(str, found.sizes))}; {symbol}^{declared:g} is promised",
                evidence=found.to_dict(),
            )


def flops(subject: Subject) -> Iterator[Finding]:
    """Count operations by torch's formulas, at the largest declared sizes."""
    tracked = yield from _measured(subject)
    if tracked is None:
        return
    allowed = subject.contract.flops
    assert allowed is not None
    assert tracked.flops is not None
    if tracked.flops == 0:
        yield inconclusive(
            "no operation of the step has a formula: no matrix product, convolution or attention"
        )
    elif tracked.flops > allowed:
        yield explain.too_many_flops(subject, tracked, int(allowed))
    else:
        yield passed(
            f"a step takes {format_flops(tracked.flops)} of "
            f"{format_flops(allowed)}{at_sizes(tracked.profile.sizes)}",
            evidence={"flops": tracked.flops, "parameters": tracked.parameters},
        )


def largest_sizes(subject: Subject) -> dict[str, int]:
    """Return the largest declared size of every symbol that may vary, or nothing where none is declared."""
    source = subject.contract.source
    if source is None:
        return {}
    base = source.base(subject.seed).sizes
    tops = {
        name: span.top
        for name, span in source.symbols.items()
        if span.declared and span.relation is None and not span.fixed
    }
    return tops if any(base.get(name) != size for name, size in tops.items()) else {}


def _measured(subject: Subject) -> Generator[Finding, None, Tracked | None]:
    """Track the step at the largest declared sizes; yield a finding and return None where that fails."""
    key = ("tracked", "training")
    tracked: Tracked | None = subject.cache.get(key)
    if tracked is None:
        low = _low_precision(subject)
        if low is not None:
            try:
                tracked = yield from _track(
                    low, largest_sizes(low), fake=True, real=subject.contract.is_factory
                )
            finally:
                low.close()
        else:
            sizes = largest_sizes(subject)
            tracked = yield from _track(
                subject, sizes, fake=bool(sizes) and subject.device.type == "cpu", real=True
            )
        subject.cache[key] = tracked
    return tracked


def _low_precision(subject: Subject) -> Subject | None:
    """Return a subject in the declared low precision where no full one is declared: that is what is promised."""
    declared = subject.contract.dtypes
    if not declared or subject.dtype is not None:
        return None
    return Subject(subject.contract, device="cpu", dtype=declared[0], seed=subject.seed)


def _track(
    subject: Subject, sizes: Mapping[str, int], *, fake: bool, real: bool
) -> Generator[Finding, None, Tracked | None]:
    """Track a step on fake tensors if asked to, and for real where that is allowed and affordable."""
    if fake:
        try:
            return attempt(lambda: track(subject, at=sizes, fake=True, flops=True))
        except Unmeasurable as error:
            if not real or not _affordable(subject, sizes):
                yield _cannot(error)
                return None
    if not _trains(subject):
        yield not_applicable("no parameter requires a gradient, so there is no training step")
        return None
    try:
        return track(subject, at=sizes, fake=False, flops=True)
    except Unmeasurable as error:
        yield _cannot(error)
    except StepFailed as failed:
        if is_out_of_memory(failed.error):
            subject.cache["out-of-memory"] = describe_failure(failed)
        if failed.original is not None:
            raise failed.original from failed.error
        yield _cannot(why_not(failed.error, failed.tracker))
    return None


def _trains(subject: Subject) -> bool:
    return any(parameter.requires_grad for parameter in subject.model.parameters())


def _affordable(subject: Subject, sizes: Mapping[str, int]) -> bool:
    """Say whether a step of these sizes may be run for real: not too many times the base batch."""
    assert subject.contract.source is not None
    base = subject.contract.source.base(subject.seed).sizes
    return (
        math.prod(max(1.0, n / max(1, base.get(name, 1))) for name, n in sizes.items())
        <= _REAL_RATIO
    )


def _cannot(error: Unmeasurable) -> Finding:
    return inconclusive(
        f"memory could not be measured without running: {error.reason}",
        code=NOT_MEASURABLE,
        location=error.location,
        culprits=[Culprit("call", error.op, location=error.location)] if error.op else (),
        evidence={"op": error.op},
    )


def _fitting(subject: Subject, allowed: int) -> LargestBatch | None:
    """Find the largest batch that would have fitted; None where that cannot be told cheaply."""
    source = subject.contract.source
    if source is None or source.batch_symbol is None:
        return None
    sizes = {name: n for name, n in largest_sizes(subject).items() if name != source.batch_symbol}
    try:
        return search(_low_precision(subject) or subject, allowed, at=sizes)
    except (Unmeasurable, StepFailed, SubjectError):
        return None


def _word(name: str) -> str:
    return "peak" if name == "total" else name.replace("_", " ")

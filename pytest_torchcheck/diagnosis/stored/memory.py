"""Promises of memory and time that are broken, explained: what is too much, why, and by which line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import FlopCounterMode

from ... import sources
from ...declared.limits import Faster
from ...findings import Culprit, Finding, Location
from ...measure.budget import search
from ...measure.evidence import evidence, short
from ...measure.memory import attempt
from ...measure.repeated import repeated
from ...measure.steps import track
from ...measure.where import Where, where
from ...probes.memory.fake import Unmeasurable
from ...probes.memory.replay import build_profile
from ...subject.errors import SubjectError
from ...text.units import format_bytes, format_flops, format_seconds
from ...text.wording import at_sizes
from ...verdicts import violated
from .memory_causes import advice, find_causes, general_cause, tensor_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...declared.limits import Kind, Speed
    from ...measure.budget import LargestBatch, OutOfMemory
    from ...measure.growth import Growth
    from ...measure.repeated import Paired
    from ...measure.steps import Tracked
    from ...probes.holding.leaks import Leak
    from ...probes.memory.profile import MemoryProfile
    from ...subject import Subject


def over_ceiling(
    subject: Subject,
    tracked: Tracked,
    broken: Mapping[str, tuple[int, int]],
    *,
    fits: Callable[[], LargestBatch | None],
    leak: Callable[[], Leak | None],
) -> Finding:
    """Explain ceilings that are broken.

    Args:
        subject: The subject.
        tracked: The measured step.
        broken: By name of the ceiling (``total``, a phase, a category): measured and allowed bytes.
        fits: Finds the largest batch that would fit, for a broken total.
        leak: Finds what a step leaves behind, where tensors of an earlier one are live at the peak.
    """
    profile = tracked.profile
    name = max(broken, key=lambda key: broken[key][0] - broken[key][1])
    measured, allowed = broken[name]
    everything = build_profile(
        tracked.tracker, device=profile.device, fake=profile.fake, sizes=profile.sizes, largest=-1
    )
    found = find_causes(subject, everything, tracked, leak)
    enough = [c for c in found if c.bytes >= min(0.5 * (measured - allowed), 0.1 * measured)]
    main = enough[0] if enough else general_cause(everything, name)
    largest = fits() if name == "total" else None
    at = at_sizes(profile.sizes)
    also = "; also: " + "; ".join(c.cause for c in enough[1:3]) if len(enough) > 1 else ""
    return violated(
        "memory-ceiling",
        f"{_what(name)} {format_bytes(measured)}, above the ceiling of {format_bytes(allowed)}{at}",
        culprits=(main.culprit, *(c.culprit for c in enough[1:3])),
        location=main.culprit.location,
        observed=_observed(profile, broken),
        cause=main.cause + also,
        because=main.because,
        fix=main.fix + _fits(largest),
        evidence=evidence(profile),
    )


def _what(name: str) -> str:
    if name == "total":
        return "peak memory of a training step is"
    if name in ("forward", "loss", "backward", "optimizer"):
        return f"peak memory of the {name} phase is"
    return f"{name.replace('_', ' ')} of a training step {'takes' if name == 'optimizer_state' else 'take'}"


def _observed(profile: MemoryProfile, broken: Mapping[str, tuple[int, int]]) -> str:
    limits = ", ".join(
        f"{'peak' if name == 'total' else name.replace('_', ' ')} {measured} bytes of {allowed} allowed"
        for name, (measured, allowed) in broken.items()
    )
    parts = ", ".join(
        f"{name.replace('_', ' ')} {format_bytes(count)}"
        for name, count in sorted(profile.by_category.items(), key=lambda pair: -pair[1])[:4]
    )
    return f"{limits}; at the peak, in {profile.peak_phase}: {parts}"


def _fits(found: LargestBatch | None) -> str:
    if found is None:
        return ""
    if found.size == 0:
        return f"; no {found.symbol} fits: {found.symbol}=1 takes {format_bytes(found.profile.peak_bytes)}"
    return f"; {found.symbol}={found.size} would fit ({format_bytes(found.profile.peak_bytes)})"


def out_of_memory(moment: OutOfMemory, fits: LargestBatch | None) -> Finding:
    """Explain a step that ran out of memory: when, the ten largest live tensors, and what would have fitted."""
    largest = moment.largest[0] if moment.largest else None
    line = moment.location or (largest.location if largest is not None else None)
    op = moment.op.removeprefix("aten.").partition(".")[0] or "an allocation"
    return violated(
        "out-of-memory",
        f"a training step runs out of memory in the {moment.phase} phase, at {op}",
        culprits=[
            Culprit(
                "tensor", tensor_name(h), f"{format_bytes(h.bytes)}, {h.describe()}", h.location
            )
            for h in moment.largest[:3]
        ],
        location=line,
        observed=f"{format_bytes(moment.live_bytes)} were live"
        + (
            f", {format_bytes(moment.budget_bytes)} are allowed"
            if moment.budget_bytes is not None
            else ""
        )
        + (
            f"; the largest is {largest.describe()} of {format_bytes(largest.bytes)}"
            if largest is not None
            else ""
        ),
        cause=f"the {moment.phase} phase needs more memory than is available",
        because="by category: "
        + ", ".join(
            f"{name.replace('_', ' ')} {format_bytes(count)}"
            for name, count in sorted(
                moment.profile.by_category.items(), key=lambda pair: -pair[1]
            )[:4]
        ),
        fix=advice(largest) + _fits(fits),
        evidence=evidence(moment.profile),
    )


def with_live_tensors(finding: Finding, subject: Subject, sizes: Mapping[str, int]) -> Finding:
    """Add to an out-of-memory error of any check what the device cannot tell: the live tensors, each by line.

    Where the step was tracked, they are those at that moment; else those at the peak of the same
    step run again on fake tensors, which allocates nothing; where that cannot be done the finding
    stays as it is.

    Args:
        finding: The explained error.
        subject: The subject whose step raised it.
        sizes: Of the batch that did not fit.
    """
    known = subject.contract.source.symbols if subject.contract.source is not None else {}
    at = {name: size for name, size in sizes.items() if name in known}
    moment: OutOfMemory | None = subject.cache.get("out-of-memory")
    if moment is not None:
        profile = moment.profile
    else:
        try:
            profile = attempt(lambda: track(subject, at=at, fake=True)).profile
        except (Unmeasurable, SubjectError):
            return finding
    fits = None
    source = subject.contract.source
    if (
        subject.device.type == "cuda"
        and torch.cuda.is_available()
        and source is not None
        and source.batch_symbol
    ):
        total = int(torch.cuda.get_device_properties(subject.device).total_memory)
        others = {name: size for name, size in at.items() if name != source.batch_symbol}
        try:
            fits = search(subject, total, at=others)
        except (Unmeasurable, SubjectError):
            fits = None
    largest = "; ".join(
        f"{format_bytes(h.bytes)} {h.describe()}"
        + (f" at {short(h.location)}" if h.location else "")
        for h in profile.largest[:3]
    )
    return finding.replace(
        because=(
            f"{format_bytes(profile.peak_bytes)} of tensors were live then, in {profile.peak_phase}: {largest}"
            if moment is not None
            else (
                f"a whole step needs {format_bytes(profile.peak_bytes)} of tensors, most in "
                f"{profile.peak_phase}: {largest}"
            )
        )
        + f"; {_said(finding.because)}",
        fix=finding.fix + _fits(fits),
        evidence={**finding.evidence, **evidence(profile)},
    )


def _said(because: str) -> str:
    """Leave out the tensors alive in the whole process, which the step's own ones replace."""
    before, word, said = because.partition("torch said")
    return word + said if word else before


def grows_too_fast(growth: Growth, declared: float) -> Finding:
    """Explain memory that grows with a higher power than promised, by the tensor that grows fastest."""
    fastest = growth.fastest
    symbol = growth.symbol
    power = f"{growth.power:g}" if growth.exact else f"about {growth.power:.2g}"
    culprits = []
    if fastest is not None:
        culprits.append(
            Culprit(
                "tensor",
                tensor_name(fastest),
                (
                    f"{fastest.describe()} at {symbol}={growth.sizes[-1]}, grows with "
                    f"{symbol}^{growth.fastest_power:g}"
                ),
                fastest.location,
            )
        )
    measured = ", ".join(
        f"{symbol}={size}: {format_bytes(count)}"
        for size, count in zip(growth.sizes, growth.transient_bytes, strict=True)
    )
    return violated(
        "memory-growth",
        f"memory grows with {symbol}^{power}, where {symbol}^{declared:g} is promised",
        culprits=culprits,
        location=fastest.location if fastest is not None else None,
        observed=f"{measured} (added by a step to model and optimizer)",
        cause=(f"{tensor_name(fastest)} creates a tensor that grows with "
            f"{symbol}^{growth.fastest_power:g}")
        if fastest is not None
        else f"a larger {symbol} creates more tensors",
        because=f"the peaks are {'exactly' if growth.exact else 'to 1 %'} {growth.law}"
        + (
            f"; {fastest.describe()} at {symbol}={growth.sizes[-1]} is {format_bytes(fastest.bytes)}"
            if fastest is not None
            else ""
        ),
        fix=("compute this tensor in chunks or not at all (scaled_dot_product_attention for "
            f"attention), or declare growth={{{symbol!r}: {growth.power:g}}}"),
        evidence={
            **growth.to_dict(),
            "lines": [
                {
                    "bytes": count, "power": power_of, "file": line.file, "line": line.line,
                    "text": line.text, "function": line.function,
                }
                for line, power_of, count in growth.lines[:10]
            ],
        },
    )  # fmt: skip


def too_many_flops(subject: Subject, tracked: Tracked, allowed: int) -> Finding:
    """Explain a step that computes more than promised, by the lines that compute most."""
    assert tracked.flops is not None
    shares = tracked.flops_by_line
    lines = _flop_lines(tracked)
    top = next((line for line in lines if line[0] is not None), None)
    return violated(
        "flops-ceiling",
        f"a training step takes {format_flops(tracked.flops)}, above the ceiling of "
        f"{format_flops(allowed)}{at_sizes(tracked.profile.sizes)}",
        culprits=[
            Culprit("call", share.module or "step", f"{format_flops(share.count)} in {share.phase}")
            for share in shares[:3]
        ],
        location=top[0] if top is not None else None,
        observed=f"{tracked.flops} floating-point operations, {allowed} allowed; "
        + ", ".join(
            f"{phase} {format_flops(count)}" for phase, count in _flop_phases(tracked).items()
        ),
        cause="matrix products, convolutions and attention of this step exceed the promise",
        because="counted by torch's FLOP formulas from the shapes of every operation"
        + (f"; this line takes {format_flops(top[1])}" if top is not None else ""),
        fix="use smaller layers or sizes, or raise the ceiling",
        evidence={
            "flops": tracked.flops,
            "sizes": dict(tracked.profile.sizes),
            "flops_by_line": [
                {
                    "flops": format_flops(count),
                    "line": short(line),
                    "text": line.text if line else "",
                }
                for line, count in lines[:10]
            ],
        },
    )


def _flop_lines(tracked: Tracked) -> list[tuple[Location | None, int]]:
    totals: dict[Location | None, int] = {}
    for share in tracked.flops_by_line:
        line = Location(file=share.file, line=share.line, text=share.text) if share.file else None
        totals[line] = totals.get(line, 0) + share.count
    return sorted(totals.items(), key=lambda pair: -pair[1])


def _flop_phases(tracked: Tracked) -> dict[str, int]:
    totals: dict[str, int] = {}
    for share in tracked.flops_by_line:
        totals[share.phase] = totals.get(share.phase, 0) + share.count
    return totals


_ALIKE = 1.02  # times as many operations that count as the same


def too_slow(
    subject: Subject, kind: Kind, declared: Speed, twin: Subject, found: Paired
) -> Finding:
    """Explain a ratio above the declared one by what both models compute, and by the line that takes most."""
    asked = (
        f"at least {declared.by:g} times as fast" if isinstance(declared, Faster)
        else f"at most {declared.at_most:g} times the time"
    )  # fmt: skip
    (mine, spent), (theirs, _) = _looked(subject, kind), _looked(twin, kind)
    top = next((one for one in spent.spent if one.location is not None), None)
    culprits = [Culprit("call", kind)]
    because = f"{format_flops(mine)} beside {format_flops(theirs)}, counted by torch's formulas"
    if top is not None:
        if top.module:
            culprits = [Culprit("module", top.module, top.cls)]
        because += (
            f"; {100 * top.seconds / spent.seconds:.0f} % of the kernels' time is on this line"
        )
    cause = "the arithmetic is not more: the time goes to other operations, to memory, or to Python"
    if mine > _ALIKE * theirs:
        cause = f"the model computes {mine / max(theirs, 1):.2f} times as much"
    return violated(
        "too-slow",
        f"{kind} takes {found.ratio:.2f} times the other model's time; declared is {asked}",
        culprits=culprits,
        location=top.location if top is not None else sources.of_own_class(subject.model),
        observed=f"{format_seconds(found.first_s)} beside {format_seconds(found.second_s)}; the median "
        f"ratio of {found.pairs} pairs is between {found.low:.2f} and {found.high:.2f}",
        cause=cause,
        because=because,
        fix=f"make {kind} cheaper, or change speed[{kind!r}] in the contract",
        evidence={
            "ratio": found.ratio, "low": found.low, "high": found.high, "pairs": found.pairs,
            "seconds": found.first_s, "seconds of the other": found.second_s,
            "flops": mine, "flops of the other": theirs, "time by line": spent.rows(),
        },
    )  # fmt: skip


def _looked(subject: Subject, kind: Kind) -> tuple[int, Where]:
    """Return the floating-point operations of one repeat, and where its time goes."""
    with repeated(subject, kind) as once:
        with FlopCounterMode(display=False) as counted:
            once()
        return int(counted.get_total_flops()), where(once, subject.model, subject.device)

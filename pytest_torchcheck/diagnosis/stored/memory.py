"""Memory promises that are broken, explained: what is too large, why, and by which line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pytest_torchcheck.findings import Culprit, Finding, Location
from pytest_torchcheck.measure.budget import search
from pytest_torchcheck.measure.memory import attempt
from pytest_torchcheck.measure.steps import track
from pytest_torchcheck.probes.memory.fake import Unmeasurable
from pytest_torchcheck.probes.memory.replay import build_profile
from pytest_torchcheck.subject import SubjectError
from pytest_torchcheck.text.units import format_bytes, format_flops

from ...measure.evidence import _short, evidence
from ...verdicts import suspicious, violated
from .memory_causes import advice, find_causes, general_cause, tensor_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_torchcheck.loop.carried_graphs import Carried
    from pytest_torchcheck.measure.budget import LargestBatch, OutOfMemory
    from pytest_torchcheck.measure.growth import Growth
    from pytest_torchcheck.measure.steps import Tracked
    from pytest_torchcheck.probes.holding.leaks import Leak
    from pytest_torchcheck.probes.holding.tensor_caches import TensorCache
    from pytest_torchcheck.probes.memory.profile import MemoryProfile
    from pytest_torchcheck.subject import Subject


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
    at = _at(profile.sizes)
    also = "; also: " + "; ".join(c.cause for c in enough[1:3]) if len(enough) > 1 else ""
    return violated(
        "memory-ceiling",
        f"{_what(name)} {format_bytes(measured)}, over the ceiling of {format_bytes(allowed)}{at}",
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


def _at(sizes: Mapping[str, int]) -> str:
    return f" at {', '.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else ""


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
                kind="tensor",
                name=tensor_name(h),
                detail=f"{format_bytes(h.bytes)}, {h.describe()}",
                location=h.location,
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
        cause=f"the {moment.phase} phase needs more than there is",
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
    step run
    again on fake tensors, which allocates nothing; where that cannot be done the finding stays as it is.

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
        + (f" at {_short(h.location)}" if h.location else "")
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
                kind="tensor",
                name=tensor_name(fastest),
                detail=(
                    f"{fastest.describe()} at {symbol}={growth.sizes[-1]}, grows with "
                    f"{symbol}^{growth.fastest_power:g}"
                ),
                location=fastest.location,
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
        observed=f"{measured} (what a step adds to model and optimizer)",
        cause=f"{tensor_name(fastest)} makes a tensor whose size grows with {symbol}^{growth.fastest_power:g}"
        if fastest is not None
        else f"more of {symbol} makes more tensors",
        because=f"the peaks are {'exactly' if growth.exact else 'to 1 %'} {growth.law}"
        + (
            f"; {fastest.describe()} at {symbol}={growth.sizes[-1]} is {format_bytes(fastest.bytes)}"
            if fastest is not None
            else ""
        ),
        fix=("make this tensor in chunks or not at all (scaled_dot_product_attention for "
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
        f"a training step takes {format_flops(tracked.flops)}, over the ceiling of {format_flops(allowed)}"
        f"{_at(tracked.profile.sizes)}",
        culprits=[
            Culprit(
                kind="call",
                name=share.module or "step",
                detail=f"{format_flops(share.count)} in {share.phase}",
            )
            for share in shares[:3]
        ],
        location=top[0] if top is not None else None,
        observed=f"{tracked.flops} floating-point operations, {allowed} allowed; "
        + ", ".join(
            f"{phase} {format_flops(count)}" for phase, count in _flop_phases(tracked).items()
        ),
        cause="matrix products, convolutions and attention of this step are more than was promised",
        because="counted by torch's formulas on the shapes of every operation"
        + (f"; this line takes {format_flops(top[1])}" if top is not None else ""),
        fix="use smaller layers or sizes, or raise the ceiling",
        evidence={
            "flops": tracked.flops,
            "sizes": dict(tracked.profile.sizes),
            "flops_by_line": [
                {
                    "flops": format_flops(count),
                    "line": _short(line),
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


def leaks(
    leak: Leak,
    *,
    kind: str,
    root: str | None = None,
    certain: bool = True,
    given: Sequence[tuple[str, Location]] = (),
) -> Finding:
    """Explain what grows with every step.

    Args:
        leak: What was found.
        kind: ``training step`` or ``call``.
        root: The finding that this one repeats, if any.
        certain: Whether it breaks a promise, or only looks like it.
        given: The variables with a graph that the line which keeps it reads, and the lines that
            bound them.
    """
    first = leak.tensors[0] if leak.tensors else None
    each = f"{format_bytes(leak.bytes_per_step)} per {kind}" if leak.bytes_per_step else ""
    if leak.kind == "hooks":
        assert leak.hooks is not None
        name, count = next(iter(leak.hooks.items()))
        code = "leak-hooks"
        summary = f"{name} gets {count} more hook{'s' if count > 1 else ''} with every {kind}"
        cause = "a hook is registered in every step and never removed"
        fix = "register it once in __init__, or keep the handle and call handle.remove()"
        culprit = Culprit(
            kind="module", name=name, detail=f"+{count} hooks per {kind}", location=leak.location
        )
    else:
        holder = leak.holder or "something"
        code = "leak-graph" if leak.kind == "graph" else "leak-tensors"
        summary = f"{holder} keeps {each} alive"
        cause = (
            "tensors are kept together with their graph, so that everything backward needed stays too"
            if leak.kind == "graph"
            else "tensors are kept and never dropped"
        )
        fix = (
            f"keep .detach() or .item() of it, or drop it after the step (line {leak.location.line})"
            if leak.kind == "graph" and leak.location is not None
            else "keep .detach() or .item() of it, or drop it after the step"
            if leak.kind == "graph"
            else "bound it (deque(maxlen=...)), or clear it after each step"
        )
        culprit = Culprit(kind="tensor", name=holder, detail=each, location=leak.location)
    made = violated if certain else suspicious
    return made(
        code,
        summary,
        culprits=(
            culprit,
            *(
                Culprit(kind="tensor", name=name, detail="brings its graph", location=place)
                for name, place in given[:2]
            ),
        ),
        location=leak.location or (first.location if first is not None else None),
        observed=(
            f"live bytes after each {kind}, from the first: {', '.join(map(str, leak.live_bytes))}"
            if any(leak.live_bytes)
            else "live bytes stay constant"
        )
        + (
            f"; hooks per {kind}: {', '.join(f'{n} +{c}' for n, c in leak.hooks.items())}"
            if leak.hooks
            else ""
        ),
        cause=cause,
        because=_stays(leak, kind) + _brought(leak, given),
        fix=fix,
        evidence={
            "live_bytes": list(leak.live_bytes),
            "bytes_per_step": leak.bytes_per_step,
            **({"holders": list(leak.chain)} if leak.chain else {}),
            "tensors": [
                {
                    "shape": list(t.shape),
                    "dtype": t.dtype,
                    "bytes per step": t.bytes_per_step,
                    "made by": t.op,
                    "module": t.module,
                    "line": _short(t.location),
                }
                for t in leak.tensors[:10]
            ],
        },
    ).replace(root=root)


def cached(
    leak: Leak, cache: TensorCache, *, kind: str, root: str | None = None, certain: bool = False
) -> Finding:
    """Explain a cached function that is called with tensors made anew, and so keeps every one of them."""
    told = leaks(leak, kind=kind, root=root, certain=certain or cache.bounded is None)
    many = f"{cache.per_step} more entr{'y' if cache.per_step == 1 else 'ies'} with every {kind}"
    line = f"line {cache.called.line}" if cache.called is not None else f"the {kind}"
    each = f"{format_bytes(leak.bytes_per_step)} per {kind}"
    return told.replace(
        summary=f"{cache.name} caches by tensors that are made anew: it keeps {each} alive and never hits",
        culprits=(
            Culprit(kind="call", name=cache.name, detail="called here with a tensor made anew", location=cache.called),
            Culprit(kind="call", name=cache.name, detail="keeps what it was called with" + ("" if cache.bounded is None else f", up to {cache.bounded} times"),
                    location=cache.made),
        ),
        location=cache.called or cache.made,
        cause="a tensor is hashed by its identity: one with the same values is another key",
        because=(f"0 hits and {many}, {cache.kept} by now; {line} gives it a tensor made anew each "
            f"time; {_stays(leak, kind)}"),
        fix=f"cache {cache.name} by numbers and shapes, not by tensors, or not at all",
    )  # fmt: skip


def _brought(leak: Leak, given: Sequence[tuple[str, Location]]) -> str:
    if not given or leak.location is None:
        return ""
    name, place = given[0]
    return f"; line {leak.location.line} reads {name}, which line {place.line} makes with its graph"


def _stays(leak: Leak, kind: str) -> str:
    parts = []
    if leak.tensors:
        first = leak.tensors[0]
        made = f" made at line {first.location.line}" if first.location is not None else ""
        parts.append(
            f"a {first.dtype} tensor {list(first.shape)}{made} "
            + (
                f"stays per {kind}"
                if first.count_per_step
                else f"grows by {first.bytes_per_step} bytes per {kind}"
            )
        )
    if len(leak.chain) > 1:
        parts.append(" <- ".join(leak.chain))
    if leak.hooks:
        parts.append("the number of hooks was counted after every step")
    return (
        "; ".join(parts)
        or "live bytes grew in every one of the steps, also after a garbage collection"
    )


def longer_graph(
    name: str, nodes: Sequence[int], carried: Carried, *, code: str = "leak-graph"
) -> Finding:
    """Explain a tensor that is kept between steps and whose graph every step makes longer."""
    place = carried.location
    first, *others = carried.culprits() or (Culprit(kind="tensor", name=name),)
    kept = name.startswith("model.")
    at = f" on line {place.line}" if place is not None else ""
    given = next(iter(carried.given), None)
    read = f"; {given[0]}, which line {place.line} reads, has one too" if given and place else ""
    handed = given is not None and place is not None and given[1].function != place.function
    return violated(
        code,
        f"{name} keeps the graph of every training step",
        culprits=[replace(first, detail=f"{nodes[-1]} nodes"), *others],
        location=place,
        observed=f"the graph behind {name} has {', '.join(map(str, nodes))} nodes after {len(nodes)} steps",
        cause=f"the new value is computed{at} from the old one, with gradients"
        if kept
        else "what is handed over is kept together with its graph"
        if handed
        else "a loss is added up together with its graph",
        because=f"{name} has a grad_fn after each step{read}"
        if kept
        else f"{name} has a grad_fn, and each step hangs the graph of its loss on it",
        fix=f"detach what is stored{at}, or update it under torch.no_grad()"
        if kept
        else f"pass {given[0]}.detach(), or .item() of a loss, where line {given[1].line} hands it over"
        if handed and given is not None
        else "add the number: total += loss.item()",
        evidence={"nodes": list(nodes)},
    )

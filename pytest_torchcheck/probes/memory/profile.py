"""What a step's memory was, as plain data: the log of a tracker replayed once."""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from linecache import getline
from typing import TYPE_CHECKING, Any, Literal, get_args

from pytest_torchcheck import sources
from pytest_torchcheck.findings import Location
from pytest_torchcheck.units import format_bytes

from .tracker import PHASES, Allocation, MemoryTracker, Phase, Site

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

Category = Literal[
    "parameters", "buffers", "inputs", "gradients", "optimizer_state", "activations", "temporaries", "other",
]  # fmt: skip
CATEGORIES: tuple[Category, ...] = get_args(Category)
"""In the order in which pictures stack them; ``other`` is what the step uses and nobody declared."""

NOWHERE = Location(file="", line=0, text="no line of the user's", function="")
"""Where memory is put whose line is not known, so that lines add up to the peak."""

_OWNED = ("parameters", "buffers", "gradients", "optimizer_state")
_COLUMNS = 480  # points of a timeline: about one per pixel of the picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One tensor that was live at the peak.

    Attributes:
        bytes: Of its storage.
        category, phase: What it is, and when it was made; ``before`` where it was there at the start,
            ``earlier`` where it was made in an earlier step.
        name: Qualified name, of parameters and what belongs to them.
        module: The innermost module that made it.
        op: The operation that returned it.
        shape, dtype: Of the tensor.
        location: The line that made it.
    """

    bytes: int
    category: Category
    phase: str
    name: str
    module: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    location: Location | None

    def describe(self) -> str:
        """Return ``float32 [8, 4, 512, 512]``, behind the name where there is one."""
        text = f"{self.dtype} {list(self.shape)}"
        return f"{self.name}, {text}" if self.name else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Live bytes over a step, thinned so that no peak is lost.

    Attributes:
        columns: How many points there are.
        phases: ``(phase, first column, column after the last)``, in order.
        series: Bytes at every column, by category; those that are 0 throughout are left out.
    """

    columns: int
    phases: tuple[tuple[str, int, int], ...]
    series: Mapping[str, tuple[int, ...]]

    def thinned(self, most: int) -> Timeline:
        """Return the same with at most so many columns; each keeps its moment of the most live bytes."""
        if self.columns <= most:
            return self
        groups = [
            range(self.columns * i // most, self.columns * (i + 1) // most) for i in range(most)
        ]
        totals = [
            sum(values[column] for values in self.series.values()) for column in range(self.columns)
        ]
        best = [max(group, key=lambda column: totals[column]) for group in groups]
        phases: list[tuple[str, int, int]] = []
        for name, start, stop in self.phases:
            first, last = start * most // self.columns, -(-stop * most // self.columns)
            first = max(first, phases[-1][2]) if phases else first
            if last > first:
                phases.append((name, first, last))
        return Timeline(
            columns=most,
            phases=tuple(phases),
            series={
                name: tuple(values[column] for column in best)
                for name, values in self.series.items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """Where the bytes of one step are.

    All counts are bytes of live tensor storages between operations: what a kernel takes and gives back
    within one operation is not in them (see ``allocator_peak_bytes``).

    Attributes:
        peak_bytes: The most that was live at once.
        peak_phase: The phase in which that was.
        peak_op: The operation after which that was.
        start_bytes, end_bytes: Live before and after the step.
        by_phase: The most that was live at once in each phase.
        by_category: Bytes at the peak; adds up to ``peak_bytes``.
        category_peaks: The most of each category that was live at once, whenever that was.
        by_module: Bytes at the peak by qualified name of the innermost module; ``""`` is none.
        by_line: Bytes at the peak by the user's line; :data:`NOWHERE` where it is not known.
        largest: The largest tensors live at the peak, the largest first.
        timeline: Live bytes over the step.
        operations: How many operations ran.
        device: The device whose memory it is.
        fake: Whether nothing was allocated.
        sizes: Size of every symbol of the batch, where declared.
        allocator_peak_bytes: What the device's own allocator saw at most, kernels' workspaces included;
            None where it was not asked.
    """

    peak_bytes: int
    peak_phase: str
    peak_op: str = ""
    start_bytes: int = 0
    end_bytes: int = 0
    by_phase: Mapping[str, int] = field(default_factory=dict)
    by_category: Mapping[str, int] = field(default_factory=dict)
    category_peaks: Mapping[str, int] = field(default_factory=dict)
    by_module: Mapping[str, int] = field(default_factory=dict)
    by_line: Mapping[Location, int] = field(default_factory=dict)
    largest: tuple[Holding, ...] = ()
    timeline: Timeline | None = field(default=None, repr=False)
    operations: int = 0
    device: str = "cpu"
    fake: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    allocator_peak_bytes: int | None = None

    def __str__(self) -> str:
        """Return what a person asks first: how much, when, of what, and where."""
        place = self.peak_phase + (f", at {self.peak_op}" if self.peak_op else "")
        sizes = "".join(f", {name}={size}" for name, size in self.sizes.items())
        rows = [f"peak {format_bytes(self.peak_bytes)} in {place} ({self.device}{sizes})"]
        if self.allocator_peak_bytes is not None:
            rows.append(f"allocator  {format_bytes(self.allocator_peak_bytes)}")
        for title, counts in (("phases", self.by_phase), ("at peak", self.by_category)):
            told = ", ".join(
                f"{name.replace('_', ' ')} {format_bytes(count)}" for name, count in counts.items()
            )
            rows.append(f"{title:<9}  {told}")
        for place_of, count in list(self.by_line.items())[:5]:
            line = f"{place_of.file}:{place_of.line}: " if place_of != NOWHERE else ""
            rows.append(f"{format_bytes(count):>9}  {line}{place_of.text}")
        return "\n".join(rows)

    def replace(self, **changes: Any) -> MemoryProfile:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    @property
    def workspace_bytes(self) -> int | None:
        """What the allocator saw on top of tensors, at its own peak; None where it was not asked."""
        return (
            None
            if self.allocator_peak_bytes is None
            else self.allocator_peak_bytes - self.peak_bytes
        )

    def of(self, name: str) -> int:
        """Return the peak of a phase or category, or of the whole step under ``total``.

        Raises:
            KeyError: It is none of them.
        """
        if name == "total":
            return self.peak_bytes
        if name in PHASES:
            return self.by_phase.get(name, 0)
        if name in CATEGORIES:
            return self.category_peaks.get(name, 0)
        raise KeyError(
            f"{name!r} is no phase and no category: {', '.join((*PHASES, *CATEGORIES))}, total"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return the table for people: one row per category, with bytes at the peak and at most."""
        return [
            {
                "category": name.replace("_", " "),
                "at_peak": self.by_category.get(name, 0),
                "at_most": most,
            }
            for name, most in self.category_peaks.items()
            if most
        ]

    def line_rows(self, limit: int = 10) -> list[dict[str, Any]]:
        """Return the lines that hold most at the peak, as ``Finding.evidence["lines"]`` takes them."""
        made = []
        for location, count in list(self.by_line.items())[:limit]:
            row: dict[str, Any] = {"bytes": count}
            if location == NOWHERE:
                row["where"] = location.text
            else:
                row |= {
                    "file": location.file, "line": location.line, "text": location.text,
                    "function": location.function,
                }  # fmt: skip
            made.append(row)
        return made

    def timeline_data(self, columns: int = 160) -> dict[str, Any]:
        """Return the timeline as plain data: what a picture needs, and small enough for a report."""
        if self.timeline is None:
            return {}
        drawn = self.timeline.thinned(columns)
        totals = [sum(values[i] for values in drawn.series.values()) for i in range(drawn.columns)]
        return {
            "columns": drawn.columns,
            "phases": [list(phase) for phase in drawn.phases],
            "series": {name: list(values) for name, values in drawn.series.items()},
            "peak_bytes": self.peak_bytes,
            "peak_column": max(range(drawn.columns), key=lambda i: totals[i]),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain types only: what may cross a process or go into JSON."""
        return {
            "peak_bytes": self.peak_bytes,
            "peak_phase": self.peak_phase,
            "peak_op": self.peak_op,
            "start_bytes": self.start_bytes,
            "end_bytes": self.end_bytes,
            "by_phase": dict(self.by_phase),
            "by_category": dict(self.by_category),
            "category_peaks": dict(self.category_peaks),
            "by_module": dict(self.by_module),
            "lines": self.line_rows(limit=len(self.by_line)),
            "operations": self.operations,
            "device": self.device,
            "fake": self.fake,
            "sizes": dict(self.sizes),
            "allocator_peak_bytes": self.allocator_peak_bytes,
        }


def build_profile(
    tracker: MemoryTracker,
    *,
    device: str | None = None,
    fake: bool = False,
    sizes: Mapping[str, int] | None = None,
    largest: int = 10,
    moment: int | None = None,
    transient: bool = False,
) -> MemoryProfile:
    """Replay a closed tracker's log and describe the last step in it.

    Args:
        tracker: After its ``with`` block.
        device: Count this device's memory, such as ``"cpu"``; by default the one that holds most.
        fake: Whether the step ran on fake tensors.
        sizes: Of the batch, for the record.
        largest: How many of the tensors live at the peak to describe; negative for all.
        moment: Describe this place in the log, the last one looked at, instead of the peak.
        transient: Leave out what the model and the optimizer own or make: what remains is what grows with
            the batch, at its own peak.

    Raises:
        ValueError: Nothing was logged.
    """
    log = tracker.log if moment is None else tracker.log[:moment]
    if not tracker.before and not log:
        raise ValueError("the step made and used no tensor")
    device = device or _main_device(tracker)
    first = tracker.steps[-1] if tracker.steps[-1] < len(log) else 0
    categories = _Categories(tracker)
    spans = _phase_spans(tracker.phases, first, len(log))
    sizes_now: dict[int, int] = {}
    totals = dict.fromkeys(CATEGORIES, 0)
    kind_of: dict[int, Category] = {}
    live = 0

    def apply(allocation: Allocation, change: int) -> None:
        nonlocal live
        key = id(allocation)
        kind = kind_of.get(key)
        if kind is None:
            kind = kind_of[key] = categories.of(allocation)
        totals[kind] += change
        live += change
        sizes_now[key] = sizes_now.get(key, 0) + change

    ours = {
        id(a)
        for a, _ in (*tracker.before, *log)
        if _same_device(a.device, device)
        and not (transient and (a.phase == "optimizer" or categories.of(a) in _OWNED))
    }
    for allocation, size in tracker.before:
        if id(allocation) in ours:
            apply(allocation, size)
    for allocation, change in log[:first]:
        if id(allocation) in ours:
            apply(allocation, change)
    start_bytes = live

    peak, peak_at = live, first - 1
    category_peaks = dict(totals)
    by_phase: dict[str, int] = {}
    plot = _Plot(first, len(log))
    plot.add(first, totals, live)
    phases = iter([*spans, (len(log) + 1, "")])
    boundary, following = next(phases)
    phase = following
    for place in range(first, len(log)):
        while place >= boundary:
            phase = following
            by_phase[phase] = max(by_phase.get(phase, 0), live)
            boundary, following = next(phases)
        allocation, change = log[place]
        if id(allocation) not in ours:
            continue
        apply(allocation, change)
        by_phase[phase] = max(by_phase.get(phase, 0), live)
        if change > 0:
            kind = kind_of[id(allocation)]
            category_peaks[kind] = max(category_peaks[kind], totals[kind])
            if live > peak:
                peak, peak_at = live, place
        plot.add(place, totals, live)
    end_bytes = live
    if moment is not None:
        peak, peak_at = live, len(log) - 1

    at_peak = _sizes_at(tracker, log, peak_at, ours)
    by_category: dict[str, int] = {}
    by_module: dict[str, int] = {}
    by_line: dict[Location, int] = {}
    lines = _Lines(tracker.model)
    for allocation, size in at_peak:
        kind = kind_of[id(allocation)]
        place_of = lines.of(allocation, kind) or NOWHERE
        by_category[kind] = by_category.get(kind, 0) + size
        by_module[allocation.module] = by_module.get(allocation.module, 0) + size
        by_line[place_of] = by_line.get(place_of, 0) + size
    at_peak.sort(key=lambda pair: -pair[1])
    culprit = log[peak_at][0] if 0 <= peak_at < len(log) else None
    return MemoryProfile(
        peak_bytes=peak,
        peak_phase=_phase_at(spans, peak_at),
        peak_op=culprit.op if culprit is not None else "",
        start_bytes=start_bytes,
        end_bytes=end_bytes,
        by_phase={name: by_phase[name] for name in PHASES if name in by_phase},
        by_category={name: by_category[name] for name in CATEGORIES if by_category.get(name)},
        category_peaks={name: most for name, most in category_peaks.items() if most},
        by_module=_descending(by_module),
        by_line=_descending(by_line),
        largest=tuple(
            Holding(
                bytes=size,
                category=kind_of[id(a)],
                phase="before" if a.born < 0 else "earlier" if a.born < first else a.phase,
                name=a.name,
                module=a.module,
                op=a.op,
                shape=a.shape,
                dtype=str(a.dtype).removeprefix("torch."),
                location=lines.of(a, kind_of[id(a)]),
            )
            for a, size in (at_peak if largest < 0 else at_peak[:largest])
        ),
        timeline=plot.timeline(spans),
        operations=tracker.operations,
        device=device,
        fake=fake,
        sizes=dict(sizes or {}),
    )


class _Categories:
    """Decide what an allocation is, once its whole life is known."""

    def __init__(self, tracker: MemoryTracker) -> None:
        self._backwards = [place for place, phase in tracker.phases if phase == "backward"]
        self._recomputed = tracker.recomputed
        self._starts = [start for start, _ in tracker.recomputed]

    def of(self, a: Allocation) -> Category:
        if a.category is not None:
            return a.category  # type: ignore[return-value]
        if a.phase in ("forward", "loss"):
            # what backward finds alive was kept for it; what died before was not
            place = bisect_right(self._backwards, a.born)
            if place == len(self._backwards):
                return "activations" if a.died is None else "temporaries"
            kept = a.died is None or a.died > self._backwards[place]
            return "activations" if kept else "temporaries"
        if a.phase == "backward" and self._recomputed:
            # made again by checkpointing, and kept after the module that made it had returned
            place = bisect_right(self._starts, a.born) - 1
            if place >= 0:
                start, stop = self._recomputed[place]
                if start <= a.born < stop and (a.died is None or a.died > stop):
                    return "activations"
        return "temporaries"


class _Lines:
    """Turn sites into locations, each once; parameters get the line that makes them."""

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        self._sites: dict[Site, Location] = {}
        self._owned: dict[tuple[Any, ...], Location | None] = {}

    def of(self, a: Allocation, kind: Category) -> Location | None:
        if a.site is not None:
            return self._at(a.site)
        if self._model is not None and kind in (
            "parameters",
            "buffers",
            "gradients",
            "optimizer_state",
        ):
            name = a.name.rpartition(" of ")[2].removesuffix(".grad")
            return self._owner(name) if name else None
        return None

    def _at(self, site: Site) -> Location:
        found = self._sites.get(site)
        if found is None:
            found = self._sites[site] = location_of(site)
        return found

    def _owner(self, name: str) -> Location | None:
        assert self._model is not None
        owners: list[Any] = [self._model]
        *path, leaf = name.split(".")
        for part in path:
            owners.append(getattr(owners[-1], part, None))
        # modules of the same classes under the same names are made by the same lines
        key = (*(type(o) for o in owners), *(p for p in path if not p.isdigit()), leaf)
        if key not in self._owned:
            self._owned[key] = sources.of_parameter(self._model, name)
        return self._owned[key]


def location_of(site: Site) -> Location:
    """Turn a site into a location, with the line's text."""
    code, line = site
    return Location(
        file=os.path.abspath(code.co_filename),
        line=line,
        text=getline(code.co_filename, line).strip(),
        function=code.co_qualname,
    )


class _Plot:
    """Collect a timeline: in every column the moment of the most live bytes."""

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._span = max(1, last - first)
        self.columns = min(_COLUMNS, self._span)
        self._best: list[int] = [-1] * self.columns
        self._points: list[dict[Category, int] | None] = [None] * self.columns

    def column(self, place: int) -> int:
        return min(self.columns - 1, max(0, place - self._first) * self.columns // self._span)

    def add(self, place: int, totals: dict[Category, int], live: int) -> None:
        column = self.column(place)
        if live > self._best[column]:
            self._best[column] = live
            self._points[column] = dict(totals)

    def timeline(self, spans: Sequence[tuple[int, Phase]]) -> Timeline:
        last = dict.fromkeys(CATEGORIES, 0)
        filled = []
        for point in self._points:
            last = point if point is not None else last
            filled.append(last)
        series = {name: tuple(point[name] for point in filled) for name in CATEGORIES}
        merged: list[tuple[str, int, int]] = []
        for number, (place, phase) in enumerate(spans):
            start = self.column(place)
            stop = self.column(spans[number + 1][0]) if number + 1 < len(spans) else self.columns
            if stop <= start:
                continue
            if merged and merged[-1][0] == phase:
                merged[-1] = (phase, merged[-1][1], stop)
            else:
                merged.append((phase, start, stop))
        return Timeline(
            columns=self.columns,
            phases=tuple(merged),
            series={name: values for name, values in series.items() if any(values)},
        )


def _phase_spans(
    phases: Sequence[tuple[int, Phase]], first: int, last: int
) -> list[tuple[int, Phase]]:
    """Return where each phase of the last step begins; the one in force at its start comes first."""
    spans: list[tuple[int, Phase]] = []
    for place, phase in phases:
        if place <= first:
            spans = [(first, phase)]
        elif place < last:
            if spans and spans[-1][0] == place:
                spans[-1] = (place, phase)  # a phase with no change of memory
            else:
                spans.append((place, phase))
    return spans


def _phase_at(spans: Sequence[tuple[int, Phase]], place: int) -> str:
    found = spans[0][1] if spans else "forward"
    for start, phase in spans:
        if start <= place:
            found = phase
    return found


def _sizes_at(
    tracker: MemoryTracker, log: Sequence[tuple[Allocation, int]], place: int, ours: set[int]
) -> list[tuple[Allocation, int]]:
    sizes: dict[int, int] = {}
    things: dict[int, Allocation] = {}
    for allocation, change in (*tracker.before, *log[: place + 1]):
        if id(allocation) in ours:
            sizes[id(allocation)] = sizes.get(id(allocation), 0) + change
            things[id(allocation)] = allocation
    return [(things[key], size) for key, size in sizes.items() if size]


def _same_device(found: Any, wanted: str) -> bool:
    return str(found) == wanted or str(found.type) == wanted


def _main_device(tracker: MemoryTracker) -> str:
    totals: dict[str, int] = {}
    for allocation, change in (*tracker.before, *tracker.log):
        if change > 0:
            kind = str(allocation.device.type)
            totals[kind] = totals.get(kind, 0) + change
    return max(totals, key=lambda kind: totals[kind], default="cpu")


def _descending(counts: dict[Any, int]) -> dict[Any, int]:
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))

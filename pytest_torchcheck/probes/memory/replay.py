"""A tracker's log replayed once: from births and deaths of tensors to a profile."""

from __future__ import annotations

import os
from bisect import bisect_right
from linecache import getline
from typing import TYPE_CHECKING, Any

from ... import sources
from ...findings import Location
from .allocations import PHASES, Allocation, Phase, Site

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from .tracker import MemoryTracker

from .profile import CATEGORIES, NOWHERE, Category, Holding, MemoryProfile, Timeline

_OWNED = ("parameters", "buffers", "gradients", "optimizer_state")


_COLUMNS = 480  # points of a timeline: about one per pixel of the picture


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
        transient: Leave out what the model and the optimizer own or make: what remains is what
            grows with the batch, at its own peak.

    Raises:
        ValueError: Nothing was logged.
    """
    log = tracker.log if moment is None else tracker.log[:moment]
    if not tracker.before and not log:
        raise ValueError("the step made and used no tensor")
    device = device or _main_device(tracker)
    first = tracker.steps[-1] if tracker.steps[-1] < len(log) else 0
    categories = _Categories(tracker)
    ours = {
        id(a)
        for a, _ in (*tracker.before, *log)
        if _same_device(a.device, device)
        and not (transient and (a.phase == "optimizer" or categories.of(a) in _OWNED))
    }
    replay = _Replay(categories, ours)
    for allocation, change in (*tracker.before, *log[:first]):
        replay.apply(allocation, change)
    start_bytes = replay.live
    spans = _phase_spans(tracker.phases, first, len(log))
    replay.run(log, first, spans)
    if moment is not None:
        replay.peak, replay.peak_at = replay.live, len(log) - 1
    at_peak = _sizes_at(tracker, log, replay.peak_at, ours)
    lines = _Lines(tracker.model)
    shares = _Shares(at_peak, replay.kind_of, lines)
    at_peak.sort(key=lambda pair: -pair[1])
    culprit = log[replay.peak_at][0] if 0 <= replay.peak_at < len(log) else None
    return MemoryProfile(
        peak_bytes=replay.peak,
        peak_phase=_phase_at(spans, replay.peak_at),
        peak_op=culprit.op if culprit is not None else "",
        start_bytes=start_bytes,
        end_bytes=replay.live,
        by_phase={name: replay.by_phase[name] for name in PHASES if name in replay.by_phase},
        by_category=shares.by_category,
        category_peaks={name: most for name, most in replay.category_peaks.items() if most},
        by_module=_descending(shares.by_module),
        by_line=_descending(shares.by_line),
        largest=tuple(
            _holding(a, size, replay.kind_of[id(a)], first, lines)
            for a, size in (at_peak if largest < 0 else at_peak[:largest])
        ),
        timeline=replay.plot.timeline(spans),
        operations=tracker.operations,
        device=device,
        fake=fake,
        sizes=dict(sizes or {}),
    )


class _Replay:
    """What is alive at each place of a log, and the most that ever was."""

    def __init__(self, categories: _Categories, ours: set[int]) -> None:
        self.categories, self.ours = categories, ours
        self.kind_of: dict[int, Category] = {}
        self.totals = dict.fromkeys(CATEGORIES, 0)
        self.live = 0

    def apply(self, allocation: Allocation, change: int) -> bool:
        """Take one entry of the log; say whether it counts."""
        key = id(allocation)
        if key not in self.ours:
            return False
        kind = self.kind_of.get(key)
        if kind is None:
            kind = self.kind_of[key] = self.categories.of(allocation)
        self.totals[kind] += change
        self.live += change
        return True

    def run(
        self,
        log: Sequence[tuple[Allocation, int]],
        first: int,
        spans: Sequence[tuple[int, str]],
    ) -> None:
        """Replay the log from its place ``first`` on."""
        self.peak, self.peak_at = self.live, first - 1
        self.category_peaks = dict(self.totals)
        self.by_phase: dict[str, int] = {}
        self.plot = _Plot(first, len(log))
        self.plot.add(first, self.totals, self.live)
        phases = iter([*spans, (len(log) + 1, "")])
        boundary, following = next(phases)
        phase = following
        for place in range(first, len(log)):
            while place >= boundary:
                phase = following
                self._reach(phase)
                boundary, following = next(phases)
            allocation, change = log[place]
            if not self.apply(allocation, change):
                continue
            self._reach(phase)
            if change > 0:
                kind = self.kind_of[id(allocation)]
                self.category_peaks[kind] = max(self.category_peaks[kind], self.totals[kind])
                if self.live > self.peak:
                    self.peak, self.peak_at = self.live, place
            self.plot.add(place, self.totals, self.live)

    def _reach(self, phase: str) -> None:
        self.by_phase[phase] = max(self.by_phase.get(phase, 0), self.live)


class _Shares:
    """The bytes alive at one moment, by category, module and line."""

    def __init__(
        self, alive: Sequence[tuple[Allocation, int]], kind_of: dict[int, Category], lines: _Lines
    ) -> None:
        by_category: dict[str, int] = {}
        self.by_module: dict[str, int] = {}
        self.by_line: dict[Location, int] = {}
        for allocation, size in alive:
            kind = kind_of[id(allocation)]
            place = lines.of(allocation, kind) or NOWHERE
            by_category[kind] = by_category.get(kind, 0) + size
            self.by_module[allocation.module] = self.by_module.get(allocation.module, 0) + size
            self.by_line[place] = self.by_line.get(place, 0) + size
        self.by_category: dict[str, int] = {
            n: by_category[n] for n in CATEGORIES if by_category.get(n)
        }


def _holding(
    allocation: Allocation, size: int, kind: Category, first: int, lines: _Lines
) -> Holding:
    born = allocation.born
    return Holding(
        bytes=size,
        category=kind,
        phase="before" if born < 0 else "earlier" if born < first else allocation.phase,
        name=allocation.name,
        module=allocation.module,
        op=allocation.op,
        shape=allocation.shape,
        dtype=str(allocation.dtype).removeprefix("torch."),
        location=lines.of(allocation, kind),
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

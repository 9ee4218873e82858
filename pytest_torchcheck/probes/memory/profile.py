"""What a step's memory was, as plain data: the log of a tracker replayed once; and how many operations it took."""

from __future__ import annotations

from dataclasses import field, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from ...findings import Location
from ...lean import dataclass
from ...text.units import format_bytes
from .allocations import PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


Category = Literal[
    "parameters", "buffers", "inputs", "gradients", "optimizer_state", "activations", "temporaries", "other",
]  # fmt: skip
CATEGORIES: tuple[Category, ...] = get_args(Category)
"""In the order in which pictures stack them; ``other`` is what the step uses and nobody declared."""

NOWHERE = Location(file="", line=0, text="no line of the user's", function="")
"""Where memory is put whose line is not known, so that lines add up to the peak."""


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


@cache
def formulas() -> dict[Any, Callable[..., int]]:
    """Return the formula of every counted operation; a multiply-add is two.

    Source:
        ``torch.utils.flop_counter`` (matrix products, convolutions, fused attention). On the CPU fused
        attention and LSTM layers are operations of their own, which torch 2.13 counts as zero: attention
        gets torch's formula, an LSTM layer two operations per weight and time step, and twice that
        backward.
    """
    from torch.utils import flop_counter as counter

    found: dict[Any, Callable[..., int]] = dict(counter.flop_registry)
    aten = torch.ops.aten
    for name, known in (
        ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
        (
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_flash_attention_backward",
        ),
    ):
        packet, model = getattr(aten, name, None), getattr(aten, known, None)
        if packet is not None and packet not in found and model in found:
            found[packet] = found[model]
    for name, factor in (("mkldnn_rnn_layer", 2), ("mkldnn_rnn_layer_backward", 4)):
        packet = getattr(aten, name, None)
        if packet is not None and packet not in found:
            found[packet] = _recurrent(factor)
    return found


def _recurrent(factor: int) -> Callable[..., int]:
    def count(input: Any, weight_ih: Any, weight_hh: Any, *rest: Any, **named: Any) -> int:
        steps = prod(input.shape[:-1])  # time steps of all samples
        return int(factor * steps * (weight_ih.numel() + weight_hh.numel()))

    return count

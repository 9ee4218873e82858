"""A memory profile as the evidence of a finding: plain rows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..text.units import format_bytes

if TYPE_CHECKING:
    from ..findings import Location
    from ..probes.memory.profile import Holding, MemoryProfile


def evidence(profile: MemoryProfile) -> dict[str, Any]:
    """Return a profile as a finding keeps it: tables, the timeline, exact counts."""
    return {
        "peak_bytes": profile.peak_bytes,
        "activation_bytes": profile.category_peaks.get("activations", 0),
        "peak_phase": profile.peak_phase,
        **(
            {"allocator_peak_bytes": profile.allocator_peak_bytes}
            if profile.allocator_peak_bytes
            else {}
        ),
        "sizes": dict(profile.sizes),
        "fake": profile.fake,
        "lines": profile.line_rows(10),
        "categories": [
            {
                "category": row["category"],
                "at the peak": format_bytes(row["at_peak"]),
                "at most": format_bytes(row["at_most"]),
            }
            for row in profile.rows()
        ],
        "phases": [
            {"phase": phase, "peak": format_bytes(count)}
            for phase, count in profile.by_phase.items()
        ],
        "largest_tensors": [holding_row(holding) for holding in profile.largest],
        "timeline": profile.timeline_data(),
    }


def holding_row(holding: Holding) -> dict[str, Any]:
    """Return one live tensor as a row of a table."""
    place = holding.location
    return {
        "memory": format_bytes(holding.bytes),
        "what": holding.describe(),
        "category": holding.category.replace("_", " "),
        "made by": holding.op.removeprefix("aten.").partition(".")[0],
        "module": holding.module,
        "line": short(place),
    }


def short(line: Location | None) -> str:
    """Return file name and line number."""
    return "" if line is None else f"{os.path.basename(line.file)}:{line.line}"

"""A step's memory over time and where time goes, as SVG: a stacked picture by category, and a flame graph.

The input is plain data, as :meth:`MemoryProfile.timeline_data` gives it and a finding's evidence
keeps it.
"""

from __future__ import annotations

from dataclasses import field
from html import escape
from typing import TYPE_CHECKING, Any, Final

from ..lean import dataclass
from ..text.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# told apart without colour vision (Okabe and Ito), and in greys by their lightness
COLOURS: Mapping[str, str] = {
    "parameters": "#0072b2",
    "buffers": "#56b4e9",
    "inputs": "#999999",
    "gradients": "#d55e00",
    "optimizer_state": "#cc79a7",
    "activations": "#009e73",
    "temporaries": "#e69f00",
    "other": "#555555",
}
_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 26, 62


def timeline_svg(data: Mapping[str, Any], *, title: str = "") -> str:
    """Draw a timeline as one SVG element with no script, style sheet or font of its own.

    Args:
        data: ``columns``, ``phases`` (name, first column, column after the last), ``series`` (bytes per
            column by category), ``peak_bytes`` and ``peak_column``.
        title: What is drawn, for those who cannot see it too.
    """
    columns, series = _checked(data)
    stacked = _stack(series, columns)
    top = max([*stacked[-1][1], 1]) if stacked else 1
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(column: float) -> float:
        return _LEFT + inner_width * column / columns

    def y(count: float) -> float:
        return _TOP + inner_height * (1 - count / top)

    peak = int(data.get("peak_bytes", top))
    said = title or f"live bytes over a step, at most {format_bytes(peak)}"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}"'
            f' role="img" aria-label="{escape(said)}" font-family="sans-serif" font-size="11">'
        ),
        f"<title>{escape(said)}</title>",
    ]
    _draw_phases(data, x, parts, inner_height)
    _draw_areas(columns, stacked, parts, x, y, series, top)
    if "peak_column" in data:
        at = x(data["peak_column"] + 0.5)
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"'
            ' style="stroke:currentColor;stroke-dasharray:3 3"/>'
        )
    parts.extend(_legend([name for name, _ in stacked]))
    parts.append("</svg>")
    return "".join(parts)


def _draw_phases(
    data: Mapping[str, Any], x: Callable[[float], float], parts: list[str], inner_height: int
) -> None:
    """Draw a band and a name for each phase."""
    for number, (phase, start, stop) in enumerate(data["phases"]):
        left, right = x(start), x(stop)
        if number % 2 == 0:
            parts.append(
                f'<rect x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{inner_height}"'
                ' style="fill:currentColor;opacity:0.06"/>'
            )
        if right - left > 6 * len(phase):
            parts.append(
                f'<text x="{(left + right) / 2:.1f}" y="{_TOP - 8}" text-anchor="middle">{escape(phase)}</text>'
            )


def _draw_areas(
    columns: int,
    stacked: list[tuple[str, list[int]]],
    parts: list[str],
    x: Callable[[float], float],
    y: Callable[[float], float],
    series: dict[str, Sequence[int]],
    top: int,
) -> None:
    """Draw the stacked areas of the categories, and three lines of the scale."""
    below: Sequence[int] = [0] * columns
    for name, upper in stacked:
        parts.append(
            f'<path d="{_area(below, upper, x, y)}" style="fill:{COLOURS.get(name, "#000000")};stroke:none">'
            f"<title>{escape(name.replace('_', ' '))}, at most {format_bytes(max(series[name]))}</title></path>"
        )
        below = upper
    for share in (0.0, 0.5, 1.0):
        level = y(top * share)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{level:.1f}" y2="{level:.1f}"'
            ' style="stroke:currentColor;opacity:0.25"/>'
            f'<text x="{_LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{format_bytes(top * share)}</text>'
        )


def _checked(data: Mapping[str, Any]) -> tuple[int, dict[str, Sequence[int]]]:
    columns = int(data["columns"])
    series = {str(name): values for name, values in data["series"].items()}
    for name, values in series.items():
        if len(values) != columns:
            raise ValueError(
                f"series {name!r} has {len(values)} points where there are {columns} columns"
            )
    if columns < 1:
        raise ValueError("a timeline needs at least one column")
    return columns, series


def _stack(series: Mapping[str, Sequence[int]], columns: int) -> list[tuple[str, list[int]]]:
    """Return the upper edge of every category, the lowest category first."""
    order = [name for name in COLOURS if name in series] + [
        name for name in series if name not in COLOURS
    ]
    edge = [0] * columns
    made = []
    for name in order:
        edge = [below + value for below, value in zip(edge, series[name], strict=True)]
        made.append((name, edge))
    return made


def _area(lower: Sequence[int], upper: Sequence[int], x: Any, y: Any) -> str:
    """Return a path around the area between two step curves."""
    points = [f"M{x(0):.1f},{y(lower[0]):.1f}"]
    last: int | None = None
    for column, value in enumerate(upper):
        if value != last:  # flat parts need no points of their own
            points.append(f"L{x(column):.1f},{y(last if last is not None else value):.1f}")
            points.append(f"L{x(column):.1f},{y(value):.1f}")
            last = value
    points.append(f"L{x(len(upper)):.1f},{y(upper[-1]):.1f}")
    last = None
    for column in range(len(lower) - 1, -1, -1):
        value = lower[column]
        if value != last:
            points.append(f"L{x(column + 1):.1f},{y(last if last is not None else value):.1f}")
            points.append(f"L{x(column + 1):.1f},{y(value):.1f}")
            last = value
    return "".join(points) + "Z"


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    across = 4
    wide = (_WIDTH - _LEFT - _RIGHT) / across
    for number, name in enumerate(names):
        left = _LEFT + wide * (number % across)
        base = _HEIGHT - _BOTTOM + 24 + 18 * (number // across)
        parts.append(
            f'<rect x="{left:.1f}" y="{base - 9}" width="11" height="11" style="fill:{COLOURS.get(name, "#000000")}"/>'
            f'<text x="{left + 16:.1f}" y="{base}">{escape(name.replace("_", " "))}</text>'
        )
    return parts


_FLAME_WIDTH: Final = 960
_ROW: Final = 19
_LETTER: Final = 6.4  # width of a letter, about
_LEAST: Final = 0.5  # of a frame's width: what is narrower is left out
_COLOURS: Final = ("#e8a33d", "#dd7f3b", "#cf6a4a", "#c9924d", "#b8794a")


@dataclass(slots=True)
class _Frame:
    name: str
    value: float = 0.0
    inside: dict[str, _Frame] = field(default_factory=dict)


def flame_svg(stacks: Sequence[Mapping[str, Any]], *, title: str = "") -> str:
    """Draw stacks as one SVG element with no script, style sheet or font of its own.

    Args:
        stacks: Mappings of ``frames``, names from the outermost to the innermost, and ``value``, microseconds.
        title: What is drawn, for those who cannot see it too.

    Returns:
        The element; each frame has its name, its time and its share as a tooltip.
    """
    root = _Frame("all")
    for stack in stacks:
        value = float(stack["value"])
        frame = root
        root.value += value
        for name in stack["frames"]:
            frame = frame.inside.setdefault(str(name), _Frame(str(name)))
            frame.value += value
    drawn = list(_drawn(root, 0.0, 0, root.value or 1.0))
    height = _ROW * (1 + max((depth for *_, depth in drawn), default=0)) + 2
    said = title or f"where {root.value:,.0f} microseconds go"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_FLAME_WIDTH} {height}" width="{_FLAME_WIDTH}" '
            f'height="{height}" role="img" aria-label="{escape(said)}" font-family="sans-serif">'
        ),
        f"<title>{escape(said)}</title>",
    ]
    for frame, left, width, depth in drawn:
        top = depth * _ROW
        share = 100 * frame.value / (root.value or 1.0)
        told = f"{frame.name}: {frame.value:,.1f} us, {share:.1f} %"
        room = int((width - 6) / _LETTER)
        shown = frame.name if len(frame.name) <= room else f"{frame.name[: max(0, room - 1)]}…"
        colour = _COLOURS[sum(frame.name.encode()) % len(_COLOURS)]
        parts.append(
            f'<g><title>{escape(told)}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}" '
            f'height="{_ROW - 1}" style="fill:{colour};stroke:none"/>'
        )
        if room >= 3:
            parts.append(
                f'<text x="{left + 3:.1f}" y="{top + 13}" style="fill:#1c1e21">{escape(shown)}</text>'
            )
        parts.append("</g>")
    return "".join([*parts, "</svg>"])


def _drawn(
    frame: _Frame, left: float, depth: int, whole: float
) -> Iterator[tuple[_Frame, float, float, int]]:
    """Yield frames with left edge, width and depth, the widest of each level first."""
    for inner in sorted(frame.inside.values(), key=lambda one: -one.value):
        width = _FLAME_WIDTH * inner.value / whole
        if width >= _LEAST:
            yield inner, left, width, depth
            yield from _drawn(inner, left, depth + 1, whole)
        left += width

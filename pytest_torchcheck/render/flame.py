"""A flame graph as SVG: where time goes, the outermost frame on top."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_WIDTH: Final = 960
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
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
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
        width = _WIDTH * inner.value / whole
        if width >= _LEAST:
            yield inner, left, width, depth
            yield from _drawn(inner, left, depth + 1, whole)
        left += width

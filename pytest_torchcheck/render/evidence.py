"""The measurements of a finding as blocks that every renderer can lay out: curves, tables, chains.

Eleven keys of ``Finding.evidence`` have a shape of their own; any other key is shown as text.

``losses`` A list of numbers, one per step; or a mapping of names to such lists. ``layers`` A list
of mappings, one per layer, with the same keys in each (such as ``name``, ``rms``, ``grad``); or a
mapping of layer names to mappings or numbers. ``histogram`` holds counts, and is drawn.
``gradients`` A list of mappings, one per parameter, with the same keys in each; the last one counts
them all. ``holders`` A list of names, from the object that is alive to what holds it; or a list of
such lists. ``lines`` A list of mappings with ``bytes`` and either ``file``, ``line`` and ``text``
or ``where``. ``samples``, ``labels``, ``reading`` Lists of mappings with the same keys in each:
what a dataset holds, and how long reading it takes. ``time by line`` Likewise: where a step's time goes.
``flame`` The same as stacks, as :func:`~pytest_torchcheck.render.timeline.flame_svg` takes them. ``timeline`` A step's memory over time, as
:func:`~pytest_torchcheck.render.timeline.timeline_svg` takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..findings import Finding, Location
from ..lean import dataclass
from ..text.units import format_bytes
from .text import number, place_and_text, sparkline

MOST_ROWS = 20
"""Rows of a table below ``verbosity`` 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Numbers over steps.

    Attributes:
        title: What is drawn.
        values: One number per step, in order; may hold NaN and infinities.
    """

    title: str
    values: tuple[float, ...]

    def lines(self, width: int) -> list[str]:
        """Return the curve in one line, with its ends and its lowest value."""
        first, last = number(float(self.values[0])), number(float(self.values[-1]))
        finite = [v for v in self.values if v == v]
        lowest = number(float(min(finite))) if finite else "nan"
        drawn = sparkline(self.values, max(8, min(60, width - 50)))
        return [f"{first} {drawn} {last}  ({len(self.values)} steps, lowest {lowest})"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells.

    Attributes:
        title: What the rows are.
        columns: Heads.
        rows: Texts, as many in each row as there are columns.
        left_out: Rows that are not shown.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0

    def lines(self, width: int) -> list[str]:
        """Return the table with aligned columns; the last one is cut at ``width``."""
        cells = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = []
        for row in cells:
            line = "  ".join(text.ljust(size) for text, size in zip(row, widths, strict=True))
            line = line.rstrip()
            lines.append(line if len(line) <= width else line[: width - 1] + "…")
        if self.left_out:
            lines.append(f"… {self.left_out} more")
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Names, each of which holds the one before it.

    Attributes:
        title: What is held.
        links: From the object that is alive to the one that keeps it.
    """

    title: str
    links: tuple[str, ...]

    def lines(self, width: int) -> list[str]:
        """Return a line per link."""
        return [self.links[0], *(f"  held by {link}" for link in self.links[1:])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A step's memory over time.

    Attributes:
        title: What is drawn.
        data: What :func:`~pytest_torchcheck.render.timeline.timeline_svg` takes.
    """

    title: str
    data: Mapping[str, Any]

    def lines(self, width: int) -> list[str]:
        """Return the live bytes in one line, and under it where each phase begins."""
        series = self.data["series"].values()
        totals = [sum(values) for values in zip(*series, strict=True)]
        across = max(8, min(60, width - 20, len(totals)))
        marks = [" "] * across
        for phase, start, stop in self.data["phases"]:
            at, end = (column * across // max(1, len(totals)) for column in (start, stop))
            if (
                end - at > len(phase) or end >= across
            ):  # a phase too short for its name goes without
                marks[at : at + len(phase)] = phase[: across - at]
        peak = format_bytes(float(self.data.get("peak_bytes", 0)))
        return [f"{sparkline(totals, across)} at most {peak}", "".join(marks).rstrip()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flame:
    """Where time goes, by stacks.

    Attributes:
        title: What is drawn.
        stacks: What :func:`~pytest_torchcheck.render.timeline.flame_svg` takes.
    """

    title: str
    stacks: Sequence[Mapping[str, Any]]

    def lines(self, width: int) -> list[str]:
        """Return the share of each outermost frame: the table beside it holds the rest."""
        totals: dict[str, float] = {}
        for stack in self.stacks:
            name = str(stack["frames"][0])
            totals[name] = totals.get(name, 0.0) + float(stack["value"])
        whole = sum(totals.values()) or 1.0
        return [", ".join(f"{name} {100 * part / whole:.0f} %" for name, part in totals.items())]


Block = Curve | Table | Chain | Timeline | Flame


def _are_numbers(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value)
    )


def _curves(value: Any) -> Iterator[Block]:
    named = value.items() if isinstance(value, Mapping) else [("", value)]
    for name, values in named:
        if _are_numbers(values):
            yield Curve(title=f"loss, {name}" if name else "loss by step", values=tuple(values))


def _table(title: str, rows: Sequence[Mapping[str, Any]], limit: int | None) -> Table:
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    shown = rows if limit is None else rows[:limit]
    return Table(
        title=title,
        columns=tuple(column.replace("_", " ") for column in columns),
        rows=tuple(
            tuple(_cell(column, row.get(column, "")) for column in columns) for row in shown
        ),
        left_out=len(rows) - len(shown),
    )


def _cell(column: str, value: Any) -> str:
    if column == "histogram" and isinstance(value, list | tuple):
        return sparkline([0.0, *value])[1:]  # counts: the lowest bar is none
    return number(value)


def _gradients(value: Any, limit: int | None) -> Iterator[Block]:
    rows = [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
    *each, counted = rows or [{}]
    if each:
        table = _table("parameters", each, limit)
        keys = dict.fromkeys(key for row in each for key in row)
        last = tuple(_cell(key, counted.get(key, "")) for key in keys)
        yield replace(table, rows=(*table.rows, last))


def _layers(value: Any, limit: int | None) -> Iterator[Block]:
    if isinstance(value, Mapping):
        value = [
            {"name": name, **(row if isinstance(row, Mapping) else {"value": row})}
            for name, row in value.items()
        ]
    rows = [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
    if rows:
        yield _table("layers", rows, limit)


def _holders(value: Any) -> Iterator[Block]:
    if not isinstance(value, list) or not value:
        return
    chains = value if all(isinstance(chain, list) for chain in value) else [value]
    for chain in chains:
        if chain:
            yield Chain(title="kept alive", links=tuple(number(link) for link in chain))


def _memory_lines(value: Any, limit: int | None) -> Iterator[Block]:
    rows = [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
    if not rows:
        return
    table = []
    for row in sorted(rows, key=lambda row: -float(row.get("bytes", 0) or 0)):
        rest = {k: v for k, v in row.items() if k not in ("bytes", "file", "line", "text", "where")}
        source = row.get("where", "")
        if "file" in row:
            source = place_and_text(
                Location(
                    file=str(row["file"]),
                    line=int(row.get("line", 0) or 0),
                    text=str(row.get("text", "")),
                    function=str(row.get("function", "")),
                )
            )
            rest.pop("function", None)
        table.append(
            {"memory": format_bytes(float(row.get("bytes", 0) or 0)), **rest, "where": source}
        )
    yield _table("memory by line", table, limit)


def _timeline(value: Any) -> Iterator[Block]:
    if isinstance(value, Mapping) and value.get("columns") and value.get("series"):
        yield Timeline(title="memory over the step", data=value)


_TABLES = ("samples", "labels", "reading", "time by line")
_SPECIAL = ("losses", "layers", "gradients", *_TABLES, "holders", "lines", "timeline", "flame")


def _others(evidence: Mapping[str, Any], limit: int | None) -> Iterator[Block]:
    rows = []
    for key, value in evidence.items():
        if key in _SPECIAL:
            continue
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            yield _table(key.replace("_", " "), value, limit)
        else:
            rows.append({"name": key.replace("_", " "), "value": value})
    if rows:
        yield _table("measured", rows, None)


def blocks(finding: Finding, *, verbosity: int = 1) -> Iterator[Block]:
    """Yield the measurements of a finding.

    Args:
        finding: Whose evidence and culprits to lay out.
        verbosity: 1 yields curves, layers, holders and memory by line; 2 also every other
            measurement and every culprit, with no limit on rows.
    """
    evidence = finding.evidence
    limit = None if verbosity >= 2 else MOST_ROWS
    yield from _curves(evidence.get("losses"))
    yield from _layers(evidence.get("layers"), limit)
    yield from _gradients(evidence.get("gradients"), limit)
    for title in _TABLES:
        rows = evidence.get(title)
        if isinstance(rows, list) and rows and all(isinstance(row, Mapping) for row in rows):
            yield _table(title, rows, limit)
    yield from _holders(evidence.get("holders"))
    yield from _memory_lines(evidence.get("lines"), limit)
    yield from _timeline(evidence.get("timeline"))
    if isinstance(stacks := evidence.get("flame"), list):
        yield Flame(title="time by phase, module, line and kernel", stacks=stacks)
    if verbosity >= 2:
        yield from _others(evidence, limit)
    if finding.culprits and (verbosity >= 2 or len(finding.culprits) > 1):
        culprits = [
            {
                "kind": culprit.kind,
                "name": culprit.name,
                "measured": culprit.detail,
                "where": place_and_text(culprit.location) if culprit.location else "",
            }
            for culprit in finding.culprits
        ]
        yield _table("culprits", culprits, limit)

"""The words that every renderer shares: the fields of a finding, places, numbers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..findings import Finding, Location

STATUS_WORDS: dict[str, str] = {
    "violated": "violated",
    "error": "error",
    "suspicious": "suspicious",
    "inconclusive": "inconclusive",
    "known": "known",
    "passed": "passed",
    "not-applicable": "not applicable",
}


def one_line(text: str) -> str:
    """Return the text with every run of white space turned into one blank."""
    return " ".join(text.split())


def headline(finding: Finding) -> str:
    """Return the first line: the summary and its code, behind the status where nothing is broken."""
    summary = one_line(finding.summary)
    if finding.status == "violated":
        return f"{summary} [{finding.code}]" if finding.code else summary
    prefix = STATUS_WORDS[finding.status]
    plain = finding.status in ("passed", "not-applicable") or not finding.code
    return f"{prefix}: {summary}" if plain else f"{prefix}: {summary} [{finding.code}]"


def stale_lines(gone: int) -> str:
    """Say that known findings are gone and have to leave their file."""
    are, them = ("is", "it") if gone == 1 else ("are", "them")
    return f"{counted(gone, 'known finding')} {are} gone: remove {them} from the baseline"


def shorten_path(file: str) -> str:
    """Return a path relative to the current folder when it lies below it, else as it is."""
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):  # another drive, or the current folder is gone
        return file
    return file if relative.split(os.sep, 1)[0] == os.pardir else relative


def own_name(qualified: str) -> str:
    """Return a function's name without the function that it was defined in."""
    name = qualified.rpartition("<locals>.")[2]
    return "" if name == "<module>" else name


def place(location: Location) -> str:
    """Return ``file:line``."""
    return f"{shorten_path(location.file)}:{location.line}"


def place_and_text(location: Location) -> str:
    """Return ``function, file:line: text``."""
    function = own_name(location.function)
    start = f"{function}, {place(location)}" if function else place(location)
    return f"{start}: {one_line(location.text)}" if location.text else start


def where(finding: Finding) -> str:
    """Return the line of the user's code, and where the first culprit stands if that is elsewhere."""
    location = finding.location
    made = next((c for c in finding.culprits if c.location is not None), None)
    if location is None:
        return "" if made is None or made.location is None else place_and_text(made.location)
    text = place_and_text(location)
    if made is None or made.location is None:
        return text
    if (made.location.file, made.location.line) == (location.file, location.line):
        return text
    return f"{text}; {made.name}: {place(made.location)}"


def fields(finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield the labelled fields that hold something, in the order of the style guide."""
    values = (
        ("where", where(finding)),
        ("observed", finding.observed),
        ("cause", finding.cause),
        ("because", finding.because),
        ("fix", finding.fix),
        ("again", finding.reproduce),
    )
    for label, text in values:
        if text.strip():
            yield label, text


def number(value: object) -> str:
    """Return a cell's text: four significant digits for a float, the rest as it is."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(number(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={number(item)}" for key, item in value.items())
    return one_line(str(value))


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Draw a curve in one line; values that are not finite are drawn as ``×``.

    Args:
        values: Any length; more than ``width`` are thinned evenly, the first and the last kept.
        width: Most characters.
    """
    if len(values) > width:
        last = len(values) - 1
        values = [values[round(i * last / (width - 1))] for i in range(width)]
    finite = [v for v in values if abs(v) != float("inf") and v == v]
    if not finite:
        return "×" * len(values)
    low, high = min(finite), max(finite)
    span = high - low
    bars = []
    for value in values:
        if value != value or abs(value) == float("inf"):
            bars.append("×")
        else:
            bars.append(_BARS[round((value - low) / span * (len(_BARS) - 1))] if span else _BARS[0])
    return "".join(bars)

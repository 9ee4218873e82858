"""The table of torch's error messages: a pattern, and the function that explains what matches it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from ...lean import dataclass

if TYPE_CHECKING:
    from ...explanation import Explanation, Phase
    from .scene import Scene

Explainer = Callable[["Scene", "re.Match[str]"], "Explanation | None"]

FAMILIES = (
    "data", "resources", "targets", "sizes.binary", "indexing", "sizes.linear", "sizes.convolutions", "sizes.recurrent", "sizes.shapes", "sizes.reshapes", "devices", "dtype_pairs", "dtypes", "second_backward", "graph", "inplace", "state", "state_dicts", "calls", "values", "plain",
)  # fmt: skip
"""The modules of ``entries``, in the order in which they are asked: the more specific messages first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kind of message.

    Attributes:
        pattern: Searched in the whole message.
        explain: Explains the error, or returns None to leave it to the entries after it.
        types: Names of exception classes it applies to; empty for all.
        phases: Phases it applies to; empty for all.
    """

    pattern: re.Pattern[str]
    explain: Explainer
    types: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()


_HOME = f"{__package__.rpartition('.')[0]}.entries"
_ENTRIES: dict[str, list[Entry]] = {}


def entry(
    *patterns: str, types: tuple[str, ...] = (), phases: tuple[Phase, ...] = ()
) -> Callable[[Explainer], Explainer]:
    """Register an explainer for messages; each pattern is a regular expression that is searched for."""

    def register(function: Explainer) -> Explainer:
        family = function.__module__.removeprefix(f"{_HOME}.")
        made = [
            Entry(pattern=re.compile(p), explain=function, types=types, phases=phases)
            for p in patterns
        ]
        _ENTRIES.setdefault(family, []).extend(made)
        return function

    return register


def entries() -> Iterator[Entry]:
    """Iterate over every entry, in the order in which they are asked."""
    for family in FAMILIES:
        import_module(f"{_HOME}.{family}")
        yield from _ENTRIES[family]

"""Rows of one parameter that start equal and stay so: latents, queries or prototypes that do the work of one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit
from ...runs.overfitting.stuck import STEPS
from ...verdicts import violated
from ..loss.at_start import initialisation_line

if TYPE_CHECKING:
    from ...findings import Finding, Location
    from ...subject import Subject

_DRAWS = re.compile(r"rand|normal|uniform|orthogonal_|empty")


def _constant_line(subject: Subject, name: str) -> Location | None:
    """Return the last line of the owners' classes that makes or fills a parameter, and draws nothing.

    A line that draws gives no equal rows: it stands in a branch that did not run.
    """
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        tail = r"\.".join(re.escape(part) for part in parts[depth:])
        pattern = rf"\bself\.{tail}(\.data)?(\s*=[^=]|\.\w+_\()|init\.\w+\(\s*self\.{tail}\b"
        for cls in type(subject.model.get_submodule(".".join(parts[:depth]))).__mro__:
            if not sources.is_own_class(cls):
                continue
            constant = [p for p in sources.matches(cls, pattern) if not _DRAWS.search(p.text)]
            if constant:
                return constant[-1]
    return None


def rows_stay_equal(subject: Subject, name: str, dim: int) -> Finding:
    """Explain a parameter whose rows do the work of one."""
    shape = list(subject.named_parameters()[name].shape)
    place = _constant_line(subject, name) or initialisation_line(subject, name)
    line = on_line(place)
    return violated(
        "units-equal",
        f"the {shape[dim]} rows of {name} are equal and stay equal",
        culprits=[Culprit("parameter", name, "equal rows", place)],
        location=place,
        observed=f"the slices of {name} {shape} along dimension {dim} are equal, and so are those "
        "of its gradient on two "
        f"batches, and the slices after {STEPS} steps",
        cause="all rows start with the same values, and the model treats them alike, so they "
        "never differ",
        because="equal rows with equal gradients get equal updates: together they act as a "
        "single row",
        fix=f"initialise {name} at random{line}: nn.init.trunc_normal_(..., std=0.02)",
    )

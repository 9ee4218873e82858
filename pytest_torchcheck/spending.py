"""What checks cost in plain training steps: estimated before a run, measured after it, and held to a budget."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from .subject.errors import SubjectError

if TYPE_CHECKING:
    from .catalogue import Check
    from .subject import Subject

_COUNTED: Final = re.compile(r"(\d+)(?: to (\d+))? (FBS|FB|F|B)\b")
_STEPS: Final = {"F": 1 / 3, "B": 2 / 3, "FB": 1.0, "FBS": 1.0}
"""Parts of a plain step, where a backward takes twice the time of a forward."""
_UNKNOWN: Final = 5.0
_BY_DEFAULT: Final = frozenset(
    {"model", "model-or-functions", "loss", "targets", "optimizer", "train_step", "step-or-trainer",
     "overfit", "factory"}
)  # fmt: skip
"""Needs of the checks that run without being asked for."""


def estimated_steps(check: Check) -> float:
    """Return about how many plain training steps a check takes when it passes, read from its declared cost."""
    first = check.cost.partition(";")[0]
    counted = sum(
        float(most or least) * _STEPS[unit] for least, most, unit in _COUNTED.findall(first)
    )
    if "shared" in first or first.startswith(("none", "nothing")):
        return min(counted, 0.5)
    return counted or _UNKNOWN


def is_declared(check: Check) -> bool:
    """Say whether a check runs because the contract asks for it: a promise, a ceiling, data, ranks."""
    return check.promise is not None or not _BY_DEFAULT.issuperset(check.needs)


def plain_step_seconds(subject: Subject) -> float | None:
    """Return the wall time of one training step, in seconds: the faster of two; None where a step raises.

    The model, its optimizer and its random numbers are put back.
    """
    times = []
    try:
        with subject.pristine(steps=True, train=True, seeded=True) as model:
            made = subject.make_optimizer(model)
            for _ in range(2):
                batch = subject.batch().clone()
                start = time.perf_counter()
                subject.train_step(model, made, batch)
                times.append(time.perf_counter() - start)
    except SubjectError:
        return None
    return min(times)

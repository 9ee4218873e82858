"""Time beside another model's: run by turns in one process, and decided by an interval, or not at all."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Final

from ...codes import memory as explain
from ...measure.repeated import compare, repeated
from ...subject import Subject
from ...verdicts import inconclusive, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...declared.limits import Kind, Speed
    from ...findings import Finding
    from ...measure.repeated import Paired

SECONDS: Final = 20.0
"""How long one ratio is measured at most."""


def speed(subject: Subject) -> Iterator[Finding]:
    """Run the model and the other one by turns; the 99.95 % interval of the median ratio of pairs decides.

    Each pair holds up to five turns of both in random order, of which the least counts. Pairs are added
    until the interval lies on one side of the declared ratio, for 20 seconds at most.
    """
    for kind, declared in subject.contract.speed.items():
        with contextlib.closing(twin_of(subject, declared)) as twin:
            yield _judged(subject, twin, kind, declared)


def _judged(subject: Subject, twin: Subject, kind: Kind, declared: Speed) -> Finding:
    found = beside(subject, twin, kind, declared)
    within = found.within(declared.limit)
    told = f"{kind} takes {found.ratio:.2f} times the other model's time"
    interval = f"{found.low:.2f} to {found.high:.2f}, from {found.pairs} pairs"
    if within is None:
        return inconclusive(
            f"{told} ({interval}); that does not decide {declared}: run it alone, or on a quieter machine",
            code="too-noisy",
        )
    if within:
        return passed(f"{told} ({interval}); {declared} is declared")
    return explain.too_slow(subject, kind, declared, twin, found)


def beside(
    subject: Subject, twin: Subject, kind: Kind, declared: Speed, seconds: float = SECONDS
) -> Paired:
    """Time two subjects' models by turns, on the same batch and seed.

    Raises:
        SubjectError: One of the models cannot be built or called.
    """
    with repeated(subject, kind) as mine, repeated(twin, kind) as theirs:
        return compare(mine, theirs, declared.limit, seconds=seconds, seed=subject.seed)


def twin_of(subject: Subject, declared: Speed) -> Subject:
    """Return a subject of the other model, on the same device, dtype, batch and seed."""
    other = copy.copy(subject.contract)
    other.model, other.promises = declared.than, ()
    dtype = None if subject.dtype is None else str(subject.dtype).removeprefix("torch.")
    return Subject(other, device=str(subject.device), dtype=dtype, seed=subject.seed)

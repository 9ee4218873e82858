"""What training steps learn lasts: it is not put back, it is what is evaluated and saved, and each call adds to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...codes import updates as explain
from ...runs.training.enduring import inputs_late, stops_training, unused_call
from ...runs.training.stale_copies import stale_copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...runs.training.steps import Trajectory
    from ...subject import Subject


def lasting(subject: Subject, made: Trajectory) -> Iterator[Finding]:
    """Ask what the steps left, and where anything counts calls, what more of them leave."""
    left = made.left
    if left.put_back:
        yield explain.put_back(subject, list(left.put_back))
        return
    if left.stale:
        yield explain.stale_state(subject, list(left.stale))
    if left.remembered:
        yield explain.remembered(subject, left)
    if (stale := stale_copy(subject)) is not None:
        yield explain.stale_copy(subject, stale)
    if left.numbers and (names := stops_training(subject)):
        yield explain.stops_training(subject, list(names), left.numbers)
    idle = left.numbers or left.rests
    if subject.contract.train_step is not None and subject.kernel_exact and idle:
        call = unused_call(subject)
        if call is not None:
            yield explain.unused_call(subject, call, left.numbers)
    if left.holds_inputs and subject.kernel_exact and inputs_late(subject):
        yield explain.late_inputs(subject)

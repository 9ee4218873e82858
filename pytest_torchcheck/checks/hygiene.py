"""Forwards and constructors leave the process as it was: its settings, and its random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..codes import behaviour as explain
from ..runs.facts import forward_facts
from ..runs.left_behind import after_evaluation, seeded_by_building
from ..verdicts import passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..findings import Finding
    from ..subject import Subject


def rng_hygiene(subject: Subject) -> Iterator[Finding]:
    """Look at default dtype, grad mode, threads and determinism flags after a forward, and for anomaly mode left on.

    Anomaly mode that the model's file or its factory turns on is suspicious: it was for debugging,
    and every backward is slower with it. An evaluation is also run with gradients on, as within an epoch; where it
    moves a generator, under two seeds, after which that must not be in one state.
    """
    if torch.is_anomaly_enabled() or (
        subject.model is not None and subject.cache.get("anomaly-after-build")
    ):
        yield explain.anomaly_left_on(subject, by_build=not torch.is_anomaly_enabled())
        return
    for train in (False, True):
        before, after = forward_facts(subject, train=train).settings
        changed = [name for name in before if before[name] != after[name]]
        if changed:
            yield explain.global_state(subject, changed, before, after)
            return
    left = after_evaluation(subject)
    if left is not None:
        changed = [name for name in left.before if left.before[name] != left.after[name]]
        if changed:
            yield explain.global_state(subject, changed, left.before, left.after)
            return
        if left.seeded:
            yield explain.reseeded_by_evaluation(subject, left.seeded)
            return
    names, kind = seeded_by_building(subject)
    if kind is not None:
        yield explain.reseeded_by_building(kind, names)
        return
    yield passed(f"{len(before)} global settings are unchanged after a forward in either mode")

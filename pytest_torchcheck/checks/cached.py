"""A model that is causal gives step by step, with its cache, what it gives in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import promises
from ..codes import behaviour as explain
from ..objects import trees
from ..runs.variants.cached import arguments, run, ways_of
from ..subject.errors import SubjectError
from ..verdicts import inconclusive, not_applicable, passed
from .batching import EXACT, ROUNDING
from .promised import find_input

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..findings import Finding
    from ..runs.variants.cached import Way
    from ..subject import Subject

_FEWEST = 4
_ROUNDED = 1e-5
"""What a norm or softmax that casts to float32 in between makes of it."""


def cached_steps(subject: Subject) -> Iterator[Finding]:
    """Give the last two positions one by one, with the cache of the call before, and compare with one call."""
    for promise in subject.contract.promised("Causal"):
        assert isinstance(promise, promises.Causal)
        yield _cached(subject, promise)


def _cached(subject: Subject, promise: promises.Causal) -> Finding:
    names = arguments(subject.model)
    if not names:
        return not_applicable("no optional argument of the forward takes a cache")
    batch = subject.batch()
    found = find_input(batch, promise.input)
    if found is None or found[1].dim() <= promise.dim or found[1].shape[promise.dim] < _FEWEST:
        return inconclusive(f"the input has fewer than {_FEWEST} positions")
    path = found[0]
    gaps: dict[Way, float] = {}
    for way in ways_of(subject, batch, path, promise.dim):
        try:
            with subject.in_double():
                wide = batch.to(dtype=torch.float64)
                bound, gap = EXACT, _gap(subject, promise, wide, path, way)
        except SubjectError:
            bound, gap = ROUNDING, _gap(subject, promise, batch, path, way)
        if gap is not None:
            gaps[way] = gap if gap > max(bound, _ROUNDED) else 0.0
    if not gaps:
        return inconclusive(
            f"no output of a forward could be given back as {', '.join(names)}", code="no-cache"
        )
    way = min(gaps, key=lambda way: gaps[way])
    if gaps[way]:
        return explain.cache_differs(subject, promise, batch, path, way, gaps[way])
    return passed(f"two steps with {way.name} give what one call gives")


def _gap(
    subject: Subject, promise: promises.Causal, batch: Any, path: str, way: Way
) -> float | None:
    """Return how far the last position's output is from that of one call, relative to its scale."""
    last = trees.pick(run(subject, batch, path, promise.dim, way), promise.output)
    whole = trees.pick(subject.forward(batch), promise.output)
    if not isinstance(last, torch.Tensor) or last.dim() != whole.dim():
        return None
    dim = promise.output_dim
    last, whole = last.narrow(dim, last.shape[dim] - 1, 1), whole.narrow(dim, whole.shape[dim] - 1, 1)  # fmt: skip
    if last.shape != whole.shape:
        return None
    return trees.worst(whole, last) / max(trees.scale(whole), 1e-30)

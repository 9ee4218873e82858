"""Steps with a cache that give something else than one call, and the operation at which they part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...findings import Culprit
from ...probes.recorded.divergence import first_divergence
from ...probes.recorded.operations import record
from ...runs.variants.cached import last_step
from ...verdicts import violated
from .places import place_of

if TYPE_CHECKING:
    from ...batches import Batch
    from ...findings import Finding
    from ...promises import Causal
    from ...runs.variants.cached import Way
    from ...subject import Subject
    from ..crashes.place import Place

_ROUNDED = 1e-4


def differs(
    subject: Subject, promise: Causal, batch: Batch, path: str, way: Way, gap: float
) -> Finding:
    """Explain a cached step whose output is not that of one call."""
    with torch.no_grad():
        place = _parting(subject, promise, batch, path, way)
    line = place.location if place else sources.of_object(type(subject.model).forward)
    given = Culprit(kind="input", name=way.name, detail="takes the cache", location=line)
    return violated(
        "cache-differs",
        f"with {way.name}, the last position gets another output than in one call",
        culprits=[*(place.culprits() if place else ()), given],
        location=line,
        observed=f"the last of {batch.tensors()[path].shape[promise.dim]} positions, given alone with the cache of "
        f"those before: its output differs by {gap:.3g} (relative)",
        cause="a step does not continue where the cache ends: its position, its mask or what it appends",
        because=(place.fact if place and place.fact else "")
        or "only the number of calls differed between two eval forwards",
        fix=f"count positions from the length of {way.name}, and let the new ones see all that it holds",
        evidence={"gap": gap, "argument": way.name},
    )


def _parting(subject: Subject, promise: Causal, batch: Batch, path: str, way: Way) -> Place | None:
    """Return the first operation of the last step whose result is not the end of the one call's."""
    copy = batch.clone()
    with subject.pristine() as model:
        model.eval()
        whole = record(lambda: subject.call(model, copy), model)
    with subject.pristine() as model:
        model.eval()
        step = record(last_step(subject, model, batch, path, promise.dim, way), model)
        found = first_divergence(whole, step, allowed=_ROUNDED, align="suffix")
        return place_of(found, model)

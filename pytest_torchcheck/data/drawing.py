"""Which sampler of a loader decides what is drawn, and how it is put back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler

from .contents import Contents
from .snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .plan import Part

MOST_INDICES = 20_000
"""How many indices, or batches of them, are drawn of one epoch at most."""


@contextlib.contextmanager
def kept_samplers(part: Part) -> Iterator[None]:
    """Put back, on every way out, the loader of a dataset, its samplers and its generator."""
    plan = part.plan
    held = [one for one in (plan.loader, plan.sampler, plan.batch_sampler) if one is not None]
    snapshots = [Snapshot(Contents(one)) for one in held]
    state = plan.generator.get_state() if plan.generator is not None else None
    try:
        yield
    finally:
        for snapshot in snapshots:
            snapshot.restore()
        if plan.generator is not None:
            plan.generator.set_state(state)


def sampler_of(part: Part) -> Any:
    """Return the object that decides the order by the user's code, or None for torch's own."""
    plan = part.plan
    own = plan.batch_sampler if plan.batch_sampler is not None else plan.sampler
    inner = getattr(own, "sampler", None)
    return (
        inner
        if inner is not None and (type(own) is BatchSampler or hasattr(inner, "set_epoch"))
        else own
    )

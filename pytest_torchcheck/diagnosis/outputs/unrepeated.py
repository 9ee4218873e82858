"""What a contract is made of and no seed repeats: the model that its factory builds, the batch of its function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import sources
from ...explanation import counted
from ...findings import Culprit, Finding
from ...record.tracing import first_difference
from ...runs.repeats import asked, built
from ...text.wording import names_text
from ...verdicts import suspicious

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...subject import Subject

_DRAWS = r"default_rng\(\)|RandomState\(\)|\.seed\(\)|SystemRandom|urandom|\btime\("


def unrepeated_build(subject: Subject, moved: list[str]) -> Finding:
    """Explain a factory that builds other values each time, under one seed."""
    return _explain(
        subject.contract.model,
        [type(module) for module in subject.model.modules()],
        lambda: built(subject),
        f"the model is built with other values of {names_text(moved)} each time, under one seed",
        [
            Culprit(kind="parameter", name=name, detail="another one in each build")
            for name in moved[:4]
        ],
        f"{counted(len(moved), 'tensor')} of two models that were built under one seed differ",
    )


def unrepeated_batch(subject: Subject, moved: list[str]) -> Finding:
    """Explain a batch function that gives other values each time, for one seed."""
    return _explain(
        subject.contract.batch,
        [],
        lambda: asked(subject),
        f"the batch function gives another {names_text(moved)} each time, for one seed",
        [Culprit(kind="input", name=name, detail="another one in each call") for name in moved[:4]],
        f"{counted(len(moved), 'tensor')} of two batches for seed {subject.seed} differ",
    )


def _explain(
    made_by: Any,
    classes: list[type],
    run: Callable[[], object],
    summary: str,
    culprits: list[Culprit],
    observed: str,
) -> Finding:
    """Name the first local value that differs between two runs, else a line of the code that draws what no seed sets."""
    name, place = first_difference(run)
    if place is None:
        own = (cls for cls in classes if sources.is_own_class(cls))
        found = (sources.search(thing, _DRAWS) for thing in (made_by, *own))
        place = next((one for one in found if one is not None), None)
    return suspicious(
        "seed-ignored",
        summary,
        culprits=culprits,
        location=place or sources.of_object(made_by),
        observed=observed,
        cause="a generator is made without a seed, goes on from call to call, or takes it from the clock",
        because=f"{name} is the first value that differs between two runs under one seed"
        if name
        else "the seeds of torch, random and NumPy were equal",
        fix="draw from torch's generator, which is seeded, or make a generator from torch.initial_seed()",
    )

"""What of a contract no seed repeats, its model or its batch; statistics that hold the last batch only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from ... import sources
from ...explanation import counted, on_line
from ...findings import Culprit, Finding
from ...objects.peek import names_in
from ...record.tracing import first_difference
from ...runs.repeats import asked, built
from ...text.wording import names_text
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...subject import Subject

_DRAWS = r"default_rng\(\)|RandomState\(\)|\.seed\(\)|SystemRandom|urandom|\btime\("


def unrepeated_build(subject: Subject, moved: list[str]) -> Finding:
    """Explain a factory that builds other values each time, under one seed."""
    return _explain(
        subject.contract.model,
        [type(module) for module in subject.model.modules()],
        lambda: built(subject),
        (
            f"the model is built with different values of {names_text(moved)} each time, with the "
            "same seed"
        ),
        [Culprit("parameter", name, "different in each build") for name in moved[:4]],
        f"{counted(len(moved), 'tensor')} of two models that were built with the same seed differ",
    )


def unrepeated_batch(subject: Subject, moved: list[str]) -> Finding:
    """Explain a batch function that gives other values each time, for one seed."""
    return _explain(
        subject.contract.batch,
        [],
        lambda: asked(subject),
        f"the batch function gives a different {names_text(moved)} each time, for the same seed",
        [Culprit("input", name, "different in each call") for name in moved[:4]],
        f"{counted(len(moved), 'tensor')} of two batches for seed {subject.seed} differ",
    )


def unseeded_generators(subject: Subject, names: list[str]) -> Finding:
    """Explain a training forward that draws from generators which the model holds, and no seed sets."""
    holder, _, attribute = names[0].rpartition(".")
    owner = dict(subject.model.named_modules()).get(holder, subject.model)
    place = sources.of_attribute(type(owner), attribute)
    make = violated if sources.is_own_class(type(owner)) else suspicious
    shown, are = names_text(names), "is" if len(names) == 1 else "are"
    return make(
        "seed-ignored",
        f"the training forward does not repeat with the same seed: {shown} {are} not seeded",
        culprits=[
            Culprit("call", name, "in another state in each build", place) for name in names[:4]
        ],
        location=place or sources.of_own_class(subject.model),
        observed=f"of two models that were built under one seed, each holds {shown} in another state",
        cause="a generator that the model makes takes its seed from the system, not from torch",
        because="with the state that the other model's has, and nothing else changed, the training forward "
        "gives another output",
        fix=f"seed every generator from torch.initial_seed() where the model makes it{on_line(place)}",
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
        cause="a generator is created without a seed or seeded from the clock, or is not reset "
        "between calls",
        because=f"{name} is the first value that differs between two runs with the same seed"
        if name
        else "the seeds of torch, random and NumPy were equal",
        fix="draw from torch's generator, which is seeded, or create a generator seeded with "
        "torch.initial_seed()",
    )


def forgotten(subject: Subject, kept: Mapping[str, float]) -> Finding:
    """Explain norms that keep less than a tenth of their running statistics in each step: some are published so.

    Args:
        subject: Whose model.
        kept: By name of the norm, the share that a training forward keeps.
    """
    name, share = next(iter(kept.items()))
    place = sources.of_parameter(subject.model, name)
    momentum = getattr(subject.model.get_submodule(name), "momentum", 1 - share)
    return suspicious(
        "statistics-forgotten",
        f"the running statistics of {names_text(list(kept))} keep {share:.1%} of what they held in each step",
        culprits=[
            Culprit("module", n, "forgets", sources.of_parameter(subject.model, n)) for n in kept
        ],
        location=place,
        observed=f"of two training forwards on one batch, the second moves {name}.running_mean by {share:.1%} of "
        "what the first does",
        cause=f"momentum={momentum:g} weighs the new batch: evaluation uses the statistics of the last batches alone",
        because="torch computes running = (1 - momentum) * running + momentum * batch; other frameworks have "
        "it the other way round",
        fix=f"write momentum={1 - momentum:.3g}{on_line(place)}",
    )


def stuck(subject: Subject, initial: Sequence[bool]) -> Finding:
    """Explain norms of each batch in training whose statistics for evaluation no batch moves.

    Args:
        subject: Whose model.
        initial: For each of them, whether its running means are zeros: others may have been loaded, to stay.
    """
    named = {
        name or type(module).__name__: module for name, module in subject.model.named_modules()
    }
    still = [
        name
        for name, module in named.items()
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum == 0
    ]
    names = still or [
        name
        for name, module in named.items()
        if type(module).__module__.partition(".")[0] != "torch"
        and any("batch_norm" in names_in(value) for value in vars(type(module)).values())
    ]
    own = sources.search(type(named[names[0]]), r"batch_norm\(") if names and not still else None
    place = sources.of_parameter(subject.model, names[0]) if still else own
    make = violated if any(initial) else suspicious
    return make(
        "statistics-forgotten",
        f"no training forward moves the running statistics of {names_text(names)}, which evaluation uses",
        culprits=[Culprit("module", one, "keeps no statistics", place) for one in names],
        location=place,
        observed=f"{counted(len(initial), 'norm')} normalised by the batch in training; "
        "in evaluation each was given the "
        "same mean and variance before a training forward and after it",
        cause="momentum=0 gives a new batch no weight"
        if still
        else "the call updates copies of the statistics, which are dropped",
        because="the statistics were read at each call of F.batch_norm",
        fix=f"write momentum=0.1{on_line(place)}"
        if still
        else "give F.batch_norm the buffers themselves, or copy what it updated back to them",
    )

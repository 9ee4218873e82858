"""Training mode and evaluation mode compute the same, but for dropout, noise and the statistics of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ..codes import behaviour as explain
from ..late import Late
from ..runs.facts import copied, forward_facts
from ..runs.training.observation import digests
from ..runs.variants.dropping import dropping
from ..runs.variants.kept_noise import kept_noise
from ..runs.variants.settling import (
    alike_in_few,
    apart_with,
    asking_for_mode,
    gap,
    other_norms,
    outputs_with,
    running_away,
    settled,
    stuck_norms,
)
from ..runs.variants.training_rows import astray
from ..state import seed_everything
from ..verdicts import inconclusive, not_applicable, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..findings import Finding
    from ..runs.training.steps import Trajectory
    from ..runs.variants.settling import Settled
    from ..subject import Subject

folded_otherwise = Late("runs.variants.linear:folded_otherwise")
"""It is asked where the modes differ."""

_ROUNDING = 1e-3
_APART = 1e-2
"""Relative difference between the modes at other statistics of the norms that no rounding explains."""
_GROWTH = 1.001
"""Ratio of one change to the change before, at fixed weights and on one batch, from which on a buffer grows."""


def mode_agreement(subject: Subject) -> Iterator[Finding]:
    """Call the model in training mode, dropout and torch's norms as in evaluation, and let statistics settle.

    A forward gives the same with a graph and without one; the first training step has shown the former.
    Running statistics of torch's norms that hold little but the last batch are suspicious. So are modes that
    compute something else, unless the part that does is linear in its input in both, by the same parameters.
    Whatever else training does, the output of a sample follows its own input: not that of another sample, nor none.
    """
    if kept := _forgetful(subject):
        yield explain.forgotten(subject, kept)
        return
    if stuck := stuck_norms(subject):
        yield explain.stuck_statistics(subject, stuck)
        return
    evaluated, trained = forward_facts(subject), forward_facts(subject, train=True)
    if subject.graphs.needed:
        yield explain.needs_graph(subject)
    elif _ROUNDING < (distance := _by_graph(subject, trained.outputs)) < float("inf"):
        yield explain.differs_by_graph(subject, distance)
        return
    kinds = asking_for_mode(subject.model) if subject.has_modes else []
    if not kinds:
        yield not_applicable("no class of the model's own asks for its mode")
        return
    if not evaluated.consumed and alike_in_few(subject, _ROUNDING):
        yield _elsewhere(subject, len(evaluated.outputs), kinds)
        return
    if (other := astray(subject)) is not None and not (other.told and other.kind == "mixed"):
        yield explain.astray(subject, other)
        return
    seen = settled(subject)
    if seen.random or evaluated.consumed:
        yield inconclusive("the forward draws random numbers of its own")
        return
    growing = [n for n, ratio in seen.ratios.items() if abs(ratio) > _GROWTH]
    if growing and (growing := running_away(subject, growing, _GROWTH)):
        yield explain.growing_statistics(subject, growing, seen.ratios[growing[0]])
        return
    if seen.moving:
        yield inconclusive("the training forward gives other outputs in each call")
        return
    plain = evaluated.outputs
    limits = outputs_with(subject, seen.limits, train=False) if seen.written else plain
    if gap(plain, limits) > _ROUNDING:
        yield _statistics(
            subject, seen, gap(outputs_with(subject, seen.limits, train=True), limits)
        )
        return
    distance = gap(seen.quiet, plain)
    if _ROUNDING < distance < float("inf"):
        part = folded_otherwise(subject)
        yield (
            explain.modes_differ(subject, distance)
            if part is None
            else explain.folded(subject, part)
        )
        return
    yield _elsewhere(subject, len(plain), kinds)


def _forgetful(subject: Subject) -> dict[str, float]:
    """Return norms whose running statistics keep a tenth or less in a training forward, with that share.

    What is averaged at fixed weights on one batch changes by the share that is kept of the change before.
    """
    names = [
        name
        for name, module in subject.model.named_modules()
        if isinstance(module, nn.modules.batchnorm._NormBase)
        and module.running_mean is not None
        and 1 - _KEPT <= (module.momentum or 0.0) < 1
    ]
    if not names or not subject.has_modes:
        return {}
    states = []
    with subject.pristine() as model, torch.no_grad():
        model.train()
        for again in range(3):
            if again:
                seed_everything(subject.seed)
                subject.call(model, subject.batch().clone())
            norms = (model.get_submodule(name) for name in names)
            states.append([norm.running_mean.double().clone() for norm in norms])  # type: ignore[operator]
    found = {}
    for name, one, two, three in zip(names, *states, strict=True):
        first, second = two - one, three - two
        if float(first.norm()) and (share := float(second @ first / (first @ first))) < 1.1 * _KEPT:
            found[name] = share
    return found


_KEPT = 0.1


def _elsewhere(subject: Subject, outputs: int, kinds: list[str]) -> Finding:
    """Judge modes that agree at the first statistics of torch's norms, means of 0 and variances of 1, by other ones."""
    statistics = other_norms(subject.model)
    distance = apart_with(subject, statistics) if statistics else 0.0
    if _APART < distance < float("inf"):
        return explain.part_with_statistics(subject, statistics, distance)
    return passed(
        f"{outputs} outputs are the same in train and in eval mode without dropout and batch "
        f"statistics; the mode is asked for by {', '.join(kinds[:3])}"
    )


def _by_graph(subject: Subject, without: dict[str, torch.Tensor]) -> float:
    """Return how far a training forward with a graph lies from one without; 0 where randomness decides."""
    steps: Trajectory | None = subject.cache.get("trajectory")
    if steps is not None and steps.first_output == digests(without):
        return 0.0

    def run(*, graph: bool) -> dict[str, torch.Tensor]:
        with subject.pristine(train=True, seeded=True) as model, torch.set_grad_enabled(graph):
            return copied(subject.call(model, subject.batch().clone()))

    distance = gap(run(graph=True), without)
    # what no seed repeats is for seeding to tell
    return distance if distance <= _ROUNDING or gap(run(graph=False), without) == 0 else 0.0


def _statistics(subject: Subject, seen: Settled, distance: float) -> Finding:
    """Judge statistics that evaluation reads, by how far apart the modes are where they have settled."""
    if set(seen.limits) != set(seen.written):
        return inconclusive("what the statistics settle at is not known after four calls")
    batch = subject.batch()
    size = batch.sizes.get(subject.source.batch_symbol or "", 0)
    if distance == float("inf"):
        return inconclusive("the output has another form in eval mode")
    if size < 4 or distance <= _ROUNDING + 2.0 / size:
        return passed(
            f"{len(seen.limits)} running statistics settle where evaluation gives what training gives"
        )
    return explain.statistics_biased(subject, list(seen.written), distance)


def dropped_values(subject: Subject) -> Iterator[Finding]:
    """Call modules that drop values in training, and are the identity in eval mode, many times with one input.

    The mean of output over input must be 1, within what so few draws tell, unless kept values are not scaled.
    Noise that the first training forward draws and keeps in an attribute must be drawn again by later ones.
    """
    if not (subject.has_modes and forward_facts(subject, train=True).consumed):
        yield not_applicable("the training forward draws no random numbers")
        return
    if (stale := kept_noise(subject)) is not None:
        yield explain.noise_kept(subject, stale)
        return
    found = dropping(subject)
    for one in found:
        if not one.keeps_mean:
            yield explain.dropout_scale(subject, one)
            return
    if not found:
        yield not_applicable("no module of the model's own drops values in training alone")
        return
    yield passed(f"{len(found)} modules that drop values keep the mean of their input")

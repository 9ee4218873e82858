"""A new model starts where it can learn: initialised, not symmetric, with signals that neither vanish nor explode."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..codes import initialisation as explain
from ..objects import trees
from ..probes.holding.equal_units import symmetric
from ..probes.numbers.signals import LINEAR
from ..runs import layers
from ..runs.overfitting.stuck import equal_rows
from ..runs.repeats import in_one_memory, keep_track, reads_last
from ..runs.training.observation import observe
from ..runs.training.steps import trajectory
from ..runs.variants.woken import woken
from ..state import filled_memory, is_lazy, isolated
from ..subject.errors import SubjectError
from ..verdicts import inconclusive, not_applicable, passed, suspicious

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..findings import Finding
    from ..probes.numbers.signal_facts import Rectified, Squashed, Tap
    from ..subject import Subject

HUGE = 1e15
"""No initialisation draws such a weight; uninitialised memory may hold it."""
_SEED_STEP = 7919


def rebuilt(subject: Subject) -> nn.Module | None:
    """Build another instance with another seed, in which memory that was never written holds NaN.

    Returns:
        None where there is no factory, or where it returns the same parameters again.
    """
    if not subject.contract.is_factory:
        return None
    with isolated(), filled_memory():
        other = subject.build(subject.seed + _SEED_STEP)
    subject.cache["never-written"] = _unwritten(subject.model, other)
    ours = {id(p): name for name, p in subject.model.named_parameters()}
    shared = [ours[id(p)] for p in other.parameters() if p.requires_grad and id(p) in ours]
    subject.cache["instances-share"] = one = in_one_memory(subject.model, other)
    shared = [name for name in shared if name not in one]
    keep_track(subject, other)
    every = bool(shared) and not one and all(id(p) in ours for p in other.parameters())
    whole = every or (other is subject.model and bool(ours))
    if shared or whole:
        subject.cache["factory-repeats"] = shared, whole
    if any(id(p) in ours for p in other.parameters()) or other is subject.model:
        return None
    return other


def _unwritten(model: nn.Module, other: nn.Module) -> list[str]:
    """Return the parameters that hold NaN only where unwritten memory does: others hold NaN by computation."""
    ours = dict(model.named_parameters())
    found = []
    for name, parameter in other.named_parameters():
        if (
            is_lazy(parameter)
            or not parameter.is_floating_point()
            or not trees.computable(parameter)
        ):
            continue
        if not bool(torch.isnan(parameter.detach().sum())):
            continue
        count = int(torch.isnan(parameter.detach()).sum())
        mine = ours.get(name)
        if count and (mine is None or int(torch.isnan(mine.detach()).sum()) != count):
            found.append(name)
    return found


def initialisation(subject: Subject) -> Iterator[Finding]:
    """Look for NaN, unwritten memory and huge values, and for layers whose units are and stay equal.

    So are the rows of other parameters (latents, queries, prototypes), if gradients and steps keep
    them equal. Building another instance must leave the first one as it is: they share no memory that
    training writes to, and the first reads nothing that the last one holds.
    """
    subject.require_values()
    parameters = {n: p for n, p in subject.named_parameters().items() if not p.is_meta}
    if not parameters:
        yield not_applicable("the model has no parameters")
        return
    if subject.contract.is_factory and "never-written" not in subject.cache:
        rebuilt(subject)
    unwritten: list[str] = subject.cache.get("never-written", [])
    broken = [
        (name, parameter)
        for name, parameter in parameters.items()
        if parameter.is_floating_point() and not _is_sane(parameter)
    ]
    if (repeats := subject.cache.get("factory-repeats")) is not None:
        shared, whole = repeats
        yield explain.factory_repeats(subject, shared, whole=whole)
    if moving := _written_by_training(subject, subject.cache.get("instances-share", [])):
        yield explain.instances_share(subject, moving)
    elif (last := reads_last(subject)) is not None:
        yield explain.reads_last_instance(subject, *last)
    findings = list(explain.unwritten(subject, unwritten)) if unwritten else []
    if odd := [(name, p) for name, p in broken if name not in unwritten]:
        findings += explain.broken(subject, odd)
    findings += symmetric(subject)
    findings += [explain.rows_stay_equal(subject, name, dim) for name, dim in equal_rows(subject)]
    yield from findings
    if not findings:
        how = (
            ", and a build on memory filled with NaN leaves none"
            if "never-written" in subject.cache
            else ""
        )
        yield passed(
            f"{len(parameters)} parameters are finite and below {HUGE:.0g} in magnitude{how}"
        )


def _written_by_training(subject: Subject, names: list[str]) -> list[str]:
    """Return which tensors training writes to: a table of constants may be one for all."""
    parameters = subject.named_parameters()
    if all(name in parameters for name in names):
        return names
    try:
        moved = trajectory(subject).buffers
    except SubjectError:
        moved = ()
    return [name for name in names if name in parameters or name in moved]


def _is_sane(parameter: torch.Tensor) -> bool:
    values = trees.dense(parameter)
    if not values.numel():
        return True
    if not parameter.requires_grad:
        return not bool(
            torch.isnan(values).any()
        )  # a mask that is kept as a parameter may hold -inf
    if values.is_complex():
        values = torch.view_as_real(values)
    low, high = torch.aminmax(values)  # NaN wins both
    largest = max(abs(float(low)), abs(float(high)), key=lambda v: (v != v, v))
    return math.isfinite(largest) and largest < HUGE


def signal_propagation(subject: Subject) -> Iterator[Finding]:
    """Measure, in the model as built, how far the samples of a batch lie apart after each layer with weights, and the gradient there.

    It reports both shrinking to less than a ten-thousandth from one end of five or more layers to the other, or both
    growing more than ten-thousandfold, and a gradient that grows tenfold from layer to layer over three alike. The
    last layer is left out, since a head may start at any scale.
    """
    subject.require_values()
    taps = layers.trunk(observe(subject).signals.taps)
    if growing := layers.growing(taps):
        yield explain.growing(subject, growing, evidence=layers.measured(taps))
        return
    if len(taps) < layers.DEPTH:  # a signal cannot fade over fewer
        yield not_applicable(
            f"the model has {len(taps)} layers with weights; a signal fades over "
            f"{layers.DEPTH} or more",
            evidence=layers.measured(taps),
        )
        return
    if all(tap.spread is None for tap in taps):
        yield inconclusive("the outputs of the layers cannot be split into two samples or more")
        return
    yield _judge_signal(subject, taps, observe(subject).signals.squashed)


def _judge_signal(subject: Subject, taps: list[Tap], squashed: Sequence[Squashed]) -> Finding:
    """Compare both ends of the chain of layers; the last one is left out, since heads may start at any scale.

    Args:
        subject: The model.
        taps: The outputs of its layers with weights, in order.
        squashed: Its calls of tanh and sigmoid on the very output of a layer.
    """
    chain, gone = layers.chain_of(taps)
    if len(chain) + len(gone) < layers.DEPTH - 1:
        unsplit = sum(tap.spread is None for tap in taps)
        equal = sum(tap.spread == 0.0 for tap in taps)
        return inconclusive(
            f"a signal is followed over {layers.DEPTH - 1} layers before the last one; of {len(taps)} layers "
            f"{equal} give every sample the same output, and {unsplit} have outputs that cannot be split "
            "into samples"
        )
    forward = layers.trend([tap.spread for tap in chain], layers.noise_from(chain))
    backward = layers.gradient_trend([*chain, *gone], forward)
    evidence: dict[str, Any] = {
        **layers.measured(taps),
        "forward_ratio": layers.short(forward),
        "backward_ratio": layers.short(backward),
    }
    numbers = (
        f"over {len(chain)} layers the differences between samples {_changed(forward)} forward, "
        f"and the gradients {_changed(backward)} backward"
    )
    fades = max(forward, backward) < layers.FADING
    if not fades and min(forward, backward) < layers.BURSTING:
        return passed(numbers, evidence=evidence)
    return explain.fading(
        subject, chain, squashed, trends=(forward, backward), numbers=numbers, evidence=evidence
    )


def _changed(ratio: float) -> str:
    if not ratio:
        return "vanish"
    if 0.5 < ratio < 2.0:
        return f"keep their size (x {ratio:.2g})"
    return f"{'shrink' if ratio < 1 else 'grow'} by a factor of {max(ratio, 1 / ratio):.2g}"


def dead_units(subject: Subject) -> Iterator[Finding]:
    """Look for rectifiers of which more than 99 % of the outputs are zero, and layers that saturate, in three batches."""
    subject.require_values()
    saturated = _saturated(subject)
    if saturated is not None:
        hidden = saturated.source in observe(subject).signals.feeding
        yield explain.saturated(subject, saturated, hidden=hidden)
    seen = [
        r for r in observe(subject).signals.rectified if r.size >= layers.FEW and not r.silent_input
    ]
    if not seen and saturated is not None:
        return
    if not seen:
        yield not_applicable("no rectifier ran on more than a few values")
        return
    suspects = {layers.place_of(r): r for r in seen if r.zeros > layers.DEAD}
    for index in (1, 2):
        if not suspects:
            break
        again: dict[tuple[str, str], Rectified] = {
            layers.place_of(r): r for r in layers.signals_of(subject, index).rectified
        }
        suspects = {
            key: max((first, again[key]), key=lambda r: -r.zeros)
            for key, first in suspects.items()
            if key in again and again[key].zeros > layers.DEAD
        }
    for found in suspects.values():
        yield explain.dead(subject, found)
    if not suspects and saturated is None:
        worst = max(r.zeros for r in seen)
        yield passed(
            f"{len(seen)} rectifiers ran; at most {worst:.0%} of the outputs of one are zero"
        )


def _saturated(subject: Subject) -> Squashed | None:
    """Return a layer that drives the squashing function behind it to both of its bounds in three batches."""

    def full(seen: list[Squashed]) -> dict[tuple[str, str], Squashed]:
        return {
            (s.source, s.op): s
            for s in seen
            if s.size >= layers.FEW and s.share > layers.SATURATED and 0.1 < s.upper < 0.9
        }

    found = full(observe(subject).signals.squashed)
    for index in (1, 2):
        if not found:
            return None
        again = full(layers.signals_of(subject, index).squashed)
        found = {key: s for key, s in found.items() if key in again}
    return next(iter(found.values()), None)


def nonlinearity(subject: Subject) -> Iterator[Finding]:
    """Test whether the whole model is affine, and whether two linear layers follow one another directly."""
    subject.require_values()
    signals = observe(subject).signals
    called = [
        n for n, m in subject.model.named_modules() if isinstance(m, LINEAR) and signals.calls[n]
    ]
    if len(called) < 2:
        yield not_applicable(
            f"{len(called)} linear layers are called; at least two are needed to collapse"
        )
        return
    affine = layers.is_affine(subject)
    if affine and (other := woken(subject)) is not None:
        affine = layers.is_affine(other[0])  # a scale that starts near zero hides what bends
    pairs = layers.collapsing(subject.model, signals.chains)
    narrow = (
        all(isinstance(subject.model.get_submodule(name), nn.Linear) for name in called)
        and not pairs
    )
    if affine and not narrow:
        yield explain.affine(subject, called, pairs)
    elif pairs:
        yield explain.collapsed(subject, pairs)
    else:
        yield passed(
            f"{len(called)} linear layers are called, none directly after another one of full rank"
            + ("; the model is affine, a product of narrow factors" if affine else "")
        )


__all__ = [
    "dead_units",
    "initialisation",
    "nonlinearity",
    "rebuilt",
    "signal_propagation",
    "suspicious",
]

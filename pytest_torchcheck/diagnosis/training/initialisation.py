"""Why a new model cannot learn: unwritten memory, lost signals, dead units, equal rows, shared tensors."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import listed, on_line, parameter
from ...findings import Culprit, Finding
from ...objects import trees
from ...runs.layers import BURST, FADED, FADING
from ...runs.overfitting.stuck import STEPS
from ...verdicts import suspicious, violated
from ..loss.bounds import initialisation_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...findings import Location
    from ...probes.numbers.signal_facts import Rectified, Squashed, Tap
    from ...subject import Subject

_GAIN = 3.0


def unwritten(subject: Subject, names: list[str]) -> Iterator[Finding]:
    """Report parameters made of memory that nobody wrote."""
    places = {name: sources.of_parameter(subject.model, name) for name in names}
    first = places[names[0]]
    yield violated(
        "never-written",
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} never initialised",
        culprits=[Culprit("parameter", name, location=places[name]) for name in names[:6]],
        observed=f"built with uninitialised memory filled with NaN, {names[0]} holds NaN",
        cause="the parameter is created by torch.empty or torch.Tensor(sizes), and never written",
        because="torch fills such memory with NaN here, and the NaN remain after the model is built",
        fix=f"initialise {names[0]} (nn.init.*)"
        + (f", line {first.line}: {first.text}" if first else ""),
    )


def factory_repeats(subject: Subject, shared: list[str], *, whole: bool) -> Finding:
    """Report a factory that returns one model each time, or models that share a part that trains.

    Args:
        subject: Whose factory.
        shared: The trainable parameters that two models have in common.
        whole: Whether these models have every parameter in common: checks that load into a second
            model, or compare with one, compare the model with itself, and all of them pass.
    """
    place = sources.of_object(subject.contract.model) or subject.contract.location
    trainable = [n for n, p in subject.model.named_parameters() if p.requires_grad]
    what = "the model" if whole else "a part of the model"
    make = violated if whole else suspicious
    return make(
        "factory-repeats",
        "the factory returns the same model each time"
        if whole
        else f"the factory returns models that share {listed(shared)}",
        culprits=[Culprit("function", subject.contract.name, location=place)],
        observed="two calls with different seeds returned modules "
        + (
            "with the same parameters"
            if whole
            else f"that share {len(shared)} of {len(trainable)} trainable parameters"
        ),
        cause=f"{what} is built once, outside the factory, or is cached",
        because="checks that need a second instance (loading, seeds, initialisation) cannot run",
        fix="build it inside the factory"
        + (", or declare the module itself: model=module" if whole else ", or freeze it"),
    )


def copied_branch(subject: Subject, first: str, second: str) -> Culprit:
    """Return the branch that makes a weight a copy of another one, with the line that copies it.

    Args:
        first, second: Names of equal weights; where the names part is where the branches do.
    """
    ours, theirs = first.split("."), second.split(".")
    depth = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs) - 1
    )
    branch = ".".join(theirs[: depth + 1])
    place = sources.of_parameter(subject.model, branch)
    written = theirs[: depth + 1]
    while len(written) > 1 and not sources.of_assignment(
        subject.model.get_submodule(".".join(written[:-1])), written[-1]
    ):
        written.pop()  # within a container: the line that assigns the container
    owner = type(subject.model.get_submodule(".".join(written[:-1])))
    name = re.escape(written[-1])
    copies = rf"\.{name}\s*=[^=].*(copy|\]\s*\*)|\.{name}\.load_state_dict\("
    for cls in owner.__mro__[:-1]:
        at = sources.of_object(cls)
        if at is not None and sources.rank(at.file) and (copied := sources.search(cls, copies)):
            place = copied
            break
    equal = ".".join(ours[: depth + 1])
    return Culprit("module", branch, f"starts equal to {equal}", place)


def broken(subject: Subject, found: Sequence[tuple[str, torch.Tensor]]) -> list[Finding]:
    """Report parameters with NaN, infinite or absurd values."""
    if not found:
        return []
    name, values = found[0]
    wide = trees.dense(values.detach()).to(torch.float64)
    bad = int((~torch.isfinite(wide)).sum())
    place = sources.of_parameter(subject.model, name)
    return [
        violated(
            "parameter-non-finite" if bad else "parameter-huge",
            f"{listed([n for n, _ in found])} "
            + ("holds NaN or infinity" if bad else f"reaches {trees.scale(values):.3g}"),
            culprits=[
                Culprit("parameter", n, location=sources.of_parameter(subject.model, n))
                for n, _ in found[:6]
            ],
            observed=f"{bad} of {values.numel()} elements of {name} are not finite"
            if bad
            else f"the largest magnitude in {name} is {trees.scale(values):.3g}",
            cause="it was never initialised (torch.empty), or its initialisation is wrong",
            because="the model has not run yet: these are its initial values",
            fix=f"initialise {name}" + (f", line {place.line}: {place.text}" if place else ""),
        )
    ]


def fading(
    subject: Subject,
    chain: list[Tap],
    squashed: Sequence[Squashed],
    *,
    trends: tuple[float, float],
    numbers: str,
    evidence: dict[str, Any],
) -> Finding:
    """Explain a signal that vanishes or explodes over the layers.

    Args:
        subject: The model.
        chain: The layers that tell the samples apart, without the last one.
        squashed: Its calls of tanh and sigmoid on the very output of a layer.
        trends: By how much the spread between samples changes forward, and the gradient backward.
        numbers: That in words.
        evidence: Of the finding.
    """
    forward, backward = trends
    fades = max(forward, backward) < FADING
    extreme = max(forward, backward) < FADED if fades else min(forward, backward) > BURST
    turn = _turn(chain, fades=fades)
    made = violated if extreme else suspicious
    first, last = chain[0], chain[-1]
    return made(
        "signal-vanishes" if fades else "signal-explodes",
        f"the signal {'vanishes' if fades else 'explodes'} over {len(chain)} layers, from {first.name} to {last.name}",
        culprits=[
            Culprit(
                "module",
                tap.name or tap.kind,
                f"samples lie {tap.spread:.2g} apart",
                initialisation_line(subject, f"{tap.name}.weight"),
            )
            for tap in dict.fromkeys((turn, last))
        ],
        observed=numbers,
        cause=f"each layer {'shrinks' if fades else 'magnifies'} the differences between samples: "
        "the initialisation does not suit the nonlinearity, or normalisation or residual "
        "paths are missing",
        because=f"the samples lie {first.spread:.2g} apart after {first.name}, and {last.spread:.2g} "
        f"after {last.name}",
        fix=_rectify(chain, squashed)
        + "initialise with the gain of the nonlinearity (nn.init.kaiming_normal_), add normalisation or residual paths"
        if fades
        else "initialise with a smaller std (nn.init.kaiming_normal_), or normalise between the layers",
        evidence=evidence,
    )


def _rectify(chain: Sequence[Tap], squashed: Sequence[Squashed]) -> str:
    """Return the advice to take another nonlinearity, where most of the layers feed a sigmoid."""
    names = {tap.name for tap in chain}
    fed = [one for one in squashed if one.source in names and one.op.endswith("sigmoid")]
    if 2 * len(fed) < len(chain):
        return ""
    place = fed[0].location
    line = on_line(place)
    return f"use nn.ReLU (or GELU) instead of the sigmoid{line}, whose slope is at most 1/4; "


def _turn(taps: list[Tap], *, fades: bool) -> Tap:
    """Return the layer behind which the spread changes most."""
    sign = -1 if fades else 1
    steps = [(sign * math.log((b.spread or 1.0) / (a.spread or 1.0)), b) for a, b in pairwise(taps)]
    return max(steps, key=lambda step: step[0])[1]


def saturated(subject: Subject, found: Squashed, *, hidden: bool) -> Finding:
    """Report a layer that drives the squashing function behind it to its bounds; ``hidden``: further layers follow."""
    weight = f"{found.source}.weight"
    parameter = subject.named_parameters().get(weight)
    gain = (
        float(parameter.detach().float().square().mean().sqrt()) * parameter[0].numel() ** 0.5
        if parameter is not None
        else 0.0
    )
    large = gain > _GAIN
    place = initialisation_line(subject, weight) if large else found.location
    # a trained model may be sure of its outputs, not of what its own layers are still to read
    return (violated if hidden else suspicious)(
        "units-saturated",
        (
            f"{found.source} saturates the following {found.op}: {found.share:.0%} of its outputs "
            "are at its bounds"
        ),
        culprits=[
            Culprit(
                "parameter" if large else "module",
                weight if large else found.source,
                f"gain {gain:.2f}",
                place or sources.of_parameter(subject.model, found.source),
            ),
            Culprit(
                "module", found.module or type(subject.model).__name__, found.op, found.location
            ),
        ],
        location=place or found.location,
        observed=f"the input of {found.op} has an RMS of {found.scale:.3g}; {found.share:.0%} of "
        f"{found.size} outputs keep less than 1 % of the slope, in each of three batches",
        cause=f"{weight} is initialised too large: it scales a unit input by {gain:.1f}"
        if large
        else "the input of the layer is far too large, such as raw pixels or unscaled features",
        because=f"{found.source} has a gain of {gain:.2f}; its output should stay within 3 of zero",
        fix="initialise it smaller (nn.init.xavier_uniform_)"
        if large
        else "scale the input to a deviation near 1 before this layer, or normalise before it",
        evidence={"share": found.share, "scale": found.scale, "gain": gain},
    )


def dead(subject: Subject, found: Rectified) -> Finding:
    """Report a rectifier that lets next to nothing through."""
    line = on_line(found.location)
    name = found.module or type(subject.model).__name__
    return suspicious(
        "units-dead",
        f"{found.op} in {name}{line} gives zero for {found.zeros:.1%} of its outputs",
        culprits=[Culprit("module", name, f"{found.zeros:.1%} zeros", found.location)],
        observed=f"{found.zeros:.2%} of {found.size} outputs are exactly zero, in each of three "
        "batches",
        cause="its input is negative nearly everywhere: check biases, scale or sign of the layer "
        "before it",
        because="its input is not zero, but its output is",
        fix="initialise the bias of the layer before it at 0, or check the sign and scale of its "
        "weights",
        evidence={"zeros": found.zeros, "size": found.size},
    )


def _layers(subject: Subject, *names: str) -> list[Culprit]:
    return [Culprit("module", n, "", sources.of_parameter(subject.model, n)) for n in names]


def affine(subject: Subject, called: list[str], pairs: list[tuple[str, str]]) -> Finding:
    """Report a model that is one linear map, however many layers it has."""
    first, second = pairs[0] if pairs else (called[0], called[1])
    return suspicious(
        "model-affine",
        f"the model is affine: its {len(called)} linear layers act as one",
        culprits=_layers(subject, second, first),
        observed="f((x + y) / 2) equals (f(x) + f(y)) / 2 for two batches x and y",
        cause=f"there is no nonlinearity between {first} and {second}, nor anywhere else",
        because="only an affine function maps the midpoint of two inputs to the midpoint of "
        "their outputs",
        fix=f"put an activation between {first} and {second}",
    )


def collapsed(subject: Subject, pairs: list[tuple[str, str]]) -> Finding:
    """Report two linear layers that act as one."""
    first, second = pairs[0]
    return suspicious(
        "layers-collapse",
        f"{second} follows {first} without a nonlinearity between them: they act as one layer",
        culprits=_layers(subject, second, first),
        observed=f"{second} directly receives the output of {first}, which does not reduce the "
        "dimension",
        cause="an activation is missing, or one of the layers is superfluous",
        because="the composition of two linear maps is one linear map",
        fix=f"put an activation between {first} and {second}, or remove one of them",
        evidence={"pairs": [f"{a} -> {b}" for a, b in pairs]},
    )


_DRAWS = re.compile(r"rand|normal|uniform|orthogonal_|empty")


def _constant_line(subject: Subject, name: str) -> Location | None:
    """Return the last line of the owners' classes that makes or fills a parameter, and draws nothing.

    A line that draws gives no equal rows: it stands in a branch that did not run.
    """
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        tail = r"\.".join(re.escape(part) for part in parts[depth:])
        pattern = rf"\bself\.{tail}(\.data)?(\s*=[^=]|\.\w+_\()|init\.\w+\(\s*self\.{tail}\b"
        for cls in type(subject.model.get_submodule(".".join(parts[:depth]))).__mro__:
            if not sources.is_own_class(cls):
                continue
            constant = [p for p in sources.matches(cls, pattern) if not _DRAWS.search(p.text)]
            if constant:
                return constant[-1]
    return None


def rows_stay_equal(subject: Subject, name: str, dim: int) -> Finding:
    """Explain a parameter whose rows do the work of one."""
    shape = list(subject.named_parameters()[name].shape)
    place = _constant_line(subject, name) or initialisation_line(subject, name)
    line = on_line(place)
    return violated(
        "units-equal",
        f"the {shape[dim]} rows of {name} are equal and stay equal",
        culprits=[Culprit("parameter", name, "equal rows", place)],
        observed=f"the slices of {name} {shape} along dimension {dim} are equal, and so are those "
        "of its gradient on two "
        f"batches, and the slices after {STEPS} steps",
        cause="all rows start with the same values, and the model treats them alike, so they "
        "never differ",
        because="equal rows with equal gradients get equal updates: together they act as a "
        "single row",
        fix=f"initialise {name} at random{line}: nn.init.trunc_normal_(..., std=0.02)",
    )


def instances_share(subject: Subject, names: list[str]) -> Finding:
    """Report tensors that two instances keep in the same memory though training writes to them."""
    place = sources.of_parameter(subject.model, names[0])
    own = (
        place is None or sources.rank(place.file) == 2
    )  # a library may share by design, as Pyro's store of parameters
    return (violated if own else suspicious)(
        "factory-repeats",
        f"two models that the factory builds share the memory of {listed(names)}",
        culprits=[parameter(subject, name, "shared by instances") for name in names[:6]],
        location=place,
        observed=f"{names[0]} of both has one address in memory; their modules are not the same objects",
        cause="its values are made once (a default argument, an attribute of the class, a global), not for "
        "each instance",
        because="training writes to this memory, so that a step of one model changes the other",
        fix=f"make {names[0]} in __init__, or copy the values there: .clone()",
        evidence={"parameters": names},
    )


def reads_last_instance(subject: Subject, names: list[str], by: float) -> Finding:
    """Report a model that computes with what belongs to the instance that was built last."""
    kind = type(subject.model).__name__
    return violated(
        "factory-repeats",
        f"the outputs of one {kind} depend on {listed(names)} of the one that was built last",
        culprits=[Culprit("parameter", name, "of another instance") for name in names[:6]],
        location=sources.of_own_class(subject.model),
        observed=f"other values there change the first model's output by {by:.3g}",
        cause="a global, or an attribute of a class, holds what belongs to one instance; the next one replaces it",
        because="only tensors of the second instance were changed, which the first one does not hold",
        fix="let each instance hold what it uses as an attribute of its own",
        evidence={"parameters": names},
    )

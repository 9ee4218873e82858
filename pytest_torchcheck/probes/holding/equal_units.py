"""Units and modules that start with equal weights."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import nn

from ... import sources
from ...codes import initialisation as explain
from ...findings import Culprit, Finding
from ...objects import trees
from ...verdicts import violated
from ..numbers.signals import LINEAR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...subject import Subject


_TWINS = 1e-5  # largest relative difference between equal rows, or their gradients, that rounding explains


def symmetric(subject: Subject) -> Iterator[Finding]:
    """Report layers whose units have equal weights and equal gradients: they stay equal for ever."""
    yield from _copies(subject)
    equal = [
        name
        for name, weight in _unit_weights(subject.model)
        if _rows_equal(weight.detach(), zero=False)
    ]
    if not equal:
        return
    with subject.backward():
        parameters = dict(subject.model.named_parameters())
        gradients = {n: trees.dense(p.grad) for n, p in parameters.items() if p.grad is not None}
        largest = max((trees.scale(g) for g in gradients.values()), default=0.0)
        kept = [
            name
            for name in equal
            if name in gradients
            and (_rows_equal(gradients[name], zero=False) or _is_noise(gradients[name], largest))
        ]
    for name in kept:
        weight = subject.named_parameters()[name]
        place = explain.initialisation_line(subject, name)
        yield violated(
            "units-equal",
            f"all {weight.shape[0]} units of {name} are equal and stay equal",
            culprits=[Culprit("parameter", name, "equal rows", place)],
            observed=f"the rows of {name} {list(weight.shape)} are equal, and so are the rows of its gradient",
            cause="a constant initialisation gives every unit the same weights, and nothing "
            "makes them differ later",
            because="equal weights with equal gradients get equal updates, so the layer acts as "
            "a single unit",
            fix=f"initialise {name} at random (nn.init.kaiming_uniform_)"
            + (f", line {place.line}" if place else ""),
        )


def _copies(subject: Subject) -> Iterator[Finding]:
    """Report layers that are copies of each other and get equal gradients: branches that stay one."""
    named = dict(_unit_weights(subject.model))
    classes = _equal_weights(named)
    pairs = (pair for names in classes for pair in itertools.combinations(names, 2))
    if all(_is_replicated(subject, a, b) for a, b in pairs):
        return
    with subject.backward():
        grads = {n: p.grad for n, p in subject.model.named_parameters() if p.grad is not None}
        twins = [
            (a, b)
            for names in classes
            for a, b in _of_one_size({n: trees.scale(grads[n]) for n in names if n in grads})
            if not _is_replicated(subject, a, b)
            and trees.worst(grads[a], grads[b]) <= _TWINS * trees.scale(grads[a])
        ]
    if not twins:
        return
    places = {name: place for place, name in enumerate(named)}
    first, second = min(twins, key=lambda pair: (places[pair[0]], places[pair[1]]))
    names = sorted({name for pair in twins for name in pair})
    branch = explain.copied_branch(subject, first, second)
    yield violated(
        "units-equal",
        f"{first} and {second} are equal and stay equal",
        location=branch.location,
        culprits=[
            branch,
            *(
                Culprit("parameter", name, "a copy", sources.of_parameter(subject.model, name))
                for name in names[:8]
            ),
        ],
        observed=f"{len(names)} weights are equal in pairs, and so are their gradients",
        cause="one layer was copied for several branches, and nothing makes the branches differ",
        because="equal weights with equal gradients get equal updates, so the branches act as one",
        fix=f"construct {branch.name} again instead of copying it, or initialise each branch "
        "separately",
    )


def _equal_weights(named: dict[str, torch.Tensor]) -> list[list[str]]:
    """Group the names of different weights that hold the same values, unless all their rows are equal too."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for name, weight in named.items():
        key = (weight.shape, weight.dtype, weight.device, weight.flatten()[0].item())
        alike.setdefault(key, []).append(name)
    found: list[list[str]] = []
    for names in alike.values():
        classes: list[list[str]] = []
        for name in names if len(names) > 1 else ():
            one = named[name]
            same = next((c for c in classes if torch.equal(named[c[0]], one)), None)
            if same is not None:
                same += [name] if all(named[n] is not one for n in same) else []
            elif not _rows_equal(one.detach(), zero=True):
                classes.append([name])
        found += [names for names in classes if len(names) > 1]
    return found


def _of_one_size(scales: dict[str, float]) -> Iterator[tuple[str, str]]:
    """Iterate over the pairs of gradients whose largest magnitudes are as near as those of equal ones."""
    ranked = sorted((size, name) for name, size in scales.items() if size > 0)
    order = {name: place for place, name in enumerate(scales)}
    for place, (size, name) in enumerate(ranked):
        for larger, other in itertools.islice(ranked, place + 1, None):
            if larger - size > 2 * _TWINS * larger:
                break
            yield (name, other) if order[name] < order[other] else (other, name)


def _is_replicated(subject: Subject, a: str, b: str) -> bool:
    """Say whether two weights are promised to be equal."""
    return any(
        {a, b} == {getattr(promise, "a", None), getattr(promise, "b", None)}
        for kind in ("Replicated", "Tied")
        for promise in subject.contract.promised(kind)
    )


def _unit_weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Iterate over the trainable weight matrices whose rows are units."""
    for prefix, module in model.named_modules():
        if not isinstance(module, (*LINEAR, nn.RNNBase, nn.Bilinear)):
            continue
        for name, weight in module.named_parameters(recurse=False):
            rows = weight.dim() > 1 and weight.shape[0] > 1 and weight[0].numel() > 1
            if rows and weight.requires_grad and name.startswith("weight") and not weight.is_meta:
                yield f"{prefix}.{name}" if prefix else name, weight


def _is_noise(gradient: torch.Tensor, largest: float) -> bool:
    """Say whether a gradient is rounding around zero: behind equal units, errors that sum to zero cancel."""
    return 0.0 < trees.scale(gradient) < 1e-6 * largest


def _rows_equal(matrix: torch.Tensor, *, zero: bool) -> bool:
    first = matrix[:1]
    size = float(first.abs().max())
    if matrix.shape[0] > 2 and not _rows_equal(matrix[:2], zero=True):
        return False  # nearly always: the whole matrix is looked at only where two rows are equal
    if size == 0.0:
        return zero and not bool(matrix.any())
    return bool((matrix - first).abs().max() <= _TWINS * size)

"""Frozen parameters that a step averages trained ones into: the promise and the step contradict each other."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import torch

from ...loop.recorder import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from ...subject import Subject

_STEPS: Final = 3
_ALONG: Final = 0.9
"""Cosine above which a copy moves along the line to its source; rounding turns small updates."""


def averaged(subject: Subject, names: Sequence[str]) -> dict[str, str]:
    """Return the trained parameter that each of some frozen ones started as a copy of, where a step averages it in.

    Empty unless all of them require no gradient, and every update moves each a part of the way to its own.
    """
    pairs = _copied_from(subject.named_parameters(), names)
    if set(pairs) != set(names):
        return {}
    states: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in pairs}

    def look(_: int, model: nn.Module) -> None:
        now = dict(model.named_parameters(remove_duplicate=False))
        for name, source in pairs.items():
            both = (now[name].detach().double().clone(), now[source].detach().double().clone())
            states[name].append(both)

    look(0, subject.model)
    trace = record(subject, steps=_STEPS, after_step=look)
    if trace.error is not None or not all(map(_follows, states.values())):
        return {}
    return pairs


def _copied_from(tensors: Mapping[str, nn.Parameter], names: Sequence[str]) -> dict[str, str]:
    """Return the trained parameter that each name equals: by its values, or where those are constant by its path."""
    trained = {n: t for n, t in tensors.items() if t.requires_grad}
    found: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    frozen = [n for n in names if n in tensors and not tensors[n].requires_grad]
    for name in frozen:
        tensor = tensors[name]
        if bool((tensor == tensor.reshape(-1)[:1]).all()):
            continue  # all ones, or zeros: many parameters begin so
        source = next((n for n, t in trained.items() if _equal(t, tensor)), None)
        if source is not None:
            found[name] = source
            own, other = _without_common_end(name, source)
            prefixes[own] = other
    for name in frozen:
        for own, other in prefixes.items():
            source = f"{other}{name.removeprefix(own)}"
            if (
                name.startswith(own)
                and source in trained
                and _equal(trained[source], tensors[name])
            ):
                found.setdefault(name, source)
    return found


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    apart = one.data_ptr() != other.data_ptr()
    return apart and one.shape == other.shape and torch.equal(one, other)


def _without_common_end(one: str, other: str) -> tuple[str, str]:
    """Return what is left of two dotted names without the parts at their end that are the same."""
    a, b = one.split("."), other.split(".")
    while a and b and a[-1] == b[-1]:
        a.pop(), b.pop()
    return ".".join(a), ".".join(b)


def _follows(states: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Say whether a copy moves along the line to its source in each of its updates, and never all of the way."""
    cosines = []
    for (old, _), (new, source) in itertools.pairwise(states):
        moved, gap = (new - old).flatten(), (source - old).flatten()
        size = float(moved.norm() * gap.norm())
        cosines += [float(moved @ gap) / size] if size > 0 else []
        if torch.equal(new, source) and not torch.equal(old, source):
            return False
    return bool(cosines) and min(cosines) > _ALONG

"""Averages the wrong way round: copies that pull the trained weights back, and frozen ones that follow them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import torch

from ...lean import dataclass
from ...loop.recorder import record
from ...loop.steps import begun
from ...runs.training.stale_copies import without_common_end
from ...state import seed_everything
from ...state.tensors import named_tensors
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from ...subject import Subject

_STEPS = 2
_ALONG = 1e-2
"""How far from the straight way to the copy a move may lie, in parts of its length: rounding and no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledBack:
    """Trained parameters that a step moves towards frozen copies.

    Attributes:
        pairs: By the name of a copy, the trained parameter.
        share: The part of the way that each step goes.
    """

    pairs: dict[str, str]
    share: float


def pulled_back(subject: Subject, pairs: dict[str, str]) -> PulledBack | None:
    """Look whether the step, after the optimizer's, moves every parameter one part of the way to its copy.

    The copies stay as they are, and the step runs what they belong to: an average with its arguments swapped. A
    reference that is frozen on purpose pulls on the loss, not on the weights.

    Args:
        subject: Whose step.
        pairs: By the name of each copy, the parameter.
    """
    if subject.contract.train_step is None or subject.contract.loop is not None:
        return None
    shares: list[float] = []
    try:
        with begun(subject) as (model, made):
            tensors = named_tensors(model)
            start = {name: tensors[name].detach().clone() for name in pairs}
            stepped: dict[str, torch.Tensor] = {}
            ran: set[int] = set()

            def after_optimizer(*_: Any) -> None:
                stepped.update((n, tensors[n].detach().clone()) for n in pairs.values())

            owners = [model.get_submodule(name.rpartition(".")[0]) for name in pairs]
            handles: list[Any] = [
                o.register_step_post_hook(after_optimizer) for o in optimizers_of(made)
            ]
            handles += [m.register_forward_hook(lambda m, *_: ran.add(id(m))) for m in owners]
            try:
                for number in range(_STEPS):
                    seed_everything(subject.seed + number)
                    subject.train_step(model, made, subject.batch().clone())
                    for copy, source in pairs.items():
                        share = _share(stepped.get(source), tensors[source], tensors[copy])
                        if share is None:
                            return None
                        shares.append(share)
            finally:
                for handle in handles:
                    handle.remove()
            still = all(torch.equal(start[name], tensors[name]) for name in pairs)
            if not still or not all(id(owner) in ran for owner in owners):
                return None
    except SubjectError:
        return None
    alike = max(shares) - min(shares) < 0.1 * max(shares)
    return PulledBack(pairs=pairs, share=sum(shares) / len(shares)) if alike else None


def _share(before: torch.Tensor | None, now: torch.Tensor, target: torch.Tensor) -> float | None:
    """Return which part of the way to a target a tensor went; None where it did not, or went elsewhere."""
    if before is None:
        return None
    moved, way = (now.detach() - before).double(), (target.detach() - before).double()
    length = float(way.norm()) ** 2
    share = float((moved * way).sum()) / length if length else 0.0
    off = float((moved - share * way).norm())
    noise = 1e-6 * float(before.double().norm())
    return share if 0 < share <= 1 and off <= _ALONG * float(moved.norm()) + noise else None


_KEPT: Final = 0.3
"""A smaller part of an update that is left says that the rest was not meant to go: a search halves its steps."""


def taken_back(subject: Subject) -> dict[str, float] | None:
    """Return what part of each update a step leaves, where it takes the same large part of all of them back, twice.

    The step writes to the weights after its optimizer, and puts each on the way between what it was and what it was
    to become: averaged weights that are put in for an evaluation and stay there do. Not where an optimizer steps
    more than once in a call: then the way of all of them may be cut on purpose.

    Cost: 2 FBS, and twice the memory of the weights.
    """
    if subject.contract.loop is not None:
        return None
    kept: list[dict[str, float]] = []
    try:
        with begun(subject) as (model, made):
            trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
            before: dict[str, torch.Tensor] = {}
            after: dict[str, torch.Tensor] = {}
            counts: dict[int, int] = {}

            def begins(optimizer: Any, *_: Any) -> None:
                counts[id(optimizer)] = counts.get(id(optimizer), 0) + 1
                before.update((n, p.detach().clone()) for n, p in trained.items())

            def ends(*_: Any) -> None:
                after.update((n, p.detach().clone()) for n, p in trained.items())

            optimizers = optimizers_of(made)
            handles: list[Any] = [o.register_step_pre_hook(begins) for o in optimizers]
            handles += [o.register_step_post_hook(ends) for o in optimizers]
            try:
                for number in range(_STEPS):
                    counts.clear()
                    seed_everything(subject.seed + number)
                    subject.train_step(model, made, subject.batch().clone())
                    shares = _left_of_updates(trained, before, after)
                    if shares is None or len(counts) != 1 or max(counts.values()) > 1:
                        return None
                    kept.append(shares)
            finally:
                for handle in handles:
                    handle.remove()
    except SubjectError:
        return None
    parts = [share for shares in kept for share in shares.values()]
    return kept[-1] if max(parts) - min(parts) < 0.1 * max(parts) else None


def _left_of_updates(
    trained: Mapping[str, torch.Tensor],
    before: Mapping[str, torch.Tensor],
    after: Mapping[str, torch.Tensor],
) -> dict[str, float] | None:
    """Return what part of its update each weight kept; None where one kept most of it, or went elsewhere."""
    found = {}
    for name, parameter in trained.items():
        if name not in after or torch.equal(before[name], after[name]):
            continue  # no update of this optimizer
        share = _share(before[name], parameter, after[name])
        if share is None or share > _KEPT:
            return None
        found[name] = share
    return found or None


_AVERAGED_STEPS: Final = 3
_COSINE: Final = 0.9
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
    trace = record(subject, steps=_AVERAGED_STEPS, after_step=look)
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
            own, other = without_common_end(name, source)
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


def _follows(states: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Say whether a copy moves along the line to its source in each of its updates, and never all of the way."""
    cosines = []
    for (old, _), (new, source) in itertools.pairwise(states):
        moved, gap = (new - old).flatten(), (source - old).flatten()
        size = float(moved.norm() * gap.norm())
        cosines += [float(moved @ gap) / size] if size > 0 else []
        if torch.equal(new, source) and not torch.equal(old, source):
            return False
    return bool(cosines) and min(cosines) > _COSINE

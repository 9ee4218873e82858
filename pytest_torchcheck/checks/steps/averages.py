"""State that follows the trained weights: moving averages, and copies that a step updates."""

from __future__ import annotations

import copy
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from ... import promises, sources
from ...codes import training as explain
from ...lean import dataclass
from ...loop.recorder import record
from ...loop.replay import where_changed
from ...objects import trees
from ...runs.training.dropped_statistics import dropped_statistics
from ...runs.training.stale_copies import copies_of_trained
from ...state import seed_everything
from ...state.tensors import named_tensors
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, not_applicable, passed
from .forgetful import kept_share
from .own_memory import in_one_memory, state_of_own_memory
from .pulled_back import pulled_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ...findings import Finding
    from ...subject import Subject

_AVERAGED = 1e-5
_PAIRS = 4
"""How many copies are followed, the largest first."""
_PART = 0.9
"""An average moves a part of the way, not all of it."""
_STEPS = 3
_UNIT = 2e-6
"""By how much rounding lets a unit vector of float32 depart from length 1."""
_OPPOSITE = -0.9
"""Cosine below which a copy moves away from the weights; for an average that follows them it is
near 1."""


@dataclass(slots=True)
class _Pair:
    """A tensor that no gradient trains and that equals a trained parameter before the first step."""

    name: str
    source: str
    states: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def note(self, tensors: dict[str, torch.Tensor]) -> None:
        """Keep the copy and its source as they are now."""
        self.states.append(
            (
                tensors[self.name].detach().double().clone(),
                tensors[self.source].detach().double().clone(),
            )
        )

    def cosines(self) -> list[float]:
        """Return, for each update after the first step, the cosine of its direction and the one to the source."""
        found = []
        for (old, _), (new, source) in zip(self.states[1:], self.states[2:], strict=False):
            moved, gap = (new - old).flatten(), (source - old).flatten()
            size = float(moved.norm() * gap.norm())
            found += [float(moved @ gap) / size] if size > 0 else []
        return found


def averages_follow(subject: Subject) -> Iterator[Finding]:
    """Follow copies of trained parameters through three steps, whatever the rate of their average.

    An average keeps more than a fifth of its value in an update, or it is the latest weights.
    Where no step moves them, the step must not move the trained weights back to them either. A buffer must not
    be a trained parameter's own memory, and neither may an entry of the optimizer's state.
    Where the model holds one module under two names, a step is taken with a copy under the second one. If it
    writes to one of the two what no gradient asks for, it takes them for two, and must not find one.
    Where copies of the model train in a step and its weights follow them, its running statistics must follow too.
    """
    if within := in_one_memory(subject.model):
        yield explain.one_memory(subject, within)
    elif aliased := state_of_own_memory(subject):
        yield explain.own_memory(subject, aliased)
    elif subject.contract.train_step is not None and (same := _taken_for_two(subject)) is not None:
        yield explain.one_for_two(subject, *same)
    elif (dropped := dropped_statistics(subject)) is not None:
        yield explain.dropped(subject, dropped)
    else:
        yield from _of_copies(subject)


def _of_copies(subject: Subject) -> Iterator[Finding]:
    pairs = dict(islice(copies_of_trained(subject.model).items(), _PAIRS))
    if not pairs:
        yield not_applicable("the model holds no copy of a trained parameter")
        return
    followed = [_Pair(name, source) for name, source in pairs.items()]
    statistics = _statistics(subject.model, pairs)
    now = dict(subject.model.named_buffers())
    first = {n: now[n].detach().clone() for n in {*statistics, *statistics.values()}}
    last: dict[str, torch.Tensor] = {}
    astray = {n: _off_length(t) for n, t in first.items()}

    def look(_: int, model: nn.Module) -> None:
        tensors = named_tensors(model)
        last.update({name: tensors[name].detach().clone() for name in first if name in tensors})
        astray.update({name: max(astray[name], _off_length(last[name])) for name in last})
        for pair in followed:
            if pair.name in tensors and pair.source in tensors:
                pair.note(tensors)

    for pair in followed:
        pair.note(named_tensors(subject.model))
    trace = record(subject, steps=_STEPS, after_step=look)
    if trace.error is not None:
        raise trace.error
    moved = {pair.name: cosines for pair in followed if (cosines := pair.cosines())}
    if (wrong := _not_averaged(subject, followed, moved, pairs)) is not None:
        yield wrong
        return
    kept = {
        name: source
        for name, source in statistics.items()
        if name in last and torch.equal(last[name], first[name])
        and source in last and not torch.equal(last[source], first[source])
    } if moved else {}  # fmt: skip
    if kept and any(_is_read(subject, name) for name in kept):
        yield explain.stale(subject, kept, next(iter(moved)))
        return
    shrunk = {
        name: astray[name]
        for name, source in statistics.items()
        if name in last and source in last and not torch.equal(last[source], first[source])
        and astray[source] < _UNIT and astray[name] > 10 * _UNIT
    }  # fmt: skip
    if shrunk and _is_read(subject, next(iter(shrunk)), scaled=True):
        yield explain.shortened(subject, shrunk, statistics)
    elif moved:
        yield passed(
            f"{len(moved)} copies of trained weights move towards them, or not against them"
        )
    elif (back := pulled_back(subject, pairs)) is not None:
        yield explain.pulled_back(subject, back.pairs, back.share)
    else:
        yield not_applicable("no step updates the model's copies of trained weights")


def _not_averaged(
    subject: Subject, followed: list[_Pair], moved: dict[str, list[float]], pairs: dict[str, str]
) -> Finding | None:
    wrong = {name: max(found) for name, found in moved.items() if max(found) < _OPPOSITE}
    if wrong:
        name = min(wrong, key=lambda name: wrong[name])
        return explain.pushed_away(dict(wrong), pairs[name], name, where_changed(subject, name))
    shares = {p.name: share for p in followed if (share := kept_share(p.states)) is not None}
    alike = bool(shares) and shares.keys() == moved.keys()
    return explain.forgets(subject, shares, pairs) if alike else None


def _taken_for_two(subject: Subject) -> tuple[str, str, str] | None:
    """Return two names of one trained module of which a step updates one by hand, and a parameter of it."""
    twice = _named_twice(subject.model)
    if not twice:
        return None
    with subject.pristine(steps=True) as model:
        shared = {name: model.get_submodule(name) for name in twice}
        try:
            copies = copy.deepcopy(shared)
        except (RuntimeError, TypeError):
            return None  # copy-and-pickle tells of it
        ran: list[nn.Module] = []
        handles = [
            module.register_forward_hook(lambda module, *_: ran.append(module))
            for module in (*copies.values(), *shared.values())
        ]
        try:
            for name, module in copies.items():
                model.set_submodule(name, module)
            before = {name: _parameters(module) for name, module in copies.items()}
            model.train()
            seed_everything(subject.seed)
            made = subject.make_optimizer(model)
            subject.train_step(model, made, subject.batch().clone())
            for name, first in twice.items():
                both = (name, copies[name]), (first, shared[name])
                for (one, held), (other, trained) in (both, both[::-1]):
                    moved = _moved_by_hand(before[name], held, trained, called=held in ran)
                    if moved is not None:
                        return one, other, moved
        except SubjectError:
            return None  # a step that works with one module only: weights-update tells of others
        finally:
            for handle in handles:
                handle.remove()
            for name, module in shared.items():
                model.set_submodule(name, module)
    return None


def _moved_by_hand(
    before: dict[str, torch.Tensor], held: nn.Module, trained: nn.Module, *, called: bool
) -> str | None:
    """Return a parameter that a step moved without a gradient while it trained its equal.

    Module and copy may both be written to, as by a bound on all weights: the step must call the one,
    or move it along the way of the other.
    """
    ours, theirs = dict(held.named_parameters()), dict(trained.named_parameters())
    moved = [name for name, p in ours.items() if not torch.equal(before[name], p)]
    graded = [any(p.grad is not None for p in side.values()) for side in (ours, theirs)]
    if not moved or graded != [False, True]:
        return None
    ways = [
        torch.cat([(side[name].detach() - before[name]).double().flatten() for name in moved])
        for side in (ours, theirs)
    ]
    size = float(ways[1].norm())
    share = float(ways[0] @ ways[1]) / size**2 if size else 0.0
    along = 0 < share < _PART and float((ways[0] - share * ways[1]).norm()) < 1e-2 * share * size
    return moved[0] if called or along else None


def _named_twice(model: nn.Module) -> dict[str, str]:
    """Return further names of modules with trained parameters, each with the first name; none within another."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        known = first.setdefault(id(module), name)
        within = any(name.startswith(f"{other}.") for other in found)
        trained = any(p.requires_grad for p in module.parameters())
        if known and known != name and trained and not within:
            found[name] = known
    return found


def _parameters(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def _statistics(model: nn.Module, pairs: dict[str, str]) -> dict[str, str]:
    """Return, by the name of a buffer beside the copies, the buffer beside their sources that it equals."""
    buffers = {n: b for n, b in model.named_buffers() if b.is_floating_point() and not b.is_meta}
    found: dict[str, str] = {}
    for name, source in pairs.items():
        ours, theirs = name.split("."), source.split(".")
        while ours and theirs and ours[-1] == theirs[-1]:
            ours.pop()
            theirs.pop()
        for buffer, tensor in buffers.items():
            parts = buffer.split(".")
            other = ".".join([*theirs, *parts[len(ours) :]])
            copied = ours and parts[: len(ours)] == ours and other != buffer and other in buffers
            if copied and trees.address(tensor) != trees.address(buffers[other]):
                found |= {buffer: other} if trees.same(tensor, buffers[other]) else {}
    return found


def _off_length(tensor: torch.Tensor) -> float:
    """Return how far the length of a vector is from 1; infinite for what is no vector."""
    return abs(float(tensor.double().norm()) - 1.0) if tensor.dim() == 1 else float("inf")


def _is_read(subject: Subject, name: str, *, scaled: bool = False) -> bool:
    """Say whether an output in evaluation or training changes with a buffer, or with its length alone."""
    for train in (False, True):
        outputs = []
        for changed in (False, True):
            with subject.pristine() as model, torch.no_grad():
                buffer = dict(model.named_buffers())[name]
                buffer.mul_(0.5 if changed else 1.0) if scaled else buffer.add_(float(changed))
                model.train(train)
                seed_everything(subject.seed)
                outputs.append(subject.call(model, subject.batch().clone()))
        if not trees.same(*outputs):
            return True
    return False


def moving_average(subject: Subject) -> Iterator[Finding]:
    """Compare the averaged parameters after one step with the rule."""
    for promise in subject.contract.promised("MovingAverage"):
        assert isinstance(promise, promises.MovingAverage)
        finding = _average(subject, promise)
        yield finding


def _average(subject: Subject, promise: promises.MovingAverage) -> Finding:
    modules = dict(subject.model.named_modules(remove_duplicate=False))
    for name in (promise.target, promise.source):
        if name not in modules:
            return inconclusive(
                f"MovingAverage names {name!r}, which the model does not have", code="unknown-name"
            )
    target, source = modules[promise.target], modules[promise.source]
    sources_ = dict(source.named_parameters())
    pairs = {n: p for n, p in target.named_parameters() if n in sources_ and p.is_floating_point()}
    for name, p in pairs.items():
        if trees.address(p) == trees.address(sources_[name]) is not None:
            place = sources.of_assignment(subject.model, promise.target.partition(".")[0])
            return explain.not_averaged(
                promise.target, promise.source, promise.decay, name, None, 0.0, place, same=True
            )
    if not pairs:
        return inconclusive(
            f"{promise.target} and {promise.source} have no parameter name in common",
            code="unknown-name",
        )
    before = {name: p.detach().clone() for name, p in pairs.items()}
    start = {name: sources_[name].detach().clone() for name in pairs}
    after: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def look(_: int, model: nn.Module) -> None:
        after.update(
            {n: (p.detach().clone(), sources_[n].detach().clone()) for n, p in pairs.items()}
        )

    # a copy of its source shows nothing in the first step's direction alone: the source must move
    # first
    trace = record(subject, steps=1, after_step=look)
    if trace.error is not None:
        raise trace.error
    moved = [name for name in pairs if not torch.equal(start[name], after[name][1])]
    if not moved:
        return inconclusive(
            f"{promise.source} did not change in one step, so an average cannot differ from it"
        )
    return _follows(moved, before, after, promise, subject)


def _follows(
    moved: list[Any],
    before: dict[Any, Any],
    after: dict[str, tuple[torch.Tensor, torch.Tensor]],
    promise: promises.MovingAverage,
    subject: Subject,
) -> Finding:
    """Compare the target after a step with the average of its old value and the source."""
    for name in moved:
        old, (new, current) = before[name], after[name]
        meant = promise.decay * old + (1 - promise.decay) * current
        error = float((new - meant).abs().max())
        scale = float((current - old).abs().max()) or 1.0
        if error > _AVERAGED * max(scale, float(meant.abs().max())):
            direction = (old - current).double().flatten()
            size = float(direction @ direction)
            measured = (
                float((new - current).double().flatten() @ direction) / size if size else None
            )
            place = where_changed(subject, f"{promise.target}.{name}")
            return explain.not_averaged(
                promise.target,
                promise.source,
                promise.decay,
                name,
                measured,
                error,
                place,
                same=False,
            )
    return passed(
        f"{len(moved)} parameters of {promise.target} are the average with decay {promise.decay:g}"
    )

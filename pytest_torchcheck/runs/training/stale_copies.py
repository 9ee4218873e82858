"""Copies of trained weights that evaluation uses and no step brings up to date; steps after the first."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...lean import dataclass
from ...loop.recorder import trace_of
from ...loop.trace import Forward
from ...objects import trees
from ...probes.holding.held_by_models import graph_leaves
from ...state import seed_everything
from ...state.tensors import named_tensors
from ...subject.errors import SubjectError
from ...subject.gradients import gradient_stats
from ...subject.optimizers import step_schedulers
from ...subject.remembered import remembered
from ..facts import copied
from ..outputs import gap
from ..remembering import kept_value, put_value
from ..saving import perturb
from ..variants.woken import woken
from .few import later_batch
from .forgetting import own_optimizers
from .steps import trajectory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torch import nn

    from ...subject import Subject
    from .steps import Trajectory

_PASSED = frozenset({"forward", "extra_repr", "__init__", "reset_parameters", "init_weights"})
"""Methods that do not bring a copy up to date, or are seen to run in a step."""
_ROUNDS = 1e-6
"""Of the largest value: what an average takes in of so small a move rounds to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleCopy:
    """A copy that stays while its original is trained; plain data.

    Attributes:
        copy: Name of the buffer or parameter.
        original: Name of the trained parameter.
        moved: By how much the original changed.
        methods: Methods of the model that may bring it up to date, which no step called.
    """

    copy: str
    original: str
    moved: float
    methods: tuple[str, ...]


def stale_copy(subject: Subject) -> StaleCopy | None:
    """Return a copy of a trained parameter that evaluation reads in place of the original, and that stays as it was."""
    pairs = copies_of_trained(subject.model)
    if not pairs:
        return None
    made = trajectory(subject)
    if made.error is not None:
        return None
    for copy, original in pairs.items():
        moved = made.moved.get(original, 0.0)
        stays = copy not in made.buffers and not made.moved.get(copy, 0.0)
        if moved > 0.0 and stays and _replaces(subject, copy, original):
            return StaleCopy(
                copy=copy, original=original, moved=moved, methods=_updating(subject.model)
            )
    return None


def copies_of_trained(model: nn.Module) -> dict[str, str]:
    """Return, by the name of each copy, the trained parameter that has its values, bit by bit, in other memory.

    The largest come first. What has one value throughout, as statistics and weights of norms at the start, is none.
    """
    trained: dict[tuple[torch.Size, torch.dtype], list[tuple[str, torch.Tensor]]] = {}
    rest: list[tuple[str, torch.Tensor]] = []
    for name, tensor in named_tensors(model).items():
        if not tensor.is_floating_point() or tensor.numel() < 2 or not trees.computable(tensor):
            continue
        if tensor.requires_grad:
            trained.setdefault((tensor.shape, tensor.dtype), []).append((name, tensor.detach()))
        else:
            rest.append((name, tensor.detach()))
    found: dict[str, str] = {}
    for name, tensor in sorted(rest, key=lambda pair: -pair[1].numel()):
        alike = trained.get((tensor.shape, tensor.dtype), ())
        if not alike or not bool((tensor != tensor.flatten()[0]).any()):
            continue
        for source, parameter in alike:
            if trees.same(tensor, parameter) and trees.address(tensor) != trees.address(parameter):
                found[name] = source
                break
    return found


@remembered("kept-copies")
def kept_copies(subject: Subject) -> dict[str, bool]:
    """Return the parameters of copies that the user's step keeps of trained parts, and whether a step writes to each.

    Such a part begins with all values of the other one, and no gradient goes to it. Either the step writes to some
    of its parameters, as to an average: then one stays if its original does. Or the step calls it by itself, for a
    target: it may be brought up to date once in many steps.

    Cost: a recorded step where there is such a part, and up to 128 where three do not write to it.
    """
    if subject.contract.train_step is None or (made := trajectory(subject)).error is not None:
        return {}
    found: dict[str, bool] = {}
    still = {n: p for n, p in subject.named_parameters().items() if not made.moved.get(n, 0.0)}
    for own, pairs in _copied_parts(subject.model, still).items():
        stays = {n for n, original in pairs.items() if _rests(made, original)}
        touched = {n for event in trace_of(subject).backwards() for n in event.touched}
        if touched.union(made.live).intersection(pairs) or len(stays) == len(pairs):
            continue
        if not still.keys() >= pairs.keys():
            found |= dict.fromkeys(stays & still.keys(), True)
        elif _is_called_for_targets(subject, own):
            found |= dict.fromkeys(pairs, _is_written_later(subject, pairs))
    return found


def _rests(made: Trajectory, name: str) -> bool:
    """Say whether a parameter moves by rounding at most, as a bias does before a norm that takes it out again."""
    return made.moved.get(name, 0.0) <= _ROUNDS * made.sizes.get(name, 0.0)


MANY_STEPS = 128
"""Target networks are often brought up to date in every hundredth step."""


def _is_written_later(subject: Subject, names: Collection[str]) -> bool:
    """Say whether one of many steps writes to parameters; so it is taken to be where a step raises."""
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        try:
            made = subject.make_optimizer(model)
            before = {n: p.detach().clone() for n, p in model.named_parameters() if n in names}
            for _ in range(MANY_STEPS):
                subject.train_step(model, made, subject.batch().clone())
                now = dict(model.named_parameters())
                if any(n not in now or not trees.same(now[n], t) for n, t in before.items()):
                    return True
        except SubjectError:
            return True
    return False


def _copied_parts(model: nn.Module, names: Collection[str]) -> dict[str, dict[str, str]]:
    """Return, by the names of parts with one of some parameters, the originals of all parameters of each, by name."""
    named = {n: p.detach() for n, p in model.named_parameters() if not p.is_meta}
    alike: dict[str, list[str]] = {}
    for name in named:
        alike.setdefault(name.rpartition(".")[2], []).append(name)
    found: dict[str, dict[str, str]] = {}
    tried = set()
    own_names = (name for name in names if name in named)
    for name, other in ((n, other) for n in own_names for other in alike[n.rpartition(".")[2]]):
        own, its = ends = without_common_end(name, other)
        if ends in tried or own in found or named[name].shape != named[other].shape:
            continue
        if not own or not its or f"{own}.".startswith(f"{its}."):
            continue
        tried.add(ends)
        ours, theirs = ([n for n in named if n.startswith(f"{part}.")] for part in ends)
        pairs = {n: f"{its}{n.removeprefix(own)}" for n in ours}
        if set(theirs) == set(pairs.values()) and all(
            trees.same(named[n], named[original])
            and trees.address(named[n]) != trees.address(named[original])
            for n, original in pairs.items()
        ):
            found[own] = pairs
    return found


def without_common_end(one: str, other: str) -> tuple[str, str]:
    """Return what is left of two dotted names without the parts at their end that are the same."""
    a, b = one.split("."), other.split(".")
    while a and b and a[-1] == b[-1]:
        a.pop(), b.pop()
    return ".".join(a), ".".join(b)


def _is_called_for_targets(subject: Subject, part: str) -> bool:
    """Say whether a step calls a part by itself, and no gradient goes through what it gives."""
    trace = trace_of(subject)
    calls = [
        (place, event)
        for place, event in trace.each(Forward)
        if event.module and f"{event.module}.".startswith(f"{part}.")
    ]
    return bool(calls) and not any(
        event.grad and place in backward.through
        for place, event in calls
        for backward in trace.backwards()
    )


def _replaces(subject: Subject, copy: str, original: str) -> bool:
    """Say whether evaluation reads the copy and not the original, also where no weight of zero hides the original.

    A trained copy beside the frozen one that it began as (an adapter on a pretrained encoder) is often joined
    by weights that start at zero, or by a gate that is closed at first: both are there to run side by side.
    """
    if not _read_instead(subject, copy, original):
        return False
    if copy in dict(subject.model.named_parameters()) and _leads_out(subject, original):
        return False
    other = woken(subject)
    return other is None or _read_instead(other[0], copy, original)


def _leads_out(subject: Subject, original: str) -> bool:
    """Say whether a path of the graph leads from a parameter to an output in evaluation mode, whatever its slope."""
    with subject.pristine(steps=True, train=False, seeded=True) as model, torch.enable_grad():
        try:
            outputs = trees.floats(subject.call(model, later_batch(subject, few=True).clone()))
        except SubjectError:
            return False
        wanted = model.get_parameter(original)
        return any(leaf is wanted for out in outputs.values() for leaf in graph_leaves(out))


def _read_instead(subject: Subject, copy: str, original: str) -> bool:
    """Say whether the output in evaluation mode changes with the copy and not with the original."""
    batch = later_batch(subject, few=True)
    with subject.pristine(steps=True) as model, torch.no_grad():
        model.eval()

        def run(names: Iterable[str]) -> dict[str, torch.Tensor]:
            tensors = dict((*model.named_parameters(), *model.named_buffers()))
            for name in names:
                tensors[name].mul_(1.5)
            seed_everything(subject.seed)
            return copied(subject.call(model, batch.clone()))

        try:
            base = run(())
            if gap(run([original]), base) is not None:
                return False
            return gap(run([copy]), base) is not None
        except SubjectError:
            return False


def _updating(model: nn.Module) -> tuple[str, ...]:
    """Name the methods of the user's classes that a loop may call after a step."""
    found = []
    for module in model.modules():
        kind = type(module)
        if sources.is_own_class(kind):
            found += [
                name
                for name, value in vars(kind).items()
                if callable(value) and name not in _PASSED and not name.startswith("__")
            ]
    return tuple(dict.fromkeys(found))


STEPS = 9
"""Enough for parts that take turns: a critic that is trained several times for one step of the generator."""


def stopped(subject: Subject, made: Trajectory) -> tuple[str, ...]:
    """Return the parameters that the first of some steps moves and no later one does, bit by bit; cached.

    Siblings of one that moves (the experts of a mixture) are left out, and all where the learning
    rate falls to 0.
    """
    known = {n for n in made.resting if made.moved.get(n, 0.0) > 0.0}
    known = {n for n in known if not subject.is_promised("Frozen", n)}
    known = {n for n in known if not subject.is_promised("MayLackGradient", n)}
    if not known or made.error is not None or len(made.losses) < 2 or not all(made.rates[1:]):
        return ()
    if "stopped" not in subject.cache:
        subject.cache["stopped"] = _without_siblings(known, _moving_later(subject, known))
    found: tuple[str, ...] = subject.cache["stopped"]
    return found


def _without_siblings(names: set[str], moving: set[str]) -> tuple[str, ...]:
    active = {_family(name) for name in moving}
    return tuple(sorted(n for n in names - moving if _family(n) not in active))


def _family(name: str) -> str:
    family = re.sub(r"\d+", "*", name)
    return family if family != name else f"{name}:"


def _moving_later(
    subject: Subject, names: Collection[str], forget: Collection[str] = ()
) -> set[str]:
    """Return which parameters some step after the first moves, or gives a gradient too small to move it.

    Args:
        subject: Whose step.
        names: Parameters to look at; their numbered siblings are looked at too.
        forget: Attributes of the model that are put back after each step.
    """
    families = {_family(name) for name in names}
    found: set[str] = set()
    with subject.pristine(steps=True, train=True) as model:
        before = {path: kept_value(model, path) for path in forget}
        seed_everything(subject.seed)
        made = subject.make_optimizer(model)
        # an optimizer of the user's own may leave out some parameters in each step
        for step in range(4 * STEPS if own_optimizers(made) else STEPS):
            old = {
                name: parameter.detach().clone()
                for name, parameter in model.named_parameters()
                if _family(name) in families
            }
            seed_everything(subject.seed + step)
            try:
                loss = subject.train_step(model, made, subject.batch().clone())
            except SubjectError:
                return set(names)  # another check tells it
            if subject.contract.train_step is None:
                step_schedulers(made, loss)
            for path, value in before.items():
                put_value(model, path, value)
            if step == 0:
                continue
            now = dict(model.named_parameters())
            found |= {n for n, t in old.items() if n not in now or not trees.same(t, now[n])}
            stats = gradient_stats(model)
            found |= {n for n in old if n in stats and stats[n].kind == "zero"}
    return found


def moving_without(subject: Subject, names: Collection[str], attribute: str) -> bool:
    """Say whether all of some parameters move in later steps where an attribute is put back after each step."""
    return set(names) <= _moving_later(subject, names, (attribute,))


def moved_as_built(subject: Subject, names: Collection[str]) -> tuple[str, ...]:
    """Return the parameters and buffers that two steps move on the model as its factory leaves it.

    Neither ``train()`` nor a seed is called in between, as in a loop that never calls them.
    """
    with subject.pristine(steps=True) as model:
        before = {n: t.detach().clone() for n, t in named_tensors(model).items() if n in names}
        seed_everything(subject.seed)
        made = subject.make_optimizer(model)
        try:
            for _ in range(2):
                subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return ()  # the steps in training mode tell it
        now = named_tensors(model)
        return tuple(n for n, t in before.items() if n in now and not trees.same(t, now[n]))


def heeds_no_weights(subject: Subject, made: Trajectory) -> bool:
    """Say whether a step of the user's has the same loss and the same gradients whatever the weights are.

    Asked where some steps that moved the weights had one loss, bit by bit: the second of two steps is taken
    again with other weights.

    Cost: four steps, where the losses are equal.
    """
    losses = made.losses
    if subject.contract.train_step is None or made.error is not None or len(losses) < 3:
        return False
    moved = any(distance > 0.0 for distance in made.moved.values())
    if not moved or len(set(losses)) > 1 or not math.isfinite(losses[0]):
        return False
    try:
        one, other = (_second_step(subject, change=change) for change in (False, True))
    except SubjectError:
        return False
    same = one.keys() == other.keys() and all(trees.same(t, other[n]) for n, t in one.items())
    return same and sum(bool(t.any()) for t in one.values()) > 1


def _second_step(subject: Subject, *, change: bool) -> dict[str, torch.Tensor]:
    """Return the loss and the gradients that the second of two steps leaves, with all weights changed first or not."""
    with subject.pristine(steps=True, train=True) as model:
        optimizer = subject.make_optimizer(model)
        for step in range(2):
            if step and change:
                perturb(p for p in model.parameters() if p.requires_grad)
            seed_everything(subject.seed)
            loss = subject.train_step(model, optimizer, subject.batch().clone())
        named = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        return named | {"loss": torch.as_tensor(loss).detach().clone()}

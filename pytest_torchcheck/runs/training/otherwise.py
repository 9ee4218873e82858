"""Parameters that a step moves without a gradient, along one line, or that wait at a rate of 0."""

from __future__ import annotations

import itertools
import operator
import warnings
from typing import TYPE_CHECKING, Final

import torch

from ...loop.recorder import trace_of
from ...objects import trees
from ...probes.loss.arguments import by_step
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of, schedulers_of, step_schedulers
from ...subject.remembered import remembered
from .forgetting import own_optimizers
from .steps import trajectory

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ...batches import Batch
    from ...subject import Subject


def trained_in_step(subject: Subject, dead: Mapping[str, str]) -> set[str]:
    """Name the parameters without a gradient of the contract's loss that the user's own step gives one.

    The discriminator of a GAN gets its gradient from a loss of its own. A gradient of None is
    refuted by a backward pass that writes one, one that is zero by a step after which it is not.
    """
    if subject.contract.train_step is None:
        return set()
    found = set(dead) & trajectory(subject).live
    if any(kind == "none" and name not in found for name, kind in dead.items()):
        touched = {name for event in trace_of(subject).backwards() for name in event.touched}
        found |= {name for name, kind in dead.items() if kind == "none" and name in touched}
    return found


def written_by_step(subject: Subject, dead: Mapping[str, str]) -> set[str]:
    """Name the parameters that never get a gradient and change in the user's own step all the same.

    No optimizer moves what has no gradient: the step writes the values itself. So do a target network and an
    average of another's weights change.
    """
    if subject.contract.train_step is None:
        return set()
    moved = trajectory(subject).moved
    return {name for name, kind in dead.items() if kind == "none" and moved.get(name, 0.0) > 0}


def in_live_memory(subject: Subject, dead: Mapping[str, str]) -> set[str]:
    """Name the parameters without a gradient whose whole memory is that of one with a gradient.

    A parameter that wraps another one is a second one on the same memory: it moves as the other does.
    """
    if not dead:
        return set()

    def memory(parameter: torch.Tensor) -> tuple[object, ...]:
        return trees.address(parameter), parameter.shape, parameter.stride()

    parameters = subject.named_parameters()
    live = {
        memory(p)
        for name, p in parameters.items()
        if name not in dead and p.requires_grad and trees.address(p) is not None
    }
    return {name for name in dead if memory(parameters[name]) in live}


_LONG: Final = 1000
"""Calls of a schedule within which a group's turn comes; a wait of more is not told from a rate left at 0."""


def waiting(subject: Subject, names: Collection[str]) -> set[str]:
    """Return which parameters belong to a group whose rate a schedule holds at 0 now and raises later.

    The schedule alone is stepped: no forward runs. Where the optimizer function returns none, but the group shows
    that one drives it, the schedule belongs to the step and cannot be asked.

    Cost: nothing where no group has a rate of 0.
    """
    with subject.pristine(steps=True) as model:
        try:
            made = subject.make_optimizer(model)
        except SubjectError:
            return set()
        held = {id(p): name for name, p in model.named_parameters() if name in names}
        groups = [
            group
            for optimizer in optimizers_of(made)
            for group in optimizer.param_groups
            if group.get("lr") == 0.0 and group.get("initial_lr", 0.0) > 0.0
        ]
        resting = [g for g in groups if any(id(p) in held for p in g["params"])]
        turned = [] if schedulers_of(made) else list(resting)
        with warnings.catch_warnings():
            # torch wants the optimizer's step before the schedule's
            warnings.simplefilter("ignore")
            for _ in range(_LONG if len(turned) < len(resting) else 0):
                step_schedulers(made, 1.0)
                turned += [g for g in resting if g["lr"] > 0.0 and all(g is not t for t in turned)]
                if len(turned) == len(resting):
                    break
        return {held[id(p)] for g in turned for p in g["params"] if id(p) in held}


def thawed_later(subject: Subject, names: Collection[str]) -> set[str]:
    """Return which parameters steps leave frozen, or as they are, at first, and train in some more steps.

    Those are among them whose gradient grows from step to step, and is so small yet that rounding takes the update
    away: behind a head of zeros and a residual branch that begins with zeros.

    And those whose gradient grows by as much with each call, until the step that gathers it applies it.

    Cost: 8 FBS where there are any, up to 24 where one of them is left frozen or the optimizer is the user's own, up to
        64 where gradients are gathered.
    """
    thawed: set[str] = set()
    if not names:
        return thawed
    sizes: dict[str, list[float]] = {name: [] for name in names}
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        held = {n: p for n, p in model.named_parameters() if n in names}
        try:
            made = subject.make_optimizer(model)
            own = own_optimizers(made)  # some gather steps first, or find their rate by them
            groups = [group for one in optimizers_of(made) for group in one.param_groups]
            stepped = {id(p) for group in groups for p in group["params"]}
            before = {n: p.detach().clone() for n, p in held.items()}
            for number in range(_GATHERED):
                subject.train_step(model, made, subject.batch().clone())
                now = dict(model.named_parameters())  # one that is replaced is not trained
                moved = (n for n, p in held.items() if not trees.same(p.detach(), before[n]))
                thawed |= {n for n in moved if now.get(n) is held[n]}
                for name, parameter in held.items():
                    if parameter.grad is not None and id(parameter) in stepped:
                        sizes[name].append(float(trees.dense(parameter.grad).abs().max()))
                waits = number < _HELD or own or not all(p.requires_grad for p in held.values())
                waits = (waits and number < _STAGES - 1) or any(map(_gathers, sizes.values()))
                if len(thawed) == len(held) or not waits:
                    break
        except SubjectError:
            pass  # the check that met the error reports it
        return thawed | {n for n, p in held.items() if _wakes(p, sizes[n])}


def _gathers(sizes: list[float]) -> bool:
    """Say whether gradients of these sizes, of one call after the other, are a sum that each call adds to."""
    grows = all(itertools.starmap(operator.lt, itertools.pairwise(sizes)))
    return bool(sizes) and grows and sizes[-1] > _SUMMED * len(sizes) * sizes[0] > 0


def _wakes(parameter: torch.Tensor, sizes: list[float]) -> bool:
    """Say whether gradients of these sizes, of one step after the other, grow and are below what moves a parameter."""
    seen = [size for size in sizes if size > 0]
    grows = len(seen) > 2 and all(itertools.starmap(operator.lt, itertools.pairwise(seen)))
    least = torch.finfo(parameter.dtype).eps * trees.scale(parameter) / _RATE
    return grows and _WAKES * seen[0] < seen[-1] < least


_WAKES = 10.0  # times the first gradient: far more than steps change one that has its size
_RATE = 0.1  # a learning rate that is large for plain gradient descent
_SUMMED = 0.5  # of so many times the first: dropout draws other terms
_GATHERED = 64  # calls of a step that gathers gradients until it applies them
_STAGES = 24  # steps of stages that thaw one part after the other
_HELD = 7  # further steps in which what is held back by its gradient alone may begin
_LEAST = 4  # samples: two of them on each side
_LINE = 1e-4  # of the gradient: what is left of it beside the line
_NOISE = 0.3  # of an input's spread


@remembered("untaught")
def untaught(subject: Subject) -> tuple[str, ...]:
    """Name the weights that no data train; cached.

    The gradient of a weight that the data reach through one number only, such as its sum, is a multiple
    of one matrix, whatever the samples are. That of any other weight points elsewhere for other samples. Asked
    where the steps that were taken anyway show such a weight beside others: of each half of the batch, and of
    other inputs. Where these give nothing to compare, nothing is said.
    """
    left = set(trajectory(subject).one_line)
    few = subject.few(subject.batch(), _LEAST, aligned=True) if left else None
    if few is not None and _kept_in(subject, few, left) == ():
        return ()  # what some samples turn, more of them do not turn back
    return (_kept_in(subject, subject.batch(), left) if left else None) or ()


def _kept_in(subject: Subject, whole: Batch, left: set[str]) -> tuple[str, ...] | None:
    """Name those of some weights whose gradients stay along one line; None where there is nothing to compare.

    Args:
        subject: Whose step.
        whole: The batch whose halves are compared, and that with other inputs.
        left: The weights.
    """
    batches = _others(subject, whole)
    base = _gradients(subject, whole) if batches else {}
    turned = False
    for batch in batches if base else ():
        if not (other := _gradients(subject, batch)):
            return None
        both = base.keys() & other.keys()
        left = {n for n in left & both if _along(base[n], other[n])}
        if not left:  # further steps would tell nothing
            return ()
        turned = turned or any(not _along(base[n], other[n]) for n in both - left)
    return tuple(name for name in base if name in left) if turned else None


def _gradients(subject: Subject, batch: Batch) -> dict[str, torch.Tensor]:
    """Return the gradients that a step leaves, of weights, not of biases; empty where it raises."""
    try:
        if subject.contract.train_step is None:
            with subject.backward(batch):
                named = subject.named_parameters().items()
                return {n: p.grad.clone() for n, p in named if p.grad is not None and p.dim() > 1}
        look = by_step(subject, batch)
    except SubjectError:
        return {}
    found = {k.removeprefix("gradient "): t for k, t in look.items() if k.startswith("gradient ")}
    return {name: gradient for name, gradient in found.items() if gradient.dim() > 1}


def _others(subject: Subject, batch: Batch) -> list[Batch]:
    """Return both halves of the batch, each as often as fills it, and the batch with other numbers as inputs.

    Empty where the samples cannot be chosen, or where what is no number is the same for all of them: a weight
    that these select would get its gradient by them alone.
    """
    symbol = subject.source.batch_symbol
    size = 0 if symbol is None else batch.sizes.get(symbol, 0)
    axes = {} if symbol is None else subject.source.axes(symbol)
    inputs = {p: t for p, t in batch.input_leaves() if isinstance(t, torch.Tensor)}
    if size < _LEAST or not all(trees.computable(t) for t in inputs.values()):
        return []
    for path, tensor in inputs.items():
        if not tensor.is_floating_point() and path in axes:
            first = tensor.narrow(axes[path], 0, 1)
            if bool((tensor == first).all()):
                return []
    places = torch.arange(size)
    half = size // 2
    halves = [places % half, half + places % (size - half)]
    moved = batch.clone()
    generator = torch.Generator().manual_seed(0)
    for _, tensor in moved.input_leaves():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel():
            spread = float(tensor.std()) if tensor.numel() > 1 else 0.0
            noise = torch.randn(tensor.shape, generator=generator).to(tensor)
            with torch.no_grad():
                tensor.add_(noise * _NOISE * (spread or 1.0))
    return [*(subject.source.rows(batch, index) for index in halves), moved]


def _along(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two gradients are multiples of each other, and neither is zero."""
    a, b = (trees.dense(t).detach().double().flatten() for t in (one, other))
    length = float(a.norm())
    if not length or not float(b.norm()) or a.shape != b.shape:
        return False
    rest = b - a * (float(a @ b) / length**2)
    return float(rest.norm()) <= _LINE * float(b.norm())


def drifting(
    subject: Subject, frozen: Collection[str], promised: Collection[str], moved: Collection[str]
) -> tuple[list[str], set[str]]:
    """Return the statistics of frozen parts that steps change, and the buffers that steps fill with noise.

    Args:
        subject: Whose model.
        frozen: Names of the parameters that are promised to stay.
        promised: Names of the buffers that are promised to stay; where none drifts, others are asked for.
        moved: Names of the buffers that the steps change.
    """
    asked = [n for n in promised if n in moved]
    noise = _redrawn(subject, asked)
    if noise.issuperset(asked):
        asked = _drifting_teachers(subject, frozen, [n for n in moved if n not in noise])
        noise |= _redrawn(subject, asked)
    return [n for n in asked if n not in noise], noise


def _drifting_teachers(
    subject: Subject, frozen: Collection[str], moving: Collection[str]
) -> list[str]:
    """Return running statistics that steps change in parts that are frozen as a whole and train nothing.

    Such a part holds none but frozen parameters, and no gradient goes through it: what it gives is
    a target or a feature, and follows its statistics. Cost: 1 forward, or step, where there is such a part.

    Args:
        subject: Whose model.
        frozen: Names of the parameters that are promised to stay.
        moving: Names of the buffers that the steps change.
    """
    whole: list[str] = []
    still = set(frozen)
    for name, module in subject.model.named_modules():
        inside = whole and any(name.startswith(f"{one}.") for one in whole)
        own = [f"{name}.{n}" for n, _ in module.named_parameters()]
        if name and own and not inside and still.issuperset(own):
            whole.append(name)
    may = (n for n in moving if not subject.is_promised("MayChange", n))
    found = [n for n in may if any(n.startswith(f"{one}.") for one in whole)]
    if not found:
        return []
    graphs: dict[str, set[bool]] = {}
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        handles = [
            model.get_submodule(name).register_forward_hook(
                lambda _module, _arguments, output, name=name: graphs.setdefault(
                    name, set()
                ).update(one.requires_grad for one in trees.floats(output).values())
            )
            for name in whole
        ]
        try:
            subject.train_step(model, subject.make_optimizer(model), subject.batch().clone())
        except SubjectError:
            return []  # which other checks explain
        finally:
            for handle in handles:
                handle.remove()
    taught = [name for name, seen in graphs.items() if seen == {False}]
    return [n for n in found if any(n.startswith(f"{one}.") for one in taught)]


def _redrawn(subject: Subject, names: Collection[str]) -> set[str]:
    """Return which buffers steps fill with noise: statistics of the data follow the data and what they were before.

    Noise ends as the same numbers beside another batch and after other numbers, and as other ones under another
    seed. Cost: 9 steps where there are any buffers.
    """
    if not names:
        return set()
    try:
        base = _buffers_after(subject, names)
        other = _buffers_after(subject, names, index=1, moved=True)
        reseeded = _buffers_after(subject, names, seed=_RESEEDED)
    except SubjectError:
        return set()  # which other checks explain
    return {
        n for n in names if trees.same(base[n], other[n]) and not trees.same(base[n], reseeded[n])
    }


def _buffers_after(
    subject: Subject, names: Collection[str], *, index: int = 0, seed: int = 0, moved: bool = False
) -> dict[str, torch.Tensor]:
    """Return what buffers hold after some steps, of another batch, after other seeds or from other numbers."""
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        held = {n: buffer for n, buffer in model.named_buffers() if n in names}
        for buffer in held.values() if moved else ():
            if buffer.is_floating_point():
                buffer.abs_().add_(_OTHER)
        made = subject.make_optimizer(model)
        for step in range(_DRAWN):
            seed_everything(subject.seed + seed + step)
            subject.train_step(model, made, subject.batch(index).clone())
        return {n: buffer.detach().clone() for n, buffer in model.named_buffers() if n in names}


_DRAWN = 3  # steps
_RESEEDED = 1000
_OTHER = 0.5  # more than the size of what a buffer holds: a variance stays positive

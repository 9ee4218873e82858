"""One batch before any training: its loss, the floor of the loss, and the budget of a check."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...lean import dataclass
from ...objects import trees
from ...probes.loss import floors
from ...probes.loss.arguments import targets_of
from ...probes.loss.own import labels_of
from ...probes.recorded.watch import reaches_leaves
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ..training.few import how_few, many_targets

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...batches import Batch
    from ...subject import Subject

_SAMPLES = 8  # larger batches are cut to so many samples
WHOLE = "whole-batch"
"""Key of a subject's cache: learning is tried with the whole batch, which a loss asked for."""
FORWARD = 1 / 3
"""What a forward costs, in plain steps; in float64 everything costs twice as much."""
_FREED = 0.4  # a step on the outputs alone: loss and its backward, no model
_FREED_STEPS = 10
_FASTER, _SLOWER = 1.2, 0.5
_STEADY, _FAR = 1.4, 1.1
"""The same for steps that fall steadily and go little of the way, and for those that go far."""
_LITTLE_GONE, _MUCH_GONE = 0.2, 0.4
"""Shares of the way that is left."""


@dataclass(slots=True)
class Budget:
    """Plain training steps that a check may spend; ``spent`` counts them."""

    steps: float
    spent: float = 0.0

    @property
    def left(self) -> float:
        """What may still be spent."""
        return self.steps - self.spent

    def take(self, cost: float = 1.0) -> bool:
        """Spend ``cost`` steps, where so many are left."""
        if self.spent + cost > self.steps + 1e-9:
            return False
        self.spent += cost
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The lowest loss that any output could reach.

    Attributes:
        value: The loss; -inf where none is known of a negative loss.
        bounded: Whether there is a value.
        known: Whether it was found; where not, zero, which few losses go below, stands for it.
        uniform: The lowest loss of scores that are the same for all samples and positions, where it is known.
    """

    value: float
    bounded: bool = True
    known: bool = True
    uniform: float | None = None

    def __str__(self) -> str:
        """What is known of it, in words."""
        if not self.bounded:
            return "floor unknown: the loss is negative"
        return f"floor {self.value:.3g}" if self.known else "floor unknown, 0 taken for it"


UNKNOWN = Floor(value=0.0, known=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One forward, loss and backward before any training.

    Attributes:
        loss: Value of the loss; NaN where it is no scalar with a graph.
        floor: Its floor.
        slope: Sum of the absolute values of all gradients: how fast a step of Adam lowers the loss.
        through: Whether all gradients came through the outputs: the loss reads no parameter by itself.
    """

    loss: float
    floor: Floor
    slope: float
    through: bool = False


def runs_whole_alone(subject: Subject) -> bool:
    """Say whether it is known by now that model and loss run with all samples of the batch, and with no fewer."""
    return WHOLE in subject.cache or subject.cache.get("rows", "not known") is None


def small_batch(subject: Subject) -> Batch:
    """Return the base batch, cut to a few samples where it is larger and has a batch axis."""
    batch = subject.batch()
    symbol = subject.source.batch_symbol
    if (
        symbol is None
        or batch.sizes.get(symbol, 0) <= _SAMPLES
        or subject.contract.train_step is not None
    ):
        return batch
    axes = subject.source.axes(symbol)
    if any(path not in axes for path in batch.tensors()) or runs_whole_alone(subject):
        return batch  # some programs run with as many samples as they were made for, and no fewer
    return subject.source.rows(batch, torch.arange(_SAMPLES))


def few_samples(subject: Subject) -> Batch:
    """Return a few samples of the small batch, two of them with different targets where any have.

    One is enough where each has many targets and no norm takes statistics over the samples.
    """
    batch, symbol = small_batch(subject), subject.source.batch_symbol
    size = 0 if symbol is None else batch.sizes.get(symbol, 0)
    few = how_few(subject, batch, size)
    if many_targets(subject, batch) and not _has_batch_norm(subject.model):
        few = 1
    if symbol is None or subject.few(batch, few, aligned=True) is None or runs_whole_alone(subject):
        return batch
    axes = subject.source.axes(symbol)
    second = 1
    for path, target in (targets_of(batch) or labels_of(batch, subject.model)).items():
        rows = trees.dense(target).movedim(axes[path], 0).flatten(1) if target.dim() > 1 else target
        unlike = rows != rows[:1]
        unlike = unlike.any(1) if unlike.dim() > 1 else unlike
        if bool(unlike.any()):
            second = int(unlike.nonzero()[0])
            break
    rest = [row for row in range(1, size) if row != second]
    return subject.source.rows(batch, torch.tensor([0, second, *rest[: max(few - 2, 0)]][:few]))


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def look(subject: Subject, batch: Batch, budget: Budget) -> Look:
    """Evaluate loss and gradient once, and find the floor of the loss.

    The floor is read from the graph of the loss where that tells it; else some steps on the outputs
    alone, as if the model could say anything, show how far the loss falls.
    """
    with subject.pristine(train=True) as model:
        return look_from(subject, model, batch, budget)


def look_from(
    subject: Subject,
    model: nn.Module,
    batch: Batch,
    budget: Budget,
    call: Callable[[Batch], Any] | None = None,
) -> Look:
    """Do what :func:`look` does with a model as it is, and leave its gradients.

    Args:
        subject: Whose model and loss.
        model: The model, or the part of it that ``call`` runs.
        batch: What the model is called with.
        budget: Is charged for a plain step.
        call: Makes the output; by default it is the model's.
    """
    budget.take()
    with torch.enable_grad():
        clear_gradients(model)
        seed_everything(subject.seed)
        batch = batch.clone()
        output = subject.call(model, batch) if call is None else call(batch)
        loss = subject.compute_loss(output, batch)
        if loss.dim() or not loss.requires_grad or not bool(torch.isfinite(loss)):
            return Look(loss=math.nan, floor=UNKNOWN, slope=0.0)
        known, through = floors.Floor(loss), _through(output, loss)
        try:
            with subject.phase("backward", batch):
                loss.backward()
        finally:
            known.release()
        value = known.value
        slope = steepness(model)
        first = float(loss.detach())
        freed = None if value is not None else _freed(subject, output)
        del output, loss
    if value is not None:
        floor = Floor(value=value, uniform=known.uniform)
    else:
        floor = UNKNOWN if freed is None else _descended(subject, batch, freed, budget)
        if first <= floor.value:
            floor = Floor(value=-math.inf, bounded=False, known=False)
    return Look(loss=first, floor=floor, slope=slope, through=through)


def _through(output: Any, loss: torch.Tensor) -> bool:
    """Say whether a loss reaches parameters through the tensors of an output only."""
    return not reaches_leaves(loss, {t.grad_fn for t in trees.floats(output).values()} - {None})


def without_dropout(model: nn.Module) -> nn.Module:
    """Put a model in training mode, all but its dropout."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    return model


def steepness(model: nn.Module) -> float:
    """Return the sum of the absolute values of all gradients of a model."""
    return sum(
        float(trees.dense(p.grad).abs().sum())
        for p in model.parameters()
        if p.grad is not None and p.grad.device.type != "meta"
    )


def _freed(subject: Subject, output: Any) -> tuple[Any, list[torch.Tensor]] | None:
    """Return the output with leaves in place of its tensors, and the leaves; or None."""
    if isinstance(subject.contract.loss, str):
        return None
    found = {path: t for path, t in trees.floats(output).items() if t.device.type != "meta"}
    # what no parameter reaches (a frozen teacher, an echo of the input) stays as it is
    found = {path: t for path, t in found.items() if t.requires_grad} or found
    if not found or isinstance(output, torch.nn.utils.rnn.PackedSequence):
        return None
    leaves = {id(t): t.detach().clone().requires_grad_(True) for t in found.values()}
    free = trees.substitute(output, leaves)
    return None if free is None else (free, list(leaves.values()))


def _descended(
    subject: Subject, batch: Batch, freed: tuple[Any, list[torch.Tensor]], budget: Budget
) -> Floor:
    """Estimate the floor by a few steps on the outputs themselves."""
    free, leaves = freed
    optimizer = torch.optim.Adam(leaves, lr=0.2, betas=(0.7, 0.9))
    losses: list[float] = []
    try:
        with subject.pristine(), torch.enable_grad():
            for _ in range(_FREED_STEPS):
                if not budget.take(_FREED):
                    break
                seed_everything(subject.seed)
                optimizer.zero_grad(set_to_none=True)
                loss = subject.compute_loss(free, batch)
                if loss.dim() or not loss.requires_grad or not bool(torch.isfinite(loss)):
                    break
                loss.backward()
                follow(optimizer, losses, float(loss.detach()))
                optimizer.step()
    except (SubjectError, RuntimeError):
        # a loss may refuse free outputs (it reads the model too); its floor is not known
        return UNKNOWN
    if len(losses) < 2:
        return UNKNOWN
    first, low = losses[0], min(losses)
    if low < 0:
        return Floor(value=-math.inf, bounded=False, known=False)
    return Floor(value=0.0 if low < 0.5 * first else low, known=False)


def spread_of_losses(
    subject: Subject, batch: Batch, sizes: tuple[float, ...], budget: Budget
) -> float | None:
    """Return by how much the loss changes when outputs move at random; or None.

    Args:
        subject: Whose loss.
        batch: What the model is called with.
        sizes: Standard deviations by which the outputs are moved.
        budget: Is charged for one forward and the losses.
    """
    budget.take(FORWARD + _FREED * len(sizes))
    batch = batch.clone()
    with subject.pristine(train=True, seeded=True) as model, torch.enable_grad():
        freed = _freed(subject, subject.call(model, batch))
        if freed is None:
            return None
        free, leaves = freed
        generator = torch.Generator().manual_seed(0)
        start = [leaf.detach().clone() for leaf in leaves]
        losses = []
        try:
            with torch.no_grad():
                for size in (0.0, *sizes):
                    for leaf, before in zip(leaves, start, strict=True):
                        noise = torch.randn(leaf.shape, generator=generator).to(leaf)
                        leaf.copy_(before + size * noise)
                    seed_everything(subject.seed)
                    losses.append(float(subject.compute_loss(free, batch)))
        except (SubjectError, RuntimeError):
            return None
    return max(losses) - min(losses) if all(map(math.isfinite, losses)) else None


def follow(
    optimizer: torch.optim.Optimizer, losses: list[float], now: float, floor: Floor | None = None
) -> None:
    """Raise the learning rate while the loss falls, lower it when it rises.

    Where the floor is given, more where each of two steps falls and the last goes little of the way that is left,
    and less where it goes far.
    """
    if not losses or losses[-1] == now:
        return
    factor = _FASTER if now < losses[-1] else _SLOWER
    if floor is not None and floor.bounded and now < losses[-1]:
        gone = (losses[-1] - now) / max(losses[-1] - floor.value, 1e-30)
        steady = losses[-2:-1] > losses[-1:]  # it fell before as well
        factor = (
            _STEADY if gone < _LITTLE_GONE and steady else _FAR if gone > _MUCH_GONE else factor
        )
    for group in optimizer.param_groups:
        if group.get("lr") is not None:  # an optimizer may choose its rate by itself
            group["lr"] *= factor


def remaining(losses: list[float] | tuple[float, ...], floor: Floor) -> float:
    """Return what part of the way from the first loss to the floor is left; or NaN."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite:
        return math.nan
    first, best = finite[0], min(finite[-5:])
    low = floor.value if floor.bounded else min(0.0, first - max(1.0, abs(first)))
    if at_floor(first, low):
        return 0.0  # there was nothing to learn to begin with
    return max(0.0, (best - low) / (first - low))


def at_floor(first: float, low: float, scale: float = 1.0) -> bool:
    """Say whether a loss is at its floor, up to rounding."""
    return first - low <= 1e-7 * max(scale, abs(first))

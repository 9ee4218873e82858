"""The loss as a function of the output: its value, and its gradient by the output, for other targets and fewer samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects import trees
from ...objects.kinds import finite
from ...record.modes import Observer
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..recorded.watch import name_of
from .arguments import targets_of, with_target
from .consumption import SQUASHING
from .plain import Plain, plain_criterion
from .terms import leaves_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...batches import Batch
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """What one call of the loss gave.

    Attributes:
        value: The loss, a number.
        by_output: Its gradient by each floating output, by path; outputs that it does not use are
            absent.
        last: Name of the autograd node that made the loss, such as ``NllLossBackward0``.
        plain: The criterion that the loss is, where it is one of torch's and nothing else.
    """

    value: float
    by_output: dict[str, torch.Tensor]
    last: str
    plain: Plain | None = None

    @property
    def finite(self) -> bool:
        """Whether the value and every gradient are finite."""
        return math.isfinite(self.value) and all(finite(slope) for slope in self.by_output.values())


class LossOfOutput:
    """Calls the user's loss with one output of the model, cut from its graph, and any targets.

    Args:
        subject: Whose loss; it must be callable.
        output: What the model returned for ``batch``; its tensors are not changed.
        batch: The batch, whose inputs go along with the targets.
    """

    def __init__(self, subject: Subject, output: Any, batch: Batch) -> None:
        self._subject, self._output, self.batch = subject, output, batch
        self.outputs = trees.floats(output)

    @property
    def rebuilt(self) -> bool:
        """Whether the output can be put together again from other tensors: no object of an unknown class holds them."""
        fresh = {id(t): t.detach() for t in self.outputs.values()}
        ours = {id(t) for t in trees.tensors(trees.substitute(self._output, fresh)).values()}
        return bool(fresh) and all(id(t) in ours for t in fresh.values())

    def samples(self, axis: int) -> int:
        """Return how many samples every output has along an axis, 0 where they differ or have none."""
        sizes = {t.shape[axis] if t.dim() > axis else 0 for t in self.outputs.values()}
        return sizes.pop() if len(sizes) == 1 else 0

    def axes_of(self, size: int) -> list[int]:
        """Return the axes along which every output has this size."""
        least = min(t.dim() for t in self.outputs.values())
        return [a for a in range(least) if all(t.shape[a] == size for t in self.outputs.values())]

    def axes_by(self, fewer: Any, size: int, few: int) -> dict[str, int] | None:
        """Return where the samples stand in each output: the one axis that is shorter for fewer samples.

        Args:
            fewer: What the model returned for some of the samples.
            size: How many samples these outputs have.
            few: How many those have.

        Returns:
            None where an output has no such axis, or is another one for fewer samples.
        """
        others, axes = trees.floats(fewer), {}
        for path, tensor in self.outputs.items():
            now = others[path].shape if path in others else ()
            if len(now) != tensor.dim():
                return None
            changed = [a for a in range(tensor.dim()) if now[a] != tensor.shape[a]]
            if len(changed) != 1 or (tensor.shape[changed[0]], now[changed[0]]) != (size, few):
                return None
            axes[path] = changed[0]
        return axes

    def cut(self, index: torch.Tensor, axis: int | dict[str, int]) -> LossOfOutput:
        """Return the loss of some samples only.

        Args:
            index: int64 ``[n]``, which samples.
            axis: Where the samples stand in every output, or in each by path.
        """
        fewer = {
            id(t): t.detach().index_select(_of(axis, path), index.to(t.device))
            for path, t in self.outputs.items()
        }
        rows = self._subject.source.rows(self.batch, index)
        return LossOfOutput(self._subject, trees.substitute(self._output, fewer), rows)

    def of(self, batch: Batch) -> LossOfOutput:
        """Return the loss of the same output for another batch, which may differ in its targets."""
        return LossOfOutput(self._subject, self._output, batch)

    def stretched(self, sample: int, axis: int | dict[str, int]) -> LossOfOutput:
        """Return the loss of outputs that are extreme for one sample: normal numbers of a hundred times their scale."""
        generator = torch.Generator().manual_seed(0)
        changed = {}
        for path, tensor in self.outputs.items():
            made = trees.dense(tensor).clone()
            row = made.select(_of(axis, path), sample)
            noise = torch.randn(row.shape, generator=generator).to(row.device, row.dtype)
            row.copy_(100 * (1 + row.abs().amax()) * noise)
            changed[id(tensor)] = made
        return LossOfOutput(self._subject, trees.substitute(self._output, changed), self.batch)

    def spread(self) -> LossOfOutput:
        """Return the loss of other outputs: normal numbers of twice the largest magnitude of outputs and targets."""
        generator = torch.Generator().manual_seed(0)
        known = (*self.outputs.values(), *trees.floats(self.targets()).values())
        reach = 2 * max(trees.scale(tensor) for tensor in known)
        others = {
            id(t): (reach * torch.randn(t.shape, generator=generator)).to(t.device, t.dtype)
            for t in self.outputs.values()
        }
        return LossOfOutput(self._subject, trees.substitute(self._output, others), self.batch)

    def heeds(self, base: Slopes, sample: int, axis: int, _read: list[int]) -> bool:
        """Say whether an extreme output of a sample changes the loss: losses over the hardest samples heed it then."""
        try:
            now = self.stretched(sample, axis).slopes()
        except SubjectError:
            return True
        return now is None or now.value != base.value

    def shifted(self, path: str, by: float, part: tuple[int, int] | None = None) -> LossOfOutput:
        """Return the loss of outputs of which one has a number added.

        Args:
            path: Of the output.
            by: The number.
            part: A dimension and a place in it; all elements of the output if None.
        """
        moved = trees.dense(self.outputs[path]).detach().clone()
        (moved if part is None else moved.select(*part)).add_(by)
        other = {id(self.outputs[path]): moved}
        return LossOfOutput(self._subject, trees.substitute(self._output, other), self.batch)

    def at(self, path: str, values: torch.Tensor) -> LossOfOutput:
        """Return the loss of outputs of which one is replaced by values of its shape."""
        other = {id(self.outputs[path]): values.to(self.outputs[path].dtype)}
        return LossOfOutput(self._subject, trees.substitute(self._output, other), self.batch)

    def with_outputs(self, others: dict[int, torch.Tensor]) -> LossOfOutput:
        """Return the loss of other tensors in place of some outputs, by their ids."""
        return LossOfOutput(self._subject, trees.substitute(self._output, others), self.batch)

    def run(self, batch: Batch | None = None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Call the loss on fresh leaves; return it with the leaves by path.

        Raises:
            SubjectError: The loss raised.
        """
        return self._run(batch)[:2]

    def _run(self, batch: Batch | None) -> tuple[torch.Tensor, dict[str, torch.Tensor], Batch]:
        """Call the loss on fresh leaves; return it with the leaves by path, and what else it was given."""
        leaves = {p: trees.dense(t).detach().requires_grad_(True) for p, t in self.outputs.items()}
        others = {id(t): leaves[p] for p, t in self.outputs.items()}
        # a loss may write to its targets
        given = (self.batch if batch is None else batch).clone(inputs=False)
        output = trees.substitute(self._output, others)
        seed_everything(self._subject.seed)
        with torch.enable_grad():
            return self._subject.compute_loss(output, given), leaves, given

    def slopes(self, batch: Batch | None = None) -> Slopes | None:
        """Return the loss and its gradients; None where it is no scalar with a graph.

        Raises:
            SubjectError: The loss raised.
        """
        loss, leaves, given = self._run(batch)
        if not loss.requires_grad or loss.dim():
            return None
        plain = plain_criterion(loss, leaves, targets_of(given))  # before the graph is gone
        with self._subject.phase("backward", self.batch):
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return Slopes(
            value=float(loss.detach()),
            by_output={
                p: trees.dense(g) for p, g in zip(leaves, found, strict=True) if g is not None
            },
            last=loss.grad_fn.name() if loss.grad_fn is not None else "",
            plain=plain,
        )

    def reaches_weights(self) -> bool:
        """Say whether the loss has a gradient that does not pass through these outputs: it calls a model itself."""
        loss, leaves = self.run()
        return loss.grad_fn is not None and not leaves_of(loss.grad_fn) <= set(
            map(id, leaves.values())
        )

    def targets(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the targets, by their paths in the batch."""
        return targets_of(self.batch)

    def with_targets(self, old: torch.Tensor, new: torch.Tensor) -> Batch:
        """Return the batch with one target tensor exchanged for another."""
        return with_target(self.batch, old, new)


def _of(axis: int | dict[str, int], path: str) -> int:
    return axis if isinstance(axis, int) else axis[path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repelled:
    """Elements of an output at whose target the loss is highest, not lowest; plain data.

    Attributes:
        path: Of the output.
        target: Path of the target.
        pushed: How many elements are pushed away from their target: those whose target has one sign.
        pulled: How many are pulled to it: those of the other sign.
        negative: Whether the targets of the pushed ones are the negative ones.
    """

    path: str
    target: str
    pushed: int
    pulled: int
    negative: bool


_NEAR = 0.02  # of the mean magnitude of the targets: how far from them the slopes are taken


def repelled(loss: LossOfOutput) -> Repelled | None:
    """Look on both sides of each target for the way the loss pulls; None where all are pulled, or it is no such loss.

    A loss that compares an output with a target of its shape is lowest, element by element, where they
    agree. Highest at every target of one sign, and lowest at those of the other, it is where the error
    is divided or multiplied by the target itself.

    Cost: two calls of the loss for each pair of an output and a target of its shape.
    """
    for path, output in loss.outputs.items():
        for name, target in loss.targets().items():
            if target.shape != output.shape or not target.is_floating_point():
                continue
            minus, plus = target < 0, target > 0
            if min(int(minus.sum()), int(plus.sum())) < _FEWEST:
                continue
            found = _sides(loss, path, target.to(output.device))
            if found is None:
                continue
            pulled, pushed = found
            for one, other, negative in ((minus, plus, True), (plus, minus, False)):
                if bool(pushed[one].all()) and bool(pulled[other].all()):
                    return Repelled(
                        path=path, target=name, pushed=int(one.sum()), pulled=int(other.sum()),
                        negative=negative,
                    )  # fmt: skip
    return None


_FEWEST = 4  # elements of each sign: fewer may be so by chance


def _sides(
    loss: LossOfOutput, path: str, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return which elements are pulled towards their targets from both sides, and which are pushed away."""
    size = float(target.abs().mean())
    ways = []
    for sign in (1.0, -1.0):
        try:
            found = loss.at(path, target + sign * _NEAR * size).slopes()
        except SubjectError:
            return None
        if found is None or path not in found.by_output:
            return None
        ways.append(found.by_output[path] * sign)
    return (ways[0] > 0) & (ways[1] > 0), (ways[0] < 0) & (ways[1] < 0)


class Stretched(Observer):
    """Spread what one call of a softmax or sigmoid is given, around its mean.

    Args:
        number: Which call of a squashing function, from 0, as in :class:`LogOf`.
        span: From the lowest to the highest value.
    """

    def __init__(self, number: int, span: float) -> None:
        self._left, self._span = number, span

    def around(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        """Call the function, with its first argument spread where it is the one."""
        if name_of(func).rpartition(".")[2] in SQUASHING:
            self._left -= 1
            if self._left == -1 and args and isinstance(args[0], Tensor):
                given = args[0]
                centred = given - given.mean()
                reach = float(centred.abs().max())
                args = (centred * (self._span / reach) if reach else given, *args[1:])
        return func(*args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Entries of an output without a pull, which have one where no NaN is made; plain data.

    Attributes:
        path: Of the output.
        count: How many entries.
        total: Of how many.
    """

    path: str
    count: int
    total: int


def lost_entries(loss: LossOfOutput, base: Slopes) -> Lost | None:
    """Find the output whose entries have no pull where it is, and one elsewhere: they count, and are left out.

    Args:
        loss: The loss as a function of the output.
        base: Its slopes there, finite.
    """
    for path, slope in base.by_output.items():
        values = loss.outputs[path].detach()
        if values.shape != slope.shape or not values.is_floating_point():
            continue
        idle = slope == 0
        if not bool(idle.any()):
            continue
        for other in (-values, values.abs(), 0.1 * values, values.abs().mean().expand_as(values)):
            there = loss.at(path, other.contiguous()).slopes()
            if there is None or not there.finite or path not in there.by_output:
                continue
            count = int((idle & (there.by_output[path] != 0)).sum())
            if count:
                return Lost(path=path, count=count, total=values.numel())
    return None

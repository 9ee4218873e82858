"""Whether a loss in which samples meet each other depends on the order of the samples."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from ...batches.rows import take_rows
from ...lean import dataclass
from ...objects import trees
from ...probes.recorded.watch import SORTS
from ...record.modes import Functions
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..facts import forms, forward_facts, output_for_loss
from ..outputs import output_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...batches import Batch
    from ...subject import Subject

_SAME = 1e-4
"""Relative change of a loss that the order of a sum explains, with a wide margin."""
_MEETS = 1e-3
"""Relative change of one sample's gradient that says that another sample has a part in it."""
_BY_CHANCE = 0.01
"""Share of thousands of rounded numbers that are equal to their neighbour in order, with a margin."""
_BY_PLACE = frozenset(
    {
        "roll", "flip", "fliplr", "flipud", "chunk", "split", "tensor_split", "unfold", "narrow", "select", "diff",
        "cumsum", "cumprod", "logcumsumexp", "cummax", "triu", "tril", "triu_indices", "tril_indices", "combinations",
        "index_select", "gather", "take", "cross_entropy", "nll_loss", "one_hot", "scatter", "scatter_", "randperm", "randint", "multinomial", "rand", "randn", "arange", "linspace",
    }
)  # fmt: skip
"""Functions with which a loss may pair samples by their places on purpose, or by numbers that are their places."""
_ORDERS = SORTS | {"topk"}
_TAKES = frozenset({"__getitem__", "index_select", "gather", "take", "take_along_dim"})
_RESHAPES = frozenset({"view", "reshape", "unflatten"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reordered:
    """A loss in two orders of the samples.

    Attributes:
        change: By how much, relatively, at least; 0 where it does not.
        size: How many samples.
        first, second: Run the loss, in the base batch's order and in another.
    """

    change: float
    size: int
    first: Callable[[], torch.Tensor]
    second: Callable[[], torch.Tensor]


def moved_by_order(subject: Subject, *, meeting: bool = False) -> Reordered | None:
    """Reorder outputs and targets together; return how the loss changes, or None where it may.

    A pair of samples may be made by place on purpose: a shift, a slice, a draw, two views as halves. Where the loss
    does that, nothing is said, nor where a part of outputs or targets cannot be taken apart into samples, or where
    the samples do not meet: a weight for each sample may then be kept outside of the batch.

    Args:
        subject: The model.
        meeting: Whether it is known that the samples meet.
    """
    batch, rows = subject.batch(), output_rows(subject)
    size = batch.sizes.get(subject.source.batch_symbol or "", 0)
    targets = trees.tensors(batch.targets, batch.target_label())
    if rows is None or size < 4 or any(_by_number(t, size) for t in targets.values()):
        return None
    try:
        output = output_for_loss(subject)
        if (runs := loss_of_samples(subject, output)) is None:
            return None
        first = runs(torch.arange(size))
        if first().numel() != 1:
            return None
        base, pairs_by_place = _watched(first, size)
        if pairs_by_place or not (meeting or _meet(subject, output, batch, rows.dims)):
            return None
        smallest, second = float("inf"), first
        for blocks in orders(size):
            tried = [(abs(float(other()) - base), other) for other in map(runs, blocks)]
            change, moved = max(tried, key=lambda one: one[0])
            if change <= _SAME * max(abs(base), 1e-6):
                return Reordered(change=0.0, size=size, first=first, second=moved)
            if change < smallest:
                smallest, second = change, moved
        if abs(float(first()) - base) > _SAME * max(abs(base), 1e-6):
            return None  # it remembers earlier calls
    except (SubjectError, RuntimeError):
        return None
    return Reordered(change=smallest / max(abs(base), 1e-6), size=size, first=first, second=second)


def loss_of_samples(
    subject: Subject, output: Any
) -> Callable[[torch.Tensor], Callable[[], torch.Tensor]] | None:
    """Return what makes, of the places of samples, a run of the loss on their outputs and targets alone.

    None where a part of outputs or targets cannot be taken apart into samples.

    Args:
        subject: The model.
        output: That of the base batch, without a graph.
    """
    batch, symbol, rows = subject.batch(), subject.source.batch_symbol, output_rows(subject)
    if symbol is None or rows is None or rows.others or not rows.dims:
        return None
    axes, tensors = subject.source.axes(symbol), trees.tensors(output)
    targets = trees.tensors(batch.targets, batch.target_label())
    if not targets or not targets.keys() <= axes.keys() or tensors.keys() != rows.dims.keys():
        return None
    if forms(tensors) != forms(forward_facts(subject).outputs):
        return None  # that of training, where the samples may stand elsewhere

    def runs(index: torch.Tensor) -> Callable[[], torch.Tensor]:
        out = {id(t): take_rows(t, rows.dims[path], index) for path, t in tensors.items()}
        target = {id(t): take_rows(t, axes[path], index) for path, t in targets.items()}
        made = trees.substitute(output, out)
        given = dataclasses.replace(batch, targets=trees.substitute(batch.targets, target))
        return lambda: loss_at(subject, made, given)

    return runs


def _by_number(target: torch.Tensor, size: int) -> bool:
    """Say whether a target may name samples by their places: pairs, or numbers that occur once."""
    pairs = sum(length == size for length in target.shape) > 1
    real = target.is_floating_point() or target.is_complex()
    whole = not real and target.dtype != torch.bool
    return pairs or (whole and len(target.unique()) == target.numel())


def loss_at(subject: Subject, output: Any, batch: Batch) -> torch.Tensor:
    """Return the loss of an output, without a graph, from the subject's seed."""
    seed_everything(subject.seed)
    with torch.no_grad():
        return subject.compute_loss(output, batch.clone())


def _watched(run: Callable[[], torch.Tensor], size: int) -> tuple[float, bool]:
    """Return a loss, and whether its functions may pair samples by their places.

    What is computed of sorted values stands in the order of their size, whatever their places were.
    """
    by_place, ranked = False, _Ranked()

    def around(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        nonlocal by_place
        name = getattr(func, "__name__", "")
        result = func(*args, **kwargs)
        if ranked.follows(name, args, kwargs, result):
            by_place |= ranked.tied
            return result
        by_place |= name in _BY_PLACE
        given = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if name == "__getitem__" and given is not None:
            by_place |= not _whole(args[1])
        elif name in _RESHAPES and given is not None and given.dim() and len(given) == size:
            by_place |= result.dim() == 0 or len(result) % size != 0
        return result

    with Functions(around):
        loss = float(run())
    return loss, by_place


class _Ranked:
    """Follows what is in the order of its size.

    Attributes:
        tied: Whether many values that were put in order are equal: these keep the order of their places.
    """

    def __init__(self) -> None:
        self.tied = False
        self._held: dict[int, torch.Tensor] = {}  # kept, so that no number is given twice

    def follows(self, name: str, args: Any, kwargs: Any, result: Any) -> bool:
        """Say whether a function sorts, or is given what is sorted, or an index of it; its result is then, too."""
        given = [one for one in trees.tensors((args, kwargs)).values() if one.numel() > 1]
        if name in _ORDERS and given:
            order = given[0].detach().flatten().sort().values
            self.tied |= float((order.diff() == 0).float().mean()) > _BY_CHANCE
        else:
            known = [id(one) in self._held for one in given]
            if not any(known) or not (all(known) or (name in _TAKES and known[-1])):
                return False
        made = [*trees.tensors(result).values(), *(given[:1] if name == "__setitem__" else ())]
        self._held.update((id(one), one) for one in made)
        return True


def _whole(index: Any) -> bool:
    """Say whether an index keeps the first dimension as it is, or takes entries by a mask."""
    first = index[0] if isinstance(index, tuple) and index else index
    masked = isinstance(first, torch.Tensor) and first.dtype == torch.bool
    return masked or first is None or first is Ellipsis or first in (slice(None), slice(0, None))


def _meet(subject: Subject, output: Any, batch: Batch, dims: dict[str, int]) -> bool:
    """Say whether the gradient of the first sample's output changes as other samples' outputs do."""

    def slope(others: float) -> dict[str, torch.Tensor]:
        leaves, swapped = {}, {}
        for path, tensor in trees.floats(output).items():
            moved = tensor.detach().clone()
            rest = moved.narrow(dims[path], 1, moved.shape[dims[path]] - 1)
            rest.mul_(others)
            leaves[path] = swapped[id(tensor)] = moved.requires_grad_(True)
        seed_everything(subject.seed)
        with torch.enable_grad():
            loss = subject.compute_loss(trees.substitute(output, swapped), batch.clone())
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return {
            path: trees.dense(one).select(dims[path], 0)
            for path, one in zip(leaves, found, strict=True)
            if one is not None
        }

    before, after = slope(1.0), slope(0.7)
    return any(
        path in after and trees.worst(one, after[path]) > _MEETS * max(trees.scale(one), 1e-12)
        for path, one in before.items()
    )


def orders(size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Iterate over ways to reorder: single samples, and two views as halves or as neighbours."""
    generator = torch.Generator().manual_seed(0)

    def shuffled(count: int) -> torch.Tensor:
        order = torch.randperm(count, generator=generator)
        # an order that turns in a circle would hide a partner one place on
        return order if not torch.equal(order, torch.arange(count)) else order.flip(0)

    yield tuple(shuffled(size) for _ in range(3))
    if size % 2 == 0:
        half = size // 2
        yield tuple(torch.cat([o, o + half]) for o in (shuffled(half) for _ in range(3)))
        yield tuple(
            torch.stack([2 * o, 2 * o + 1], 1).flatten() for o in (shuffled(half) for _ in range(3))
        )

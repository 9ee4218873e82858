"""What belongs together is compared: targets with their own outputs, samples with their own partners."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...batches.rows import take_rows
from ...codes import loss as explain
from ...findings import Finding
from ...objects import trees
from ...probes.loss.consumption import LossCall, LossWatch
from ...probes.loss.pulls import along_lines, order_of, reached_by, summed
from ...runs.facts import output_for_loss
from ...runs.losses.order import moved_by_order, orders
from ...runs.losses.sorted_apart import sorting_loss
from ...runs.tied_outputs import tied_outputs
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...text.printable import message_of
from ...verdicts import inconclusive, not_applicable, passed
from .targets import is_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...batches import Batch
    from ...probes.loss.pulls import Place
    from ...runs.losses.consumption import LossEvidence
    from ...subject import Subject

_SAME = 1e-4
"""Relative change of a loss that the order of a sum explains, with a wide margin."""


def target_alignment(subject: Subject) -> Iterator[Finding]:
    """Change one target at a time; what changes in the loss's gradient stands at one distance from it.

    A loss that compares samples with each other must be the same in another order of them. Outputs whose targets
    differ must not be one number for every input and every weight.
    """
    if isinstance(subject.contract.loss, str):
        yield not_applicable("the model computes its own loss")
        return
    plain = is_plain(subject)
    moved = None if plain else sorting_loss(subject)
    if moved is not None and (apart := explain.sorted_apart(subject, moved)) is not None:
        yield apart
        return
    batch = subject.batch().clone()
    output = output_for_loss(subject)
    leaves = {p: t for p, t in trees.floats(output).items() if t.is_leaf and not t.is_inference()}
    own = trees.tensors(batch.targets, "targets")
    fitting = _fitting(leaves, own)
    if not fitting:
        yield not_applicable("no target has one value for each position of an output")
        return
    for tensor in leaves.values():
        tensor.requires_grad_(True)

    try:
        seen = (
            {}
            if plain
            else _seen(subject, output, batch, leaves, fitting, by_place=moved is not None)
        )
    except (SubjectError, RuntimeError) as error:
        message = message_of(error).splitlines()[0]
        yield inconclusive(f"the loss raises with another target: {message:.80}")
        return
    if isinstance(seen, Finding):
        yield seen
        return
    for path, axes, name in fitting:
        found = tied_outputs(subject, batch, path, leaves[path], own[name]) if -1 in axes else None
        if found is not None:
            yield explain.tied(subject, found, name)
            return
    if plain:
        yield passed(
            "one of torch's criteria, and nothing else, compares targets with their own outputs"
        )
        return
    told = [f"{n} targets, changed one by one, affect {how}" for how, n in seen.items() if n]
    if told:
        yield passed("; ".join(told))
    else:
        yield inconclusive("no change of a single target changed the gradient of an output")


def _seen(
    subject: Subject,
    output: Any,
    batch: Batch,
    leaves: dict[str, torch.Tensor],
    fitting: list[tuple[str, list[int], str]],
    *,
    by_place: bool,
) -> Finding | dict[str, int]:
    """Return how many targets reach outputs in which way, or what is wrong with the way.

    A loss that sorts, and depends on places nevertheless (``by_place``), does not compare samples as they are.
    """
    slopes, own = (
        _Gradients(subject, output, batch, leaves),
        trees.tensors(batch.targets, "targets"),
    )
    seen: dict[str, int] = {}
    base = slopes(batch.targets)
    for path, axes, name in fitting:
        if base is None or path not in base:
            continue
        ways = reached_by(base[path], axes, own[name], path, leaves[path], batch, slopes)
        reached, batch_dim = ways[0], subject.contract.batch_dim
        # one term for each position: a criterion of class indices, and nothing after it
        if slopes.last.startswith("NllLoss") and along_lines(reached, own[name].shape, batch_dim):
            return explain.spread_over(subject, output, batch, path, name, reached)
        orders = [order_of(way, own[name], batch_dim) for way in ways]
        how = _sound(ways, orders)
        if not how and _matched(subject, output, batch, own[name]):
            how = "outputs that the loss finds for them, in any order"
        given = batch.targets, leaves[path], path, base[path], batch_dim or 0
        if not how and not by_place and _relates(slopes, *given):
            moved = moved_by_order(subject, meeting=True)
            if moved is None or not moved.change:
                how = "outputs of samples that the loss compares with each other"
        if not how:
            turned = max(filter(None, orders), default="")
            return explain.misplaced(subject, path, name, reached, turned)
        seen[how] = seen.get(how, 0) + len(reached)
    return seen


def _sound(ways: list[dict[Place, set[Place]]], orders: list[str | None]) -> str:
    """Say which outputs targets reach by an offset or in sums; empty where they reach others."""
    reached = ways[0]
    if len(reached) < 2 or "" in orders:
        others = any(len(where) > 1 for where in reached.values())
        return f"outputs at the same offset{', and others too' * others}"
    return "outputs on one side of them, as sums do" * any(map(summed, ways))


class _Gradients:
    """Gives the loss's gradient by outputs that are leaves, for any targets, and the node that made the loss."""

    def __init__(
        self, subject: Subject, output: Any, batch: Batch, leaves: dict[str, torch.Tensor]
    ) -> None:
        self._subject, self._output, self._batch, self._leaves = subject, output, batch, leaves
        self.last = ""

    def __call__(self, targets: Any) -> dict[str, torch.Tensor] | None:
        """Return the gradients by path; None where the loss is no scalar with a graph."""
        seed_everything(self._subject.seed)
        with torch.enable_grad():
            # a loss may write to its targets: it is given its own
            given = replace(self._batch, targets=targets).clone()
            loss = self._subject.compute_loss(self._output, given)
            if not loss.requires_grad or loss.dim():
                return None
            self.last = loss.grad_fn.name() if loss.grad_fn is not None else ""
            found = torch.autograd.grad(loss, list(self._leaves.values()), allow_unused=True)
        by_path = zip(self._leaves, found, strict=True)
        return {path: trees.dense(slope) for path, slope in by_path if slope is not None}


def _fitting(
    leaves: dict[str, torch.Tensor], own: dict[str, torch.Tensor]
) -> list[tuple[str, list[int], str]]:
    """Return outputs and targets that have one value for each other's positions, by name, with the axes of classes."""
    return [
        (path, axes, name)
        for name, target in own.items()
        for path, leaf in leaves.items()
        if (axes := _class_axes(leaf, target))
    ]


def _class_axes(leaf: torch.Tensor, target: torch.Tensor) -> list[int]:
    """Return the axes of an output that may hold the classes, -1 where output and target are alike."""
    if target.dim() == 0 or target.numel() < 3 or target.is_complex() or leaf.is_complex():
        return []
    if target.is_floating_point() or target.dtype == torch.bool:
        return [-1] if leaf.shape == target.shape else []
    # integers of the output's own shape may be indices into it (a list of labels, an order)
    return [
        d
        for d in range(leaf.dim())
        if leaf.shape[d] > 1 and leaf.shape[:d] + leaf.shape[d + 1 :] == target.shape
    ]


def _relates(
    slopes: _Gradients, targets: Any, leaf: torch.Tensor, path: str, base: torch.Tensor, axis: int
) -> bool:
    """Say whether the gradient of the first sample changes with the output of each of some others, far from it too."""
    count = leaf.shape[axis] if axis < leaf.dim() else 0
    others = sorted({1, count // 2, count - 1} - {0})
    for other in others if count > 2 else ():
        row = leaf.detach().select(axis, other)
        kept = row.clone()
        row.mul_(1.5).add_(0.1)
        try:
            now = slopes(targets)
        finally:
            row.copy_(kept)
        first = None if now is None or path not in now else now[path].select(axis, 0)
        if first is None or torch.equal(first, base.select(axis, 0)):
            return False
    return count > 2


def _matched(subject: Subject, output: Any, batch: Batch, target: torch.Tensor) -> bool:
    """Say whether the loss is the same for targets in another order along some axis."""

    def value(targets: Any) -> float:
        seed_everything(subject.seed)
        with torch.no_grad():
            return float(subject.compute_loss(output, replace(batch, targets=targets)))

    def is_same(other: torch.Tensor) -> bool:
        changed = trees.substitute(batch.targets, {id(target): other})
        return abs(value(changed) - base) <= _SAME * max(abs(base), 1e-6)

    base = value(batch.targets)
    for axis in range(target.dim()):
        orders = [target.flip(axis), target.roll(1, axis)]  # one of them may agree by chance
        if not any(torch.equal(o, target) for o in orders) and all(map(is_same, orders)):
            return True
    return False


def in_batch_pairs(subject: Subject) -> Iterator[Finding]:
    """Reorder the samples of a batch, pairs together; a contrastive loss must stay as it is.

    So must any loss in which samples meet each other, when outputs and targets change places together, unless it
    pairs samples by their places with a shift, a slice or a draw.
    """
    batch = subject.batch()
    axes = _sample_axes(subject, batch)
    size = min((batch.tensors()[p].shape[a] for p, a in axes.items()), default=0)
    if isinstance(subject.contract.loss, str):
        yield not_applicable("the model computes its own loss")
        return
    if size < 4:
        yield not_applicable(
            f"the batch has {size} samples, fewer than the four that ranking needs"
            if axes
            else "the inputs have no axis of samples in common"
        )
        return
    known: LossEvidence | None = subject.cache.get("loss")
    if known is None or any(
        _ranks(c.function, c.shape, c.made_target, size) for c in known.consumed
    ):
        calls = _ranking(subject, batch, size)
    else:
        calls = []
    if not calls:
        moved = moved_by_order(subject)
        if moved is not None and moved.change:
            yield explain.order_of_pairs(subject, moved)
        elif moved is not None:
            yield passed(f"the loss of {size} samples is the same in another order")
        else:
            yield not_applicable("the loss does not rank the samples of a batch against each other")
        return
    for call in calls:
        share = _self_share(call)
        if share is not None:
            yield explain.self_counted(subject, call, share)
            return
    base = _loss_at(subject, batch)
    if base != _loss_at(subject, batch, seed=1):
        yield inconclusive("the loss is random in eval mode, so another order could not be tried")
        return
    changes: list[float] = []
    for blocks in orders(size):
        worst = 0.0
        for index in blocks:
            again = _loss_at(subject, _reordered(batch, axes, index))
            worst = max(worst, abs(again - base) / max(abs(base), 1e-6))
        if worst <= _SAME:
            yield passed(f"the loss of {size} samples is the same in another order")
            return
        changes.append(worst)
    turned = torch.arange(size).roll(1)
    again_calls = _ranking(subject, _reordered(batch, axes, turned), size)
    classes = any(_keeps_columns(calls[0], one, turned) for one in again_calls[:1])
    yield explain.order(subject, calls[0], min(changes), size, classes=classes)


def _sample_axes(subject: Subject, batch: Batch) -> dict[str, int]:
    """Return the axis of the samples in each tensor, the one that all inputs begin with."""
    paths = [p for p, t in batch.input_leaves() if isinstance(t, torch.Tensor) and t.dim()]
    symbols = [subject.source.batch_symbol, *subject.source.symbols]
    for symbol in symbols:
        axes = {} if symbol is None else subject.source.axes(symbol)
        if paths and all(path in axes for path in paths):
            return axes
    return {}


def _ranking(subject: Subject, batch: Batch, size: int) -> list[LossCall]:
    """Return the calls that rank samples: as many classes as samples, and a target made on the way."""
    copy = batch.clone()
    with subject.pristine(train=True, seeded=True) as model, torch.no_grad():
        watch = LossWatch(model)
        with watch:
            output = subject.call(model, copy)
            subject.compute_loss(output, copy)
    return [
        call
        for call in watch.calls
        if _ranks(call.op.name, tuple(call.input.shape), call.target_op is not None, size)
    ]


def _ranks(function: str, shape: tuple[int, ...], made_target: bool, size: int) -> bool:
    """Say whether a loss function that was given an input of a shape may rank so many samples."""
    return (
        function == "F.cross_entropy"
        and made_target
        and len(shape) == 2
        and shape[0] % size == 0
        and (shape[1] % size == 0 or (shape[1] + 1) % size == 0)
    )


def _keeps_columns(call: LossCall, again: LossCall, index: torch.Tensor) -> bool:
    """Say whether samples in another order move the rows of a criterion's input alone: its columns are classes."""
    rows, other = call.input.detach(), again.input.detach()
    if rows.shape != other.shape or len(rows) != len(index):
        return False
    return torch.allclose(rows[index.to(rows.device)], other, rtol=1e-4, atol=1e-5)


def _self_share(call: LossCall) -> float | None:
    """Return the weight of each sample's similarity to itself, where the similarities are of one set."""
    values = call.input.detach().double()
    if values.shape[0] != values.shape[1] or not bool(torch.isfinite(values.diagonal()).all()):
        return None
    if not torch.allclose(values, values.t(), rtol=1e-5, atol=1e-6):
        return None
    own = values.softmax(1).diagonal()
    best = (values.diagonal() >= values.amax(1) - 1e-9).double().mean()
    return float(own.mean()) if float(best) > 0.9 and float(own.mean()) > 1e-3 else None


def _reordered(batch: Batch, axes: dict[str, int], index: torch.Tensor) -> Batch:
    def take(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or path not in axes:
            return leaf
        return take_rows(leaf, axes[path], index)

    return batch.map(take)


def _loss_at(subject: Subject, batch: Batch, seed: int = 0) -> float:
    copy = batch.clone()
    with subject.pristine() as model, torch.no_grad():
        model.train(False)
        seed_everything(subject.seed + seed)
        return float(subject.compute_loss(subject.call(model, copy), copy))

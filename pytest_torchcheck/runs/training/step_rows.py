"""Whether a training step compares the outputs of samples with their own targets."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch.nn.modules.module import register_module_forward_hook

from ...batches.rows import choose_rows
from ...lean import dataclass
from ...objects import trees
from ...objects.kinds import shape_of
from ...probes.loss.arguments import by_step, targets_of
from ..variants.settling import Quiet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ...batches import Batch
    from ...subject import Subject

_MUCH: Final = 0.1
"""Of the largest change of a row: what statistics of the batch hand on to other samples is less."""
_MOSTLY: Final = 0.3
_SAMPLES: Final = 3
Part = Literal["inputs", "targets", "all"]


class OutputRows:
    """Keeps what the model returns in a step, and the gradients that come to it."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.gradients: dict[int, torch.Tensor] = {}

    @contextlib.contextmanager
    def around(self, model: nn.Module) -> Iterator[None]:
        """Watch the calls of a model for the length of the block."""

        def left(module: nn.Module, _args: Any, result: Any) -> None:
            if module is not model or not torch.is_grad_enabled():
                return
            for tensor in trees.floats(result).values():
                if tensor.dim() and tensor.requires_grad and trees.computable(tensor):
                    number = len(self.values)
                    self.values.append(tensor.detach().clone())
                    tensor.register_hook(lambda given, number=number: self._arrived(number, given))

        handle = register_module_forward_hook(left)
        try:
            yield
        finally:
            handle.remove()

    def _arrived(self, number: int, given: torch.Tensor) -> None:
        known = self.gradients.get(number)
        self.gradients[number] = given.detach().clone() if known is None else known + given.detach()

    def moved(self, other: OutputRows, size: int) -> torch.Tensor | None:
        """Return by how much each row of the outputs differs from another step's, ``[size]``."""
        return _apart(self.values, other.values, size)

    def pulled(self, other: OutputRows, size: int) -> torch.Tensor | None:
        """Return by how much the gradient of each row differs, ``[size]``."""
        if self.gradients.keys() != other.gradients.keys():
            return None
        ours, theirs = ([s.gradients[n] for n in sorted(s.gradients)] for s in (self, other))
        return _apart(ours, theirs, size)


def _apart(ours: list[torch.Tensor], theirs: list[torch.Tensor], size: int) -> torch.Tensor | None:
    """Return the largest change of each row, in parts of the largest of all; None where rows are not samples.

    Each call of the model has a row for each sample, or the calls share the samples among them, in order.
    """
    if not ours or list(map(shape_of, ours)) != list(map(shape_of, theirs)):
        return None
    counts = [len(t) for t in ours]
    if set(counts) == {size}:
        starts = [0] * len(ours)
    elif sum(counts) == size:
        starts = [sum(counts[:n]) for n in range(len(counts))]
    else:
        return None
    found = torch.zeros(size, dtype=torch.float64)
    for start, a, b in zip(starts, ours, theirs, strict=True):
        x, y = (trees.dense(t).reshape(len(a), -1).double().cpu() for t in (a, b))
        moved = (x - y).norm(dim=1) / max(float(x.norm(dim=1).max()), 1e-30)
        found[start : start + len(a)] = torch.maximum(found[start : start + len(a)], moved)
    if not bool(torch.isfinite(found).all()) or not bool(found.any()):
        return None
    return found / found.max()


def exchanged(
    subject: Subject, batch: Batch, other: Batch, samples: list[int], part: Part = "all"
) -> Batch:
    """Return the batch with some samples as they are in another one: their inputs, their targets, or both."""
    axes = subject.source.axes(subject.source.batch_symbol or "")
    others, inputs = other.tensors(), {path for path, _ in batch.input_leaves()}

    def change(path: str, leaf: Any) -> Any:
        kept = part != "all" and (path in inputs) != (part == "inputs")
        if kept or not isinstance(leaf, torch.Tensor) or path not in axes:
            return leaf
        keep = torch.ones(leaf.shape[axes[path]], dtype=torch.bool)
        keep[samples] = False
        return choose_rows(keep, leaf, others[path], axes[path])

    return batch.map(change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """What a step's outputs are compared with, where that is not their own targets.

    Attributes:
        mixed: Whether outputs are computed from samples that their targets leave out; else they are others'.
        sample: One sample.
        outputs: The rows of the outputs that its inputs move.
        targets: Those on which its targets pull.
    """

    mixed: bool
    sample: int
    outputs: tuple[int, ...]
    targets: tuple[int, ...]


def pairs_of(
    subject: Subject, batch: Batch, base: OutputRows, own: OutputRows, size: int
) -> Pairs | None:
    """Return what a step compares wrongly: the rows that a sample's inputs move are those that its targets pull on.

    Cost: 1 step; 20 more only where the two differ.

    Args:
        subject: The subject.
        batch: The batch of ``base``.
        base: The outputs of a step.
        own: Those of the same step with other inputs of the last sample.
        size: How many samples there are.

    Raises:
        SubjectError: The step raises.
    """
    if not targets_of(batch) or subject.contract.batch_dim != 0:
        return None
    first = _kind(*_rows(subject, batch, base, own, size - 1, size))
    if not first:
        return None
    seen = []
    for seed in (0, 1):
        again = _step(subject, batch, seed)
        for sample in sorted({0, size // 2, size - 1})[:_SAMPLES]:
            given = exchanged(subject, batch, subject.batch(1), [sample], "inputs")
            after = _step(subject, given, seed)
            rows = _rows(subject, batch, again, after, sample, size, seed)
            seen.append((sample, *rows, _kind(*rows)))
    told = [one for one in seen if one[3] == first]
    if any(one[3] not in ("", first) for one in seen) or 2 * len(told) < len(seen):
        return None
    sample, moved, pulled, _ = told[0]
    met = {sample: {_much(rows[1]) for rows in seen if rows[0] == sample} for sample, *_ in seen}
    if first == "mixed" and all(len(partners) == 1 for partners in met.values()):
        return None  # parts of the batch meet, always the same: a norm may see each of them
    return Pairs(mixed=first == "mixed", sample=sample, outputs=_much(moved), targets=_much(pulled))


def _step(subject: Subject, batch: Batch, seed: int) -> OutputRows:
    """Take a step in which torch's dropout and norms do what they do in evaluation."""
    rows = OutputRows()

    @contextlib.contextmanager
    def around(model: nn.Module) -> Iterator[None]:
        with rows.around(model), Quiet():
            yield

    by_step(subject, batch, seed=seed, around=around)
    return rows


def _rows(
    subject: Subject,
    batch: Batch,
    base: OutputRows,
    own: OutputRows,
    sample: int,
    size: int,
    seed: int = 0,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return how much each row moves with the inputs of a sample, and how much is pulled at it with its targets."""
    moved = base.moved(own, size)
    given = None if moved is None else _other_targets(subject, batch, sample)
    if given is None:
        return None, None
    return moved, base.pulled(_step(subject, given, seed), size)


def _other_targets(subject: Subject, batch: Batch, sample: int) -> Batch | None:
    """Return the batch with other targets of one sample; None where other batches have the same."""
    for index in (1, 2, 3):
        given = exchanged(subject, batch, subject.batch(index), [sample], "targets")
        theirs = targets_of(given)
        if any(not trees.same(t, theirs[path]) for path, t in targets_of(batch).items()):
            return given
    return None


def _much(rows: torch.Tensor | None) -> tuple[int, ...]:
    return () if rows is None else tuple((rows > _MUCH).nonzero().flatten().tolist())


def _kind(moved: torch.Tensor | None, pulled: torch.Tensor | None) -> str:
    """Say what is wrong with the rows that a sample's inputs move, beside those that its targets pull on."""
    if moved is None or pulled is None:
        return ""
    ours, theirs = _much(moved), _much(pulled)
    if len(ours) == len(theirs) == 1 and ours != theirs:
        return "others"
    mostly = (moved > _MOSTLY).nonzero().flatten().tolist()
    alone = set(theirs) < set(mostly) and not bool((moved > 0).all())
    return "mixed" if alone and not any(float(pulled[n]) for n in {*mostly} - {*theirs}) else ""

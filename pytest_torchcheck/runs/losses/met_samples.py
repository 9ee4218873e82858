"""Products of two numbers for each sample in which each number meets those of all samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from ... import sources
from ...lean import dataclass
from ...objects.weak import ByTensor
from ...probes.loss.axes import PRODUCTS, crosses
from ...probes.loss.consumption import SHAPE_ONLY
from ...probes.recorded.watch import Op, Watch, name_of, tensors_in
from ...probes.shared_noise import lonely_size
from ...state import seed_everything
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...batches import Batch
    from ...subject import Subject

_MEANS: Final = frozenset({"mean", "sum", "nanmean", "nansum"})
_SUMS: Final = frozenset(
    {"add", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "__rsub__", "neg", "__neg__"}
)
_READ: Final = frozenset(
    {"__get__", "size", "dim", "numel", "__len__", "is_floating_point", "stride", "ndimension"}
)


@dataclass(frozen=True, slots=True)
class MetSamples:
    """A product of one number for each sample with another, over all pairs of samples, that is only averaged.

    Attributes:
        op: The product.
        shapes: Of its operands, and of its result, with ``samples`` in place of the batch's size.
        samples: The size of the batch that was run.
        step: Whether it is part of a declared training step.
    """

    op: Op
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    samples: int
    step: bool


def met_samples(subject: Subject, *, step: bool = False) -> MetSamples | None:
    """Return the first such product of a forward and its loss, or of the step, in a batch of a size of its own.

    One operand must follow each sample: with another first sample, it changes there most.

    Cost: two forwards and losses, or steps; asked only where a product of these shapes was seen.
    """
    batch, size = subject.batch(), lonely_size(subject)
    symbol = subject.source.batch_symbol
    if size is None or symbol is None or batch.sizes[symbol] < 2:
        return None
    index = torch.arange(size) % batch.sizes[symbol]
    try:
        one = _run(subject, subject.source.rows(batch, index), size, step=step)
        if not one.found:
            return None
        index[0] = 1
        other = _run(subject, subject.source.rows(batch, index), size, step=step)
    except SubjectError:
        return None  # batch-sizes judges other sizes
    if len(one.found) != len(other.found):
        return None
    for (op, first), (_, second) in zip(one.found, other.found, strict=True):
        if _follows_samples(first, second):
            shapes = (
                tuple(first[0].shape),
                tuple(first[1].shape),
                (size, *first[1].shape[1:-1], size),
            )
            return MetSamples(op, shapes, size, step)
    return None


def _follows_samples(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> bool:
    """Say whether operands change most at the sample that was exchanged, and one of them does change."""
    changes = [(a - b).abs().flatten() for a, b in zip(first, second, strict=True)]
    moved = [change for change in changes if bool((change > 0).any())]
    return bool(moved) and all(int(change.argmax()) == 0 for change in moved)


def _run(subject: Subject, rows: Batch, size: int, *, step: bool) -> _Products:
    with subject.pristine(steps=step, train=True, seeded=True) as model:
        made = subject.make_optimizer(model) if step else None
        watch = _Products(model, size)
        seed_everything(subject.seed)
        with watch:
            if step:
                subject.train_step(model, made, rows.clone())
            else:
                given = rows.clone()
                subject.compute_loss(subject.call(model, given), given)
    return watch


class _Products(Watch):
    """Follows products over all pairs of samples to their means and sums.

    Args:
        module: Names are qualified relative to it.
        samples: How many samples the batch has; no other dimension should have this size.
    """

    def __init__(self, module: nn.Module, samples: int) -> None:
        super().__init__(module)
        self._samples = samples
        self._made: list[tuple[Op, tuple[Tensor, Tensor]]] = []
        self._followed: ByTensor[int] = ByTensor()
        self._turned: ByTensor[tuple[str, int]] = ByTensor()
        self._reduced: set[int] = set()
        self._otherwise: set[int] = set()

    @property
    def found(self) -> list[tuple[Op, tuple[Tensor, Tensor]]]:
        """The products with their operands that are reduced over both dimensions, and not used otherwise."""
        kept = self._reduced - self._otherwise
        return [one for number, one in enumerate(self._made) if number in kept]

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Follow one call."""
        bare = name_of(func).rpartition(".")[2]
        given = list(tensors_in((args, kwargs)))
        if not given or bare in _READ:
            return
        with torch._C.DisableTorchFunction():
            self._follow(bare, given, result)
            if isinstance(result, Tensor):
                self._begin(func, bare, given, result)

    def _begin(self, func: Any, bare: str, given: list[Tensor], result: Tensor) -> None:
        """Note a product of the shapes that are looked for; one whose dimension is added on its line is meant."""
        if bare in SHAPE_ONLY or bare in ("__getitem__", "unsqueeze"):
            if given[0].dim() < result.dim():
                self._turned[result] = self._statement()
            return
        if bare not in PRODUCTS or len(given) != 2 or not crosses(*given):
            return
        row, column = sorted(given, key=lambda tensor: tensor.dim())
        if len(row) != self._samples or any(bool((t == t.flatten()[0]).all()) for t in given):
            return
        if (made := self._turned.get(column)) is not None and made == self._statement():
            return
        self._followed[result] = len(self._made)
        values = row.detach().clone(), column.detach().clone()
        self._made.append((self.op(name_of(func)), values))

    def _statement(self) -> tuple[str, int]:
        """Return file and line of the innermost code that is no tool's: a library's counts as the user's does."""
        frames = ((frame.f_code.co_filename, frame.f_lineno) for frame in self.frames())
        return next(((file, line) for file, line in frames if sources.rank(file)), ("", 0))

    def _follow(self, bare: str, given: list[Tensor], result: Any) -> None:
        """Follow what is only averaged, added or given another shape; all else uses the pairs for something."""
        for tensor in given:
            if (number := self._followed.get(tensor)) is None:
                continue
            others = [t for t in given if t is not tensor]
            scaled = bare in PRODUCTS and all(t.dim() == 0 for t in others)
            plain = (
                bare in SHAPE_ONLY or bare in _SUMS or bare in _MEANS or bare == "detach" or scaled
            )
            if not isinstance(result, Tensor) or not plain:
                self._otherwise.add(number)
            elif self._samples in result.shape or result.numel() >= self._samples**2:
                self._followed[result] = number
            else:
                self._reduced.add(number)

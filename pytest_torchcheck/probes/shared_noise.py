"""Random tensors without a dimension for the samples that meet values of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from ..lean import dataclass
from ..objects.weak import ByTensor
from ..subject.errors import SubjectError
from .numbers.signal_facts import DRAWS, FILLS
from .perturbing import around_one
from .recorded.watch import Op, Watch, name_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..subject import Subject

_SUMS: Final = frozenset({"add", "sub", "radd", "rsub", "iadd", "isub"})
_PRODUCTS: Final = frozenset({"mul", "multiply", "imul", "rmul", "div", "true_divide", "idiv"})
_CHOICES: Final = frozenset({"where", "masked_fill"})
_SIZES: Final = (7, 5, 11, 13, 3)
_MANY: Final = 8
"""From how many random numbers on they are noise; a few decide something for the whole batch."""


@dataclass(frozen=True, slots=True)
class SharedNoise:
    """One operation that gives all samples the same random numbers.

    Attributes:
        draw: The call that drew.
        op: The operation.
        noise: Shape of the random tensor.
        values: Shape of what it meets.
        kind: ``mask`` for a dropout mask or factors around 1, ``added`` for noise in a sum.
    """

    draw: Op
    op: Op
    noise: tuple[int, ...]
    values: tuple[int, ...]
    kind: str


@dataclass(slots=True)
class _Known:
    """What is known of a tensor: computed from numbers and draws alone, or a product with such noise."""

    draw: Op | None
    size: int = 0
    noise: tuple[int, ...] = ()


def lonely_size(subject: Subject) -> int | None:
    """Return a number of samples that no other dimension of the batch or the parameters has.

    None where there is no such number, or no dimension for the samples.
    """
    symbol, batch = subject.source.batch_symbol, subject.batch()
    size = 0 if symbol is None else batch.sizes.get(symbol, 0)
    if symbol is None or not size:
        return None
    span = subject.source.symbols[symbol]
    axes = subject.source.axes(symbol)
    taken = {
        length
        for path, tensor in batch.tensors().items()
        for dim, length in enumerate(tensor.shape)
        if axes.get(path) != dim
    } | {length for tensor in subject.model.parameters() for length in tensor.shape}
    sizes = (
        n for n in _SIZES if n not in taken and not (span.declared and n > max(span.high, size))
    )
    return next(sizes, None)


def shared_noise(subject: Subject) -> SharedNoise | None:
    """Run a training forward of a batch whose size no other dimension has; return the first noise that samples share.

    None where there is no such size, or no dimension for the samples.
    """
    symbol, batch, size = subject.source.batch_symbol, subject.batch(), lonely_size(subject)
    if symbol is None or size is None:
        return None
    rows = subject.source.rows(batch, torch.arange(size) % batch.sizes[symbol])
    with subject.pristine(train=True, seeded=True) as model, torch.no_grad():
        watch = SharedNoiseWatch(model, size)
        try:
            with watch:
                subject.call(model, rows.clone())
        except SubjectError:
            return None  # batch-sizes judges other sizes
    return watch.found[0] if watch.found else None


class SharedNoiseWatch(Watch):
    """Follows what a forward computes from draws alone to values with a dimension of a certain size.

    Args:
        module: Names are qualified relative to it.
        samples: How many samples the batch has; no other dimension should have this size.
    """

    def __init__(self, module: nn.Module, samples: int) -> None:
        super().__init__(module)
        self.found: list[SharedNoise] = []
        self._samples = samples
        self._pure: ByTensor[_Known] = ByTensor()
        self._scaled: ByTensor[_Known] = ByTensor()

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Follow one call."""
        if not isinstance(result, Tensor):
            return
        name = name_of(func)
        with torch._C.DisableTorchFunction():
            self._follow(name, name.rpartition(".")[2].strip("_"), args, kwargs, result)

    def _follow(self, name: str, short: str, args: Any, kwargs: Any, result: Tensor) -> None:
        given = list(tensors_in((args, kwargs)))
        known = [self._pure.get(tensor) for tensor in given]
        fresh = not given or short.endswith("_like") or short.startswith("new_")
        drawn = short in DRAWS and (fresh or all(known) or (short in FILLS and name.endswith("_")))
        if drawn:
            self._pure[result] = _Known(self.op(name), result.numel())
        elif fresh:
            self._pure[result] = _Known(None)
        elif all(
            one is not None or tensor.dim() == 0 for one, tensor in zip(known, given, strict=True)
        ):
            sources = [one for one in known if one is not None and one.draw is not None]
            first = max(sources, key=lambda one: one.size, default=None)
            self._pure[result] = _Known(first.draw, first.size) if first else _Known(None)
        else:
            self._meets(name, short, given, known, result)

    def _meets(
        self, name: str, short: str, given: list[Tensor], known: list[_Known | None], result: Tensor
    ) -> None:
        """Look at an operation of noise, or of values that noise was multiplied with, and further values."""
        if self._samples not in result.shape or short not in _SUMS | _PRODUCTS | _CHOICES:
            return
        for tensor, one in zip(given, known, strict=True):
            if one is None or one.draw is None or one.size < _MANY or tensor.numel() < _MANY:
                continue
            rest = [t for t in given if t is not tensor and self._samples in t.shape]
            if not rest or self._samples in tensor.shape:
                continue
            shape = tuple(tensor.shape)
            if short in _SUMS:
                self._add(one.draw, name, shape, rest[0], "added")
            elif (
                short in _CHOICES or _is_mask(tensor) or around_one(tensor.detach().float(), _MANY)
            ):
                self._add(one.draw, name, shape, rest[0], "mask")
            else:
                self._scaled[result] = _Known(one.draw, one.size, shape)
            return
        if short in _SUMS:
            for tensor in given:
                one = self._scaled.get(tensor)
                rest = [t for t in given if t is not tensor and self._samples in t.shape]
                if one is not None and one.draw is not None and rest:
                    self._add(one.draw, name, one.noise, tensor, "added")

    def _add(self, draw: Op, name: str, noise: tuple[int, ...], values: Tensor, kind: str) -> None:
        self.found.append(SharedNoise(draw, self.op(name), noise, tuple(values.shape), kind))


def _is_mask(tensor: Tensor) -> bool:
    """Say whether a tensor holds zeros and one other number."""
    values = tensor.detach().float()
    top = values.max()
    return bool(((values == 0) | (values == top)).all()) and bool((values == 0).any())

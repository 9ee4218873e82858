"""Predictions that are compared with normal random numbers and nothing else, as by a diffusion model."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects.weak import ByTensor
from ..recorded.watch import tensors_in, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..recorded.watch import Op

_DRAWS: Final = frozenset({"randn", "randn_like", "normal", "normal_"})
_LOSSES: Final = frozenset({"F.mse_loss", "F.l1_loss", "F.smooth_l1_loss", "F.huber_loss"})
_LINEAR: Final = frozenset(
    {
        "add", "sub", "mul", "div", "neg", "rsub", "radd", "rmul", "truediv", "getitem", "chunk", "split", "cat", "stack",
        "view", "reshape", "transpose", "permute", "squeeze", "unsqueeze", "flatten", "contiguous", "float", "double",
        "to", "movedim", "T", "mT", "t", "unflatten", "expand", "clone", "detach", "type_as",
    }
)  # fmt: skip
"""What makes numbers of mean 0 of others."""
_SHIFTS: Final = frozenset({"add", "sub", "rsub", "radd"})
_SIZES: Final = frozenset({"pow", "square", "abs", "norm"})
_FEWEST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseTarget:
    """A comparison of a prediction with random numbers alone; plain data.

    Attributes:
        op: What compares them.
        drawn: What drew the numbers, the first one.
        draws: Which draws of the run they are, from 0.
        alike: Other draws of the run before it that have their shape.
    """

    op: Op
    drawn: Op
    draws: frozenset[int]
    alike: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Drawn:
    tensor: weakref.ref[Tensor]
    version: int | None
    draws: frozenset[int]


class NoiseTargets:
    """Follows draws of mean 0 through linear operations, to where a prediction is compared with them.

    Args:
        other: Draws that give other numbers: their own ones, negated and in another order.

    Attributes:
        found: The comparisons.
        predictions: What was compared, where ``other`` is given.
        ops: Every draw, with its shape.
    """

    def __init__(self, other: Collection[int] | None = None) -> None:
        self.found: list[NoiseTarget] = []
        self.predictions: list[Tensor] = []
        self._other = other
        self.ops: list[tuple[Op, tuple[int, ...]]] = []
        self._drawn: dict[int, _Drawn] = {}
        self._errors: ByTensor[tuple[Tensor, frozenset[int]]] = ByTensor()

    def see(
        self, name: str, bare: str, args: Any, kwargs: Any, result: Any, op: Callable[[], Op]
    ) -> None:
        """See one call."""
        if bare in _DRAWS and isinstance(result, Tensor):
            self._draw(bare, args, kwargs, result, op)
            return
        if not self._drawn:
            return
        if args and (error := self._errors.get(args[0])) is not None:
            squared = bare in ("mul", "__mul__") and args[1:2] and args[1] is args[0]
            if squared or bare.strip("_") in _SIZES:
                self._compared(*error, op)
            return
        given = list(tensors_in((args, kwargs)))
        known = [self._of(tensor) for tensor in given]
        if not any(known):
            return
        short = bare.strip("_")
        if len(given) > 1 and None in known[:2] and (name in _LOSSES or short in ("sub", "rsub")):
            draws, guess = (known[0], given[1]) if known[0] else (known[1], given[0])
            if draws and guess.requires_grad and guess.shape == given[0].shape == given[1].shape:
                if name in _LOSSES:
                    self._compared(guess, draws, op)
                else:
                    self._errors[result] = (guess, draws)
            return
        shifted = short in _SHIFTS and len(given) < 2
        if short in _LINEAR and not shifted and all(known):
            draws = frozenset[int]().union(*(one for one in known if one))
            for tensor in tensors_in(result):
                self._keep(tensor, draws)

    def _draw(
        self, bare: str, args: Any, kwargs: Any, result: Tensor, op: Callable[[], Op]
    ) -> None:
        number = len(self.ops)
        self.ops.append((op(), tuple(result.shape)))
        if self._other is not None and number in self._other and result.numel() > 1:
            with torch.no_grad():
                result.copy_(-result.flatten().roll(1).view(result.shape))
        mean = kwargs.get("mean", next(iter(args[bare == "normal_" :]), 0.0))
        centred = not bare.startswith("normal") or (isinstance(mean, int | float) and mean == 0)
        if centred and not result.requires_grad and result.numel() >= _FEWEST:
            self._keep(result, frozenset({number}))

    def _keep(self, tensor: Tensor, draws: frozenset[int]) -> None:
        self._drawn[id(tensor)] = _Drawn(weakref.ref(tensor), version_of(tensor), draws)

    def _of(self, tensor: Tensor) -> frozenset[int] | None:
        """Return the draws that a tensor is made of alone, None where it is made of anything else."""
        found = self._drawn.get(id(tensor))
        if found is None or found.tensor() is not tensor or found.version != version_of(tensor):
            return None
        return found.draws

    def _compared(self, guess: Tensor, draws: frozenset[int], op: Callable[[], Op]) -> None:
        if self._other is not None:
            self.predictions.append(guess.detach().clone())
        first, shape = self.ops[min(draws)]
        alike = (n for n, (_, size) in enumerate(self.ops) if n not in draws and size == shape)
        self.found.append(NoiseTarget(op=op(), drawn=first, draws=draws, alike=tuple(alike)))

"""In which orders a training step takes the samples of its inputs, and those of its targets, to mix them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects.weak import ByTensor
from ..recorded.watch import storage_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..recorded.watch import Op

Order = tuple[int, ...]
_Kind = Literal["inputs", "targets", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouped:
    """Samples that a step takes in one order of their inputs and in another of their targets.

    Attributes:
        inputs: What takes inputs in another order.
        targets: What takes targets in another one.
        apart: For how many samples the two orders name different ones.
        size: How many samples there are.
    """

    inputs: Op
    targets: Op
    apart: int
    size: int


class Regroupings:
    """Notes the permutations of samples that a step applies itself, outside of its modules.

    Args:
        inputs: Tensors of the batch's inputs.
        targets: Those of its targets.
    """

    def __init__(self, inputs: Iterable[Tensor], targets: Iterable[Tensor]) -> None:
        self._found: dict[_Kind, dict[Order, Op]] = {"inputs": {}, "targets": {}}
        self._kinds: ByTensor[_Kind] = ByTensor()
        self._given: dict[Any, _Kind] = {}
        self._read = False
        given, wanted = list(inputs), [t for t in targets if t.dim()]
        self._size = len(wanted[0]) if wanted else 0
        self._give(given, "inputs")
        self._give(wanted, "targets")

    def _give(self, tensors: Iterable[Tensor], kind: _Kind) -> None:
        for tensor in tensors:
            if tensor.dim() and len(tensor) == self._size and (key := storage_of(tensor)):
                self._given[key] = kind

    def see(self, bare: str, args: Any, kwargs: Any, result: Any, op: Callable[[], Op]) -> None:
        """See a call outside of all modules."""
        if not self._given or not isinstance(result, Tensor) or result.requires_grad:
            return
        kinds = {kind for t in tensors_in((args, kwargs)) if (kind := self._kind(t)) is not None}
        if not kinds:
            return
        kind = kinds.pop() if len(kinds) == 1 else "both"
        self._kinds[result] = kind
        if kind == "both" or not result.dim() or len(result) != self._size:
            return
        order = _order(bare, args, kwargs, self._size)
        if order is not None and order != tuple(range(self._size)):
            self._found[kind].setdefault(order, op())

    def called(self, given: Iterable[Tensor]) -> None:
        """See what a module is called with: targets that it reads may be paired with other inputs on purpose."""
        self._read = self._read or any(self._kind(t) in ("targets", "both") for t in given)

    def apart(self) -> Regrouped | None:
        """Return two orders, where no order of the inputs is one of the targets."""
        inputs, targets = self._found["inputs"], self._found["targets"]
        if self._read or not inputs or not targets or inputs.keys() & targets.keys():
            return None
        one, two = next(iter(inputs)), next(iter(targets))
        apart = sum(a != b for a, b in zip(one, two, strict=True))
        return Regrouped(inputs=inputs[one], targets=targets[two], apart=apart, size=self._size)

    def _kind(self, tensor: Tensor) -> _Kind | None:
        known = self._kinds.get(tensor)
        if known is not None:
            return known
        key = storage_of(tensor) if tensor.dim() and len(tensor) == self._size else None
        return None if key is None else self._given.get(key)


def _order(bare: str, args: Any, kwargs: Any, size: int) -> Order | None:
    """Return the sample that each row of a result is, where a call puts whole samples in another order."""
    rest = (*args[1:], *kwargs.values())
    if bare == "__getitem__" and len(args) > 1:
        index = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
        return _permutation(index, size)
    if bare == "index_select" and 0 in [one for one in rest if isinstance(one, int)]:
        return _permutation(next((t for t in rest if isinstance(t, Tensor)), None), size)
    if bare == "flip" and any(one in (0, (0,), [0]) for one in rest if not isinstance(one, Tensor)):
        return tuple(reversed(range(size)))
    return None


def _permutation(index: Any, size: int) -> Order | None:
    if isinstance(index, list) and all(isinstance(one, int) for one in index):
        index = torch.tensor(index)
    if not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32):
        return None
    if index.shape != (size,):
        return None
    order = tuple(int(one) for one in index.tolist())
    return order if sorted(order) == list(range(size)) else None

"""What an indexed assignment writes over values that nothing has read, and what an activation writes over an input."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects.weak import ByTensor
from .watch import readable, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from ...findings import Location

_LARGEST = 1 << 22
"""Elements of a tensor that is followed."""


ACTIVATIONS = frozenset(
    {
        "relu", "relu6", "leaky_relu", "rrelu", "prelu", "elu", "celu", "selu", "silu", "mish", "hardswish",
        "hardtanh", "hardsigmoid", "threshold", "tanh", "sigmoid", "dropout", "dropout2d", "dropout3d",
    }
)  # fmt: skip
"""Functions of one tensor that layers apply in place, without the underscore of those that do nothing else."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """An activation in place of what a block was given.

    Attributes:
        location: The line.
        module: The name of the module that runs it.
    """

    location: Location
    module: str


@dataclass(slots=True)
class Overwriting:
    """A line that writes values with a graph over its own earlier ones.

    Attributes:
        location: The line.
        module: The name of the module that runs it.
        shape: Of the tensor that it writes to.
        written: How many elements it wrote, each counted as often as it was written.
        lost: How many of them a later turn wrote over, unread.
        turns: How often it ran.
    """

    location: Location
    module: str
    shape: tuple[int, ...]
    written: int = 0
    lost: int = 0
    turns: int = 0


@dataclass(slots=True)
class _Written:
    """What a line has written to one tensor since that was last read."""

    tensor: weakref.ref[Tensor]
    storage: int
    mask: Tensor
    told: Overwriting


class Overwrites:
    """Follows tensors that a line assigns to by an index, until any function is given their memory."""

    def __init__(self) -> None:
        self._open: dict[int, _Written] = {}
        self._found: list[Overwriting] = []
        self._entered: ByTensor[int | None] = ByTensor()
        self.of_inputs: dict[str, InPlace] = {}

    def entered(self, module: nn.Module, given: Tensor | None) -> None:
        """Note what a module is given, where it holds others: a block, and no activation by itself."""
        if given is not None and next(module.children(), None) is not None:
            self._entered[given] = version_of(given)

    def called(
        self,
        name: str,
        args: Any,
        given: list[Tensor],
        module: str,
        locate: Callable[[], Location | None],
    ) -> None:
        """See one call and the tensors that it was given."""
        if self._entered and name.rstrip("_") in ACTIVATIONS and given:
            version = self._entered.get(given[0])
            if version is not None and version_of(given[0]) != version and (line := locate()):
                self.of_inputs[str(line)] = InPlace(line, module)
        assigns = name == "__setitem__"
        self.given(t for t in given if not assigns or t is not args[0])
        if assigns:
            self.assigned(args, module, locate)

    def given(self, tensors: Iterable[Tensor]) -> None:
        """Note that a call reads some tensors: what was written to their memory is no longer lost."""
        if not self._open:
            return
        storages = {t.untyped_storage().data_ptr() for t in tensors if readable(t)}
        self._open = {k: one for k, one in self._open.items() if one.storage not in storages}

    def assigned(self, args: Any, module: str, locate: Callable[[], Location | None]) -> None:
        """Note an indexed assignment.

        Args:
            args: The tensor, the index, and what was assigned.
            module: The name of the module that runs.
            locate: Returns the line.
        """
        target, key, value = args
        known = self._open.get(id(target))
        if known is not None and known.tensor() is not target:
            known = None
        follows = isinstance(value, Tensor) and value.requires_grad and readable(target)
        line = locate() if follows and 0 < target.numel() <= _LARGEST else None
        if line is None or (known is not None and known.told.location != line):
            self._open.pop(id(target), None)
            known = None
        if line is None:
            return
        now = torch.zeros(target.shape, dtype=torch.bool, device=target.device)
        now[key] = True
        if known is None:
            storage = target.untyped_storage().data_ptr()
            told = Overwriting(line, module, tuple(target.shape))
            known = _Written(weakref.ref(target), storage, torch.zeros_like(now), told)
            self._open[id(target)] = known
            self._found.append(told)
        told = known.told
        told.turns += 1
        told.written += int(now.sum())
        told.lost += int((known.mask & now).sum())
        known.mask |= now

    def found(self) -> tuple[list[Overwriting], list[InPlace]]:
        """Return the lines that lost something, once each, and the activations in place of a block's input."""
        lost = {str(one.location): one for one in self._found if one.lost}
        return list(lost.values()), list(self.of_inputs.values())

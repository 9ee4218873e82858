"""Which bias an output of a model is free to follow, and runs in which it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ...lean import dataclass
from ...objects import trees
from ...record.hooks import hooked
from ..recorded.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from ...findings import Location

_CLAMPS: Final = frozenset(
    {"clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_max", "hardtanh"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """The bias that is added last to an output.

    Attributes:
        name: Of the parameter.
        start: Its first entry in the output.
        width: How many there are.
        dim: Where they stand in the output.
    """

    name: str
    start: int
    width: int
    dim: int


class Clamps(Watch):
    """Leaves out the clamps that do nothing in the first run that it sees, in this and all later ones.

    A clamp that no value reaches is a guard, not what an output is made of: without it the output follows its bias.

    Attributes:
        lines: Where they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Location] = []
        self._idle: list[bool] = []
        self._again = False
        self._seen = 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._again, self._seen = True, 0

    def around(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one call, or return its operand."""
        if getattr(func, "__name__", "") not in _CLAMPS or not isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        place, self._seen = self._seen, self._seen + 1
        if not self._again:
            with torch._C.DisableTorchFunction():
                given = args[0].detach().clone()
                result = func(*args, **kwargs)
                self._idle.append(trees.same(result.detach(), given))
            if self._idle[-1] and (line := self.locate()) is not None:
                self.lines.append(line)
            return args[0] if self._idle[-1] else result
        return args[0] if self._idle[place : place + 1] == [True] else func(*args, **kwargs)


def freed(model: nn.Module, run: Callable[[], Any]) -> dict[str, Freed]:
    """Return, for each output that a linear layer or a convolution gave as it is, the bias behind it."""
    made: list[tuple[str, int, Tensor]] = []
    handles = [
        module.register_forward_hook(
            lambda m, _i, out, name=name: made.append(
                (f"{name}.bias", 1 if isinstance(m, _ConvNd) else out.dim() - 1, out)
            )
        )
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | _ConvNd) and isinstance(module.bias, nn.Parameter)
    ]
    with hooked(handles):
        output = run()
    found = {}
    for path, given in trees.floats(output).items():
        for name, dim, tensor in made:
            if (one := _part(given, name, dim, tensor)) is not None:
                found[path] = one
    return found


def _part(given: Tensor, name: str, dim: int, made: Tensor) -> Freed | None:
    """Say which part of a layer's result an output is, cut off along the layer's units alone."""
    if not isinstance(made, Tensor) or not 0 < dim < made.dim():
        return None
    if given.untyped_storage().data_ptr() != made.untyped_storage().data_ptr():
        return None
    if given.dim() != made.dim() or given.stride() != made.stride():
        single = made.shape[dim] == 1 and given.numel() == made.numel()
        return Freed(name=name, start=0, width=1, dim=given.dim()) if single else None
    start = int(given.storage_offset() - made.storage_offset()) // max(made.stride(dim), 1)
    rest = [
        a == b
        for axis, (a, b) in enumerate(zip(given.shape, made.shape, strict=True))
        if axis != dim
    ]
    if all(rest) and 0 <= start <= made.shape[dim] - given.shape[dim]:
        return Freed(name=name, start=start, width=given.shape[dim], dim=dim)
    return None

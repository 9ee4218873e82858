"""A run in float64 that stays in it where the model asks for float32: attention that takes its softmax there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ..probes.recorded.watch import name_of
from ..record.modes import Observer

if TYPE_CHECKING:
    from collections.abc import Callable

_CASTS: Final = frozenset({"to", "type", "type_as", "float", "half", "bfloat16"})


class Widened(Observer):
    """Leave out the casts of float64 to a narrower dtype, and compute in float64 what is asked for in one.

    A zero that float32 leaves as rounding noise is one in float64 only if nothing on the way is rounded.
    """

    def around(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        """Run a call on float64 without the cast that it makes."""
        first = args[0] if args else None
        if not isinstance(first, torch.Tensor) or first.dtype != torch.float64:
            return func(*args, **kwargs)
        if name_of(func).rpartition(".")[2] in _CASTS:
            result = func(*args, **kwargs)
            if not isinstance(result, torch.Tensor) or not result.is_floating_point():
                return result
            return result if result.dtype == torch.float64 else first.to(result.device)
        asked = kwargs.get("dtype")
        if isinstance(asked, torch.dtype) and asked.is_floating_point and _narrows(func):
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


def _narrows(func: Callable[..., Any]) -> bool:
    """Say whether a dtype that a function is given is the one it computes in, and not that of a new tensor."""
    name = name_of(func).rpartition(".")[2]
    return not name.startswith("new_") and not name.endswith("_like")

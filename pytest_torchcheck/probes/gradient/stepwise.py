"""Operations whose derivative is zero everywhere: what they are given cannot be learnt through them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..recorded.watch import Op, Watch, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

_STEPS = frozenset({"round", "floor", "ceil", "trunc", "sign", "fix", "sgn"})


class Stepwise(Watch):
    """Notes calls that give a constant by pieces of what requires a gradient, each line once.

    Rounding and signs, and the grid of :func:`torch.nn.functional.grid_sample` with
    ``mode="nearest"``, whose gradient is documented for ``bilinear`` and ``bicubic`` only.
    """

    def __init__(self, module: Any = None) -> None:
        super().__init__(module)
        self.found: dict[tuple[str, Any], tuple[Op, str]] = {}

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See one call."""
        name = name_of(func)
        bare = name.rpartition(".")[2].rstrip("_")
        given, what = None, ""
        if bare in _STEPS:
            given, what = next(iter(args), None), "what it is given"
        elif bare == "grid_sample" and "nearest" in (*args[2:3], kwargs.get("mode")):
            given, what = (args[1] if len(args) > 1 else kwargs.get("grid")), "its grid"
        if isinstance(given, Tensor) and given.requires_grad:
            op = self.op(name)
            self.found.setdefault((name, op.location), (op, what))

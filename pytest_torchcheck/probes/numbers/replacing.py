"""Lines that replace NaN or infinity, and put no finite number there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...lean import dataclass
from ..recorded.watch import Watch, name_of, readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ...findings import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacing:
    """A call that replaces what a test found, by values that are not finite.

    Attributes:
        op: Its name.
        location: The line.
        test: The test, such as ``torch.isinf``.
        left: How many elements are replaced and not finite.
        replaced: How many are replaced.
    """

    op: str
    location: Location
    test: str
    left: int
    replaced: int


_BAD = frozenset({"isnan", "isinf", "isposinf", "isneginf"})
_NOT = frozenset({"bitwise_not", "logical_not", "__invert__", "invert"})
_PUTS = frozenset({"where", "masked_fill", "masked_fill_", "__setitem__"})


class _Replaces(Watch):
    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        # the tensor is kept, because an id is reused once its object is gone
        self._tests: dict[int, tuple[Tensor, str, bool]] = {}
        self.found: list[Replacing] = []

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See one call."""
        bare = name_of(func).rpartition(".")[2]
        if bare in _BAD or bare == "isfinite":
            self._tests[id(result)] = result, name_of(func), bare in _BAD
        elif not self._tests:
            return
        elif bare in _NOT and (known := self._tests.get(id(args[0]))) is not None:
            self._tests[id(result)] = result, known[1], not known[2]
        elif bare in _PUTS and args:
            given = [self._tests[id(a)] for a in args if id(a) in self._tests]
            whole = args[0] if bare == "__setitem__" else result
            written = any(isinstance(a, float) and not math.isfinite(a) for a in args)
            if given and not written and isinstance(whole, Tensor) and readable(whole):
                self._put(name_of(func), whole, *given[0])

    def _put(self, op: str, whole: Tensor, mask: Tensor, test: str, bad: bool) -> None:
        try:
            replaced = (mask if bad else ~mask).expand(whole.shape)
        except RuntimeError:  # a mask of some dimensions alone
            return
        left = int((replaced & ~torch.isfinite(whole)).sum())
        if left and (line := self.locate()) is not None:
            self.found.append(
                Replacing(op=op, location=line, test=test, left=left, replaced=int(replaced.sum()))
            )


def find_replacing(run: Callable[[], object], module: nn.Module) -> Replacing | None:
    """Return the first call of a run that puts NaN or infinity where a test has found some.

    One that is written there as a number is meant.
    """
    watch = _Replaces(module)
    with watch:
        run()
    return watch.found[0] if watch.found else None

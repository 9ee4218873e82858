"""Promises about derivatives and precision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
from .base import Promise, PromiseError, reason_of


@dataclass(frozen=True, slots=True)
class TwiceDifferentiable(Promise):
    """Second derivatives of the contract's functions are right."""


@dataclass(frozen=True, slots=True)
class Differentiable(Promise):
    """The whole model's gradients are its derivatives: of every parameter and floating input, in float64.

    Not for models that stop gradients on purpose (a target network, a codebook, a teacher).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StraightThrough(Promise):
    """The backward of these autograd Functions is a surrogate by design.

    Attributes:
        functions: Class names of the Functions.
        reason: Why.
        of: The function whose derivative the backward gives, called with the same arguments, such as
            ``lambda x: x`` for a rounding passed straight through; the gradient is then held to it.
            None where there is none, and then its values are not compared.
    """

    functions: tuple[str, ...] = field(kw_only=False)
    reason: str
    of: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.functions, str):
            object.__setattr__(self, "functions", (self.functions,))
        if (
            not isinstance(self.functions, (tuple, list))
            or not self.functions
            or not all(isinstance(name, str) for name in self.functions)
        ):
            raise PromiseError(
                f"StraightThrough(functions=) must name autograd Functions (str); got {self.functions!r}"
            )
        reason_of("StraightThrough", self.reason)
        if self.of is not None and not callable(self.of):
            raise PromiseError(f"StraightThrough(of=) must be callable; got {self.of!r}")


@dataclass(frozen=True, slots=True)
class AllowsTF32(Promise):
    """With TF32 allowed, results on the GPU stay within the rounding of its products."""


@dataclass(frozen=True, slots=True, init=False)
class Autocasts(Promise):
    """Under autocast the model runs, and errs no more than rounding every layer would.

    Attributes:
        dtypes: ``bfloat16``, ``float16`` or both; float16 is for GPUs.
    """

    dtypes: tuple[str, ...]

    def __init__(self, *dtypes: str) -> None:
        names = tuple(str(dtype).removeprefix("torch.") for dtype in dtypes or ("bfloat16",))
        for name in names:
            if name not in ("bfloat16", "float16"):
                raise PromiseError(f"Autocasts() takes bfloat16 and float16; got {name!r}")
        object.__setattr__(self, "dtypes", names)

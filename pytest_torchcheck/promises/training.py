"""Promises about derivatives, precision and the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..lean import dataclass
from .base import Promise, PromiseError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Accumulates(Promise):
    """``n`` micro-batches through ``micro_step`` give the full batch's gradient.

    Attributes:
        n: How many micro-batches.
        micro_step: ``(model, inputs, targets, ...)`` of the user's loop, or None to use ``train_step``.
    """

    n: int
    micro_step: Callable[..., Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 2:
            raise PromiseError(f"Accumulates(n) must be an int of at least 2; got {self.n!r}")
        if self.micro_step is not None and not callable(self.micro_step):
            raise PromiseError(
                f"Accumulates(micro_step=) must be callable; got {self.micro_step!r}"
            )


@dataclass(frozen=True, slots=True)
class Schedule(Promise):
    """The learning rate meant for each step: a function of the step from 0, or a sequence.

    It is the rate that the optimizer has when its step begins; of one that sets the rate within its step, it may
    also be the one when the step ends.
    """

    lr: Callable[[int], float] | Iterable[float]

    def __post_init__(self) -> None:
        if callable(self.lr):
            return
        values = (
            tuple(self.lr) if isinstance(self.lr, Iterable) and not isinstance(self.lr, str) else ()
        )
        if not values or not all(isinstance(v, int | float) for v in values):
            raise PromiseError(
                f"Schedule(lr) must be a function step -> lr or a non-empty sequence of numbers; got {self.lr!r}"
            )
        object.__setattr__(self, "lr", values)


@dataclass(frozen=True, slots=True)
class ClipsGradients(Promise):
    """The total norm of the gradients is at most ``max_norm`` when the optimizer steps."""

    max_norm: float

    def __post_init__(self) -> None:
        if (
            isinstance(self.max_norm, bool)
            or not isinstance(self.max_norm, int | float)
            or self.max_norm <= 0
        ):
            raise PromiseError(
                f"ClipsGradients(max_norm) must be a positive number; got {self.max_norm!r}"
            )


@dataclass(frozen=True, slots=True)
class SkipsNonFinite(Promise):
    """A gradient that is NaN or infinite never reaches the weights: the step is skipped, or raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingAverage(Promise):
    """After every step, one part of the model is the moving average of another one.

    Attributes:
        target: Qualified name of the averaged module.
        source: Qualified name of the module that trains.
        decay: Share of its old value that the average keeps.
    """

    target: str
    source: str
    decay: float

    def __post_init__(self) -> None:
        for field_, name in (("target", self.target), ("source", self.source)):
            if not isinstance(name, str) or not name:
                raise PromiseError(
                    f"MovingAverage({field_}=) must be a module's qualified name; got {name!r}"
                )
        if (
            isinstance(self.decay, bool)
            or not isinstance(self.decay, int | float)
            or not 0 <= self.decay < 1
        ):
            raise PromiseError(f"MovingAverage(decay=) must be in [0, 1); got {self.decay!r}")


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

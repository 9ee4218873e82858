"""Limits that a contract declares: memory, growth, devices, dtypes, ranks, seconds, and speed beside another model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import torch

from ..lean import dataclass
from ..text.calls import Declaring
from ..text.units import parse_bytes
from ..text.wording import unknown

if TYPE_CHECKING:
    from torch import nn

DEVICE_TYPES: Final = ("cpu", "cuda", "meta", "xpu", "mps")


DTYPES: Final = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""What ``dtypes`` may name; complex models keep their complex parts at the matching width."""


FULL_PRECISION: Final = ("float32", "float64")


PHASES: Final = ("forward", "loss", "backward", "optimizer", "total")


CATEGORIES: Final = (
    "parameters", "buffers", "inputs", "activations", "temporaries", "gradients", "optimizer_state",
)  # fmt: skip


class DeclarationError(ValueError):
    """A contract was declared in a way that makes no sense; the message says what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overfit(metaclass=Declaring):
    """How hard to try to overfit one batch.

    Attributes:
        steps: Most plain training steps that the check may spend, everything included.
        ratio: What part of the distance between the first loss and its floor may remain. Where a
            contract declares no ``overfit``, a quarter may where Adam learns a few samples and the
            floor is known, and more where the loss of labels is clearly below that of scores which
            are the same for all samples and positions: then they follow the inputs.
    """

    _refuses: ClassVar[type[Exception]] = DeclarationError

    steps: int = 40
    ratio: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise DeclarationError(
                f"Overfit(steps=) must be an int of at least 1; got {self.steps!r}"
            )
        if not isinstance(self.ratio, int | float) or not 0 < self.ratio < 1:
            raise DeclarationError(
                f"Overfit(ratio=) must be between 0 and 1, both excluded; got {self.ratio!r}"
            )


UNDECLARED = Overfit()
"""What a contract that says nothing of ``overfit`` is held to; of a few samples a larger ratio is enough then."""


def share_or_size(field: str, parse: Callable[[Any], int], value: Any) -> int:
    """Return a number as ``parse`` reads it, or raise with the name of the field."""
    try:
        return parse(value)
    except (TypeError, ValueError) as error:
        said = str(error)
        raise DeclarationError(said if said.startswith(field) else f"{field}: {said}") from None


def checked_speed(speed: Any) -> dict[Kind, Speed]:
    """Return what is declared of the time beside another model, by what is timed."""
    try:
        return speeds_of(speed)
    except ValueError as error:
        raise DeclarationError(str(error)) from None


def checked_memory(memory: Any) -> dict[str, int]:
    """Return bytes by phase or category; a single ceiling is that of the total."""
    if memory is None:
        return {}
    if not isinstance(memory, Mapping):
        return {"total": share_or_size("memory", parse_bytes, memory)}
    allowed = (*PHASES, *CATEGORIES)
    for name in memory:
        if name not in allowed:
            raise DeclarationError(unknown("memory", name, allowed))
    if not memory:
        raise DeclarationError(
            f"memory: the mapping is empty; allowed keys are: {', '.join(allowed)}"
        )
    return {
        name: share_or_size(f"memory[{name!r}]", parse_bytes, value)
        for name, value in memory.items()
    }


def checked_growth(growth: Any) -> dict[str, float]:
    """Return the largest power allowed for each symbol."""
    if growth is None:
        return {}
    if not isinstance(growth, Mapping):
        raise DeclarationError(
            f'growth: must map symbols to powers, such as {{"B": 1, "T": 2}}; got {growth!r}'
        )
    for symbol, power in growth.items():
        if isinstance(power, bool) or not isinstance(power, int | float) or power < 0:
            raise DeclarationError(
                f"growth[{symbol!r}]: must be a power of at least 0; got {power!r}"
            )
    return dict(growth)


def checked_devices(devices: Any) -> tuple[str, ...] | None:
    """Return names of devices of known types, or None where none are declared."""
    if devices is None:
        return None
    if isinstance(devices, str | torch.device):
        devices = (devices,)
    made = []
    for device in devices:
        text = str(device)
        kind, _, index = text.partition(":")
        if kind not in DEVICE_TYPES or (index and not index.isdigit()):
            raise DeclarationError(
                f"devices: {text!r} is not a valid device; choose from {', '.join(DEVICE_TYPES)}, "
                "and an index as in 'cuda:1'"
            )
        made.append(text)
    if not made:
        raise DeclarationError(f"devices: is empty; allowed are {', '.join(DEVICE_TYPES)}")
    return tuple(dict.fromkeys(made))


def checked_dtypes(dtypes: Any) -> tuple[str, ...] | None:
    """Return names of floating dtypes, or None where none are declared."""
    if dtypes is None:
        return None
    if isinstance(dtypes, str | torch.dtype):
        dtypes = (dtypes,)
    made = []
    for dtype in dtypes:
        text = str(dtype).removeprefix("torch.")
        if text not in DTYPES:
            raise DeclarationError(unknown("dtypes", text, tuple(DTYPES)))
        made.append(text)
    if not made:
        raise DeclarationError(f"dtypes: is empty; allowed are {', '.join(DTYPES)}")
    return tuple(dict.fromkeys(made))


def checked_ranks(ranks: Any) -> int | None:
    """Return how many ranks, at least 1, or None."""
    if ranks is not None and (
        isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= 16
    ):
        raise DeclarationError(f"ranks: must be an int from 1 to 16; got {ranks!r}")
    return ranks


def checked_budget(budget: Any) -> float | None:
    """Return how many training steps the checks may take, or None."""
    if budget is None:
        return None
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise DeclarationError(
            f"budget: must be a number of plain training steps above 0, such as 30; got {budget!r}"
        )
    return float(budget)


def checked_range(value: Any) -> tuple[float, float] | None:
    """Return the lowest and highest value allowed, or None."""
    if value is None:
        return None
    if (
        not isinstance(value, Sequence)
        or len(value) != 2
        or not all(isinstance(v, int | float) for v in value)
        or not value[0] < value[1]
    ):
        raise DeclarationError(f"output_range: must be (low, high) with low < high; got {value!r}")
    return float(value[0]), float(value[1])


Kind = Literal["forward", "inference", "training-step"]
KINDS: Final[tuple[Kind, ...]] = ("forward", "inference", "training-step")
"""What can be timed: a forward in training mode with its graph, one in evaluation mode without, a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faster(metaclass=Declaring):
    """The model takes at most ``1 / by`` of another model's time on the same batch.

    Attributes:
        than: The other model: a factory ``() -> nn.Module``, or a module, called with the same inputs.
        by: How many times as fast; at least 1.
    """

    _refuses: ClassVar[type[Exception]] = ValueError

    than: Callable[[], nn.Module] | nn.Module
    by: float = 1.0

    def __post_init__(self) -> None:
        _other("Faster", self.than)
        if isinstance(self.by, bool) or not isinstance(self.by, int | float) or not self.by >= 1:
            raise ValueError(f"Faster(by=) must be a number of at least 1; got {self.by!r}")

    @property
    def limit(self) -> float:
        """The largest allowed ratio of the model's time to the other's."""
        return 1 / self.by

    def __str__(self) -> str:
        return f"Faster(by={self.by:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowerBy(metaclass=Declaring):
    """The model takes at most ``at_most`` times another model's time on the same batch.

    Attributes:
        than: The other model: a factory ``() -> nn.Module``, or a module, called with the same inputs.
        at_most: The largest ratio, such as 1.05 for 5 % more time.
    """

    _refuses: ClassVar[type[Exception]] = ValueError

    than: Callable[[], nn.Module] | nn.Module
    at_most: float = 1.05

    def __post_init__(self) -> None:
        _other("SlowerBy", self.than)
        given = self.at_most
        if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
            raise ValueError(
                f"SlowerBy(at_most=) must be a ratio above 0, such as 1.05; got {given!r}"
            )

    @property
    def limit(self) -> float:
        """The largest allowed ratio of the model's time to the other's."""
        return self.at_most

    def __str__(self) -> str:
        return f"SlowerBy(at_most={self.at_most:g})"


Speed = Faster | SlowerBy


def _other(owner: str, than: Any) -> None:
    if not callable(than):
        raise ValueError(
            f"{owner}(than=) must be a factory () -> nn.Module, or a module; got {than!r}"
        )


def kind_of(given: Any) -> Kind:
    """Return what is to be timed.

    Raises:
        ValueError: It is none of :data:`KINDS`.
    """
    for kind in KINDS:
        if given == kind:
            return kind
    raise ValueError(unknown("speed", given, KINDS))


def speeds_of(given: Any) -> dict[Kind, Speed]:
    """Return the declared ratios by what is timed.

    Raises:
        ValueError: It is no mapping from :data:`KINDS` to :class:`Faster` or :class:`SlowerBy`.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(
            f'speed: must map what is timed to a ratio, such as {{"forward": SlowerBy(than=Old)}}; got {given!r}'
        )
    for kind, ratio in given.items():
        kind_of(kind)
        if not isinstance(ratio, Faster | SlowerBy):
            raise ValueError(
                f"speed[{kind!r}]: allowed are Faster(than=, by=) and SlowerBy(than=, at_most=); got {ratio!r}"
            )
    return dict(given)

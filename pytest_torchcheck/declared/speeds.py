"""How fast a model must be, beside another that does the same: ratios, which hold on any machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from ..text.calls import Declaring
from ..text.nearest import unknown

if TYPE_CHECKING:
    from torch import nn

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

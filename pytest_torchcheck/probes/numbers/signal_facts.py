"""What one watched step showed of its signals, as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...findings import Location


@dataclass(slots=True, kw_only=True, eq=False)
class Tap:
    """The output of one call of one module.

    Attributes:
        name: Qualified name of the module.
        kind: Its class.
        shape: Of the output.
        low, high: Its extremes.
        rms: Root mean square of the output.
        spread: Root mean square of the deviation between samples; None without a batch of two or more.
        gradient: Root mean square of the loss's gradient to the output; None where none arrived.
        weighted: Whether the module itself holds parameters of two or more dimensions.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    low: float
    high: float
    rms: float
    spread: float | None
    weighted: bool
    gradient: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectified:
    """How many outputs of a rectifier were exactly zero.

    Attributes:
        module: Qualified name of the module in which it was called.
        op: Such as ``F.relu``.
        location: The user's line.
        zeros: Share of outputs that are zero.
        silent_input: Whether its input was all zero already.
        size: Number of outputs.
    """

    module: str
    op: str
    location: Location | None
    zeros: float
    silent_input: bool
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Squashed:
    """How many outputs of a squashing function that a layer feeds directly lie at its bounds.

    Attributes:
        module: Qualified name of the module in which it was called.
        op: Such as ``torch.tanh``.
        location: The user's line.
        source: Qualified name of the layer that feeds it.
        share: Share of outputs so near a bound that less than 1 % of the slope is left.
        upper: Share of those that lie at the upper bound.
        scale: Root mean square of its input.
        size: Number of outputs.
    """

    module: str
    op: str
    location: Location | None
    source: str
    share: float
    upper: float
    scale: float
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """A product of softmax weights with values.

    Attributes:
        module: Qualified name of the module in which it ran.
        shape: Of the weights.
        normalised: The dimension over which the softmax made them sum to one.
        summed: The dimension over which the product sums.
        softmax: The line of the softmax.
        location: The line of the product.
    """

    module: str
    shape: tuple[int, ...]
    normalised: int
    summed: int
    softmax: Location | None
    location: Location | None


@dataclass(slots=True)
class Signals:
    """What one step showed.

    Attributes:
        taps: Outputs in the order in which they were computed.
        calls: How often each module ran, by name.
        rectified: Every call of a rectifier.
        squashed: Every call of a squashing function on the very output of a layer.
        feeding: Layers from whose output the input of a further layer was computed.
        chained: Modules that were given what was computed from their own last output, with no layer
            between.
        chains: Pairs of linear modules of which the second, and nothing else, was given the very
            output of the first.
        unread: Functions whose results nothing read.
        averaging: Products of softmax weights with values.
    """

    taps: list[Tap] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    rectified: list[Rectified] = field(default_factory=list)
    squashed: list[Squashed] = field(default_factory=list)
    feeding: set[str] = field(default_factory=set)
    chained: set[str] = field(default_factory=set)
    chains: list[tuple[str, str]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    averaging: list[Averaging] = field(default_factory=list)

"""What one watched step showed of its signals, as plain data, and whether the weights of an average sum to one."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...lean import dataclass
from ...objects.weak import ByTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...findings import Location
    from ..recorded.overwriting import InPlace, Overwriting
    from .grouped import Regrouped
    from .views import IdleChoice, Moved
    from .wrapping import Merged, Wrapped


SPREADS = frozenset({"var", "std", "var_mean", "std_mean", "rsqrt"})
"""Functions by which code normalises that calls no norm."""


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
        source: Name of the layer from whose output its input was computed, where nothing was normalised
            since the tap before; empty elsewhere.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    low: float
    high: float
    rms: float
    spread: float | None
    weighted: bool
    source: str = ""
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
        regrouped: Sums over groups of weights that sum to one over others.
        views: How many views of two dimensions or more were taken.
        repeated: Shapes of tensors of which a part was sliced off again, while others were not.
        moved: Those of them that move a dimension.
        idle_choices: Choices by index among equal entries, which differ between samples.
        overwriting: Lines that write values with a graph over their own earlier ones, which nothing has read.
        of_inputs: Activations in place of what a block was given.
        wrapped: Operations on narrow whole numbers whose results do not fit into them.
        merged: Runs of whole numbers that were taken to half precision.
        drawn: Functions that drew random numbers, other than for a dropout of values with a gradient.
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
    regrouped: list[Regrouped] = field(default_factory=list)
    views: int = 0
    repeated: set[tuple[int, ...]] = field(default_factory=set)
    moved: list[Moved] = field(default_factory=list)
    idle_choices: list[IdleChoice] = field(default_factory=list)
    overwriting: list[Overwriting] = field(default_factory=list)
    of_inputs: list[InPlace] = field(default_factory=list)
    wrapped: list[Wrapped] = field(default_factory=list)
    merged: list[Merged] = field(default_factory=list)
    drawn: set[str] = field(default_factory=set)


_PRODUCTS = frozenset({"matmul", "__matmul__", "__rmatmul__", "bmm"})
_KEEPING = frozenset({"dropout", "contiguous", "clone", "to"})
WATCHED = _PRODUCTS | _KEEPING | {"softmax", "einsum"}
FILLS = frozenset({"uniform", "normal", "bernoulli", "exponential", "log_normal", "cauchy"})
DRAWS = FILLS | {"rand", "randn", "rand_like", "randn_like", "dropout", "alpha_dropout"}
"""What draws random numbers, without the underscore of what does so in place."""

Product = tuple[Tensor, int, int, "Location | None"]


class Weights:
    """Follows the results of softmax to the product that takes them, through dropout and copies."""

    def __init__(self) -> None:
        self._known: ByTensor[tuple[int, Location | None]] = ByTensor()

    def called(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        locate: Callable[[], Location | None],
    ) -> Product | None:
        """See a call of :data:`WATCHED`; return the weights of a product, and its two dimensions."""
        if name == "softmax":
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(dim, int) and isinstance(result, Tensor) and result.dim():
                self._known[result] = dim % result.dim(), locate()
        elif name in _KEEPING:
            if (
                args
                and (known := self._known.get(args[0])) is not None
                and isinstance(result, Tensor)
            ):
                self._known[result] = known
        elif name == "einsum":
            return self._summed(args)
        elif len(args) > 1:
            first, second = args[:2] if name != "__rmatmul__" else (args[1], args[0])
            for weights, offset in ((first, 1), (second, 2)):
                known = self._known.get(weights)
                if known is not None and known[0] >= weights.dim() - 2 >= 0:
                    return weights, known[0], weights.dim() - offset, known[1]
        return None

    def _summed(self, args: tuple[Any, ...]) -> Product | None:
        """Return the same of an ``einsum`` of weights and values that sums over one letter."""
        letters, _, given = str(args[0]).replace(" ", "").partition("->")
        parts = letters.split(",")
        if not given or len(parts) != 2 or len(args) != 3 or "." in letters:
            return None
        for weights, own, other in zip(args[1:], parts, reversed(parts), strict=True):
            known = self._known.get(weights)
            summed = [n for n, letter in enumerate(own) if letter not in given and letter in other]
            if known is None or len(summed) != 1 or len(own) != weights.dim():
                continue
            if known[0] == summed[0] or own[known[0]] not in other:
                return weights, known[0], summed[0], known[1]
        return None

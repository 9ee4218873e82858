"""What a recorded run is made of: values, and the calls that made them."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from ...lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from torch.autograd.graph import Node

    from ...findings import Location
    from .watch import Op


Origin = Literal["parameter", "input", "op", "source"]
"""``source``: seen for the first time as an operand (a constant, a target, data from NumPy)."""


CallKind = Literal["op", "function", "alias", "graph", "module"]
"""What the record knows of a step: ``op`` a torch function; ``function`` a custom autograd Function;
``alias`` memory shared with a known tensor though no call made it (``nn.Parameter(x)``, NumPy);
``graph`` known only by its grad_fn; ``module`` the outputs of a module whose inside is not Python."""


SHAPE_ONLY = frozenset(
    f"{owner}.{name}"
    for owner in ("torch", "Tensor")
    for name in (
        "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like",
        "randint_like", "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided",
    )
)  # fmt: skip
"""Calls that read the shape of their operand and not its values."""


EXITS: Mapping[str, str] = {
    "Tensor.item": "item", "Tensor.__float__": "item", "Tensor.__int__": "item",
    "Tensor.__complex__": "item", "Tensor.__index__": "item", "Tensor.__bool__": "bool",
    "Tensor.tolist": "item", "Tensor.numpy": "numpy", "Tensor.__array__": "numpy",
    "Tensor.__dlpack__": "numpy",
}  # fmt: skip
"""Calls through which values leave torch, where autograd cannot follow."""


@dataclass(eq=False, slots=True)
class Value:
    """What one tensor held between two writes to it.

    Attributes:
        tensor: The tensor object; holds later values too where it was written in place.
        origin: Where it came from.
        maker: The call that made it.
        consumers: The calls that read it.
        nodes: Every autograd node under which it was seen (a custom Function's output gets its
            node only after its forward).
        rms: Root mean square of the gradient that reached it; None where none did.
        sign: 1 where no element of that gradient is negative, -1 where none is positive, else 0.
        in_module: Whether it was first seen while a module's forward ran.
        seen_at: Index of the next operation when it was first seen.
    """

    tensor: Tensor
    origin: Origin
    maker: Call | None = None
    consumers: list[Call] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    rms: float | None = None
    sign: int = 0
    in_module: bool = False
    seen_at: int = 0


@dataclass(eq=False, slots=True)
class Call:
    """One recorded step. ``nodes`` are the autograd nodes of the inputs when they were read."""

    op: Op
    kind: CallKind
    inputs: list[Value]
    nodes: list[Node | None]
    outputs: list[Value] = field(default_factory=list)
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    grad_enabled: bool = True
    region: Location | None = None
    sampler: str = ""
    left: Any = None
    differentiated: bool = False  # it ran while ``torch.func`` takes a derivative

    @property
    def exit(self) -> str:
        """How values leave torch here: ``item``, ``numpy``, ``bool``; ``""`` where they do not."""
        return EXITS.get(self.op.name, "") if self.kind == "op" else ""

    @property
    def shape_only(self) -> bool:
        """Whether only the shape of the operand matters."""
        return self.kind == "op" and self.op.name in SHAPE_ONLY

    @property
    def read(self) -> list[Value]:
        """The inputs whose values are read; of a tensor that gives its shape or dtype alone they are not."""
        bare = self.shape_only or (self.kind == "op" and self.op.name == "Tensor.new_tensor")
        return self.inputs[1:] if bare else self.inputs

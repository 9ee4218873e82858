"""What a run did: ops, the tensors they read and made, and the call that failed."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...lean import dataclass

if TYPE_CHECKING:
    from ...findings import Location
    from ..stored.graph_holders import Holder

_DEPTH = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fact:
    """What one tensor was like when an op read or made it.

    Attributes:
        shape, dtype, device: As torch gives them, as plain types.
        name: Name of the parameter, buffer or input, or empty.
        made_by: The op that made it, or None for leaves.
        requires_grad: Whether gradients flow into it.
        grad_fn: Class name of its autograd node, or empty.
        contiguous: Whether a ``view`` of it is always possible.
        storage: Address of its memory, to tell tensors that share it; 0 where there is none.
    """

    shape: tuple[int, ...]
    dtype: str
    device: str
    name: str = ""
    made_by: Op | None = field(default=None, repr=False)
    requires_grad: bool = False
    grad_fn: str = ""
    contiguous: bool = True
    storage: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Op:
    """One call of a torch function.

    Attributes:
        name: Such as ``matmul`` or ``view``.
        module: Qualified name of the innermost module that was running; ``""`` is the model itself.
        inputs: The tensors it read, in order.
        arguments: What else it was given, as text.
        outputs: The tensors it made.
        changed: The tensors that it changed in place.
        outer: Where the helpers of the user's that called it were called in turn, up to the ``forward``.
        inference: The line that turned inference mode on for it, where it was on.
    """

    name: str
    module: str
    inputs: tuple[Fact, ...]
    arguments: tuple[str, ...]
    frame: tuple[str, int, str] | None = None
    outputs: tuple[Fact, ...] = ()
    changed: tuple[Fact, ...] = ()
    outer: tuple[tuple[str, int, str], ...] = ()
    inference: Location | None = None

    @property
    def location(self) -> Location | None:
        """The user's line that called it."""
        if self.frame is None:
            return None
        return sources.of_line(*self.frame)

    @property
    def callers(self) -> tuple[Location, ...]:
        """The user's lines that called the helper in which it ran, the innermost first."""
        return tuple(sources.of_line(*frame) for frame in self.outer)


@dataclass(slots=True, eq=False)
class Call:
    """The call that failed, with what it was given; holds live tensors."""

    op: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shared:
    """What two backward calls of one run have in common: the first one freed it, the second one needs it.

    Attributes:
        made_by: The op that made the shared tensor nearest to the second loss, where it was seen.
        name: The variable of a running function that holds that tensor, or empty.
        assigned: The line that assigns the variable, where its op ran in what that line calls.
        grad_fn: Class name of the tensor's autograd node.
        is_loss: Whether it is what both backward calls were given itself.
        first: The backward call that freed it.
        count: How many backward calls the run had made, the failing one included.
    """

    made_by: Op | None
    name: str
    assigned: Location | None
    grad_fn: str
    is_loss: bool
    first: Op
    count: int


@dataclass(slots=True, eq=False)
class Replay:
    """The second run of what failed.

    Attributes:
        error: What it raised this time, or None.
        ops: Every call, in order; the failing one last where it was a torch function.
        failing: The call that raised, where a torch function did.
        modules: Qualified names of the modules that were running when it raised, the model first.
        inputs: What the model was called with, by the names of its ``forward``.
        saved_at: The user's forward line whose backward failed (from anomaly mode).
        failed_node: Class name of that backward node.
        held: What keeps tensors of an earlier graph, seen when backward ran into it.
        shared: What the failing backward shares with an earlier one of the same run, where it ran
            into that.
    """

    error: BaseException | None = None
    ops: list[Op] = field(default_factory=list)
    failing: Call | None = None
    modules: tuple[str, ...] = ()
    inputs: dict[str, Fact] = field(default_factory=dict)
    saved_at: Location | None = None
    failed_node: str = ""
    held: tuple[Holder, ...] = ()
    shared: Shared | None = None

    def fact(self, tensor: torch.Tensor) -> Fact | None:
        """Return what is known of a tensor that the failing call was given."""
        if self.failing is None:
            return None
        given = tensors_in((self.failing.args, self.failing.kwargs))
        for known, fact in zip(given, self.failing.op.inputs, strict=True):
            if known is tensor:
                return fact
        return None


def tensors_in(value: Any, depth: int = _DEPTH) -> list[torch.Tensor]:
    """Return every tensor in nested tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if depth and isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item, depth - 1)]
    if depth and isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_in(item, depth - 1)]
    return []


def arguments_of(args: Any, kwargs: dict[str, Any]) -> tuple[str, ...]:
    """Return what a call was given besides tensors, as short texts."""
    found = [repr(a)[:60] for a in args if isinstance(a, int | float | str | bool | torch.Size)]
    found += [
        repr(a)[:60]
        for a in args
        if isinstance(a, tuple | list) and all(isinstance(item, int) for item in a)
    ]
    found += [f"{k}={v!r}"[:60] for k, v in kwargs.items() if not tensors_in(v)]
    return tuple(found)


def name_of(function: Any) -> str:
    """Return the name of a torch function; that of the attribute for a property."""
    name = str(getattr(function, "__name__", "")) or type(function).__name__
    if name in ("__get__", "__set__"):
        owner = getattr(function, "__self__", None)
        return str(getattr(owner, "__name__", name))
    return name

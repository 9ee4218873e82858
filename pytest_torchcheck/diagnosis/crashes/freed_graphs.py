"""Which graphs a run has freed, and what a later backward shares with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from ... import sources
from ...lean import dataclass
from ...probes.recorded.watch import nodes_of
from ..stored.graph_holders import Holder, assignment_in_code, holders
from .history import Op, Shared, tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from torch import nn

_CALLS = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_OP = "torchcheck.op"


@dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """One call of backward: its op, the nodes it starts from, all that these reach, and whether it frees them."""

    op: Op
    roots: tuple[Any, ...]
    nodes: set[Any]
    frees: bool
    run: int


class FreedGraphs:
    """Follows the backward calls of a replay; holds nodes of autograd, whose tensors are freed."""

    def __init__(self) -> None:
        self.run = 0
        self._done: list[Backward] = []
        self._kept: tuple[Holder, ...] = ()

    @staticmethod
    def note(tensor: torch.Tensor, op: Op) -> None:
        """Remember which op made a tensor's node, as long as the node lives."""
        if tensor.grad_fn is not None:
            known: dict[Any, Any] = cast("Any", tensor.grad_fn).metadata
            known.setdefault(_OP, op)

    def before(self, function: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Backward | None:
        """Return what a call is about to run backward through; None where it is another call."""
        if function not in _CALLS:
            return None
        first = args[0] if args else kwargs.get("outputs", kwargs.get("tensors"))
        roots = tuple(t.grad_fn for t in tensors_in(first) if t.grad_fn is not None)
        create = bool(kwargs.get("create_graph"))
        retain = kwargs.get("retain_graph")
        return Backward(op, roots, nodes_of(*roots), not (create if retain is None else retain), self.run)  # fmt: skip

    def after(self, call: Backward | None, model: nn.Module | None, frame: FrameType) -> None:
        """Count a call that has succeeded, and what then keeps tensors of its graph beyond the step."""
        if call is not None:
            self._done.append(call)
            self._kept += holders(model, _outwards(frame), call.nodes)

    def held(
        self, model: nn.Module | None, frame: FrameType, failing: Backward
    ) -> tuple[Holder, ...]:
        """Return what outlives a step and has carried a tensor of an earlier graph into the failing one."""
        frames = _outwards(frame)
        own = [call for call in self._done if call.frees and call.run == self.run]
        freed = set().union(*(call.nodes for call in own)) & failing.nodes
        if not any(node.next_functions for node in freed):
            # freed before this run: what carried it may hold its successor by now
            return holders(model, frames, failing.nodes)
        found = {holder.root: holder for holder in holders(model, frames, freed)}
        for holder in self._kept:
            if holder.node in freed:
                found.setdefault(holder.root, holder)
        return tuple(found.values())

    def shared(self, frame: FrameType, failing: Backward) -> Shared | None:
        """Return the tensor nearest to the failing loss whose graph an earlier backward of the same run freed."""
        own = [call for call in self._done if call.run == self.run]
        for call in reversed(own):
            if not call.frees:
                continue
            for node in _nearest(failing, call.nodes):
                if not any(map(_is_freed, nodes_of(node))):
                    continue  # sums and copies save nothing: backward may pass them again
                made = node.metadata.get(_OP)
                owner, name = _variable(_outwards(frame), node)
                place = None
                if owner is not None and (made is None or made.frame is None or not _within(made, owner)):  # fmt: skip
                    found = assignment_in_code(owner.f_code, name)
                    place = found[1] if found is not None else None
                return Shared(
                    made_by=made if isinstance(made, Op) else None,
                    name=name,
                    assigned=place,
                    grad_fn=type(node).__name__,
                    is_loss=node in failing.roots and node in call.roots,
                    first=call.op,
                    count=len(own) + 1,
                )  # fmt: skip
        return None


def _outwards(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _nearest(failing: Backward, freed: set[Any]) -> Iterator[Any]:
    """Yield the nodes by which a graph enters a freed one, the nearest to the loss first."""
    seen: set[Any] = set()
    queue = list(failing.roots)
    while queue:
        node = queue.pop(0)
        if node in seen:
            continue
        seen.add(node)
        if node not in freed:
            queue.extend(following for following, _ in node.next_functions if following is not None)
        elif (
            node.next_functions
        ):  # the sums of a parameter's gradient have none, and are shared by all graphs
            yield node


def _is_freed(node: Any) -> bool:
    names = [name for name in dir(node) if name.startswith("_saved_")]
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        names = ["saved_tensors"]
    for name in names:
        try:
            getattr(node, name)
        except RuntimeError:  # "after they have already been freed"
            return True
    return False


def _variable(frames: list[FrameType], node: Any) -> tuple[FrameType | None, str]:
    """Return the innermost of the user's running functions that has a tensor of a node in a variable."""
    for frame in frames:
        if sources.rank(frame.f_code.co_filename) < 2:
            continue
        for name, value in frame.f_locals.items():
            parts = value if isinstance(value, tuple | list) else (value,)
            if any(isinstance(v, torch.Tensor) and v.grad_fn is node for v in parts):
                return frame, name
    return None, ""


def _within(op: Op, frame: FrameType) -> bool:
    """Say whether an op ran in a function itself, not in what it called."""
    assert op.frame is not None
    return op.frame[0] == frame.f_code.co_filename and op.frame[2] == frame.f_code.co_qualname

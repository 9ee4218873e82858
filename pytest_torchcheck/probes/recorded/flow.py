"""A recorded run read as two graphs: how values flow, and where autograd can follow them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from ...lean import dataclass
from ..gradient.paths import Ahead
from .operations import values_behind
from .recording import DERIVATIVE, IMPORTS, Recorder

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.graph import Node

    from .values import Call, Value

CutKind = Literal[
    "never-used",
    "compiled",
    "frozen",
    "detach",
    "data",
    "item",
    "numpy",
    "no-grad",
    "integer-cast",
    "recreated",
    "sampling",
    "checkpoint",
    "function",
    "backward-none",
    "derivative",
    "differentiated",
    "dropped",
    "non-differentiable",
    "not-reaching-loss",
    "zeroed",
]
"""How a parameter loses its gradient.

``never-used`` no operation read it; ``compiled`` TorchScript reads it, unseen;
``frozen`` it takes no gradient (any more); ``detach``, ``data``,
``item``, ``numpy``, ``no-grad`` by that means; ``integer-cast`` a rounding, comparison, argmax or index;
``recreated`` a new tensor was made from the values; ``sampling`` a draw that is not reparameterised;
``checkpoint`` reentrant checkpointing whose inputs take no gradient; ``function`` a custom Function
whose
output takes none; ``backward-none`` a backward that returned None; ``not-reaching-loss`` the loss
does not
use what was computed; ``derivative`` an ``autograd.grad`` without ``create_graph``;
``differentiated`` a derivative that does
not depend on it; ``zeroed`` only the shape is used (``zeros_like``); ``dropped`` a result with a graph
that does not lead to it; ``non-differentiable`` any other.
"""

SAMPLERS = frozenset(
    f"{owner}.{name}"
    for owner in ("torch", "Tensor")
    for name in ("normal", "bernoulli", "multinomial", "poisson", "binomial")
)
"""Draws whose parameters get no gradient, or one that is zero by definition."""

_RECREATING = IMPORTS | {"torch.from_dlpack"}
_COARSE = {
    "integer-cast",
    "non-differentiable",
}  # blamed only where nothing else loses the gradient


_SUMS = frozenset({"add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "__iadd__", "add_"})


@dataclass(eq=False, slots=True)
class Loss:
    """A call that had gradients flowing into it and none out: of ``value``, or of a Python number."""

    call: Call
    value: Value | None
    bits: int


class Flow:
    """The record read as two graphs: how data flows, and where autograd can follow it."""

    def __init__(
        self, recorder: Recorder, parameters: Mapping[str, Tensor], roots: list[Value]
    ) -> None:
        self.recorder = recorder
        self.values = {name: recorder.value_of(p) for name, p in parameters.items()}
        owners = {id(value): 1 << place for place, value in enumerate(self.values.values())}
        self.bits = {name: owners[id(value)] for name, value in self.values.items()}
        self._reach: dict[Node, int] = {}
        for value in self.values.values():
            for node in value.nodes:
                self._reach[node] = owners[id(value)]
        self.behind_loss = values_behind(roots, alias=False)
        self.ahead = Ahead(self.behind_loss)
        self.behind_loss_loosely = values_behind(roots, alias=True)
        self.losses = list(self._find_losses())

    def live(self, value: Value) -> int:
        """Return the parameters that a gradient of this value would reach, as bits."""
        return self._reached(value.nodes)

    def reach(self, start: Node | None) -> int:
        """Return the parameters behind an autograd node, as bits."""
        if start is None:
            return 0
        stack = [start]
        while stack:
            node = stack[-1]
            if node in self._reach:
                stack.pop()
                continue
            after = [following for following, _ in node.next_functions if following is not None]
            waiting = [following for following in after if following not in self._reach]
            if waiting:
                stack.extend(waiting)
                continue
            self._reach[node] = functools.reduce(operator.or_, (self._reach[n] for n in after), 0)
            stack.pop()
        return self._reach[start]

    def entering(self, call: Call) -> int:
        """Return the parameters whose gradient could flow out of the call's operands, as bits."""
        return self._reached(call.nodes)

    def _reached(self, nodes: Iterable[Node | None]) -> int:
        return functools.reduce(operator.or_, map(self.reach, nodes), 0)

    def _find_losses(self) -> Iterator[Loss]:
        for call in self.recorder.calls:
            entering = self.entering(call)
            if not entering:
                continue
            if call.exit:
                yield Loss(call, None, entering)
            for value in call.outputs:
                if lost := entering & ~self.live(value):
                    yield Loss(call, value, lost)

    def zero_by_definition(self) -> Iterator[Loss]:
        """Iterate over the draws whose gradient torch defines as zero."""
        for call in self.recorder.calls:
            if call.op.name in SAMPLERS and (bits := self.entering(call)):
                for value in call.outputs:
                    if self.live(value):
                        yield Loss(call, value, bits)

    def candidates(self, bit: int) -> list[Loss]:
        """Return where a parameter's gradient may be lost, the likeliest first, with proof alone first.

        Left out is what the loss demonstrably does not use, and what reads no values.
        """
        losses = (loss for loss in self.losses if loss.bits & bit and not loss.call.shape_only)
        ranked = sorted(
            ((self._rank(loss, bit), loss) for loss in losses),
            key=lambda pair: pair[0],
            reverse=True,
        )
        return [loss for rank, loss in ranked if rank[0] > 0]

    def proven(self, loss: Loss) -> bool:
        """Say whether the lost values demonstrably go on to the loss."""
        return loss.value is not None and loss.value in self.behind_loss_loosely

    def _rank(self, loss: Loss, bit: int) -> tuple[int, bool, bool, int]:
        """Order the candidates: proof that the loss uses the values, then kind, then what a term ends in, then the latest."""
        precise = self.kind_of(loss) not in _COARSE
        if loss.value is not None and loss.value in self.behind_loss:
            level = 5
        elif self.proven(loss):
            level = 4
        elif (gone := self.exit_after(loss)) is not None:
            level = self._returns(gone, self._ends_here(loss, bit))
        else:
            level = 0
        return level, precise, self._makes_constant_term(loss), loss.call.op.index

    def _makes_constant_term(self, loss: Loss) -> bool:
        """Say whether a whole term of the loss is a constant by this: a number without a graph, added to one with."""
        seen = {loss.value}
        stack = [loss.value] if loss.value is not None else []
        while stack:
            value = stack.pop()
            for call in value.consumers:
                added = not value.tensor.dim() and call.op.name.rpartition(".")[2] in _SUMS
                sums = [v.tensor for v in call.outputs if not v.tensor.dim()]
                if added and any(total.requires_grad for total in sums):
                    return True
                following = [
                    v for v in call.outputs if v not in seen and not v.tensor.requires_grad
                ]
                seen.update(following)
                stack += following
        return False

    def exit_after(self, loss: Loss) -> Call | None:
        """Return the call through which the lost values leave torch, if they do."""
        if loss.call.exit:
            return loss.call
        stack = [loss.value] if loss.value is not None else []
        seen = set(stack)
        while stack:
            for call in stack.pop().consumers:
                if call.exit and call.exit != "bool":
                    return call
                if call.shape_only or call.op.backward:
                    continue
                for value in call.outputs:
                    if value not in seen:
                        seen.add(value)
                        stack.append(value)
        return None

    def comes_back(self, loss: Loss) -> bool:
        """Say whether lost values leave torch, and a number or a tensor of them is an operand later."""
        gone = self.exit_after(loss)
        return gone is not None and self._returns(gone, ends=True) >= 2

    def _returns(self, gone: Call, ends: bool) -> int:
        """Weigh the evidence that what left torch came back to the loss.

        Returns:
            3 where a tensor was made of Python data or the very number is an operand later; where
            nothing else continues the values, 2 if a tensor of unknown making appears later within
            a module, 1 if an operand is a number that the line does not spell out; else 0.
        """
        if gone.exit == "bool":
            return 0
        numbers = {n for n in _numbers(gone.left) if n not in (0.0, 1.0)}
        hint = 0
        for value in self.behind_loss_loosely:
            call = value.maker
            if call is not None and call.op.index > gone.op.index:
                operands = set(_numbers((call.args, call.kwargs)))
                if (call.op.name in _RECREATING and not call.inputs) or numbers & operands:
                    return 3
                text = call.op.location.text if call.op.location else ""
                if any(f"{n:g}" not in text and repr(n) not in text for n in operands):
                    hint = max(hint, 1)
            elif value.origin == "source" and value.seen_at > gone.op.index and value.in_module:
                hint = 2
        return hint if ends else 0

    def _ends_here(self, loss: Loss, bit: int) -> bool:
        """Say whether nothing else continues what the lost operands carried."""
        for value in loss.call.inputs:
            if self.live(value) & bit:
                others = [c for c in value.consumers if any(self.live(o) & bit for o in c.outputs)]
                if not others:
                    return True
        return False

    def kind_of(self, loss: Loss) -> CutKind:
        """Name how a call loses the gradient."""
        call, value = loss.call, loss.value
        name = call.op.name
        if call.shape_only:
            return "zeroed"
        if call.sampler or name in SAMPLERS:
            return "sampling"
        if call.kind == "function":
            return "checkpoint" if name == "CheckpointFunction.apply" else "function"
        gone = self.exit_after(loss)
        if value is None or value not in self.behind_loss:
            if gone is not None and gone.exit != "bool":
                return "numpy" if gone.exit == "numpy" else "item"
            if call.kind == "alias":
                return "recreated"
        if value is not None and not (
            value.tensor.is_floating_point() or value.tensor.is_complex()
        ):
            return "integer-cast"
        if name == DERIVATIVE:
            return "differentiated" if call.kwargs.get("create_graph") else "derivative"
        if not call.grad_enabled and call.region is not None:
            return "no-grad"
        if name == "Tensor.data":
            return "data"
        if name in ("Tensor.detach", "torch.detach", "Tensor.detach_", "torch.detach_"):
            return "detach"
        if name in _RECREATING or call.kind == "alias":
            return "recreated"
        if call.grad_enabled and call.differentiated:
            return "differentiated"
        if call.grad_enabled and value is not None and value.tensor.grad_fn is not None:
            return "dropped"
        return "non-differentiable" if call.grad_enabled else "no-grad"


def _numbers(thing: object, depth: int = 3) -> Iterator[float]:
    """Iterate over the Python floats in nested lists, tuples and dicts."""
    if isinstance(thing, float):
        yield thing
    elif depth and isinstance(thing, Mapping):
        for value in thing.values():
            yield from _numbers(value, depth - 1)
    elif depth and isinstance(thing, (list, tuple)):
        for value in thing:
            yield from _numbers(value, depth - 1)

"""The graph that a forward keeps though gradients are off: its size, and which derivatives need it."""

from __future__ import annotations

import contextlib
import sys
import weakref
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import sources
from ...lean import dataclass
from ...objects import trees
from ...record.modes import Observer
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..recorded.watch import nodes_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.autograd.graph import Node

    from ...findings import Location
    from ...subject import Subject

_CALLS = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivative:
    """A derivative that the forward, or the loss of its output, takes itself.

    Attributes:
        location: The user's line that takes it.
        connected: Whether it was asked for with ``create_graph=True``.
        within: Whether the forward takes it, and not the loss.
    """

    location: Location | None
    connected: bool
    within: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGraph:
    """What an eval forward under ``no_grad`` keeps for a backward.

    Attributes:
        kept_bytes: What autograd still holds with the output, without parameters.
        derivatives: By the path of an output: the derivative whose graph it belongs to.
    """

    kept_bytes: int
    derivatives: Mapping[str, Derivative]


@dataclass(slots=True)
class _Taken:
    """One call that takes derivatives: the nodes it starts from, and those of what it gives."""

    roots: list[Node]
    given: list[Node]
    known: Derivative


class _Derivatives(Observer):
    """Notes every derivative that is taken while it is entered."""

    def __init__(self) -> None:
        self.taken: list[_Taken] = []
        self.within = True

    def around(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one torch function, and note it where it takes derivatives."""
        if func not in _CALLS:
            return func(*args, **kwargs)
        place = sources.of_frame(sys._getframe(1))
        first = args[0] if args else kwargs.get("outputs", kwargs.get("tensors"))
        # a backward frees its nodes' tensors, not the nodes
        roots = [t.grad_fn for t in tensors_in(first) if t.grad_fn is not None]
        result = func(*args, **kwargs)
        given = [t.grad_fn for t in tensors_in(result) if t.grad_fn is not None]
        known = Derivative(
            location=place, connected=bool(kwargs.get("create_graph")), within=self.within
        )
        self.taken.append(_Taken(roots, given, known))
        return result


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Saved:
    """A tensor saved for backward; lives as long as autograd keeps it."""

    tensor: Tensor = field(repr=False)


def kept_graph(subject: Subject) -> KeptGraph:
    """Run an eval forward under ``no_grad`` and see what graph leaves with its output.

    A force field differentiates its energy inside its forward, and the loss of a physics-informed net
    differentiates the output; both must turn gradients on. An output belongs to such a derivative
    where the derivative is taken of it or of what follows from it, or where it follows from the
    derivative.
    """
    saved: weakref.WeakSet[_Saved] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Saved:
        saved.add(kept := _Saved(tensor))
        return kept

    batch = subject.batch().clone()
    watch = _Derivatives()
    with subject.pristine() as model:
        own = {
            p.untyped_storage().data_ptr() for p in model.parameters() if p.device.type != "meta"
        }
        model.eval()
        seed_everything(subject.seed)
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor)
        with torch.no_grad(), watch, hooks:
            output = subject.call(model, batch)
        sizes = {
            each.tensor.untyped_storage().data_ptr(): each.tensor.untyped_storage().nbytes()
            for each in saved
        }
        if callable(subject.contract.loss):
            watch.within = False
            # an eval output need not fit the loss; then it takes no derivative
            with contextlib.suppress(SubjectError), torch.enable_grad(), watch:
                subject.compute_loss(output, batch)
        derivatives = {
            path: found
            for path, tensor in trees.tensors(output).items()
            if tensor.grad_fn is not None
            and (found := _derivative(tensor.grad_fn, watch.taken)) is not None
        }
        del output
    return KeptGraph(
        kept_bytes=sum(size for address, size in sizes.items() if address not in own),
        derivatives=derivatives,
    )


def _derivative(node: Node, taken: list[_Taken]) -> Derivative | None:
    """Return the derivative whose graph an output belongs to."""
    behind = nodes_of(node)
    for one in reversed(taken):
        if not behind.isdisjoint((*one.given, *one.roots)) or node in nodes_of(*one.roots):
            return one.known
    return None

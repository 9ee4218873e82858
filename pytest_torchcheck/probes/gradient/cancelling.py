"""Where the gradient of a number cancels out: two ways through the graph that meet with opposite gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.graph import GradientEdge

from ...lean import dataclass
from ...objects import trees
from ..loss.terms import one_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.autograd.graph import Node

_NOTHING: Final = 1e-10
"""Of the gradients that meet: what float64 leaves of a sum that is zero."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A gradient that cancels out.

    Attributes:
        meets: The node of the value at which opposite gradients meet.
        parts: The nodes that all of their ways share, the last one first: what that one computed is given both.
        largest: Magnitude of the gradients that meet.
    """

    meets: Node
    parts: tuple[Node, ...]
    largest: float


class _Flow:
    """What flows along each edge of a backward pass, and in which order its nodes run."""

    def __init__(self) -> None:
        self.order: list[Node] = []
        self.rests = False
        self._into: dict[tuple[Node, int], list[tuple[Node, torch.Tensor]]] = {}

    def see(self, node: Node, given: Sequence[Any], made: Sequence[Any]) -> None:
        """See what one node is given, and what it passes on along each of its edges."""
        self.order.append(node)
        flows = False
        for (following, at), gradient in zip(node.next_functions, made, strict=False):
            if following is not None and isinstance(gradient, torch.Tensor):
                self._into.setdefault((following, at), []).append((node, trees.dense(gradient)))
                flows = flows or trees.scale(gradient) > 0
        alive = any(isinstance(g, torch.Tensor) and trees.scale(g) > 0 for g in given)
        self.rests = self.rests or (alive and not flows)

    def cancelled(self, root: Node) -> Cancelled | None:
        """Return where gradients meet and cancel out, nearest to the root; None where they do not."""
        places = {node: at for at, node in enumerate(self.order)}
        above: dict[Node, Node] = {
            root: root
        }  # the last node before each that all ways to it share
        for (node, _), flows in sorted(
            self._into.items(), key=lambda item: places.get(item[0][0], len(places))
        ):
            alive = [(before, g) for before, g in flows if trees.scale(g) > 0]
            ways = [before for before, _ in alive if before in above]
            if not ways:
                continue
            shared = ways[0]
            for way in ways[1:]:
                shared = _shared(above, places, shared, way)
            above[node] = shared
            largest = max(trees.scale(g) for _, g in alive)
            if len(alive) > 1 and trees.scale(_sum([g for _, g in alive])) <= _NOTHING * largest:
                parts = [shared]
                while parts[-1] is not root:
                    parts.append(above[parts[-1]])
                return Cancelled(node, tuple(parts), largest)
        return None


def _shared(above: dict[Node, Node], places: dict[Node, int], one: Node, two: Node) -> Node:
    """Return the last node that all ways to two nodes share."""
    while one is not two:
        if places[one] > places[two]:
            one = above[one]
        else:
            two = above[two]
    return one


def _sum(gradients: list[torch.Tensor]) -> torch.Tensor:
    smallest = min(gradients, key=torch.numel)
    total = torch.zeros_like(smallest)
    for gradient in gradients:
        total = total + gradient.sum_to_size(smallest.shape)
    return total


def cancelled(root: Node) -> Cancelled | None:
    """Return where the gradient of a number cancels out on all its ways to leaves; None where it arrives, or rests.

    It rests where a node passes nothing on of what it is given, as a bound that holds all values does.

    Args:
        root: The node of the number; its graph is kept. In float64, as rounding hides what cancels.
    """
    flow = _Flow()
    nodes, leaves = _graph(root)
    if not leaves:
        return None
    handles = [
        node.register_hook(lambda made, given, node=node: flow.see(node, given, made))
        for node in nodes
    ]
    try:
        gradients = torch.autograd.grad(
            [GradientEdge(root, 0)], leaves, [one_of(root)], retain_graph=True, allow_unused=True
        )
    finally:
        for handle in handles:
            handle.remove()
    found = None if flow.rests else flow.cancelled(root)
    left = max((trees.scale(g) for g in gradients if g is not None), default=0.0)
    return found if found is not None and left <= _NOTHING * found.largest else None


def _graph(root: Node) -> tuple[list[Node], list[torch.Tensor]]:
    """Return the nodes behind a root that pass gradients on, this one included, and the leaves that they reach."""
    nodes, leaves, stack, seen = [], [], [root], {root}
    while stack:
        node = stack.pop()
        if isinstance(variable := getattr(node, "variable", None), torch.Tensor):
            leaves.append(variable)
            continue
        nodes.append(node)
        new = [n for n, _ in node.next_functions if n is not None and n not in seen]
        seen.update(new)
        stack += dict.fromkeys(new)
    return nodes, leaves

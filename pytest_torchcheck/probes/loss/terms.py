"""Which terms of the losses that a step differentiates train anything: what they reach, and what is applied."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...lean import dataclass
from ...objects.weak import ByTensor
from ...subject.gradients import is_gone
from ..recorded.watch import Op, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.autograd.graph import Node

    from ...findings import Location

_JOINING: Final = ("AddBackward0", "SubBackward0", "RsubBackward1")
_REDUCING: Final = ("MeanBackward0", "MeanBackward1", "SumBackward0", "SumBackward1")
_GATHERED: Final = ("StackBackward0", "CatBackward0")
_FACTORS: Final = ("mul", "__mul__", "__rmul__", "div", "__truediv__", "neg", "__neg__")
_SCALING: Final = ("MulBackward0", "DivBackward0", "NegBackward0", "ToCopyBackward0")


@dataclass(frozen=True, slots=True)
class IdleTerm:
    """A term of a loss whose gradients no optimizer applies, beside one whose gradients one does.

    Attributes:
        op: What computes the term.
        cut: The detach of values that it is computed from, or what draws them without a graph; None where
            there is none.
        reached: Names of the parameters that get a gradient from it; none where it has no graph.
        through: Names of the modules that compute it from the detached values.
        before: Names of the parameters from which what is detached or drawn was computed.
        limited: Whether the backward pass computes the gradients of given leaves only.
        cleared: Whether these gradients were gone before a further backward pass, and no optimizer had applied them.
        number: Place of the term among all of the step.
    """

    op: Op
    cut: Op | None = None
    reached: tuple[str, ...] = ()
    through: frozenset[str] = frozenset()
    before: tuple[str, ...] = ()
    limited: bool = False
    cleared: bool = False
    number: int = -1

    @property
    def drawn(self) -> bool:
        """Whether a draw cuts the graph, not a detach."""
        return self.cut is not None and not self.cut.name.endswith("detach")


@dataclass(slots=True)
class _Backward:
    """The terms of one backward pass: those with a graph and the leaves that they reach, and those without."""

    terms: list[tuple[IdleTerm | None, frozenset[int]]]
    cut: list[IdleTerm]
    leaves: dict[int, Tensor]
    applied: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    given: frozenset[int] | None = None

    def look(self) -> None:
        """Note the leaves whose gradient is gone."""
        self.lost |= {key for key, leaf in self.leaves.items() if is_gone(leaf.grad)}

    def moves(self, reached: frozenset[int]) -> bool:
        """Say whether the gradients of any of these leaves were computed, and applied."""
        applied = reached & self.applied
        return bool(applied if self.given is None else applied & self.given)


class Terms:
    """Takes the roots of a step's backward passes apart, and notes what optimizers apply afterwards.

    Only sums of numbers count, down to what is no sum. A number without a graph is a term where it is
    computed from values of a batch that were detached; one that is detached itself is a baseline. One number
    of each sample counts where it is computed from normal draws that lose the gradient of their mean.

    Attributes:
        turned: The number of a term, and a factor for the gradient that it gets; None for none.
        turning: The backward passes in which this gradient came and was not zero, as autograd counts them.
    """

    def __init__(self) -> None:
        self._passes: list[_Backward] = []
        self._terms: dict[Node, IdleTerm] = {}
        self._joined: dict[Node, IdleTerm] = {}
        self._sources: dict[int, Node | None] = {}
        self._cut: ByTensor[IdleTerm] = ByTensor()
        self.turned: tuple[int, float] | None = None
        self.turning: set[int] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See the steps of all optimizers."""
        handle = register_optimizer_step_pre_hook(self._stepping)
        with handle:
            yield

    def see(self, bare: str, args: Any, kwargs: Any, result: Any, op: Callable[[], Op]) -> None:
        """See one call and its result; ``op`` describes it where that is needed."""
        if not isinstance(result, Tensor):
            return
        if bare == "detach":
            if args[0].requires_grad and args[0].dim():
                made = op()
                self._cut[result] = IdleTerm(made, made)
                self._sources[made.index] = args[0].grad_fn
            return
        if bare == "normal" and not result.requires_grad:
            if any(t.requires_grad for t in tensors_in((args, kwargs))):
                made = op()
                self._cut[result] = IdleTerm(made, made)
            return
        cut = self._cut_of(args, kwargs)
        if cut is None and (result.dim() or result.grad_fn is None):
            return
        if cut is None:
            term = IdleTerm(op())
        elif not result.dim() and bare in _FACTORS:
            term = cut
        else:
            made = op()
            term = IdleTerm(made, cut.cut, through=cut.through | {made.module})
        if cut is not None:
            self._cut[result] = term
        if result.grad_fn is not None and result.dim() < 3:
            self._joins(args, kwargs, result)
        if not result.dim() and result.grad_fn is not None:
            number = len(self._terms)
            self._terms[result.grad_fn] = replace(term, number=number)
            if self.turned is not None and number == self.turned[0]:
                result.register_hook(self._turn)

    def differentiated(self, root: Tensor, leaves: Iterable[Tensor] = ()) -> None:
        """See the root of a backward pass that is about to run, and the leaves that it is for, unless for all."""
        for one in self._passes:
            one.look()
        if root.grad_fn is not None and not root.dim():
            made = self._apart(root.grad_fn)
            made.given = frozenset(map(id, leaves)) or None
            self._passes.append(made)

    def idle(self, module: torch.nn.Module) -> list[IdleTerm]:
        """Return the terms that train nothing, of losses of which another term trains something."""
        names = {id(p): name for name, p in module.named_parameters()}
        found = []
        training = [
            [term for term, reached in one.terms if one.moves(reached)] for one in self._passes
        ]
        taught = {place for terms in training for term in terms if (place := _place(term))}
        for one, terms in zip(self._passes, training, strict=True):
            if not terms:
                continue
            found += one.cut
            found += [
                replace(
                    term,
                    reached=tuple(n for key, n in names.items() if key in reached) or (ELSEWHERE,),
                    limited=one.given is not None,
                    cleared=not reached.isdisjoint(one.lost),
                )
                for term, reached in one.terms
                if term is not None
                and reached
                and not one.moves(reached)
                and _place(term) not in taught
            ]
        return [replace(term, before=self._before(term, names)) for term in found]

    def _before(self, term: IdleTerm, names: dict[int, str]) -> tuple[str, ...]:
        source = self._sources.get(term.cut.index) if term.cut is not None else None
        held = frozenset() if source is None else leaves_of(source)
        return tuple(name for key, name in names.items() if key in held)

    def _cut_of(self, args: Any, kwargs: Any) -> IdleTerm | None:
        """Return what is known of the first operand computed from detached values, and what computed the others."""
        if not self._cut:
            return None
        found: IdleTerm | None = None
        for tensor in tensors_in((args, kwargs)):
            if (known := self._cut.get(tensor)) is None:
                continue
            found = (found and replace(found, through=found.through | known.through)) or known
        return found

    def _joins(self, args: Any, kwargs: Any, result: Tensor) -> None:
        """Note a number without a graph that a sum adds to one with a graph, or such a number of each sample."""
        node = result.grad_fn
        if node is None or node.name() not in _JOINING:
            return
        for tensor in tensors_in((args, kwargs)):
            if tensor.requires_grad or tensor.shape != result.shape:
                continue
            known = self._cut_of(tensor, None)
            if known is not None and (not tensor.dim() or known.drawn):
                self._joined[node] = known

    def _apart(self, root: Node) -> _Backward:
        """Return the terms of a root."""
        terms: list[tuple[IdleTerm | None, frozenset[int]]] = []
        cut: list[IdleTerm] = []
        for node, is_sum in summands(root):
            cut += [self._joined[n] for n in (node, *_averaged(node)) if n in self._joined]
            if not is_sum:
                terms.append((self._terms.get(node), leaves_of(node)))
        return _Backward(terms, cut, variables_of(root) if len(terms) > 1 else {})

    def _turn(self, gradient: Tensor) -> Tensor:
        assert self.turned is not None
        if bool(gradient.any()):
            self.turning.add(torch._C._current_graph_task_id())
        return self.turned[1] * gradient

    def _stepping(self, optimizer: Any, *_: Any) -> None:
        held = {
            id(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None
        }
        for one in self._passes:
            one.applied |= held - one.lost


ELSEWHERE: Final = "parameters outside of the model"
"""Stands for the names of what a term reaches that the model does not hold."""


def _place(term: IdleTerm | None) -> tuple[Location | None, Location | None] | None:
    """Return the lines that compute a term and that detach what it is computed from."""
    if term is None or term.op.location is None:
        return None
    return term.op.location, None if term.cut is None else term.cut.location


def summands(root: Node) -> Iterator[tuple[Node, bool]]:
    """Iterate over a root and what it is a sum of, through factors, with whether that is a sum itself.

    The sum or the mean of numbers that are stacked is one of them.
    """
    stack, seen = [root], {root}
    while stack:
        node = stack.pop()
        stacked = _stacked(node)
        following = stacked or [n for n, _ in node.next_functions if n is not None]
        scales = node.name() in _SCALING and len(following) == 1
        joins = bool(stacked) or scales or node.name() in _JOINING
        if following and joins:
            new = [n for n in dict.fromkeys(following) if n not in seen]  # a sum may be read twice
            stack += new
            seen.update(new)
        yield node, bool(following) and joins


def _stacked(node: Node) -> list[Node]:
    """Return the numbers of which a node is the sum or the mean, through factors, where they are stacked."""
    if node.name() not in _REDUCING:
        return []
    while node.name() in _REDUCING or node.name() in _SCALING:
        following = [n for n, _ in node.next_functions if n is not None]
        if len(following) != 1:
            return []
        (node,) = following
    given = [(n, at) for n, at in node.next_functions if n is not None]
    if node.name() not in _GATHERED or any(at or math.prod(_shape(n)) != 1 for n, at in given):
        return []
    return [n for n, _ in given]


def _shape(node: Node) -> tuple[int, ...]:
    """Return the shape of what a node gave first."""
    return tuple(node._input_metadata[0].shape)


def one_of(node: Node) -> Tensor:
    """Return the gradient of one that a backward from a number starts with."""
    made = node._input_metadata[0]
    return torch.ones(tuple(made.shape), dtype=made.dtype, device=made.device)


def _averaged(node: Node) -> list[Node]:
    """Return what a node is the mean or the sum of, through factors and further means."""
    found: list[Node] = []
    while node.name() in _REDUCING or (found and node.name() in _SCALING):
        following = [n for n, _ in node.next_functions if n is not None]
        if len(following) != 1:
            break
        node = following[0]
        found.append(node)
    return found


def leaves_of(root: Node) -> frozenset[int]:
    """Return the identities of the leaves to which a node's gradient flows."""
    return frozenset(variables_of(root))


def variables_of(root: Node) -> dict[int, Tensor]:
    """Return the leaves to which a node's gradient flows, by their identities."""
    found: dict[int, Tensor] = {}
    seen = {root}
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(variable := getattr(node, "variable", None), Tensor):
            found[id(variable)] = variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found

"""Targets that a loss computes from declared ones and from outputs, and trains: bootstrapped and not detached."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects import trees
from ...objects.weak import ByTensor
from ...probes.holding.held_by_models import graph_leaves
from ...probes.loss.arguments import with_target
from ...probes.loss.consumption import LOSSES, SHAPE_ONLY
from ...probes.recorded.watch import Watch, name_of
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...probes.loss.slopes import LossOfOutput
    from ...probes.recorded.watch import Op
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """A target of which a part is an output with its gradient; plain data.

    Attributes:
        reward, end: The declared targets that it is computed from: the second one switches the output off.
        last: What the second one is where the target is the first one alone.
        outputs: Paths of the outputs in it; empty where the loss calls the model itself.
        share: How much of these outputs it adds, on average; 0 where there are none.
        compared: The call that compares it with a prediction.
        made: The call that made it.
    """

    reward: str
    end: str
    last: int
    outputs: tuple[str, ...]
    share: float
    compared: Op
    made: Op | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A prediction and what it is compared with, both with a graph, and the loss of which they are a part."""

    prediction: Tensor
    target: Tensor
    compared: Op
    made: Op | None
    value: Tensor
    leaves: dict[str, Tensor]

    @property
    def own(self) -> dict[int, Tensor]:
        """The gradients of the target that are not zero everywhere, by the id of their leaf."""
        return _slopes(self.target)


def bootstrapped(subject: Subject, loss: LossOfOutput) -> Bootstrapped | None:
    """Look for a target that moves with the weights of its own prediction: the value of a state that follows.

    It is a declared number plus outputs of the model, which a declared flag (the end of an episode) switches off: there
    it is the number alone. With a gradient to the weights that make the prediction, each step moves the target
    too. Two outputs that are compared, or an output in the place of a missing label, are no such target.

    Cost: one call of the loss for each pair of a declared flag and a declared number, four more where values with a
    graph are compared.
    """
    targets = {name: target for name, target in loss.targets().items() if target.numel()}
    flags = [n for n, t in targets.items() if bool(((t == 0) | (t == 1)).all())]
    numbers = [n for n, t in targets.items() if t.is_floating_point()]
    ways = [(n, f, last) for n, f, last in product(numbers, flags, (1, 0)) if n != f]
    for reward, end, last in ways:
        with contextlib.suppress(SubjectError, RuntimeError):  # the loss refuses other targets
            if not _pairs(loss):
                return None
            for pair, slopes in _trained(loss, reward, end, last):
                if not _shares_weights(subject, loss, pair, slopes):
                    continue
                paths = tuple(p for p, leaf in pair.leaves.items() if id(leaf) in slopes)
                total = sum(float(slopes[id(pair.leaves[p])].sum()) for p in paths)
                return Bootstrapped(
                    reward=reward, end=end, last=last, outputs=paths, share=total / pair.target.numel(),
                    compared=pair.compared, made=pair.made,
                )  # fmt: skip
    return None


def _trained(
    loss: LossOfOutput, reward: str, end: str, last: int
) -> list[tuple[_Pair, dict[int, Tensor]]]:
    """Return what is compared with such a target, with the target's slopes, for one number and one flag."""
    flag, number = loss.targets()[end], loss.targets()[reward]
    runs = []
    for ended, by in product((last, 1 - last), (0.0, 1.0)):
        batch = loss.with_targets(flag, torch.full_like(flag, ended))
        runs.append(_pairs(loss.of(with_target(batch, number, number + by))))
    if len({tuple((p.compared.name, p.target.shape) for p in run) for run in runs}) > 1:
        return []  # the targets decide what is compared
    found = []
    for at_end, moved_end, going, moved in zip(*runs, strict=True):
        follows = not torch.equal(at_end.target, moved_end.target)
        if not follows or torch.equal(going.target, moved.target) or at_end.own:
            continue
        slopes = going.own
        added = [slopes[id(leaf)].sum() for leaf in going.leaves.values() if id(leaf) in slopes]
        if slopes and (not added or sum(added) > 0) and _slopes(going.value, [going.target]):
            found.append((going, slopes))
    return found


def _shares_weights(
    subject: Subject, loss: LossOfOutput, pair: _Pair, slopes: dict[int, Tensor]
) -> bool:
    """Say whether a gradient through the target comes to weights that make the prediction."""
    other = _slopes(pair.prediction)
    if other.keys() & slopes.keys():
        return True
    with subject.pristine(train=True, seeded=True) as model, torch.enable_grad():
        made = trees.floats(subject.call(model, loss.batch.clone()))
        behind = {id(pair.leaves[p]): set(map(id, graph_leaves(t))) for p, t in made.items()}

        def weights(of: dict[int, Tensor]) -> set[int]:
            return set().union(*(behind.get(leaf, {leaf}) for leaf in of))

        return bool(weights(other) & weights(slopes))


def _slopes(value: Tensor, leaves: list[Tensor] | None = None) -> dict[int, Tensor]:
    """Return the gradients that are not zero everywhere, by the id of what they are by: every leaf by default."""
    by = graph_leaves(value) if leaves is None else leaves
    if not by:
        return {}
    found = torch.autograd.grad(value.sum(), by, retain_graph=True, allow_unused=True)
    pairs = zip(by, found, strict=True)
    return {
        id(leaf): trees.dense(slope) for leaf, slope in pairs if slope is not None and slope.any()
    }


def _pairs(loss: LossOfOutput) -> list[_Pair]:
    """Call the loss and return what it compares, where both have a graph."""
    with _Compared() as watch:
        value, leaves = loss.run()
    return [
        _Pair(prediction=a, target=b, compared=op, made=made, value=value, leaves=leaves)
        for a, b, op, made in watch.found
        if value.requires_grad
    ]


class _Compared(Watch):
    """Keeps what torch's losses are given, and both operands of differences, the one as the target of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor, Op, Op | None]] = []
        self._makers: ByTensor[Op] = ByTensor()

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See one call."""
        name = name_of(func)
        bare = name.rpartition(".")[2]
        given = [
            v for v in (*args, kwargs.get("input"), kwargs.get("target")) if isinstance(v, Tensor)
        ][:2]
        if len(given) == 2 and all(tensor.requires_grad for tensor in given):
            if name in LOSSES or bare in ("sub", "__sub__"):
                self._keep(name, *given)
            if bare in ("sub", "__sub__"):
                self._keep(name, *reversed(given))
        if isinstance(result, Tensor) and result.requires_grad:
            known = self._makers.get(given[0]) if given and bare in SHAPE_ONLY else None
            self._makers[result] = known or self.op(name)

    def _keep(self, name: str, prediction: Tensor, target: Tensor) -> None:
        self.found.append((prediction, target, self.op(name), self._makers.get(target)))

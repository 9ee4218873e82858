"""Which way a loss that nobody declared pulls: its gradient where outputs meet the labels of the batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects import trees
from ...objects.kinds import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...findings import Location
    from ..recorded.watch import Op

_CLASSES: Final = ("softmax", "log_softmax", "cross_entropy")
_VALUES: Final = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)  # fmt: skip
_LIKE: Final = 1e-3
"""Share of a gradient that float32 leaves of the difference of two that are the same."""
_ROWS: Final = 32  # of more than twice so many rows, so many are compared whole
_MOST: Final = 1 << 20
"""Elements above which scores are not looked at: a copy of them would be large."""

Way = Literal["towards", "away", "over-samples", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """Which way one comparison with labels of the batch pulls; plain data.

    Attributes:
        function: What compares them, such as ``F.mse_loss`` or ``torch.log_softmax``.
        place: The line.
        way: Whether the loss falls ``towards`` the labels or ``away`` from them, or is a cross
            entropy whose softmax runs ``over-samples``.
        counted: How many labels count.
        over: The dimension of that softmax.
        alone: Whether the loss is minus this comparison, and nothing else.
        moved: How many samples are compared with the labels of others; None where what they are
            compared with is no label of the batch.
    """

    function: str
    place: Location | None
    way: Way
    counted: int
    over: int = 1
    alone: bool = False
    moved: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    op: Op
    given: Tensor
    target: Tensor
    axis: int | None  # of the classes; None where values are compared
    logits: bool = False
    result: float = math.nan
    moved: int | None = 0


class Comparisons:
    """Notes where outputs are compared with labels of the batch.

    Attributes:
        labels: The tensors of the batch that may be labels; nothing is noted without any.
        hooked: Whether gradients are taken as they pass, in a backward that the user runs.
        order: In which order the model was given the samples; None for their own.
    """

    def __init__(self) -> None:
        self.labels: list[Tensor] = []
        self.hooked = False
        self.order: tuple[int, ...] | None = None
        self._found: list[_Comparison] = []
        self._passed: dict[int, Tensor] = {}

    def of(self, tensors: Iterable[Any]) -> None:
        """Look for comparisons with these."""
        self.labels = [
            t for t in tensors if isinstance(t, Tensor) and t.dim() and not t.is_complex()
        ]

    def given(self) -> list[Tensor]:
        """Return what was compared, whose gradients tell the way."""
        return [one.given for one in self._found]

    def see(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        op: Callable[[], Op],
    ) -> None:
        """Look at a call of torch."""
        bare = name.rpartition(".")[2]
        if not self.labels or bare not in (*_CLASSES, *_VALUES) or not args:
            return
        given = args[0]
        if not isinstance(given, Tensor) or not given.requires_grad or given.numel() > _MOST:
            return
        target = args[1] if len(args) > 1 else kwargs.get("target")
        if bare.endswith("softmax"):
            for label in self.labels:
                axes = _class_axes(given, label)
                if len(axes) == 1:
                    self._note(_Comparison(op=op(), given=given, target=label, axis=axes[0]))
                    return
        elif not isinstance(target, Tensor) or target.requires_grad:
            return
        elif bare in _VALUES and target.shape == given.shape:
            scalar = isinstance(result, Tensor) and result.dim() == 0
            self._note(
                _Comparison(
                    op=op(), given=given, target=target, axis=None, logits=bare.endswith("logits"),
                    result=float(result.detach()) if scalar else math.nan,
                    moved=self._moved(target),
                )
            )  # fmt: skip
        elif bare in _CLASSES and given.dim() > 1 and 1 in _class_axes(given, target):
            moved = self._moved(target)
            if moved is not None:
                self._note(_Comparison(op=op(), given=given, target=target, axis=1, moved=moved))

    def _moved(self, target: Tensor) -> int | None:
        """Return how many samples of a label of the batch a target gives to others; None where it is no label."""
        target, found = target.detach(), None
        for label in self.labels:
            if target.numel() != label.numel():
                continue
            if self.order is not None and len(self.order) == len(label):
                label = label[list(self.order)]
            if bool((target.flatten() == label.flatten().to(target.dtype)).all()):
                return 0
            if target.shape == label.shape and same_rows(target, label.to(target.dtype)):
                found = int((target != label).reshape(len(label), -1).any(1).sum())
        return found

    def _note(self, one: _Comparison) -> None:
        self._found.append(one)
        key = id(one.given)
        if self.hooked and key not in self._passed:
            self._passed[key] = torch.zeros_like(one.given)
            one.given.register_hook(lambda slope: self._passed[key].add_(slope))

    @torch.no_grad()
    def directions(
        self, loss: float, slopes: dict[int, Tensor | None] | None = None
    ) -> tuple[Direction, ...]:
        """Return which way each comparison pulls, by the gradients of what was compared.

        Args:
            loss: The loss, a number; NaN where there is none.
            slopes: Gradients by the ids of the tensors; those that passed where there are none.
        """
        known = self._passed if slopes is None else slopes
        return tuple(
            _direction(one, trees.dense(slope), loss)
            for one in self._found
            if (slope := known.get(id(one.given))) is not None
            and finite(trees.dense(slope))
            and bool(slope.any())
        )


def _class_axes(scores: Tensor, label: Tensor) -> list[int]:
    """Return the dimensions of scores that may hold the classes of whole numbers."""
    if label.is_floating_point() or label.dtype == torch.bool:
        return []
    shape = tuple(scores.shape)
    axes = [
        d for d, n in enumerate(shape) if n > 1 and shape[:d] + shape[d + 1 :] == tuple(label.shape)
    ]
    top = int(label.max()) if axes and label.numel() else 0
    return [axis for axis in axes if top < shape[axis]]


def _direction(one: _Comparison, slope: Tensor, loss: float) -> Direction:
    if one.axis is not None:
        return _of_classes(one, slope, one.axis, loss)
    values, target = one.given.detach().double(), one.target.detach().double()
    pulled = slope.double() * (target - (values.sigmoid() if one.logits else values))
    way = pulled.reshape(len(pulled) if pulled.dim() else 1, -1).sum(1)
    rising = float((way[way != 0] > 0).double().mean()) if bool(way.any()) else 0.5
    told: Way = "away" if rising > 0.95 else "towards" if rising < 0.05 else "unknown"
    return Direction(function=one.op.name, place=one.op.location, way=told, moved=one.moved,
                     counted=int((way != 0).sum()), alone=_is_minus(loss, one.result))  # fmt: skip


def _of_classes(one: _Comparison, slope: Tensor, axis: int, loss: float) -> Direction:
    """Compare the gradient with that of a cross entropy over the classes, and over each other dimension."""
    scores, label = one.given.detach().movedim(axis, -1), one.target.detach()
    slope, counts = slope.movedim(axis, -1), label >= 0
    if (rows := _towards(scores, slope, label, counts)) is not None:
        return Direction(function=one.op.name, place=one.op.location, way="towards", over=axis, moved=one.moved,
                         counted=rows)  # fmt: skip
    scores, slope = scores.double(), slope.double()
    chosen = torch.zeros_like(scores)
    chosen.scatter_(-1, label.clamp(min=0).long()[..., None], counts[..., None].double())
    logs = scores.log_softmax(-1)
    pull = (logs.exp() - chosen) * counts[..., None]
    weight = (slope * pull).sum(-1, keepdim=True) / pull.square().sum(-1, keepdim=True).clamp(1e-30)
    pulled = weight[(weight != 0) & counts[..., None]]
    way: Way = "unknown"
    over, alone = axis, False
    if pulled.numel() and _alike(slope, weight * pull):
        even = float(pulled.max() - pulled.min()) <= _LIKE * float(pulled.abs().max())
        way = "towards" if bool((pulled > 0).all()) else "unknown"
        way = "away" if even and bool((pulled < 0).all()) else way
        terms = -(logs * chosen).sum(-1)[counts]
        alone = _is_minus(loss, float(terms.mean())) or _is_minus(loss, float(terms.sum()))
    else:
        for dim in range(scores.dim() - 1):
            pull = chosen.sum(dim, keepdim=True) * scores.softmax(dim) - chosen
            scale = float((slope * pull).sum() / pull.square().sum().clamp(1e-30))
            if scale > 0 and _alike(slope, scale * pull):
                way, over = "over-samples", dim if dim < axis else dim + 1
    return Direction(function=one.op.name, place=one.op.location, way=way, over=over, moved=one.moved,
                     counted=int(pulled.numel()), alone=alone)  # fmt: skip


def _towards(scores: Tensor, slope: Tensor, label: Tensor, counts: Tensor) -> int | None:
    """Return how many rows, of many, are pulled to their labels; None unless all are, some by a cross entropy."""
    own = slope.gather(-1, label.clamp(min=0).long()[..., None])[..., 0]
    pulled = counts & (own != 0)
    rows = pulled.flatten().nonzero().flatten()
    if len(rows) <= 2 * _ROWS or bool((own[pulled] > 0).any()) or bool(own[~counts].any()):
        return None
    some = rows[:: len(rows) // _ROWS]
    few, gradient = (t.reshape(-1, t.shape[-1])[some].double() for t in (scores, slope))
    chosen = torch.zeros_like(few).scatter_(-1, label.flatten()[some].long()[:, None], 1.0)
    pull = few.softmax(-1) - chosen
    weight = (gradient * pull).sum(-1, keepdim=True) / pull.square().sum(-1, keepdim=True)
    return len(rows) if _alike(gradient, weight * pull) else None


def _alike(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= _LIKE * float(one.norm())


def _is_minus(loss: float, value: float) -> bool:
    return value > 0 and abs(loss + value) <= 1e-4 * value


def order_of(given: Tensor, batch: Tensor) -> tuple[int, ...] | None:
    """Return in which order a tensor has the rows of another; None where it has others, or two are equal."""
    if not given.dim() or not same_rows(given, batch):
        return None
    found = [[at for at, other in enumerate(batch) if torch.equal(row, other)] for row in given]
    return tuple(places[0] for places in found) if all(len(f) == 1 for f in found) else None


def same_rows(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors have the same rows, in any order."""
    counted = [t.unique(dim=0, return_counts=True) for t in (one, other)]
    return all(torch.equal(a, b) for a, b in zip(*counted, strict=True))


def turned(directions: Iterable[Direction]) -> Direction | None:
    """Return a comparison that pulls away from its labels, where none pulls towards what it is compared with.

    What is no label of the batch counts where the loss is nothing else: noise that a model drew.
    """
    known = list(directions)
    if any(one.way in ("towards", "over-samples") for one in known):
        return None
    wrong = [one for one in known if one.way == "away" and one.counted > 1]
    return next((one for one in wrong if one.alone or one.moved is not None), None)


def shuffled(directions: Iterable[Direction]) -> Direction | None:
    """Return a comparison of samples with the labels of others, where none is with their own."""
    labelled = [one for one in directions if one.moved is not None]
    moved = [one for one in labelled if one.moved and one.moved > 1]
    return moved[0] if len(moved) == len(labelled) and moved else None

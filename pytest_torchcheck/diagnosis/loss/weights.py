"""Losses in which elements count for what they should not, explained, and what a loss divides by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import listed, on_line
from ...findings import Culprit, Finding
from ...probes.recorded.watch import Op, Watch, name_of, tensors_in
from ...text.wording import counted
from ...verdicts import violated
from .consumed import loss_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...probes.loss.slopes import LossOfOutput
    from ...probes.loss.weights import Crowding, Reductions
    from ...runs.losses.met_samples import MetSamples
    from ...subject import Subject

_CLOSE = 1e-3


class _Made(Watch):
    """Keeps what each operation of a loss made, with its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Op, torch.Tensor]] = []

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Keep results that have a gradient."""
        op = self.op(name_of(func))
        self.made += [(op, tensor) for tensor in tensors_in(result) if tensor.requires_grad]


def mixed_reductions(
    subject: Subject, loss: LossOfOutput, found: Reductions, axes: dict[str, int], size: int
) -> Finding:
    """Explain a loss that averages one term over the samples and sums another."""
    op = _summed_by(loss, loss.cut(torch.arange(size).repeat(2), axes))
    place = (op.location if op is not None else None) or loss_line(subject)
    name = str(op) if op is not None else "one term"
    averaged, summed = (_outputs(paths) for paths in (found.averaged, found.summed))
    return violated(
        "reductions-mixed",
        f"the loss averages its term in {averaged} over the samples, and sums that in {summed}"
        if found.averaged != found.summed
        else f"the loss adds a term that is summed over the samples to one that is averaged ({summed})",
        culprits=[Culprit("loss", "loss", "mixed reductions", place)],
        observed=f"with every sample repeated, the gradient with respect to {summed} doubles; that with "
        f"respect to {averaged} stays the same"
        if found.averaged != found.summed
        else f"with every sample repeated, a part of the gradient with respect to {summed} doubles; the "
        "rest stays the same",
        cause=f"{name} sums over the samples, and no division by their number follows",
        because="only the number of samples was changed: each of them stands twice in the batch",
        fix="average both terms over the samples, or sum both: reduce each sample's own dimensions first "
        "(dim=), then take the mean over the batch",
    )


def divided_again(
    subject: Subject, loss: LossOfOutput, found: Reductions, axes: dict[str, int], size: int
) -> Finding:
    """Explain a loss that divides an average over the samples by their number."""
    op = _halved_by(loss, loss.cut(torch.arange(size).repeat(2), axes))
    place = (op.location if op is not None else None) or loss_line(subject)
    name, what = str(op) if op is not None else "the loss", _outputs(found.divided)
    return violated(
        "mean-divided",
        f"the larger the batch, the less its samples count together: {what} "
        f"{'is' if len(found.divided) == 1 else 'are'} divided by their number twice",
        culprits=[Culprit("loss", "loss", "divides an average again", place)],
        observed=f"with every sample repeated, the gradients with respect to {what} of both copies together "
        "are half of what one had, or a part of them is",
        cause=f"{name} divides by the number of samples what is already an average over them",
        because="only the number of samples was changed, and another output of the first sample leaves the gradients "
        "of the others as they are; an average keeps the gradient of all copies together, and a sum doubles it",
        fix="divide by the number of samples once: take the mean, or divide the sum",
    )


def _outputs(paths: tuple[str, ...]) -> str:
    return listed(["the output" if path == "output" else path for path in paths])


def _summed_by(loss: LossOfOutput, twice: LossOfOutput) -> Op | None:
    """Return the operation that makes a sum over the samples which keeps its weight in the loss of twice as many."""
    for (op, one, slope), (again, two, other) in zip(_steps(loss), _steps(twice), strict=False):
        if op.name != again.name:
            return None  # the loss takes another way for more samples
        if slope is None or other is None or one.shape != two.shape or not bool(one.any()):
            continue
        doubled = torch.allclose(two, 2 * one, rtol=_CLOSE)
        if doubled and bool(slope.any()) and torch.allclose(slope, other, rtol=_CLOSE):
            return op
    return None


def _halved_by(loss: LossOfOutput, twice: LossOfOutput) -> Op | None:
    """Return the operation whose result is half as large for twice as many samples, and counts as much in the loss."""
    for (op, one, slope), (again, two, other) in zip(_steps(loss), _steps(twice), strict=False):
        if op.name != again.name:
            return None  # the loss takes another way for more samples
        if slope is None or other is None or one.shape != two.shape or not bool(one.any()):
            continue
        halved = one.numel() == 1 and torch.allclose(2 * two, one, rtol=_CLOSE)
        if halved and bool(slope.any()) and torch.allclose(slope, other, rtol=_CLOSE):
            return op
    return None


def _steps(loss: LossOfOutput) -> list[tuple[Op, torch.Tensor, torch.Tensor | None]]:
    """Return each operation of a loss with what it made, and the gradient of the loss by that."""
    watch = _Made()
    with watch:
        value, _ = loss.run()
    made = [tensor for _, tensor in watch.made]
    slopes = torch.autograd.grad(value, made, allow_unused=True) if made else ()
    return [(op, tensor, slope) for (op, tensor), slope in zip(watch.made, slopes, strict=True)]


def mean_over_others(subject: Subject, loss: LossOfOutput, found: Crowding) -> Finding:
    """Explain a masked mean that is divided by a number which falls as more elements count."""
    op = _divisor(loss, found.others)
    place = (op.location if op is not None else None) or loss_line(subject)
    name = (sources.assigned_name(place) if place is not None else None) or "the divisor"
    by = _selecting(loss, found.others)
    at = None if by is None else by.location
    selects, counted_at, negated = [], "", ""
    if by is not None and at is not None and place is not None and at.line != place.line:
        value = int(loss.targets()[found.path][found.element])
        selects = [Culprit("call", by.name, "selects the elements that count", at)]
        counted_at = (
            f": {by.name}{on_line(at)} lets those count at which {found.path} is {1 - value}"
        )
        negated = f"; or, if those at which {found.path} is {value} are to count, negate the mask{on_line(at)}"
    return violated(
        "mean-over-others",
        f"the more elements {found.path} lets count, the more each of them weighs in the loss",
        culprits=[
            Culprit("loss", "loss", "divided by the number of other elements", place),
            Culprit("target", found.path, "says which elements count", place),
            *selects,
        ],
        observed=f"with {found.path}{list(found.element)} counted too, the gradient of "
        f"{counted(found.counted, 'element')} of sample {found.sample} that counted before grows by a factor of "
        f"{found.factor:.4g}",
        cause=f"{name} falls as more elements count" + counted_at
        if op is not None
        else "the mean is not taken over the elements that count",
        because="only this element of the mask was changed; the weight of an element in a mean "
        "falls with each other one, "
        "and stays in a sum",
        fix="divide by the number of elements that count: the sum of the mask that selects them"
        + negated,
    )


def _selecting(loss: LossOfOutput, others: LossOfOutput) -> Op | None:
    """Return the first operation on the outputs with another result under the other mask."""
    for (op, one, _), (again, two, _) in zip(_steps(loss), _steps(others), strict=False):
        if op.name != again.name:
            return None
        if one.shape != two.shape or not torch.equal(one, two):
            return op
    return None


def _divisor(loss: LossOfOutput, others: LossOfOutput) -> Op | None:
    """Return the operation that made the first divisor which is smaller with the other mask."""
    before, after = Divisors(), Divisors()
    with before:
        loss.run()
    with after:
        others.run()
    for (by, maker), (other, again) in zip(before.divided, after.divided, strict=False):
        if maker.name != again.name:
            return None
        if by.shape == other.shape and bool((other < by).any()):
            return maker
    return None


class Divisors(Watch):
    """Keeps each tensor that something was divided by, with the operation that made it.

    Attributes:
        divided: By division: a copy of the divisor, and what made it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._makers: dict[int, tuple[torch.Tensor, Op]] = {}
        self.divided: list[tuple[torch.Tensor, Op]] = []

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Keep who made each number; look at divisors."""
        op = self.op(name_of(func))
        if "div" in op.name.rpartition(".")[2] and len(args) > 1:
            by = args[1]
            maker = self._makers.get(id(by))
            if isinstance(by, torch.Tensor) and maker is not None:
                self.divided.append((by.detach().clone(), maker[1]))
        for tensor in tensors_in(result):
            self._makers[id(tensor)] = (tensor, op)

    @property
    def zero(self) -> Op | None:
        """What made the first divisor that is 0 somewhere."""
        return next((op for by, op in self.divided if bool((by == 0).any())), None)


def met_samples(subject: Subject, found: MetSamples) -> Finding:
    """Explain a product of one number for each sample with another, in which each meets those of all samples.

    Args:
        subject: Whose loss.
        found: The product.
    """
    row, column, result = (list(shape) for shape in found.shapes)
    place = found.op.location or loss_line(subject)
    name = found.op.module
    culprits = [Culprit("loss", "loss", f"{found.op.name} of {row} and {column}", place)]
    if name:
        culprits.append(Culprit("module", name, "computes it", place))
    return violated(
        "loss-broadcast",
        f"{row} and {column}, one number for each sample, broadcast to {result}: each meets those of all samples",
        culprits=culprits,
        location=place,
        observed=f"in a batch of {found.samples}, {found.op.name} of {row} and {column} gives {result}, of "
        f"which only sums and "
        "means are taken",
        cause="a mean over all pairs of samples is the product of two means: a weight has no say in which "
        "sample counts",
        because="both were broadcast: neither has the shape of the result, and no other dimension has the "
        "size of the batch; with another first sample, they change there most",
        fix=f"give both the shape {row}{on_line(found.op.location)}: flatten the one of shape {column}",
        evidence={"samples": found.samples},
    )

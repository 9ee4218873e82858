"""How a loss consumes the output of one forward: watched once, for all that ask."""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch

from ...lean import dataclass
from ...objects import trees
from ...probes.loss.arguments import Alignable, alignable, misfit
from ...probes.loss.consumption import (
    Broadcast,
    LogOf,
    LossCall,
    LossWatch,
    Producer,
    is_criterion,
    parameter_of,
)
from ...probes.loss.ranges import Range, range_of
from ...probes.loss.terms import summands
from ...probes.recorded.watch import version_of
from ...subject.remembered import remembered
from .pulls import cut_outputs, goals_of, share_away
from .shapes import PAIRED, stretched

if TYPE_CHECKING:
    from ...batches import Batch
    from ...findings import Location
    from ...probes.gradient.penalties import PartialNorm
    from ...probes.gradient.row_sums import RowSum
    from ...probes.gradient.surrogates import DeadTerm
    from ...probes.loss.axes import Crossed, FocalMean, OfOtherRows, Scattered
    from ...probes.loss.directions import Direction
    from ...probes.loss.noise import NoiseTarget
    from ...probes.loss.regrouping import Regrouped
    from ...probes.loss.slopes import LossOfOutput
    from ...probes.loss.terms import IdleTerm
    from ...probes.loss.undefined import Undefined
    from ...probes.loss.unit_vectors import OtherAxis
    from ...subject import Subject


_BINARY = ("F.binary_cross_entropy", "F.binary_cross_entropy_with_logits")
_SUM = 1e-2
"""By how much class probabilities may miss one: in half precision they do so by less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """What one loss function was given; plain data.

    Attributes:
        function: Such as ``F.cross_entropy``.
        shape: Of its input.
        distribution: Whether the input's rows sum to one and none is negative.
        log_distribution: Whether its exponential's rows sum to one.
        unit: Whether it lies within 0 and 1.
        negative: Whether any element is negative.
        zeros: Share of exact zeros.
        spread: Standard deviation.
        passed: The line of the loss that gives it its shape, where that is all that it does.
        producer: What made it.
        weight: The parameter that a linear producer multiplied with.
        place: Line of the call.
        classes: Size of the class dimension for cross entropy, else 0.
        entropy: Mean cross entropy with the given class indices; NaN where there are none.
        rising: Share of samples whose loss falls when their true class gets less likely; NaN if unknown.
        top: Largest class index among the targets that count; -1 if unknown.
        low: Smallest of them.
        counted: How many targets count.
        left: How many do not.
        target_place: Line within forward or loss that made the targets last.
        made_target: Whether any operation there made them.
        range: Its targets, where torch documents what they may be.
        whole: Whether a regression loss got whole numbers of the input's shape as targets.
        criterion: Class of torch's loss module that called the function, or empty.
        unlike: What keeps float targets of cross entropy from being class probabilities:
            ``several`` ones in a row, ``negative`` ones, or ``batch`` where the one dimension there
            is does not sum to one; empty where nothing does.
        swapped: Whether a binary cross entropy was given 0s and 1s of the batch first, then the output.
        ctc: The labels of a CTC loss.
        misfit: Code of what is wrong with a rate or with log-probabilities, or empty.
    """

    function: str
    shape: tuple[int, ...]
    distribution: bool = False
    log_distribution: bool = False
    unit: bool = False
    negative: bool = True
    zeros: float = 0.0
    spread: float = 0.0
    passed: Location | None = None
    producer: Producer | None = None
    weight: str | None = None
    place: Location | None = None
    classes: int = 0
    entropy: float = math.nan
    rising: float = math.nan
    top: int = -1
    low: int = -1
    counted: int = 0
    left: int = 0
    target_place: Location | None = None
    made_target: bool = False
    range: Range | None = None
    whole: bool = False
    criterion: str = ""
    unlike: str = ""
    swapped: bool = False
    ctc: Alignable | None = None
    misfit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEvidence:
    """How the user's loss consumed the output of one forward; plain data.

    ``written`` are the paths of the outputs and targets that the loss wrote to, ``dead`` the terms
    without a graph, ``focal`` the focal weights of a mean, ``norms`` the derivatives reduced in parts,
    ``row_sums`` the second derivatives of all components at once,
    ``directions`` which way a loss that nobody declared pulls, ``idle`` the terms of a step that train nothing,
    ``fed`` whether a step gave the model its samples in one order, ``regrouped`` the two orders in which it takes
    inputs and targets, ``crossed`` the probabilities that meet
    log-probabilities of another dimension, ``cosines`` the products of unit vectors that give none,
    ``undefined`` the functions that gave NaN for finite numbers,
    ``noise`` the predictions that are compared with random ones, ``loses`` whether a result went unread,
    ``terms`` how many numbers the loss is the sum of, ``crosses`` whether a product has one for each pair of
    samples.
    """

    shape: tuple[int, ...]
    dtype: str
    value: float
    leaf: bool
    connected: bool
    consumed: tuple[Consumed, ...] = ()
    broadcasts: tuple[Broadcast, ...] = ()
    producer: Producer | None = None
    samples: int = 0
    logs: tuple[LogOf, ...] = ()
    norms: tuple[PartialNorm, ...] = ()
    row_sums: tuple[RowSum, ...] = ()
    crossed: tuple[Crossed | Scattered | OfOtherRows, ...] = ()
    cosines: tuple[OtherAxis, ...] = ()
    undefined: tuple[Undefined, ...] = ()
    noise: tuple[NoiseTarget, ...] = ()
    outputs: dict[str, float] = field(default_factory=dict)
    away: dict[str, float] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    dead: tuple[DeadTerm, ...] = ()
    focal: tuple[FocalMean, ...] = ()
    directions: tuple[Direction, ...] = ()
    idle: tuple[IdleTerm, ...] = ()
    fed: bool = False
    regrouped: Regrouped | None = None
    loses: bool = False
    terms: int = 1
    crosses: bool = False


class LossSight:
    """Sees a forward and its loss, and the gradients that a backward sends to what the loss consumed.

    Args:
        subject: Whose step.
        model: Its model.
        batch: What the model is called with.

    Attributes:
        watch: To be entered around the forward and the loss.
    """

    def __init__(self, subject: Subject, model: torch.nn.Module, batch: Batch) -> None:
        self._subject, self._model, self._batch = subject, model, batch
        self.watch = LossWatch(model)
        self._given: dict[str, tuple[torch.Tensor, int | None]] = {}
        if isinstance(subject.contract.loss, str):
            self.watch.comparisons.of(batch.tensors().values())
            self.watch.inside(t for _, t in batch.input_leaves() if isinstance(t, torch.Tensor))

    def between(self, output: Any) -> None:
        """Say that the forward is over and the loss begins."""
        targets = trees.tensors(self._batch.targets)
        self.watch.between(trees.tensors(output).values(), targets.values())
        given = trees.tensors(self._batch.targets, "targets") | trees.tensors(output)
        self._given = {path: (tensor, version_of(tensor)) for path, tensor in given.items()}

    def wanted(self, output: Any) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """Return what the loss functions were given, and the outputs by path, that require a gradient."""
        consumed = [call.input for call in self.watch.calls if call.input.requires_grad]
        consumed += self.watch.comparisons.given()
        return consumed, {p: t for p, t in trees.floats(output).items() if t.requires_grad}

    def evidence(
        self,
        output: Any,
        loss: torch.Tensor,
        by_input: dict[int, torch.Tensor | None],
        by_path: dict[str, torch.Tensor | None],
    ) -> LossEvidence:
        """Describe what was seen.

        Args:
            output: What the model returned.
            loss: Its loss.
            by_input: Gradients of what the loss functions were given, by id.
            by_path: Gradients of the outputs.
        """
        first = next(iter(trees.floats(output).values()), None)
        written = tuple(p for p, (t, version) in self._given.items() if version_of(t) != version)
        return LossEvidence(
            shape=tuple(loss.shape),
            dtype=str(loss.dtype).removeprefix("torch."),
            value=float(loss.detach().float().mean()) if loss.numel() else math.nan,
            leaf=loss.is_leaf and loss.requires_grad,
            connected=loss.requires_grad,
            consumed=tuple(
                describe(call, by_input.get(id(call.input)), self._model)
                for call in self.watch.calls
            ),
            broadcasts=stretched(self.watch),
            producer=None if first is None else self.watch.producer(first),
            samples=len(self.watch.samples),
            logs=tuple(self.watch.logs),
            outputs={
                p: 0.0 if g is None else float(trees.dense(g).abs().max())
                for p, g in by_path.items()
                if g is None or g.numel()
            },
            away=share_away(self._subject, output, self._batch),
            written=written,
            dead=tuple(self.watch.derivatives.found),
            crossed=self.watch.axes.every(),
            cosines=tuple(self.watch.lengths.found),
            undefined=tuple(self.watch.undefined.found),
            focal=tuple(self.watch.focal.found),
            noise=tuple(self.watch.noise.found),
            loses=self.watch.loses,
            crosses=self.watch.crosses,
            terms=1 if loss.grad_fn is None else sum(not s for _, s in summands(loss.grad_fn)),
            directions=self.watch.comparisons.directions(
                float(loss.detach()) if loss.dim() == 0 else math.nan, by_input
            ),
        )

    def keep(self, output: Any, loss: torch.Tensor) -> None:
        """Keep what :func:`evidence` returns, after a backward that left ``.grad`` of all that is :meth:`wanted`.

        Nothing is kept where the evidence calls the user's loss again, in the midst of their steps.
        """
        again = goals_of(output, self._batch) or cut_outputs(output, self._batch)
        if loss.requires_grad and loss.dim() == 0 and not again:
            consumed, outputs = self.wanted(output)
            self._subject.cache.setdefault(
                "loss",
                self.evidence(
                    output,
                    loss,
                    {id(t): t.grad for t in consumed},
                    {path: t.grad for path, t in outputs.items()},
                ),
            )


@remembered("loss")
def evidence(subject: Subject) -> LossEvidence:
    """Watch one forward and its loss, with gradients to the outputs; cached."""
    return evidence_of(subject, subject.batch().clone())


def evidence_of(subject: Subject, batch: Batch) -> LossEvidence:
    """Watch one forward and the loss of a batch, which is not cloned."""
    with subject.pristine(train=True, seeded=True) as model, torch.enable_grad():
        sight = LossSight(subject, model, batch)
        with subject.ear.listening(), sight.watch:
            output = subject.call(model, batch)
            sight.between(output)
            loss = subject.compute_loss(output, batch)
        consumed, outputs = sight.wanted(output)
        grads: list[torch.Tensor | None] = [None] * (len(consumed) + len(outputs))
        if grads and loss.requires_grad and loss.dim() == 0:
            with subject.phase("backward", batch):
                given = [*consumed, *outputs.values()]
                grads = list(torch.autograd.grad(loss, given, allow_unused=True))
        by_input = {id(t): g for t, g in zip(consumed, grads, strict=False)}
        by_path = dict(zip(outputs, grads[len(consumed) :], strict=False))
        return sight.evidence(output, loss, by_input, by_path)


@torch.no_grad()
def describe(call: LossCall, grad: torch.Tensor | None, model: torch.nn.Module) -> Consumed:
    """Describe what one loss function was given.

    Args:
        call: The call, with its live tensors.
        grad: Gradient of the loss by its input, where that is known.
        model: Whose parameters a linear producer multiplied with.
    """
    values = trees.dense(call.input).float()
    made: dict[str, Any] = {
        "function": call.op.name,
        "shape": tuple(values.shape),
        "place": call.op.location,
        "passed": None if call.passed is None else call.passed.location,
        "criterion": call.op.module_class if is_criterion(call.op.module_class) else "",
        "target_place": None if call.target_op is None else call.target_op.location,
        "made_target": call.target_op is not None,
    }
    if call.producer is not None:
        made |= {"producer": call.producer, "weight": parameter_of(model, call.producer)}
    made["ctc"] = alignable(call)
    low, high = map(float, values.aminmax()) if values.numel() else (math.nan, math.nan)
    if not (math.isfinite(low) and math.isfinite(high)):
        return Consumed(**made)
    made["misfit"] = misfit(call, values, grad)
    made |= {
        "negative": low < 0,
        "unit": low >= 0 and high <= 1,
        "zeros": 1 - int(values.count_nonzero()) / values.numel(),
    }
    made["spread"] = float(values.std()) if values.numel() > 1 else 0.0
    classed = call.op.name in ("F.cross_entropy", "F.nll_loss", "F.nll_loss_nd")
    dim = 1 if classed and values.dim() > 1 else -1
    if values.dim() and values.shape[dim] > 1:
        made["distribution"] = low >= 0 and bool(((values.sum(dim) - 1).abs() < 1e-3).all())
        made["log_distribution"] = high <= 0 and bool(
            ((values.exp().sum(dim) - 1).abs() < 1e-3).all()
        )
    target = call.target
    if call.swapped and call.op.name in _BINARY:
        made["swapped"] = bool(((values == 0) | (values == 1)).all())
    if target is not None and call.op.name == "F.cross_entropy" and target.is_floating_point():
        made["unlike"] = _no_distributions(trees.dense(target), values)
    made["range"] = range_of(call, grad)
    if target is not None and call.op.name in PAIRED:
        numbers = trees.dense(target)
        made["whole"] = numbers.shape == values.shape and bool((numbers == numbers.round()).all())
    elif (
        target is not None
        and dim == 1
        and not target.is_floating_point()
        and target.shape == values.shape[:1] + values.shape[2:]
    ):
        classes = values.shape[1]
        ignore = int(call.options.get("ignore_index", -100))
        counts = (target != ignore) & (target >= 0) & (target < classes)
        if bool(counts.any()):
            kept = target[counts]
            made |= {
                "classes": classes, "top": int(kept.max()), "low": int(kept.min()), "counted": int(counts.sum()),
                "left": int((~counts).sum()),
            }  # fmt: skip
            rows = values.movedim(1, -1)[counts]
            if call.op.name == "F.cross_entropy":
                made["entropy"] = float(torch.nn.functional.cross_entropy(rows, kept))
            if grad is not None:
                slope = trees.dense(grad).movedim(1, -1)[counts].gather(1, kept[:, None])[:, 0]
                moved = slope != 0
                if bool(moved.any()):
                    made["rising"] = float((slope[moved] > 0).float().mean())
    return Consumed(**made)


def _no_distributions(target: torch.Tensor, values: torch.Tensor) -> str:
    """Say what keeps float targets from being class probabilities; a row may be scaled, or left out by zeros."""
    if target.shape != values.shape or not target.dim():
        return ""
    if target.dim() == 1:
        return "batch" if abs(float(target.sum()) - 1) > _SUM and len(target) > 1 else ""
    rows = target.movedim(1, -1).flatten(0, -2)
    several = rows[(rows != 0).sum(-1) > 1]
    if bool((several < 0).any()):
        return "negative"
    return "several" if len(several) and bool(((rows == 0) | (rows == 1)).all()) else ""


def loss_calls(subject: Subject, loss: LossOfOutput, batch: Batch | None = None) -> list[LossCall]:
    """Return the calls of torch's loss functions, with what made their arguments; with a batch of other targets."""
    watch = LossWatch()
    with watch:
        loss.run(batch)
    return watch.calls

"""The loss is a connected scalar, falls when the fit gets better, and gets what it expects."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .. import sources, trees
from ..diagnosis import losses as explain
from ..diagnosis.losses_called import is_criterion
from ..probes.loss_values import Alignable, alignable, misfit
from ..probes.losses import (
    Broadcast,
    LogOf,
    LossCall,
    LossWatch,
    Producer,
    Stretched,
    parameter_of,
)
from ..probes.watch import version_of
from ..specs import Labels
from ..state import seed_everything
from ..subject import SubjectError
from ..verdicts import inconclusive, not_applicable, passed, suspicious
from .registry import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..batches import Batch
    from ..findings import Finding, Location
    from ..probes.dead_terms import DeadTerm
    from ..probes.focal import FocalMean
    from ..subject import Subject

_SURE = 250.0
"""Logits so far apart: the smaller probability is 0 in float32, and its logarithm is -250."""
_REGRESSIONS = ("F.mse_loss", "F.l1_loss", "F.smooth_l1_loss", "F.huber_loss")
_BINARY = ("F.binary_cross_entropy", "F.binary_cross_entropy_with_logits")
_SUM = 1e-2
"""By how much class probabilities may miss one: in half precision they do so by less."""
_LOGITS = ("F.cross_entropy", "F.log_softmax", "torch.log_softmax", "Tensor.log_softmax")


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
        producer: What made it.
        weight: The parameter that a linear producer multiplied with.
        place: Line of the call.
        classes: Size of the class dimension for cross entropy, else 0.
        entropy: Mean cross entropy with the given class indices; NaN where there are none.
        rising: Share of samples whose loss falls when their true class gets less likely; NaN if unknown.
        top: Largest class index among the targets that count; -1 if unknown.
        low: Smallest of them.
        counted: How many targets count.
        target_place: Line within forward or loss that made the targets last.
        outside: The lowest and highest target, or all of a few, where a binary cross entropy got some outside of 0 to 1.
        binary: How many targets a binary cross entropy of logits got.
        whole: Whether a regression loss got whole numbers of the input's shape as targets.
        criterion: Class of torch's loss module that called the function, or empty.
        unlike: What keeps float targets of cross entropy from being class probabilities: ``several`` ones in a row,
            ``negative`` ones, or ``batch`` where the one dimension there is does not sum to one; empty where nothing does.
        swapped: Whether a binary cross entropy was given 0s and 1s of the batch first, and the output after it.
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
    producer: Producer | None = None
    weight: str | None = None
    place: Location | None = None
    classes: int = 0
    entropy: float = math.nan
    rising: float = math.nan
    top: int = -1
    low: int = -1
    counted: int = 0
    target_place: Location | None = None
    outside: tuple[float, ...] = ()
    binary: int = 0
    whole: bool = False
    criterion: str = ""
    unlike: str = ""
    swapped: bool = False
    ctc: Alignable | None = None
    misfit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEvidence:
    """How the user's loss consumed the output of one forward; plain data.

    ``written`` are the paths of the outputs and targets that the loss wrote to, ``dead`` the terms without a
    graph, ``focal`` the focal weights of a mean.
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
    outputs: dict[str, float] = field(default_factory=dict)
    away: dict[str, float] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    dead: tuple[DeadTerm, ...] = ()
    focal: tuple[FocalMean, ...] = ()


def evidence(subject: Subject) -> LossEvidence:
    """Watch one forward and its loss, with gradients to the outputs; cached."""
    if "loss" not in subject.cache:
        subject.cache["loss"] = _gather(subject)
    found: LossEvidence = subject.cache["loss"]
    return found


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
        self._inputs = {id(t) for _, t in batch.input_leaves() if isinstance(t, torch.Tensor)}
        self._given: dict[str, tuple[torch.Tensor, int | None]] = {}

    def between(self, output: Any) -> None:
        """Say that the forward is over and the loss begins."""
        targets = [
            t for t in trees.tensors(self._batch.targets).values() if id(t) not in self._inputs
        ]
        self.watch.between(trees.tensors(output).values(), targets)
        given = trees.tensors(self._batch.targets, "targets") | trees.tensors(output)
        self._given = {path: (tensor, version_of(tensor)) for path, tensor in given.items()}

    def wanted(self, output: Any) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """Return what the loss functions were given, and the outputs by path, that require a gradient."""
        consumed = [call.input for call in self.watch.calls if call.input.requires_grad]
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
                _describe(call, by_input.get(id(call.input)), self._model)
                for call in self.watch.calls
            ),
            broadcasts=tuple(self.watch.broadcasts),
            producer=None if first is None else self.watch.producer(first),
            samples=len(self.watch.samples),
            logs=tuple(self.watch.logs),
            outputs={
                p: 0.0 if g is None else float(g.detach().abs().max())
                for p, g in by_path.items()
                if g is None or g.numel()
            },
            away=_away(self._subject, output, self._batch),
            written=written,
            dead=tuple(self.watch.derivatives.found),
            focal=tuple(self.watch.focal.found),
        )

    def keep(self, output: Any, loss: torch.Tensor) -> None:
        """Keep what :func:`evidence` returns, after a backward that left ``.grad`` of all that is :meth:`wanted`.

        Nothing is kept where the evidence calls the user's loss again, in the midst of their steps.
        """
        again = _goals(output, self._batch) or _cut(output, self._batch)
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


def _gather(subject: Subject) -> LossEvidence:
    batch = subject.batch().clone()
    with subject.pristine() as model, torch.enable_grad():
        model.train()
        seed_everything(subject.seed)
        sight = LossSight(subject, model, batch)
        with sight.watch:
            output = subject.call(model, batch)
            sight.between(output)
            loss = subject.compute_loss(output, batch)
        consumed, outputs = sight.wanted(output)
        grads: list[torch.Tensor | None] = [None] * (len(consumed) + len(outputs))
        if loss.requires_grad and loss.dim() == 0:
            with subject.phase("backward", batch):
                grads = list(
                    torch.autograd.grad(
                        loss, [*consumed, *outputs.values()], allow_unused=True, retain_graph=False
                    )
                )
        by_input = {id(t): g for t, g in zip(consumed, grads, strict=False)}
        by_path = dict(zip(outputs, grads[len(consumed) :], strict=False))
        return sight.evidence(output, loss, by_input, by_path)


@torch.no_grad()
def _describe(call: LossCall, grad: torch.Tensor | None, model: torch.nn.Module) -> Consumed:
    values = trees.dense(call.input).float()
    made: dict[str, Any] = {
        "function": call.op.name,
        "shape": tuple(values.shape),
        "place": call.op.location,
        "criterion": call.op.module_class if is_criterion(call.op.module_class) else "",
        "target_place": None if call.target_op is None else call.target_op.location,
    }
    if call.producer is not None:
        made |= {"producer": call.producer, "weight": parameter_of(model, call.producer)}
    made["ctc"] = alignable(call)
    if values.numel() == 0 or not bool(torch.isfinite(values).all()):
        return Consumed(**made)
    made["misfit"] = misfit(call, values, grad)
    low, high = float(values.min()), float(values.max())
    made |= {
        "negative": low < 0,
        "unit": low >= 0 and high <= 1,
        "zeros": float((values == 0).float().mean()),
    }
    made["spread"] = float(values.std()) if values.numel() > 1 else 0.0
    dim = (
        1
        if call.op.name in ("F.cross_entropy", "F.nll_loss", "F.nll_loss_nd") and values.dim() > 1
        else -1
    )
    if values.dim() and values.shape[dim] > 1:
        sums = values.sum(dim)
        made["distribution"] = low >= 0 and bool(((sums - 1).abs() < 1e-3).all())
        made["log_distribution"] = high <= 0 and bool(
            ((values.exp().sum(dim) - 1).abs() < 1e-3).all()
        )
    target = call.target
    if call.swapped and call.op.name in _BINARY:
        made["swapped"] = bool(((values == 0) | (values == 1)).all())
    if target is not None and call.op.name == "F.cross_entropy" and target.is_floating_point():
        made["unlike"] = _no_distributions(trees.dense(target), values)
    if target is not None and call.op.name == "F.binary_cross_entropy_with_logits":
        made["outside"] = _no_probabilities(trees.dense(target), grad)
        made["binary"] = target.numel()
    elif target is not None and call.op.name in _REGRESSIONS:
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


def _no_probabilities(target: torch.Tensor, grad: torch.Tensor | None) -> tuple[float, ...]:
    """Return a few of the targets outside of 0 to 1 that the loss heeds: marks that it leaves out are none."""
    if grad is None or grad.shape != target.shape:
        return ()
    beyond = ((target < 0) | (target > 1)) & (trees.dense(grad) != 0)
    if not bool(beyond.any()):
        return ()
    found = torch.unique(target.float())
    return tuple(found.tolist() if len(found) <= 4 else found[[0, -1]].tolist())


def _away(subject: Subject, output: Any, batch: Batch) -> dict[str, float]:
    """Share of samples whose loss falls when the output moves away from a float target of its shape.

    Each output is cut free first: where one is computed from another (a score from an image), the
    slope through the model says nothing of the loss. An output is left out where its target is no goal
    of it: a margin, a weight, a sign that all samples share.
    """
    found: dict[str, float] = {}
    goals = _goals(output, batch) or _cut_goals(subject, output, batch)
    for path, goal in goals.items():
        tensor = trees.tensors(output)[path]
        slope = _slope(subject, output, batch, path)
        if slope is None:
            continue
        towards = goal - trees.dense(tensor)
        if bool(((goal == 0) | (goal == 1)).all()):
            if bool((goal == goal.flatten()[0]).all()):
                continue
            towards = 2 * goal - 1
        elif not _extreme(subject, output, batch, path, goal):
            continue
        work = (slope * towards).flatten(1).sum(1) if tensor.dim() > 1 else slope * towards
        moved = work != 0
        if bool(moved.any()):
            found[path] = float((work[moved] > 0).float().mean())
    return found


def _goals(output: Any, batch: Batch) -> dict[str, torch.Tensor]:
    """Return, by the output's path, the one float target of its shape."""
    targets = [t for t in trees.floats(batch.targets).values() if not t.is_complex()]
    goals: dict[str, torch.Tensor] = {}
    for path, tensor in trees.floats(output).items():
        fitting = [t for t in targets if t.shape == tensor.shape and t is not tensor]
        if tensor.requires_grad and not tensor.is_complex() and tensor.dim() and len(fitting) == 1:
            goals[path] = trees.dense(fitting[0]).to(tensor.device, tensor.dtype)
    return goals


def _cut_goals(subject: Subject, output: Any, batch: Batch) -> dict[str, torch.Tensor]:
    """Return, by the output's path, the output of its shape that is cut from the graph: what it is drawn to.

    Of several (two views of a sample) it is the one at which the loss lies lowest, or else highest.
    """
    cut = _cut(output, batch)
    floats = {p: t for p, t in trees.floats(output).items() if cut and not t.is_complex()}
    goals: dict[str, torch.Tensor] = {}
    for path, tensor in floats.items():
        if not tensor.requires_grad or not tensor.dim():
            continue
        peaks = [
            (*peak, goal)
            for goal in (_as(t, tensor) for t in cut if t.shape == tensor.shape)
            if (peak := _peak(subject, output, batch, path, goal)) is not None
        ]
        low = [peak for peak in peaks if peak[0] == "low"]
        if low:
            goals[path] = min(low, key=lambda peak: peak[1])[2]
        elif peaks:
            goals[path] = max(peaks, key=lambda peak: peak[1])[2]
    return goals


def _cut(output: Any, batch: Batch) -> list[torch.Tensor]:
    """Return the outputs that require no gradient and are no inputs."""
    given = {id(t) for _, t in batch.input_leaves()}
    found = trees.floats(output).values()
    return [t for t in found if not t.requires_grad and not t.is_complex() and id(t) not in given]


def _as(goal: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return trees.dense(goal.detach()).to(tensor.device, tensor.dtype)


def _slope(subject: Subject, output: Any, batch: Batch, path: str) -> torch.Tensor | None:
    """Return the gradient of the loss to one output, with all outputs cut from the model; None without one."""
    own = trees.tensors(output)
    free = {id(t): t.detach() for t in own.values()}
    leaf = own[path].detach().clone().requires_grad_(True)
    free[id(own[path])] = leaf
    try:
        loss = _loss_of(subject, output, free, batch)
    except (SubjectError, RuntimeError):
        return None  # a loss may refuse what no model made
    if loss is None or loss.dim() or not loss.requires_grad:
        return None
    (slope,) = torch.autograd.grad(loss, [leaf], allow_unused=True)
    return None if slope is None else trees.dense(slope)


def _loss_of(
    subject: Subject, output: Any, free: dict[int, torch.Tensor], batch: Batch
) -> torch.Tensor | None:
    made = trees.substitute(output, free)
    if made is None:
        return None
    seed_everything(subject.seed)
    return subject.compute_loss(made, batch)


def _extreme(subject: Subject, output: Any, batch: Batch, path: str, goal: torch.Tensor) -> bool:
    """Say whether the loss falls, or rises, on both sides of the target: only then is it the goal."""
    return _peak(subject, output, batch, path, goal) is not None


def _peak(
    subject: Subject, output: Any, batch: Batch, path: str, goal: torch.Tensor
) -> tuple[str, float] | None:
    """Return whether the loss is lowest or highest with an output at its goal, and how high there."""
    own = trees.tensors(output)
    free = {id(t): t.detach() for t in own.values()}
    way = trees.dense(own[path]) - goal
    losses: list[float] = []
    with torch.no_grad():
        for share in (0.0, 0.1, -0.1):
            free[id(own[path])] = goal + share * way
            try:
                loss = _loss_of(subject, output, free, batch)
            except (SubjectError, RuntimeError):
                return None
            if loss is None or loss.dim():
                return None
            losses.append(float(loss))
    at, above, below = losses
    if at < min(above, below):
        return "low", at
    return ("high", at) if at > max(above, below) else None


@check(
    "loss-sound",
    "The loss is a scalar, connected to the model and not made anew.",
    needs=("loss",),
    cost="1 F + a backward through the loss only, shared by the loss checks",
    axes="device",
)
def loss_sound(subject: Subject) -> Iterator[Finding]:
    """Look at the loss tensor itself."""
    trains = any(p.requires_grad for p in subject.model.parameters())
    seen = evidence(subject)
    if seen.shape != () and seen.shape != (1,):
        yield explain.not_scalar(subject, seen.shape)
    elif seen.leaf:
        yield explain.recreated(subject)
    elif (trains and not seen.connected) or seen.dtype.startswith(("int", "bool")):
        yield explain.disconnected(subject)
    elif trains and seen.dead:
        yield explain.dead_term(subject, seen.dead[0])
    elif seen.focal:
        yield explain.focal_mean(seen.focal[0])
    else:
        yield passed(f"the loss is a connected {seen.dtype} scalar, {seen.value:.4g}")


@check(
    "loss-shapes",
    "Output and targets meet with the shapes that were meant.",
    needs=("loss", "targets"),
    cost="shared by the loss checks",
    axes="once",
)
def loss_shapes(subject: Subject) -> Iterator[Finding]:
    """Look for outputs and targets that are stretched against each other by broadcasting."""
    if subject.contract.loss == "output":
        yield not_applicable("the model computes its own loss")
        return
    seen = evidence(subject)
    mutual = [
        b for b in seen.broadcasts
        if b.result != b.output and b.result != b.target and len(b.output) != len(b.target)
    ]  # fmt: skip
    lopsided = [
        b
        for b in seen.broadcasts
        if b not in mutual
        and b.op.name.startswith("F.")
        and math.prod(b.target) > 1
        and math.prod(b.output) > 1
    ]
    if mutual:
        yield explain.broadcast(subject, mutual[0], seen)
    elif lopsided:
        yield explain.stretched(subject, lopsided[0], seen)
    else:
        batch = subject.batch()
        symbol = subject.source.batch_symbol
        if symbol is not None and batch.sizes.get(symbol, 2) < 2:
            yield inconclusive("the batch holds one sample, so that broadcasting could not be seen")
        else:
            yield passed("no output is stretched against its target")


@check(
    "loss-input",
    "The loss gets logits where it expects logits, and probabilities where it expects those.",
    needs=("loss",),
    cost="shared by the loss checks",
    axes="once",
)
def loss_input(subject: Subject) -> Iterator[Finding]:
    """Compare what each loss function was given with what it expects.

    Three habits are suspicious: a logarithm of what a softmax or a sigmoid gave (tried with an input as a sure model
    gives it), a regression on labels that are declared as classes, and a cross entropy of targets that are no class
    probabilities (several ones in a row, negative ones, or one number per sample).
    """
    seen = evidence(subject)
    unstable = next((log for log in seen.logs if not _holds_when_sure(subject, log)), None)
    if unstable is not None:
        yield explain.unstable_log(subject, unstable)
    if not seen.consumed:
        if unstable is None:
            yield not_applicable(
                "the loss calls none of torch's classification or regression losses"
            )
        return
    found = unstable is not None
    labels = subject.contract.targets
    if isinstance(labels, Labels) and isinstance(labels.classes, int) and labels.classes > 2:
        compared = next((u for u in seen.consumed if u.whole), None)
        if compared is not None and _shape_of(subject.batch().targets) == compared.shape:
            found = True
            yield explain.labels_as_numbers(subject, labels.classes, compared)
    for used in seen.consumed:
        if used.unlike and (used.unlike != "batch" or used.shape == _samples_of(subject)):
            found = True
            yield explain.no_class_probabilities(subject, used)
            break
    swapped = next((used for used in seen.consumed if used.swapped), None)
    if swapped is not None:
        yield explain.arguments_swapped(subject, swapped)
        return
    done: set[str] = set()
    for used in seen.consumed:
        made_by = used.producer.kind if used.producer is not None else ""
        code = ""
        if used.function in _LOGITS and used.distribution:
            code = "double-softmax"
        elif (
            used.function in _LOGITS
            and made_by in ("relu", "relu_")
            and not used.negative
            and used.zeros > 0.05
        ):
            code = "relu-logits"
        elif used.function in _LOGITS and made_by == "sigmoid" and used.unit:
            code = "sigmoid-logits"
        elif (
            used.function == "F.binary_cross_entropy_with_logits"
            and used.unit
            and made_by in ("sigmoid", "softmax")
        ):
            code = "double-sigmoid"
        elif (
            used.function in ("F.nll_loss", "F.nll_loss_nd", "F.ctc_loss")
            and not used.log_distribution
            and (used.distribution or made_by in (*explain.LINEAR, "relu", "softmax", "sigmoid"))
        ):
            code = "nll-without-log"
        elif used.function == "F.kl_div" and used.distribution:
            code = "kl-without-log"
        else:
            code = used.misfit
        if code and code not in done:
            done.add(code)
            found = True
            yield explain.wrong_input(subject, code, used)
    if not found:
        names = ", ".join(dict.fromkeys(used.function for used in seen.consumed))
        yield passed(f"{names}: the input has the form that is expected")


def _samples_of(subject: Subject) -> tuple[int, ...] | None:
    """Return the shape of one number per sample."""
    symbol = subject.source.batch_symbol
    size = None if symbol is None else subject.batch().sizes.get(symbol)
    return None if size is None else (size,)


def _shape_of(targets: Any) -> tuple[int, ...] | None:
    return tuple(targets.shape) if isinstance(targets, torch.Tensor) else None


def _holds_when_sure(subject: Subject, log: LogOf) -> bool:
    """Say whether the loss stays finite when what a softmax or sigmoid is given spreads as far as a sure model's."""
    batch = subject.batch().clone()
    with subject.pristine() as model, torch.no_grad(), Stretched(log.number, _SURE):
        model.train()
        seed_everything(subject.seed)
        try:
            loss = subject.compute_loss(subject.call(model, batch), batch)
        except SubjectError:
            return True
        return bool(torch.isfinite(loss).all())


@check(
    "loss-sign",
    "The loss falls when the output gets nearer to the target.",
    needs=("loss",),
    cost="shared by the loss checks",
    axes="once",
)
def loss_sign(subject: Subject) -> Iterator[Finding]:
    """Look at the slope of the loss towards the true class or the target value."""
    seen = evidence(subject)
    classes = [used for used in seen.consumed if not math.isnan(used.rising)]
    wrong = [used for used in classes if used.rising > 0.95 and used.counted >= 2]
    if wrong:
        yield explain.wrong_sign(
            subject,
            f"raising the true class's logit raises the loss in {wrong[0].rising:.0%} of {wrong[0].counted} targets",
            wrong[0].place,
        )
        return
    # outputs that one target pulls apart are compared with each other, not with the target
    away = seen.away if all(share > 0.95 for share in seen.away.values()) else {}
    if away and not classes:
        path, share = next(iter(away.items()))
        yield explain.wrong_sign(
            subject,
            f"moving {path} towards its target raises the loss in {share:.0%} of the samples",
            None,
        )
        return
    if not classes and not seen.away and not subject.contract.declares("targets"):
        yield not_applicable("there are no targets, and no output is cut free to be one")
        return
    if not classes and not seen.away:
        yield inconclusive(
            "no output could be matched with its target, so that the sign could not be seen"
        )
        return
    yield passed("the loss falls towards the targets")


@check(
    "loss-at-start",
    "Before training, cross entropy is near that of a uniform guess, not far above it.",
    needs=("loss", "targets"),
    cost="shared by the loss checks",
    axes="once",
)
def loss_at_start(subject: Subject) -> Iterator[Finding]:
    """Compare the first cross entropy with ln(classes), one-sidedly (CHECKS E19)."""
    seen = evidence(subject)
    used = next(
        (u for u in seen.consumed if u.function == "F.cross_entropy" and not math.isnan(u.entropy)),
        None,
    )
    if used is None:
        yield not_applicable("the loss calls no F.cross_entropy with class indices")
        return
    uniform = math.log(used.classes)
    if used.entropy <= uniform + 2.0 or used.spread <= 2.5:
        yield passed(
            f"cross entropy {used.entropy:.3f}; a uniform guess over {used.classes} classes has {uniform:.3f}"
        )
        return
    gain = _gain(subject, used.weight)
    if gain is not None and gain > 2.0:
        yield explain.hot_start(subject, used, uniform, gain)
    else:
        yield suspicious(
            "loss-at-start",
            f"the first cross entropy is {used.entropy:.2f}, far above the {uniform:.2f} of a uniform guess",
            observed=f"logits have a standard deviation of {used.spread:.2f} over {used.classes} classes",
            cause="the model is confidently wrong before it has seen any data",
            because="a fresh head usually gives logits with a deviation below 1",
            fix="scale the head down at initialisation, unless margins or temperatures make this deliberate",
            location=used.place,
        )


def _gain(subject: Subject, name: str | None) -> float | None:
    """Return by how much a weight scales an input of unit variance: its RMS times sqrt(fan in)."""
    if name is None:
        return None
    weight = subject.named_parameters().get(name)
    if weight is None or weight.dim() < 2:
        return None
    fan_in = math.prod(weight.shape[1:])
    return float(weight.detach().float().square().mean().sqrt()) * math.sqrt(fan_in)


def loss_line(subject: Subject) -> Location | None:
    """Return the line of the user's loss that returns, or where it is defined."""
    loss = subject.contract.loss
    if loss is None or isinstance(loss, str):
        return None
    function = loss.forward if isinstance(loss, torch.nn.Module) else loss
    return sources.search(function, r"^\s*return\b") or sources.of_object(loss)

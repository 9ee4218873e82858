"""Losses that are not finite at an edge, and targets that decide the loss of the wrong samples, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import listed, on_line
from ...findings import Culprit, Finding
from ...objects import trees
from ...probes.loss.own import OwnLoss
from ...probes.numbers.finiteness import find_nonfinite
from ...probes.recorded.operations import aligned, record
from ...probes.recorded.watch import Watch, name_of
from ...runs.losses.consumption import loss_calls
from ...verdicts import suspicious, violated
from ..gradient.non_finite import evidence_of, remedy, writers
from .consumed import loss_line
from .divisors import Divisors

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...findings import Location, Status
    from ...probes.loss.directions import Direction
    from ...probes.loss.slopes import LossOfOutput, Repelled, Slopes
    from ...probes.recorded.operations import Trace
    from ...probes.recorded.watch import Op
    from ...subject import Subject


def not_finite(
    subject: Subject, what: str, case: LossOfOutput, found: Slopes, status: Status
) -> Finding:
    """Explain a loss, or its gradient, that is NaN or infinite for targets at the edge."""

    def run() -> torch.Tensor:
        return case.run()[0]

    at = find_nonfinite(run)
    divisors = Divisors()
    with divisors:
        run()
    forward = not torch.isfinite(torch.tensor(found.value))
    cause, fix = remedy(at, forward=forward)
    divided = at is not None and "div" in at.op.name  # a zero elsewhere may be guarded
    maker = divisors.zero if divided else None
    zero = maker.location if maker is not None else None
    place = zero or (at.location if at is not None else None) or loss_line(subject)
    culprits = [*writers(at), Culprit("loss", "loss", what, place)]
    if zero is not None:
        name = sources.assigned_name(zero) or str(maker)
        culprits.insert(0, Culprit("tensor", name, "is 0", zero))
        cause = f"{name} is 0 here, and the loss is divided by it"
        fix = f"keep it above 0 on line {zero.line}: .clamp(min=1) for a count, + eps for a sum"
    return (violated if status == "violated" else suspicious)(
        "edge-targets-non-finite",
        f"{'the loss' if forward else 'the gradient of the loss'} is not finite for {what}",
        culprits=culprits,
        location=place,
        observed=f"loss {found.value:.4g} for {what}; the whole batch gives a finite loss",
        cause=cause,
        because=evidence_of(at),
        fix=fix,
    )


def made_for_loss(subject: Subject, loss: LossOfOutput, *, target_first: bool) -> Location | None:
    """Return the line that made what the loss function was given, else its call, else the loss's."""
    for call in loss_calls(subject, loss):
        made = [call.producer.op if call.producer is not None else None, call.target_op]
        for op in reversed(made) if target_first else made:
            if op is not None and op.location is not None and sources.rank(op.location.file):
                return op.location
        if call.op.location is not None:
            return call.op.location
    return loss_line(subject)


def unread(
    subject: Subject, loss: LossOfOutput, path: str, samples: list[int], total: int
) -> Finding:
    """Explain a loss over a part of the batch."""
    place = made_for_loss(subject, loss, target_first=False)
    return violated(
        "target-unread",
        f"the loss never reads {path} of {len(samples)} of {total} samples",
        culprits=[
            Culprit("target", path, "has no influence", place),
            Culprit("loss", "loss", "over a part of the batch", place),
        ],
        location=place,
        observed=f"changing the targets of sample {', '.join(map(str, samples[:4]))} leaves the "
        "loss and its gradient bit-equal",
        cause="the loss is computed over a part of the samples",
        because="the targets of the other samples change it, one by one, under the same seed",
        fix="compute the loss over every sample: check slices and indices of the batch dimension",
    )


def ignored(
    subject: Subject, loss: LossOfOutput | None, paths: list[str], status: Status
) -> Finding:
    """Explain targets that nothing reads.

    Args:
        subject: The subject.
        loss: The declared loss; None where the model or the training step computes it.
        paths: The targets.
        status: How sure it is that they should be read.
    """
    if loss is not None:
        reader, place = "loss", made_for_loss(subject, loss, target_first=False)
    else:
        own = subject.contract.train_step
        reader = "training step" if own is not None else "loss that the model computes"
        place = sources.of_object(own) if own is not None else sources.of_own_class(subject.model)
    return (violated if status == "violated" else suspicious)(
        "targets-ignored",
        f"the {reader} never reads its targets ({listed(paths)})",
        culprits=[
            *(Culprit("target", path, "has no influence") for path in paths),
            Culprit("loss", "loss", "ignores its targets", place),
        ],
        location=place,
        observed="changed targets, even unreadable ones, leave the loss bit-equal for the same "
        "output"
        if loss is not None
        else (
            "other targets, and targets that nothing can read, leave the result of the "
            f"{reader} bit-equal"
        ),
        cause="the loss is computed only from the output",
        because="only the targets were changed, with the same seed",
        fix="compare the output with the targets; for a loss that needs none, declare "
        + ("batch=(inputs, None)" if subject.batch().origin == "real" else "no targets"),
    )


def _by(loss: LossOfOutput) -> str:
    return "inputs" if isinstance(loss, OwnLoss) else "outputs"


def of_other_samples(
    subject: Subject, loss: LossOfOutput, path: str, pulls: dict[int, torch.Tensor]
) -> Finding:
    """Explain targets that meet the outputs of other samples."""
    place = made_for_loss(subject, loss, target_first=True)
    shown = "; ".join(
        f"{path}[{sample}] changes the gradient of sample {int(moved.argmax())}"
        for sample, moved in list(pulls.items())[:3]
    )
    return violated(
        "target-of-another-sample",
        f"{path} are compared with the outputs of other samples",
        culprits=[
            Culprit("target", path, "of other samples", place),
            Culprit("loss", "loss", "samples mismatched", place),
        ],
        location=place,
        observed=shown,
        cause="output and targets are in a different order along the batch dimension",
        because=f"a target changes the gradient of other samples' {_by(loss)}, but not of its own",
        fix="keep the order of the samples: do not roll, flip or transpose the batch dimension "
        "of only one of the two",
    )


def shared(
    subject: Subject, loss: LossOfOutput, path: str, pulls: dict[int, torch.Tensor]
) -> Finding:
    """Explain a loss by sample in which a target decides the gradient of other samples too."""
    place = made_for_loss(subject, loss, target_first=False)
    own = isinstance(loss, OwnLoss)
    sample, moved = next(iter(pulls.items()))
    others = [n for n in (moved > 0).nonzero().flatten().tolist() if n != sample]
    return violated(
        "samples-share-targets",
        (
            "the target of one sample changes the gradient of other samples, in a loss with a "
            "separate term for each"
        ),
        culprits=[
            Culprit("loss", "loss", "mixes samples", place),
            Culprit("target", path, "affects other samples too", place),
        ],
        location=place,
        observed=f"changing {path}[{sample}] changes the gradient of the {_by(loss)} of {len(others)} "
        f"other samples, including sample {others[0]}",
        cause="every output is compared with the labels of all samples"
        if own
        else "outputs or targets are averaged, normalised or reduced over the batch before they "
        "are compared",
        because="the labels in another order give the same loss, and no term compares samples"
        if own
        else "the loss is one call of a criterion that has a separate term for each sample",
        fix="take the label of each sample from its own row: indices for both, as in "
        "scores[torch.arange(len(y)), y], or gather()"
        if own
        else "reduce after the criterion, not before it: check dim= of mean, sum and log_softmax on this line",
    )


def over_samples(seen: Direction) -> Finding:
    """Explain a cross entropy of a softmax that runs over samples or positions, not over classes."""
    line = on_line(seen.place)
    return violated(
        "samples-share-targets",
        "the softmax before the loss does not run over the classes: samples compete for each class",
        culprits=[Culprit("call", seen.function, "runs over the wrong dimension", seen.place)],
        location=seen.place,
        observed=f"the loss has the gradient of a cross entropy over dimension {seen.over}",
        cause=f"{seen.function}{line} normalises over dimension {seen.over}, which does not hold the classes",
        because="the gradient at its input is that of such a cross entropy with these labels, and "
        "not that of one over the classes",
        fix=f"give {seen.function}{line} the dimension of the classes: dim=-1 where they come last",
    )


def shuffled(seen: Direction) -> Finding:
    """Explain a step that gives its loss the targets of the batch in another order than the samples'."""
    return violated(
        "target-of-another-sample",
        "the training step compares samples with the targets of others",
        culprits=[Culprit("call", seen.function, "gets targets of other samples", seen.place)],
        location=seen.place,
        observed=f"{seen.function} gets the targets of the batch in another order: those of "
        f"{seen.moved} samples differ from their own",
        cause="the targets are reordered on their way to the loss, and the inputs are not",
        because="the model was given the inputs of the batch in their own order",
        fix="keep the targets in the order of the samples, or index inputs and targets alike",
    )


def unbounded(
    subject: Subject, loss: LossOfOutput, path: str, sign: float, lowest: float
) -> Finding:
    """Explain a loss that falls without end as one output grows.

    Args:
        subject: Whose loss.
        loss: The loss as a function of the output.
        path: Of the output.
        sign: Which way it grows.
        lowest: The loss with the output's bias shifted by 1000.
    """

    def traced(by: float) -> Trace:
        return record(lambda: loss.shifted(path, by).run()[0])

    first, then = traced(0.0), traced(sign * 1e3)
    shape = tuple(loss.outputs[path].shape)
    term = None
    for a, b in aligned(first, then):
        if a is None or b is None:
            continue
        for one, two in zip(a.results, b.results, strict=True):
            before, after = first.values[one], then.values[two]
            if before.shape != shape or before.values is None or after.values is None:
                continue
            # the last operation on single elements that falls with the output: the term as it is summed
            if float((after.values - before.values).mean()) < -1.0:
                term = a.op
    place = (term.location if term is not None else None) or loss_line(subject)
    way = "+inf" if sign > 0 else "-inf"
    return violated(
        "loss-unbounded",
        f"the loss falls without end as {path} goes to {way}",
        culprits=[
            Culprit(kind="output", name=path, detail=f"goes to {way}", location=place),
            Culprit(kind="loss", name="loss", detail="has no lowest value", location=place),
        ],
        location=place,
        observed=f"with {path} shifted by {sign * 1e3:g}, the loss of a training forward is {lowest:.4g}",
        cause=f"a term in {path} has the wrong sign: it rewards what it should limit",
        because=f"the loss rises when {path} is shifted the other way, and it falls alike for any targets",
        fix="compare the signs on this line with the formula; a KL divergence to a standard normal is "
        "0.5 * (exp(log_var) + mean**2 - 1 - log_var), a Gaussian likelihood "
        "0.5 * (log_var + (target - mean)**2 / exp(log_var))",
    )


class _Factors(Watch):
    """Notes products and quotients with the values of a target."""

    def __init__(self, target: torch.Tensor) -> None:
        super().__init__()
        self.found: list[Op] = []
        self._target = target

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Compare the operands of one call with the target."""
        name = name_of(func)
        if name.rpartition(".")[2].strip("_") in _SCALING and any(
            isinstance(one, torch.Tensor)
            and not one.requires_grad
            and trees.same(one, self._target)
            for one in args[-1:]
        ):
            self.found.append(self.op(name))


_SCALING = ("mul", "multiply", "div", "truediv", "true_divide")


def repels(subject: Subject, loss: LossOfOutput, found: Repelled) -> Finding:
    """Explain a loss that is highest where an output meets a target of one sign."""
    with _Factors(loss.targets()[found.target]) as factors:
        loss.run()
    op = next((op for op in factors.found if op.location is not None), None)
    place = op.location if op is not None else None
    made = sources.alias_above(place) if place is not None else None
    sign, other = ("negative", "positive") if found.negative else ("positive", "negative")
    culprits = [Culprit("target", found.target, f"pushes away where it is {sign}", place)]
    if op is not None:
        name = op.name.rpartition(".")[2].strip("_")
        culprits.append(Culprit("call", name, "scales by the target itself", place))
    return violated(
        "loss-sign",
        f"the loss pushes {found.path} away from every {sign} target",
        culprits=culprits,
        location=made or place or loss_line(subject),
        observed=f"on both sides of {found.pushed} {sign} targets the loss falls as the output moves "
        f"away, at {found.pulled} {other} ones as it moves closer",
        cause="the error is scaled by the target, whose sign turns it round"
        + (f"{on_line(place)}" if op is not None else ""),
        because="the gradient of the loss was taken a little above and a little below each target",
        fix="scale by the magnitude of the target: .abs(), with a lower bound",
    )

"""Losses that are not finite at an edge, and targets that decide the loss of the wrong samples, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import listed, on_line
from ...findings import Culprit, Finding
from ...objects import trees
from ...probes.loss.arguments import targets_of
from ...probes.loss.own import OwnLoss
from ...probes.loss.pulls import others_of
from ...probes.numbers.finiteness import find_nonfinite
from ...probes.recorded.operations import aligned, changed, record
from ...probes.recorded.watch import Watch, name_of
from ...runs.losses.consumption import loss_calls
from ...verdicts import suspicious, violated
from ..gradient.non_finite import evidence_of, remedy, writers
from .consumed import loss_line
from .weights import Divisors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...findings import Location, Status
    from ...probes.loss.directions import Direction
    from ...probes.loss.slopes import LossOfOutput, Repelled, Slopes
    from ...probes.recorded.watch import Op
    from ...runs.liveness.unread import Unread
    from ...runs.losses.levels import Levels
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
    subject: Subject,
    loss: LossOfOutput,
    path: str,
    samples: list[int],
    total: int,
    *,
    sure: bool,
) -> Finding:
    """Explain a loss over a part of the batch; not ``sure`` where it may be over parts of one size."""
    place = _losing(subject, loss, path, samples[0]) or made_for_loss(
        subject, loss, target_first=False
    )
    return (violated if sure else suspicious)(
        "target-unread",
        f"the loss never reads {path} of {len(samples)} of {total} samples",
        culprits=[
            Culprit("target", path, "has no influence", place),
            Culprit("loss", "loss", "over a part of the batch", place),
        ],
        observed=f"changing the targets of sample {', '.join(map(str, samples[:4]))} leaves the "
        "loss and its gradient bit-equal",
        cause="the loss is computed over a part of the samples",
        because="the targets of the other samples change it, one by one, under the same seed",
        fix="compute the loss over every sample: check slices and indices of the batch dimension",
    )


def _losing(subject: Subject, loss: LossOfOutput, path: str, sample: int) -> Location | None:
    """Return the last line of a loss that reads what the targets of a sample change, and gives what they do not."""
    target = loss.targets()[path]
    axis = subject.source.axes(subject.source.batch_symbol or "").get(path, 0)
    other = next(others_of(target, axis, sample), None)
    if other is None:
        return None
    base = record(lambda: loss.run()[0])
    again = record(lambda: loss.run(loss.with_targets(target, other))[0])

    def differs(pairs: Iterable[tuple[int, int]]) -> bool:
        masks = [changed(base.values[a], again.values[b]) for a, b in pairs]
        return any(bool(m.any()) if isinstance(m, torch.Tensor) else bool(m) for m in masks)

    found = None
    for a, b in aligned(base, again):
        if a is None or b is None:
            continue
        read = zip(a.operands, b.operands, strict=True)
        gave = zip(a.results, b.results, strict=True)
        if differs(read) and not differs(gave):
            found = a.op.location or found
    return found


def ignored(
    subject: Subject, loss: LossOfOutput | None, paths: list[str], status: Status, *, computed: bool
) -> Finding:
    """Explain targets that nothing reads.

    Args:
        subject: The subject.
        loss: The declared loss; None where the model or the training step computes it.
        paths: The targets.
        status: How sure it is that they should be read.
        computed: Whether something is computed from them that has no influence, either.
    """
    if loss is not None:
        reader, place = "loss", made_for_loss(subject, loss, target_first=False)
    else:
        own = subject.contract.train_step
        reader = "training step" if own is not None else "loss that the model computes"
        place = sources.of_object(own) if own is not None else sources.of_own_class(subject.model)
    others = [path for path in targets_of(subject.batch()) if path not in paths]
    some = f"{listed(paths)} (of {len(paths) + len(others)} targets)"
    what = some if others else f"its targets ({listed(paths)})"
    return (violated if status == "violated" else suspicious)(
        "targets-ignored",
        f"the {reader} {'does not depend on' if computed else 'never reads'} {what}",
        culprits=[
            *(Culprit("target", path, "has no influence") for path in paths),
            Culprit("loss", "loss", "ignores its targets", place),
        ],
        location=place,
        observed=f"other targets leave the result of the {reader} bit-equal; those that are NaN or "
        "outside the range declared do not: it computes with them"
        if computed
        else "changed targets, even unreadable ones, leave the loss bit-equal for the same output"
        if loss is not None
        else f"other targets, and targets that nothing can read, leave the result of the {reader} bit-equal",
        cause=f"the loss is computed without {listed(paths)}"
        if others
        else "what is computed from the targets is lost: multiplied by zero, say, or rounded to one value"
        if computed
        else "the loss is computed only from the output",
        because=f"{listed(others)}, changed in the same way, does change it"
        if others
        else "only the targets were changed, with the same seed",
        fix=f"compare an output with {listed(paths)}, or declare no such target"
        if others
        else "compare the output with the targets; for a loss that needs none, declare "
        + ("batch=(inputs, None)" if subject.batch().origin == "real" else "no targets"),
    )


def without_effect(paths: list[str], lost: Unread) -> Finding:
    """Explain a target that the loss computes with, and of which it loses the result."""
    what, place = listed(paths), lost.location
    return violated(
        "targets-ignored",
        f"{what} has no effect: the loss loses the result of {lost.op}",
        culprits=[
            *(Culprit("target", path, "has no influence") for path in paths),
            Culprit("call", lost.op, "its result is never read", place),
        ],
        observed=f"changed values of {what} leave the loss bit-equal for the same output",
        cause=f"line {place.line} computes {lost.text}, and nothing reads it",
        because=f"no later operation of the loss was given the result of {lost.op}",
        fix="use its result: assign it to the name that the loss goes on with",
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
    # rows of several values, all of which reach back (or all on), may be steps in time: a rollout of (T, N)
    earlier = {int(moved.argmax()) < sample for sample, moved in pulls.items()}
    in_time = len(earlier) == 1 and loss.targets()[path].dim() > 1
    return (suspicious if in_time else violated)(
        "target-of-another-sample",
        f"{path} are compared with the outputs of other samples",
        culprits=[
            Culprit("target", path, "of other samples", place),
            Culprit("loss", "loss", "samples mismatched", place),
        ],
        observed=shown,
        cause="output and targets are in a different order along the batch dimension",
        because=f"a target changes the gradient of other samples' {_by(loss)}, but not of its own",
        fix="keep the order of the samples: do not roll, flip or transpose the batch dimension "
        "of only one of the two"
        + ("; where dimension 0 is time, declare batch_dim=1" if in_time else ""),
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
        observed=f"{seen.function} gets the targets in another order than the model got the samples: "
        f"those of {seen.moved} samples differ from their own",
        cause="inputs and targets are not reordered alike on their way to the loss",
        because="both are rows of the batch: which ones was read off their values",
        fix="keep the targets in the order of the samples, or index inputs and targets alike",
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


def turned_levels(found: Levels) -> Finding:
    """Explain a quantile loss whose error has the other sign."""
    held, measured = (", ".join(f"{n:.3g}" for n in row) for row in (found.held, found.measured))
    return violated(
        "loss-sign",
        f"the loss holds the levels {held}, and pulls the entries of {found.path} to the quantiles {measured}",
        culprits=[
            Culprit("loss", "loss", "weighs the two sides of the target", found.place),
            *(
                Culprit(
                    "call", found.crossed, "is given its arguments in another order", found.place
                ),
            )
            * bool(found.crossed),
        ],
        observed=f"far above and far below the target, each of the {len(found.held)} entries makes the loss "
        "rise linearly",
        cause="the error has the other sign: what is to weigh predictions that are too low weighs those "
        "that are too high",
        because="an entry whose loss rises by a above the target and by b below it is lowest at the quantile "
        "b / (a + b); that is one minus the level for every entry",
        fix=f"pass the arguments of {found.crossed}{on_line(found.place)} in the order of its parameters"
        if found.crossed
        else f"subtract the other way{on_line(found.place)}: target - prediction",
    )

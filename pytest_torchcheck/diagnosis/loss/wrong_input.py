"""Losses that are given something else than they are defined for, and replace the NaN that comes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding, Location
from ...probes.loss.axes import OfOtherRows, Scattered
from ...verdicts import suspicious, violated
from ..crashes.losses_called import criterion_culprits
from ..lines.passed_on import forward_returned
from .consumed import culprit, loss_line

if TYPE_CHECKING:
    from ...probes.loss.axes import Crossed
    from ...probes.loss.consumption import LogOf, LossCall
    from ...probes.loss.noise import NoiseTarget
    from ...probes.loss.slopes import Lost
    from ...probes.loss.undefined import Undefined
    from ...probes.recorded.watch import Op
    from ...runs.losses.consumption import Consumed
    from ...subject import Subject

_WRONG_INPUT = {
    "double-softmax": (
        "{function} receives probabilities: softmax is applied twice",
        "{function} applies log_softmax itself and expects logits",
        "the input of {function} has no negative element and its rows sum to one",
        "return the logits: drop the softmax on this line",
    ),
    "relu-logits": (
        "{function} receives the output of a ReLU as logits",
        "logits must be able to be negative; a ReLU sets every negative one to zero",
        "the input of {function} has no negative element and {zeros:.0%} are exactly zero",
        "drop the ReLU after the last layer",
    ),
    "sigmoid-logits": (
        "{function} receives the output of a sigmoid as logits",
        "{function} expects logits; values between 0 and 1 hardly separate the classes",
        "every element of the input lies between 0 and 1",
        "drop the sigmoid, or use binary_cross_entropy for independent classes",
    ),
    "double-sigmoid": (
        "{function} receives probabilities: sigmoid is applied twice",
        "{function} applies the sigmoid itself and expects logits",
        "every element of the input lies between 0 and 1, computed by {made}",
        "drop the sigmoid on this line, or use binary_cross_entropy",
    ),
    "nll-without-log": (
        "{function} receives values that are not log-probabilities",
        "{function} expects the output of log_softmax",
        "the exponentials of the input's rows do not sum to one",
        "apply log_softmax first, or use cross_entropy on the logits",
    ),
    "kl-without-log": (
        "{function} receives probabilities where it expects log-probabilities",
        "kl_div expects its first argument in log space",
        "the input has no negative element and its rows sum to one",
        "pass log_softmax(...) as the first argument",
    ),
    "kl-of-logits": (
        "{function} receives logits where it expects log-probabilities",
        "{function} does not normalise its first argument",
        "the input has positive elements, and the loss falls without bound as a whole row rises",
        "pass log_softmax(...) as the first argument",
    ),
    "rate-as-log": (
        "{function} receives a rate where it expects the logarithm of one",
        "with log_input=True, the default, {function} exponentiates its input itself",
        (
            "no element of the input is negative, computed by {made}: the optimum is log(count), "
            "not count"
        ),
        "pass log_input=False, or drop {made}",
    ),
    "log-as-rate": (
        "{function} receives negative values where it expects rates",
        "with log_input=False {function} takes the logarithm of its input",
        "the input has negative elements",
        "pass log_input=True, or make the output positive (softplus, exp)",
    ),
}


def wrong_input(subject: Subject, code: str, used: Consumed) -> Finding:
    """Explain a loss function that gets another kind of values than it expects."""
    function = used.function.removeprefix("F.").removeprefix("torch.")
    made = used.producer
    place = (made.op.location if made is not None else None) or (
        _module_line(subject, made.op.module) if made is not None and made.op.module else None
    )
    place = place or used.place or loss_line(subject)
    words = {
        "function": used.criterion or function,
        "zeros": used.zeros,
        "made": made.op.name if made is not None else "?",
    }
    summary, cause, because, fix = (text.format(**words) for text in _WRONG_INPUT[code])
    if function == "ctc_loss":
        fix = fix.partition(", or ")[0]  # cross_entropy is no other form of it
    culprits = []
    if made is not None:
        culprits.append(
            Culprit(
                kind="module",
                name=made.op.module or type(subject.model).__name__,
                detail=made.op.name,
                # torch's own layer is dropped where it is built, not where it runs
                location=(_module_line(subject, made.op.module) if made.op.module else None)
                or place,
            )
        )
    if code == "nll-without-log" and (left := forward_returned(subject)) is not None:
        culprits.append(Culprit("output", "output", "without log_softmax", left))
    if code == "nll-without-log" and used.passed is not None:
        culprits.insert(0, Culprit("call", "loss", "hands it on without log_softmax", used.passed))
        place = used.passed
    culprits.append(culprit(subject, function, used.place))
    culprits += criterion_culprits(used.place, used.criterion)
    return violated(
        code,
        summary,
        culprits=culprits,
        location=place,
        observed=f"input {list(used.shape)} of {function}"
        + (f", computed by {made.op}" if made is not None else "")
        + f"; standard deviation {used.spread:.3g}",
        cause=cause,
        because=because,
        fix=fix,
    )


def labels_as_numbers(subject: Subject, classes: int, used: Consumed) -> Finding:
    """Warn of a regression on class indices."""
    function = used.function.removeprefix("F.")
    place = used.place or loss_line(subject)
    return suspicious(
        "labels-as-numbers",
        f"{function} compares the output with class indices as if they were quantities",
        culprits=[culprit(subject, f"{function} of class indices", place)],
        location=place,
        observed=f"output {list(used.shape)} against labels of the same shape, all integers below "
        f"{classes}",
        cause="a regression loss gives the classes an order and distances that their indices do "
        "not have",
        because=f"the targets are declared as Labels(classes={classes})",
        fix=f"give the model {classes} outputs and use cross_entropy, or declare the targets as "
        "Ints if their order is intended",
    )


_UNLIKE = {
    "several": (
        "targets with several classes in a row",
        "softmax makes the classes of a row compete, so only one can become likely",
        "all targets are 0 or 1, and one row holds more than one 1",
        (
            "use binary_cross_entropy_with_logits or, if the classes are exclusive, divide "
            "each row by its sum"
        ),
    ),
    "negative": (
        "targets that are not class probabilities",
        "float targets are read as class probabilities, which these are not",
        "a row of the targets contains negative numbers",
        "use a regression loss such as mse_loss, or pass class indices",
    ),
    "batch": (
        "one number per sample",
        "a 1-d input is one sample with that many classes: the softmax runs over the batch",
        "the targets, one per sample, do not sum to one over the batch",
        "use binary_cross_entropy_with_logits for 0 and 1, mse_loss for quantities",
    ),
}
"""What cross entropy receives, the cause, what was measured, and the fix, by
:attr:`Consumed.unlike`."""


def no_class_probabilities(subject: Subject, used: Consumed) -> Finding:
    """Warn of a cross entropy with float targets that are not class probabilities."""
    what, cause, because, fix = _UNLIKE[used.unlike]
    place = _loss_place(subject, used)
    line = on_line(place)
    return suspicious(
        "targets-no-distribution",
        f"cross_entropy receives {what}",
        culprits=[culprit(subject, f"cross_entropy of {what}", place)],
        location=place,
        observed=f"input {list(used.shape)}, float targets of the same shape",
        cause=cause,
        because=because,
        fix=f"{fix}{line}",
    )


def arguments_swapped(subject: Subject, used: Consumed) -> Finding:
    """Explain a binary cross entropy that takes the targets for the output."""
    function = used.function.removeprefix("F.")
    place = _loss_place(subject, used)
    line = on_line(place)
    return violated(
        "loss-arguments-swapped",
        f"{function} receives the targets first and the output second",
        culprits=[culprit(subject, f"{function}(targets, output)", place)],
        location=place,
        observed=f"input {list(used.shape)}: only 0 and 1, as the targets of the batch; target: a "
        "tensor that requires a gradient",
        cause="the output is used as the targets, and the targets as the output",
        because="the first argument was computed from the batch's targets, the second one from the model's output",
        fix=f"write {function}(output, targets){line}",
    )


def _loss_place(subject: Subject, used: Consumed) -> Location | None:
    """Return the line that calls a loss function; where it is one of torch's as it is, the line that declares it."""
    line = loss_line(subject)
    if callable(subject.contract.loss) and (line is None or sources.rank(line.file) < 2):
        return subject.contract.location
    return used.place or line


def _scattered(found: Scattered) -> Finding:
    """Explain probabilities that are multiplied with what a view has left of a one-hot target."""
    place, product, name = found.view.location, found.product.location, found.view.name
    low, high = found.sums
    return violated(
        "distribution-axes",
        f"{name} of a one-hot target gives {list(found.made)}, which is one-hot over no dimension",
        culprits=[
            Culprit("call", name, f"takes {list(found.given)} for {list(found.made)}", place),
            Culprit("call", found.product.name, "multiplies probabilities with it", product),
        ],
        observed=f"over dimension {found.over}, where the probabilities sum to one, the target's sums range from "
        f"{low:.3g} to {high:.3g}",
        cause=f"a view keeps the elements in their order: it does not move the classes{on_line(place)}",
        because=f"one_hot gives one entry of 1 for each label, and {name} leaves no dimension over which that is so; "
        f"the product{on_line(product)} compares it with probabilities element by element",
        fix=f"move the dimension of the classes with permute or movedim in place of {name}{on_line(place)}",
    )


def _of_other_rows(found: OfOtherRows) -> Finding:
    place, name, taken = found.taken.location, found.reduced.name, found.taken.name
    of_nodes = name.rpartition(".")[2] in ("sum", "mean")  # a degree is of a row and its column
    return (suspicious if of_nodes else violated)(
        "distribution-axes",
        f"each column of {list(found.shape)} is combined with the number of another row: {name} without keepdim",
        culprits=[
            Culprit("call", taken, "takes the numbers along the columns", place),
            Culprit("call", name, "makes one number of each row", found.reduced.location),
        ],
        observed=f"{taken} of {list(found.shape)} and [{found.shape[0]}], which {name} gave for its rows"
        f"{on_line(found.reduced.location)}",
        cause=f"broadcasting aligns the last dimensions: column j is given what belongs to row j{on_line(place)}",
        because="the numbers are those of the rows of this very tensor, and not those of its columns; "
        "only because it is square does it not raise",
        fix=f"pass keepdim=True to {name}, or index the numbers with [:, None]{on_line(place)}",
    )


def crossed_axes(found: Crossed | Scattered | OfOtherRows) -> Finding:
    """Explain numbers of one dimension that are combined with those of another one."""
    if isinstance(found, OfOtherRows):
        return _of_other_rows(found)
    if isinstance(found, Scattered):
        return _scattered(found)
    place, product = found.probabilities.location, found.product.location
    name, logs = found.probabilities.name, found.logs.name
    return violated(
        "distribution-axes",
        f"{name} over dimension {found.over} weighs log-probabilities over dimension {found.logs_over}",
        culprits=[
            Culprit("call", name, f"sums to one over dimension {found.over}", place),
            Culprit("call", logs, f"over dimension {found.logs_over}", found.logs.location),
            Culprit("call", found.product.name, "multiplies the two", product),
        ],
        observed=f"{found.product.name} of two tensors {list(found.shape)}",
        cause=f"the softmax{on_line(place)} distributes over another dimension than the logarithms "
        "that it weighs",
        because=f"{name} was called with dim={found.over}, {logs} with dim={found.logs_over}, and "
        f"the product{on_line(product)} takes both",
        fix=f"give {name} dim={found.logs_over}{on_line(place)}",
    )


def against_itself(call: LossCall) -> Finding:
    """Explain a loss function whose two arguments are one value, whatever the outputs are."""
    name, maker = call.op.name, call.producer.op if call.producer is not None else call.op
    culprits = [
        Culprit("call", op.name, words, op.location)
        for op, words in (
            (maker, "gives the first argument"),
            (call.target_op, "gives the second argument"),
            (call.op, "compares them"),
        )
        if op is not None
    ]
    return violated(
        "compared-with-itself",
        f"{name} compares a value with itself",
        culprits=culprits,
        location=maker.location or call.op.location,
        observed="the two arguments are equal, and stay equal for other outputs",
        cause="both are computed from one and the same tensor, so that the term is constant",
        because="the elements of each output changed places, and the arguments were equal again",
        fix=f"compute one of the two from the other output, or from the targets{on_line(maker.location)}",
    )


def unstable_log(subject: Subject, log: LogOf) -> Finding:
    """Warn of a logarithm of probabilities that a sure model takes of 0."""
    kind = log.squash.name.rpartition(".")[2]
    place = log.op.location or log.squash.location or loss_line(subject)
    line = on_line(place)
    return suspicious(
        "log-of-probabilities",
        f"the loss takes the logarithm of a {kind}: it is infinite once the model is confident",
        culprits=[culprit(subject, f"{log.op.name} of {log.squash.name}", place)],
        location=place,
        observed=f"{log.op.name} of the output of {log.squash}; the loss is finite on this batch",
        cause=f"a {kind} rounds small probabilities to 0, and the logarithm of 0 is -inf",
        because=f"with its input scaled up, the {kind} gives 0 and the loss is not finite",
        fix=(
            f"use F.log_softmax, or F.cross_entropy on the logits,{line}"
            if kind == "softmax"
            else f"use F.binary_cross_entropy_with_logits on the logits, or F.logsigmoid,{line}"
        ).rstrip(","),
    )


def _module_line(subject: Subject, name: str) -> Location | None:
    return sources.of_parameter(subject.model, name)


def noise_target(found: NoiseTarget, other: Op | None) -> Finding:
    """Explain a prediction that is compared with random numbers which it cannot know.

    Args:
        found: The comparison.
        other: Another draw of the same shape, which the prediction follows.
    """
    place, drawn = found.op.location, found.drawn.location
    kept = "with other numbers there the prediction kept its bits"
    if other is not None:
        kept += f"; with other ones of {other.name}{on_line(other.location)} it moved"
    mixed = (
        Culprit("call", other.name, "makes the noise that is added", other.location)
        if other
        else None
    )
    return (suspicious if other is None else violated)(
        "noise-unseen",
        f"{found.op.name} compares a prediction with random numbers that it cannot know",
        culprits=[
            *([mixed] if mixed else []),
            Culprit("loss", found.op.name, "compares with noise", place),
            Culprit("call", found.drawn.name, "draws the noise", drawn),
        ],
        location=place if other is None else other.location,
        observed=f"the target is what {found.drawn.name}{on_line(drawn)} draws, and nothing else; {kept}",
        cause="the noise is no input of the model, unless the target only stands in for one"
        if other is None
        else f"the prediction is computed from other noise than it is compared with{on_line(place)}",
        because="only these random numbers differed between runs with one seed",
        fix="draw the noise once, and pass the same tensor on to what adds it to the input",
    )


def hidden_nan(found: Undefined, lost: Lost | None) -> Finding:
    """Explain entries of an output that no longer count, since a function is not defined for them.

    Args:
        found: The function.
        lost: The entries; None in a step of the user's, where it was not tried whether they count elsewhere.
    """
    place = found.op.location
    numbers = f"{found.count} of {found.total} finite numbers"
    culprits = [Culprit("call", found.op.name, f"NaN for {numbers}", place)]
    if lost is not None:
        culprits.append(Culprit("output", lost.path, "entries without a gradient", place))
        summary = f"{lost.count} of {lost.total} entries of {lost.path} are left out of the loss: NaN is replaced there"
        because = "the gradient of the loss by these entries is 0 here, and not 0 for other outputs"
    else:
        summary = f"{found.op.name} gives NaN for {numbers}, which the loss replaces"
        because = "the gradient that backward sent to these numbers is 0"
    return (suspicious if lost is None else violated)(
        "nan-hidden",
        summary,
        culprits=culprits,
        location=place,
        observed=f"{found.op.name} gives NaN for {numbers} (as far as {found.extreme:.3g}), and the loss is finite",
        cause=f"{found.op.name} is not defined for these numbers, and what replaces the NaN has no gradient",
        because=because,
        fix=f"make the argument{on_line(place)} one for which {found.op.name} is defined (softplus, exp, or a "
        "prediction of the logarithm itself), and do not replace NaN",
    )

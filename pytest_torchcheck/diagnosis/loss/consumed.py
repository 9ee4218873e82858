"""Mistakes between output, loss and targets, explained."""

from __future__ import annotations

import inspect
import math
import re
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...findings import Culprit, Finding, Location
from ...loop.closures import functions_of
from ...objects import trees
from ...probes.recorded.watch import version_of
from ...record.tracing import find_line
from ...sources.edits import submodule
from ...state import seed_everything
from ...verdicts import suspicious, violated
from ..crashes.losses_called import criterion_culprits
from ..gradient.cuts import CAUSES, FIXES, last_stop
from ..lines.returns import forward_returned, loss_returned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...probes.gradient.dead_terms import DeadTerm
    from ...probes.loss.consumption import Broadcast, LogOf
    from ...probes.loss.focal import FocalMean
    from ...runs.losses.consumption import Consumed, LossEvidence
    from ...subject import Subject


def loss_line(subject: Subject) -> Location | None:
    """Return the line of the user's loss that returns.

    Of a loss of torch's own it is the line of the training step that calls it, or the one at which
    the model's
    forward gives what it is computed from; where neither can be seen, the declaration.
    """
    return own_loss_line(subject) or forward_returned(subject) or subject.contract.location


def declared_loss_line(subject: Subject) -> Location | None:
    """Return the line of the user's loss that returns or is called, else the one that declares which loss it is."""
    return own_loss_line(subject) or subject.contract.location


def own_loss_line(subject: Subject) -> Location | None:
    """Return the line of the user's own code that computes the loss; None where the contract names torch's."""
    loss = subject.contract.loss
    if loss is None or isinstance(loss, str):
        return sources.of_object(type(subject.model).forward)
    function = type(loss).forward if isinstance(loss, torch.nn.Module) else loss
    place = sources.of_object(function)
    if place is None or not sources.rank(place.file):
        name = type(loss).__name__ if isinstance(loss, torch.nn.Module) else _name_of(loss)
        return next(
            (
                line
                for step in functions_of(subject.contract.train_step)
                for line in sources.matches(step, rf"\b{re.escape(name)}\(")
            ),
            None,
        )
    ways = sources.matches(function, r"^\s*return\b")
    if len(ways) > 1 and (taken := loss_returned(subject)) is not None:
        return taken
    return ways[0] if ways else place


def _name_of(loss: object) -> str:
    return str(getattr(loss, "__name__", type(loss).__name__))


def _culprit(subject: Subject, detail: str, place: Location | None = None) -> Culprit:
    loss = subject.contract.loss
    name = "loss" if isinstance(loss, str) or loss is None else _name_of(loss)
    return Culprit(
        kind="loss",
        name=name.replace("<lambda>", "loss"),
        detail=detail,
        location=place or loss_line(subject),
    )


def not_scalar(subject: Subject, shape: tuple[int, ...]) -> Finding:
    """Explain a loss that is no scalar."""
    return violated(
        "loss-not-scalar",
        f"the loss has shape {list(shape)}; backward needs a scalar",
        culprits=[_culprit(subject, f"shape {list(shape)}")],
        observed=f"loss of shape {list(shape)}",
        cause="the loss is not reduced over the batch",
        because="backward() without a gradient is defined for scalars only",
        fix="reduce it: loss.mean(), or reduction='mean'",
    )


def recreated(subject: Subject) -> Finding:
    """Explain a loss that is a new leaf."""
    return violated(
        "loss-recreated",
        "the loss is a new tensor without the graph of the model",
        culprits=[_culprit(subject, "a leaf")],
        observed="loss.is_leaf is True and it requires a gradient",
        cause="a tensor is made anew from the loss's value, so that backward stops at it",
        because="its grad_fn is None: torch.tensor(...) and requires_grad_() cut the graph silently",
        fix="return the computed tensor itself",
    )


def disconnected(subject: Subject) -> Finding:
    """Explain a loss that requires no gradient by the last operation that loses one on the way to it."""
    cut = last_stop(subject)
    place = None if cut is None else cut.region or cut.location
    culprits = [_culprit(subject, "requires_grad=False")]
    if cut is not None and cut.op is not None:
        culprits.insert(
            0,
            Culprit(kind="call", name=cut.op.name, detail="cuts the graph", location=cut.location),
        )
    return violated(
        "loss-disconnected",
        "the loss does not depend on the model's parameters",
        culprits=culprits,
        location=place or loss_line(subject),
        observed="loss.requires_grad is False, though parameters require gradients",
        cause="the graph is cut between the parameters and the loss"
        if cut is None
        else CAUSES[cut.kind],
        because="the loss has no grad_fn" if cut is None else cut.fact,
        fix="drop .detach(), .item(), argmax or no_grad between output and loss"
        if cut is None
        else FIXES[cut.kind].format(names="..."),
        evidence={} if cut is None else {"kind": cut.kind},
    )


def dead_term(subject: Subject, term: DeadTerm) -> Finding:
    """Explain a term of the loss that is made of a derivative without a graph."""
    place, added = term.derivative.location, term.added.location
    line = f" on line {place.line}" if place is not None else ""
    return violated(
        "derivative-without-graph",
        f"a term of the loss comes from autograd.grad without create_graph=True{line}: nothing learns from it",
        culprits=[
            Culprit(kind="call", name="create_graph", detail="not passed to autograd.grad", location=place),
            Culprit(kind="call", name=term.added.name, detail="adds the term", location=added),
        ],
        location=place,
        observed="the term is added to a loss that carries a graph, and carries none itself",
        cause="autograd.grad gives a derivative that is a constant unless its graph is asked for",
        because=f"what autograd.grad gave{line} has requires_grad=False"
        + (f", and line {added.line} adds a number made of it" if added is not None else ""),
        fix=f"pass create_graph=True to autograd.grad{line}",
    )  # fmt: skip


def focal_mean(found: FocalMean) -> Finding:
    """Explain a focal weight that is one number for the whole batch."""
    place, product = found.criterion.location, found.weighted.location
    line = f" on line {place.line}" if place is not None else ""
    name = found.criterion.name
    return violated(
        "focal-of-mean",
        f"the focal weight is one number for {found.elements} elements: it is taken of the mean that {name} gives",
        culprits=[
            Culprit(kind="call", name=name, detail="reduces to a mean before the weight", location=place),
            Culprit(kind="call", name=found.weighted.name, detail="weights the mean", location=product),
        ],
        location=place,
        observed=f"{name} gave one number for {found.elements} elements, and (1 - exp(-it)) weights that number",
        cause="the criterion's reduction is the mean, so that hard and easy elements get the same weight",
        because=f"the mean{line} went through exp(-mean) and 1 - it, and was multiplied by the result"
        + (f" on line {product.line}" if product is not None else ""),
        fix=f"pass reduction='none' to {name}{line}, and take the mean after the weighting",
    )  # fmt: skip


def broadcast(subject: Subject, seen: Broadcast, evidence: LossEvidence) -> Finding:
    """Explain an output and a target that are stretched against each other."""
    place = seen.op.location or _producer_line(evidence) or subject.contract.location
    output_is_longer = len(seen.output) > len(seen.target)
    longer = seen.output if output_is_longer else seen.target
    axis = next((i for i, size in enumerate(longer) if size == 1), len(longer) - 1)
    names = ("output", "target") if output_is_longer else ("target", "output")
    return violated(
        "loss-broadcast",
        f"output {list(seen.output)} and target {list(seen.target)} broadcast to {list(seen.result)} in the loss",
        culprits=[
            _culprit(
                subject, f"{seen.op.name} of {list(seen.output)} and {list(seen.target)}", place
            )
        ],
        location=place,
        observed=f"{seen.op.name}: {list(seen.output)} against {list(seen.target)} gives {list(seen.result)}",
        cause="every sample is compared with the targets of all samples",
        because="both shapes grew: neither equals that of the result",
        fix=f"make the shapes equal: {names[0]}.squeeze({axis}), or {names[1]}.unsqueeze({axis})",
    )


def stretched(subject: Subject, seen: Broadcast, evidence: LossEvidence) -> Finding:
    """Warn of an output or a target that is stretched to the other's shape."""
    place = seen.op.location or _producer_line(evidence) or subject.contract.location
    return suspicious(
        "loss-stretched",
        f"output {list(seen.output)} and target {list(seen.target)} have different shapes in {seen.op.name}",
        culprits=[_culprit(subject, f"{list(seen.output)} against {list(seen.target)}", place)],
        location=place,
        observed=f"{seen.op.name} broadcasts to {list(seen.result)}",
        cause="one side is repeated to fit the other, which may or may not be meant",
        because=f"{math.prod(seen.output)} outputs meet {math.prod(seen.target)} targets",
        fix="write target.expand_as(output), or output.expand_as(target), if this is meant",
    )


def _producer_line(evidence: LossEvidence) -> Location | None:
    return None if evidence.producer is None else evidence.producer.op.location


_WRONG_INPUT = {
    "double-softmax": (
        "{function} is given probabilities: softmax is applied twice",
        "{function} applies log_softmax itself and expects logits",
        "the input of {function} has no negative element and its rows sum to one",
        "return the logits: drop the softmax on this line",
    ),
    "relu-logits": (
        "{function} is given the output of a ReLU as logits",
        "logits must be able to be negative; a ReLU cuts every vote against a class",
        "the input of {function} has no negative element and {zeros:.0%} are exactly zero",
        "drop the ReLU after the last layer",
    ),
    "sigmoid-logits": (
        "{function} is given the output of a sigmoid as logits",
        "{function} expects logits; values within 0 and 1 cannot tell classes apart",
        "every element of the input lies within 0 and 1",
        "drop the sigmoid, or use binary_cross_entropy for independent classes",
    ),
    "double-sigmoid": (
        "{function} is given probabilities: sigmoid is applied twice",
        "{function} applies the sigmoid itself and expects logits",
        "every element of the input lies within 0 and 1, made by {made}",
        "drop the sigmoid on this line, or use binary_cross_entropy",
    ),
    "nll-without-log": (
        "{function} is given values that are no log-probabilities",
        "{function} expects the output of log_softmax",
        "the exponentials of the input's rows do not sum to one",
        "apply log_softmax first, or use cross_entropy on the logits",
    ),
    "kl-without-log": (
        "{function} is given probabilities where it expects log-probabilities",
        "kl_div expects its first argument in log space",
        "the input has no negative element and its rows sum to one",
        "pass log_softmax(...) as the first argument",
    ),
    "kl-of-logits": (
        "{function} is given logits where it expects log-probabilities",
        "{function} does not normalise its first argument",
        "the input has positive elements, and the loss falls for ever as all of a row rise together",
        "pass log_softmax(...) as the first argument",
    ),
    "rate-as-log": (
        "{function} is given a rate where it expects the logarithm of one",
        "with log_input=True, the default, {function} takes the exponential of its input itself",
        "no element of the input is negative, made by {made}: the optimum is log(count), not count",
        "pass log_input=False, or drop {made}",
    ),
    "log-as-rate": (
        "{function} is given negative values where it expects rates",
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
        culprits.append(
            Culprit(kind="output", name="output", detail="without log_softmax", location=left)
        )
    culprits.append(_culprit(subject, function, used.place))
    culprits += criterion_culprits(used.place, used.criterion)
    return violated(
        code,
        summary,
        culprits=culprits,
        location=place,
        observed=f"input {list(used.shape)} of {function}"
        + (f", made by {made.op}" if made is not None else "")
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
        culprits=[_culprit(subject, f"{function} of class indices", place)],
        location=place,
        observed=f"output {list(used.shape)} against labels of the same shape, all whole numbers below {classes}",
        cause="a regression loss gives the classes an order and distances, which their numbers do not mean",
        because=f"the targets are declared as Labels(classes={classes})",
        fix=(
            f"give the model {classes} outputs and use cross_entropy, or declare the targets "
            "as Ints if their order is meant"
        ),
    )


_UNLIKE = {
    "several": (
        "targets with several classes in one row",
        "softmax makes the classes of a row compete, so that no more than one can become likely",
        "a row of the targets, all of which are 0 or 1, holds more than one 1",
        "use binary_cross_entropy_with_logits, or divide each row by its sum where classes are to compete",
    ),
    "negative": (
        "targets that are no class probabilities",
        "float targets are taken for probabilities of the classes, which these are not",
        "a row of the targets holds negative numbers beside others",
        "use a regression loss such as mse_loss, or give class indices",
    ),
    "batch": (
        "one number per sample",
        "an input of one dimension is one sample with so many classes: the softmax runs over the batch",
        "the targets, one per sample, do not sum to one over the batch",
        "use binary_cross_entropy_with_logits for 0 and 1, mse_loss for quantities",
    ),
}
"""What cross entropy is given, the cause, what was measured, and the edit, by :attr:`Consumed.unlike`."""


def no_class_probabilities(subject: Subject, used: Consumed) -> Finding:
    """Warn of a cross entropy with float targets that are no class probabilities."""
    what, cause, because, fix = _UNLIKE[used.unlike]
    place = _loss_place(subject, used)
    line = f" on line {place.line}" if place is not None else ""
    return suspicious(
        "targets-no-distribution",
        f"cross_entropy is given {what}",
        culprits=[_culprit(subject, f"cross_entropy of {what}", place)],
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
    line = f" on line {place.line}" if place is not None else ""
    return violated(
        "loss-arguments-swapped",
        f"{function} is given the targets first and the output second",
        culprits=[_culprit(subject, f"{function}(targets, output)", place)],
        location=place,
        observed=(
            f"input {list(used.shape)}: 0 and 1 alone, as the targets of the batch; target: "
            "what requires a gradient"
        ),
        cause="the output is taken for the targets, and the targets for the output",
        because="the first argument was computed from the batch's targets, the second one from the model's output",
        fix=f"write {function}(output, targets){line}",
    )


def _loss_place(subject: Subject, used: Consumed) -> Location | None:
    """Return the line that calls a loss function; where it is one of torch's as it is, the line that declares it."""
    line = loss_line(subject)
    if callable(subject.contract.loss) and (line is None or sources.rank(line.file) < 2):
        return subject.contract.location
    return used.place or line


def unstable_log(subject: Subject, log: LogOf) -> Finding:
    """Warn of a logarithm of probabilities that a sure model takes of 0."""
    kind = log.squash.name.rpartition(".")[2]
    place = log.op.location or log.squash.location or loss_line(subject)
    line = f" on line {place.line}" if place is not None else ""
    return suspicious(
        "log-of-probabilities",
        f"the loss takes the logarithm of a {kind}: it is infinite as soon as the model is sure",
        culprits=[_culprit(subject, f"{log.op.name} of {log.squash.name}", place)],
        location=place,
        observed=f"{log.op.name} of what {log.squash} gave; the loss is finite on this batch",
        cause=f"a {kind} rounds small probabilities to 0, and the logarithm of 0 is -inf",
        because=f"with its input spread further, the {kind} gives 0 and the loss is not finite",
        fix=(
            f"use F.log_softmax, or F.cross_entropy on the logits,{line}"
            if kind == "softmax"
            else f"use F.binary_cross_entropy_with_logits on the logits, or F.logsigmoid,{line}"
        ).rstrip(","),
    )


def _module_line(subject: Subject, name: str) -> Location | None:
    return sources.of_parameter(subject.model, name)


def wrong_sign(subject: Subject, observed: str, place: Location | None) -> Finding:
    """Explain a loss whose decrease makes the fit worse."""
    line = loss_line(subject) or place
    return violated(
        "loss-sign",
        "the loss falls when the output gets further away from the target",
        culprits=[_culprit(subject, "wrong sign", line)],
        location=line,
        observed=observed,
        cause="the sign of the loss is wrong: training would maximise the error",
        because="the slope of the loss towards the target is positive",
        fix="negate the loss",
    )


def hot_start(subject: Subject, used: Consumed, uniform: float, gain: float) -> Finding:
    """Explain a first loss far above that of a uniform guess by the scale of a weight."""
    assert used.weight is not None
    place = initialisation_line(subject, used.weight)
    weight = subject.named_parameters()[used.weight]
    # a lookup table that also makes the logits keeps the default of nn.Embedding, which nobody
    # chose for a head
    tied = _is_table(subject, used.weight)
    return (violated if tied else suspicious)(
        "loss-at-start",
        f"the first cross entropy is {used.entropy:.2f}, far above the {uniform:.2f} of a uniform guess: "
        f"{used.weight} is initialised too large",
        culprits=[
            Culprit(kind="parameter", name=used.weight, detail=f"gain {gain:.2f}", location=place)
        ],
        location=place,
        observed=f"logits have a standard deviation of {used.spread:.2f} over {used.classes} classes",
        cause=f"the weight that makes the logits scales a unit input by {gain:.2f}; the usual is below 1",
        because=f"{used.weight} {list(weight.shape)} has an RMS of "
        f"{float(weight.detach().float().square().mean().sqrt()):.3g} "
        f"at fan-in {weight[0].numel()}"
        + (", and it is the weight of an nn.Embedding too" if tied else ""),
        fix=f"initialise it smaller, e.g. nn.init.normal_({submodule(subject.model, used.weight)}, std=0.02)"
        + ("" if tied else ", unless this start is meant"),
    )


def _is_table(subject: Subject, name: str) -> bool:
    """Say whether a parameter is the weight of an embedding, under any name."""
    weight = subject.named_parameters()[name]
    return any(
        isinstance(module, torch.nn.Embedding) and module.weight is weight
        for module in subject.model.modules()
    )


def initialisation_line(subject: Subject, qualified: str) -> Location | None:
    """Return the line that decides how a parameter is initialised, or that builds it."""
    place = _writing_line(subject, qualified)
    if place is None:
        return None
    values = subject.model.get_parameter(qualified).detach().float()
    measured = [float(values.mean()), float(values.std())] if values.numel() > 1 else []
    return sources.giving_call(place, [v for v in measured if v]) or place


def _writing_line(subject: Subject, qualified: str) -> Location | None:
    """Return the line that initialises a parameter, or that builds it.

    Where the line gets its numbers from a parameter of the function around it, the call that gives
    them counts.
    A line that names the parameter counts first, then one of a loop or of an ``apply`` function that
    writes to every module's parameter of that name; of several the one under its module's type.
    """
    parts = qualified.split(".")
    writes = r"(\.data)?\.(normal_|uniform_|fill_|mul_|zero_|copy_)\("
    own: list[type] = []
    for depth in range(len(parts)):
        owner = subject.model.get_submodule(".".join(parts[:depth]))
        tail = r"\.".join(re.escape(part) for part in parts[depth:])
        for cls in type(owner).__mro__:
            if not sources.is_no_tools_class(cls):
                continue
            own.append(cls)
            found = sources.search(cls, rf"init\.\w+\(\s*self\.{tail}\b|self\.{tail}{writes}")
            if found is not None:
                return found
    holder = type(subject.model.get_submodule(".".join(parts[:-1]))).__name__
    leaf = re.escape(parts[-1])
    general = rf"init\.\w+_\(\s*(?!self\b)\w+\.{leaf}\b|\b(?!self\b)\w+\.{leaf}{writes}"
    lines = [place for cls in own for place in sources.matches(cls, general)]
    lines = lines or [place for cls in own[:1] for place in _around(cls, general)]
    if not lines:
        return sources.of_parameter(subject.model, qualified)
    near = [place for place in lines if sources.line_above(place, rf"\b{holder}\b", most=5)]
    return (near or lines)[0]


def _around(cls: type, pattern: str) -> list[Location]:
    """Return the matching lines of the functions that stand beside a class, such as an ``init_weights``."""
    home = inspect.getmodule(cls)
    functions = [f for f in vars(home).values() if inspect.isfunction(f)] if home else []
    return [place for function in functions for place in sources.matches(function, pattern)]


def changed_arguments(
    subject: Subject, changed: tuple[str, ...], sizes: Sequence[float], values: Sequence[float]
) -> Finding:
    """Explain a loss that writes to its targets or to the output, so that it gives another value next time."""
    name = changed[0]
    target = name.startswith("targets")
    place = _mutating_line(subject, name)
    at = f" on line {place.line}" if place is not None else ""
    before, after, last = sizes
    make = violated if target else suspicious
    return make(
        "target-mutated" if target else "output-mutated",
        f"the loss changes {name} in place: called again, it gives another loss",
        culprits=[
            *(
                Culprit(
                    kind="target" if one.startswith("targets") else "output",
                    name=one,
                    detail="changed by the loss",
                    location=place if one == name else None,
                )
                for one in changed[:4]
            ),
            _culprit(subject, "writes to what it is given"),
        ],
        location=place or loss_line(subject),
        observed=f"loss {values[0]:.4g}, then {values[1]:.4g} with the same arguments; the largest "
        f"element of {name} is "
        f"{before:.4g}, {after:.4g} after one call, {last:.4g} after two",
        cause=f"an operation{at} writes into the tensor that the caller handed over",
        because="with new arguments of the same values the loss is the same twice",
        fix=f"make a new tensor{at}: x = x * y instead of x *= y, or clone it first",
    )


def _mutating_line(subject: Subject, path: str) -> Location | None:
    """Return the line of the user's code that first writes to a target or to the output."""
    batch = subject.batch().clone()
    output = subject.forward(batch, train=True)
    tensor = (trees.tensors(batch.targets, "targets") | trees.tensors(output))[path]
    version = version_of(tensor)
    seed_everything(subject.seed)
    with torch.no_grad():
        return find_line(
            lambda: subject.compute_loss(output, batch),
            lambda frame, event, line: event != "call" and version_of(tensor) != version,
        )

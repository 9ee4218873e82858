"""Losses without a lowest value, with one output that suits all targets, or above chance at the start."""

from __future__ import annotations

import ast
import math
import re
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import listed
from ...findings import Culprit, Finding, Location
from ...probes.recorded.operations import aligned, record
from ...sources.edits import submodule
from ...verdicts import suspicious, violated
from .consumed import loss_line

if TYPE_CHECKING:
    from ...probes.loss.slopes import LossOfOutput
    from ...probes.recorded.operations import Trace
    from ...probes.recorded.watch import Op
    from ...runs.losses.consumption import Consumed
    from ...runs.losses.suiting import Suited
    from ...subject import Subject


def unbounded(
    subject: Subject,
    loss: LossOfOutput,
    path: str,
    part: tuple[int, int] | None,
    sign: float,
    lowest: float,
    passed: tuple[Location, ...],
) -> Finding:
    """Explain a loss that falls without end as one output grows.

    Args:
        subject: Whose loss.
        loss: The loss as a function of the output.
        path: Of the output.
        part: A dimension of it and a place there, or all of it.
        sign: Which way it grows.
        lowest: The loss with the output's bias shifted by 1000.
        passed: Lines of clamps without effect, which were left out for that.
    """
    term, names = _falling_term(loss, path, part, sign)
    place = (term.location if term is not None else None) or loss_line(subject)
    way = "+inf" if sign > 0 else "-inf"
    name = path if part is None else f"{path}[{', '.join([':'] * part[0] + [str(part[1])])}]"
    without = f", and without the clamp on line {passed[-1].line}" if passed else ""
    return violated(
        "loss-unbounded",
        f"the loss falls without end as {name} goes to {way}",
        culprits=[
            Culprit("output", name, f"goes to {way}", place),
            Culprit("loss", "loss", "has no lowest value", place),
        ],
        observed=f"with {name} shifted by {sign * 1e3:g}{without}, the loss of a training forward is {lowest:.4g}",
        cause=f"a term in {name} has the wrong sign: it rewards what it should limit",
        because=f"the loss falls by as much for any targets when {name} is shifted that way",
        fix="compare the signs on this line with the formula"
        + (
            "; a KL divergence to a standard normal is 0.5 * (exp(log_var) + mean**2 - 1 - log_var), a "
            "Gaussian likelihood 0.5 * (log_var + (target - mean)**2 / exp(log_var))"
            if names & {"exp", "log", "gaussian_nll_loss"}
            else ""
        ),
    )


def _falling_term(
    loss: LossOfOutput, path: str, part: tuple[int, int] | None, sign: float
) -> tuple[Op | None, set[str]]:
    """Return the last operation on single elements that falls with the output, and all names."""

    def traced(by: float) -> Trace:
        return record(lambda: loss.shifted(path, by, part).run()[0])

    def form(shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape without the dimension that a loss may divide into several quantities."""
        return shape if part is None else (*shape[: part[0]], *shape[part[0] + 1 :])

    first, then = traced(0.0), traced(sign * 1e3)
    shape = tuple(loss.outputs[path].shape)
    term = None
    for a, b in aligned(first, then):
        if a is None or b is None:
            continue
        for one, two in zip(a.results, b.results, strict=True):
            before, after = first.values[one], then.values[two]
            if len(before.shape) != len(shape) or form(before.shape) != form(shape):
                continue
            if before.values is None or after.values is None:
                continue
            if float((after.values - before.values).sum()) < -math.prod(form(shape)):
                term = a.op
    return term, {step.op.name.rpartition(".")[2].strip("_") for step in first.steps}


def one_suits_all(subject: Subject, found: Suited) -> Finding:
    """Explain a loss that is at its lowest for one output, whatever the labels are."""
    place, idle = loss_line(subject), listed([str(label) for label in found.idle])
    several = len(found.idle) > 1
    return violated(
        "targets-ignored",
        f"one {found.path} for all samples brings the loss to its floor: labels of {idle} have no part in it",
        culprits=[Culprit("target", found.target, f"has no effect where it is {idle}", place)],
        observed=f"the loss is {found.before:.4g} as the model is, and {found.after:.2g} for "
        + ("the scores of one class everywhere" if several else "one number in every entry"),
        cause="the weights of all classes but one are 0, or a mask drops their samples"
        if several
        else f"the weight of a label is the label itself, or a mask drops all that are {idle}",
        because=f"the gradient is exactly 0 at every label of {idle}, which are {found.share:.0%} of the labels",
        fix="give every class a weight above 0"
        if several
        else f"give labels of {idle} a weight above 0; pos_weight= weighs the others against them",
        evidence={"idle": list(found.idle)},
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
        culprits=[Culprit("parameter", used.weight, f"gain {gain:.2f}", place)],
        location=place,
        observed=f"logits have a standard deviation of {used.spread:.2f} over {used.classes} classes",
        cause=f"the weight that computes the logits scales a unit input by {gain:.2f}; usual is "
        "below 1",
        because=f"{used.weight} {list(weight.shape)} has an RMS of "
        f"{float(weight.detach().float().square().mean().sqrt()):.3g} "
        f"at fan-in {weight[0].numel()}"
        + (", and it is the weight of an nn.Embedding too" if tied else ""),
        fix=f"initialise it smaller, e.g. nn.init.normal_({_written(subject, used.weight, place)}, std=0.02)"
        + ("" if tied else ", unless this is intended"),
    )


def _written(subject: Subject, name: str, place: Location | None) -> str:
    """Return a parameter as a line writes it, or by way of the model where that is ``self`` there; else an ellipsis."""
    if place is not None and (given := re.search(r"init\.\w+_\(\s*([^,()]+)", place.text)):
        return given[1].strip()
    classes = [] if place is None else sources.around(place.file, place.line, ast.ClassDef)
    here = {c.__name__ for c in type(subject.model).__mro__} & {c.name for c in classes[-1:]}
    return submodule(subject.model, name) if here else "..."


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
    them counts. A line that names the parameter counts first, then one of a loop or of an ``apply``
    function that writes to every module's parameter of that name; of several the one under its
    module's type.
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
    lines = lines or [place for cls in own[:1] for place in sources.beside(cls, general)]
    made = subject.contract.model
    if not lines and callable(made) and not isinstance(made, torch.nn.Module):
        code = re.escape(submodule(subject.model, qualified, "@")).replace("@", r"\b\w+")
        lines = sources.matches(made, rf"init\.\w+_\(\s*{code}\b|{code}{writes}")  # in the factory
    if not lines:
        return sources.of_parameter(subject.model, qualified)
    near = [place for place in lines if sources.line_above(place, rf"\b{holder}\b", most=5)]
    return (near or lines)[0]

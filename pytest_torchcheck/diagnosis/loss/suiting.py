"""What a loss asks for beside a fit: an output pulled off its target, a draw of another spread, targets that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import listed, on_line
from ...findings import Culprit, Finding
from ...objects import trees
from ...probes.holding.held_by_models import graph_leaves
from ...probes.recorded.watch import describe
from ...sources.syntax import assigned_name
from ...verdicts import suspicious, violated
from .consumed import loss_line
from .targets import made_for_loss

if TYPE_CHECKING:
    from ...batches import Batch
    from ...probes.loss.coupling import PulledOff
    from ...probes.loss.slopes import LossOfOutput
    from ...record.tracing import Swallowed
    from ...runs.losses.bootstrapped import Bootstrapped
    from ...runs.losses.spreads import Spread
    from ...subject import Subject


def _modules_behind(subject: Subject, path: str) -> list[str]:
    """Return the outermost modules whose parameters one output alone depends on."""
    with subject.pristine(train=True, seeded=True) as model, torch.enable_grad():
        outputs = trees.floats(subject.call(model, subject.batch().clone()))
        behind = {p: set(map(id, graph_leaves(t))) for p, t in outputs.items()}
        others = set().union(*(ids for p, ids in behind.items() if p != path))
        alone = behind.get(path, set()) - others
        names = [name for name, p in model.named_parameters() if id(p) in alone]
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def pulled_off(subject: Subject, found: PulledOff) -> Finding:
    """Explain an output that a term of other labels pulls off what it is fitted to."""
    place = found.op.location if found.op is not None else None
    where = on_line(place)
    return violated(
        "fit-pulled-off",
        f"{found.path} is fitted to {found.target}, and a term with {found.labels} pulls it away",
        culprits=[
            Culprit("output", found.path, "is read with its gradient", place),
            *(
                Culprit("module", name, "computes it", sources.of_parameter(subject.model, name))
                for name in _modules_behind(subject, found.path)[:2]
            ),
        ],
        location=place,
        observed=f"the loss is lowest {found.by:.2g} standard deviations of {found.target} away from {found.target}",
        cause=f"the term with {found.labels} uses {found.path} with its gradient{where}, as a weight that training can change",
        because=f"where {found.path} equals {found.target} the fit has no slope; what is left is the same on both "
        f"sides, and another for other {found.labels}",
        fix=f"detach {found.path} where the weight is computed{where}",
    )


def bootstrapped(found: Bootstrapped) -> Finding:
    """Explain a bootstrapped target with a gradient; residual gradients (Baird, 1995) train it on purpose."""
    made, place = found.made or found.compared, found.compared.location
    name = assigned_name(made.location) if made.location is not None else ""
    target, outputs = (
        name or "the target",
        listed(found.outputs) if found.outputs else "the model's values",
    )
    share = f"{found.share:.3g} of {outputs}" if found.outputs else outputs
    return suspicious(
        "target-trained",
        f"{target} is computed from {found.reward} and {outputs}, and is trained as the prediction is",
        culprits=[
            Culprit("tensor", target, "carries a gradient", made.location),
            Culprit("call", found.compared.name, "compares it with the prediction", place),
        ],
        location=made.location,
        observed=f"{found.compared.name}{on_line(place)} compares it with a prediction by the same weights, "
        "and its gradient comes to both",
        cause="the target is not detached: a step moves the value that follows towards the earlier one too; residual "
        "gradients are meant to do so",
        because=f"where {found.end} is {found.last} the target is {found.reward} alone, without a gradient; "
        f"elsewhere it adds {share}, and the loss has a gradient by it",
        fix=f"detach {target}{on_line(made.location)}, or compute it under torch.no_grad()",
    )


def spread_mistaken(subject: Subject, found: Spread) -> Finding:
    """Explain noise that is scaled by what the loss takes for a variance, or a loss of the square of the variance."""
    made = found.made if found.power == 1 and found.made is not None else None
    place = (made or found.drawn).location if found.power == 1 else loss_line(subject)
    taken = "the variance" if found.power == 1 else "the root of the variance"
    return violated(
        "spread-mistaken",
        f"the noise is scaled by what the loss takes for {taken} of {found.path}",
        culprits=[
            Culprit("output", found.path, "has another spread in the loss than in the draw", place),
            Culprit(
                "call",
                (made or found.drawn).name,
                "scales the noise",
                (made or found.drawn).location,
            ),
        ],
        location=place,
        observed=f"with respect to the scale of the noise, which is computed from {found.path}, the loss has the slope "
        f"that belongs to a variance of scale{'' if found.power == 1 else '**4'}, not of scale**2",
        cause="the draw uses the variance as its deviation"
        if found.power == 1
        else "the loss takes a log variance for the logarithm of a deviation",
        because="a divergence from a normal distribution has, by its deviation s, the slope a * s - b / s for any weight "
        "and any prior; the measured slopes follow that line for no other variance",
        fix="scale the noise by the deviation: torch.exp(0.5 * log_var)"
        if found.power == 1
        else "write the divergence with exp(log_var): 0.5 * (exp(log_var) + mean**2 - 1 - log_var)",
    )


def caught(subject: Subject, batch: Batch, paths: list[str], error: Swallowed) -> Finding:
    """Explain targets of which the use raises an error that is caught, after which the loss does without them."""
    what, place, instead = listed(paths), error.place, error.instead or error.place
    reader = "training step" if subject.contract.train_step is not None else "loss"
    given = "; ".join(f"{path} is {describe(batch.tensors()[path])}" for path in paths)
    return violated(
        "targets-ignored",
        f"the {reader} catches an error about {what} and goes on without them",
        culprits=[
            *(Culprit("target", path, "has no influence") for path in paths),
            Culprit("loss", "loss", f"catches the error of line {place.line}", instead),
        ],
        location=instead,
        observed=f"changed targets leave the {reader} bit-equal; {given}",
        cause=f"line {place.line} raises {error.kind}, and line {instead.line} goes on instead",
        because=f"{error.kind}: {error.text}; it changes with the shape of the targets",
        fix=f"make the targets fit what line {place.line} needs, and drop the except clause",
    )


def unpaired(subject: Subject, loss: LossOfOutput, paths: list[str]) -> Finding:
    """Explain a loss that compares the batch's targets with its outputs as a whole, no sample with its own."""
    place, what = made_for_loss(subject, loss, target_first=False), listed(paths)
    return suspicious(
        "samples-share-targets",
        "the loss does not compare the output of any sample with the target of that sample",
        culprits=[
            Culprit("loss", "loss", "compares the whole batch", place),
            *(Culprit("target", path, "may change places between samples", place) for path in paths),
        ],
        location=place,
        observed=f"{what} rolled by one sample, and in reverse order, give the same loss and the same gradient of "
        "every output",
        cause="outputs and targets are averaged, summed or sorted over the batch before they are compared",
        because="a loss that pairs samples changes when the targets change places and the outputs do not",
        fix="compare each output with its own target first, and reduce then; where two distributions are compared "
        "on purpose, skip this check with that reason",
    )  # fmt: skip

"""Targets and samples that are compared with the wrong ones, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Finding, Location
from ...probes.loss.consumption import LossCall, LossWatch
from ...probes.loss.slopes import LossOfOutput
from ...probes.numbers.views import moved as crossed
from ...verdicts import suspicious, violated
from ..lines.conditions import deciding
from .consumed import loss_line
from .targets import made_for_loss

if TYPE_CHECKING:
    from torch import nn

    from ...batches import Batch
    from ...runs.tied_outputs import TiedOutputs
    from ...subject import Subject

_CHAIN = 6
"""How many lines behind a tensor are cited."""
_REORDERING = ("view", "reshape", "flatten", "transpose", "permute", "roll", "flip", "unflatten")


def misplaced(
    subject: Subject, path: str, name: str, reached: dict[tuple[int, ...], set[tuple[int, ...]]]
) -> Finding:
    """Explain a loss that compares outputs with targets of other positions."""
    place = _reshaping_line(subject) or loss_line(subject)
    shown = []
    for at, where in list(reached.items())[:2]:
        listed = ", ".join(str(list(item)) for item in sorted(where)[:3])
        more = "" if len(where) <= 3 else f" and {len(where) - 3} more"
        shown.append(f"{name}{list(at)} reaches {path} at {listed}{more}")
    return violated(
        "target-misplaced",
        f"{name} are compared with outputs of other positions",
        culprits=[Culprit("loss", "loss", "positions mixed", place)],
        observed="; ".join(shown),
        cause="output and targets are given one shape by a reshape that reorders one of them",
        because="the offset between a target and the outputs that it affects differs from one "
        "target to the next",
        fix="move the class axis with movedim or transpose; view and reshape only keep the order "
        "of the elements",
    )


def spread_over(
    subject: Subject,
    output: Any,
    batch: Batch,
    path: str,
    name: str,
    reached: dict[tuple[int, ...], set[tuple[int, ...]]],
) -> Finding:
    """Explain a criterion by position in which a target decides the gradient of all positions of its sample."""
    place = made_for_loss(subject, LossOfOutput(subject, output, batch), target_first=False)
    at, where = next(iter(reached.items()))
    return violated(
        "positions-share-targets",
        f"each of {name} changes the gradient of all positions of its sample",
        culprits=[
            Culprit("loss", "loss", "mixes positions", place),
            Culprit("target", name, "affects other positions too", place),
        ],
        observed=f"changing {name}{list(at)} changes the gradient of {path} at {len(where)} positions",
        cause="outputs are averaged or normalised over positions before they are compared",
        because="the loss is one call of a criterion that has a separate term for each position",
        fix="normalise over the classes, and reduce after the criterion: check dim= of log_softmax, "
        "mean and sum on this line",
    )


_WHOLE = 0.01


def order(subject: Subject, call: LossCall, change: float, size: int) -> Finding:
    """Explain a contrastive loss whose targets do not follow the samples."""
    made = call.target_op
    place = (made.location if made is not None else None) or call.op.location or loss_line(subject)
    by = f"{change:.0%}" if change >= _WHOLE else f"{change:.1%}"
    return violated(
        "pairs-mixed",
        "the loss that ranks the samples against each other changes with their order",
        culprits=[
            Culprit("target", "labels", "wrong partners", place),
            Culprit("loss", "loss", call.op.name, call.op.location),
        ],
        observed=f"the same {size} samples in another order change the loss by at least {by}",
        cause="the class used as target is not each sample's own partner",
        because="with the partners as targets, only the order of the terms of a mean would change",
        fix="use the column of each row's own partner as target: torch.arange(len(logits))",
    )


def self_counted(subject: Subject, call: LossCall, share: float) -> Finding:
    """Explain a contrastive loss in which every sample meets itself."""
    rows = torch.arange(len(call.input), device=call.input.device)
    itself = call.target is not None and bool(torch.equal(call.target.flatten(), rows))
    made = call.target_op
    target_line = made.location if made is not None else None
    place: Location | None = (target_line if itself else None) or call.op.location
    producer = call.producer.op.location if call.producer is not None else None
    culprits = [Culprit("loss", "loss", call.op.name, place or loss_line(subject))]
    if producer is not None and not itself:
        culprits.append(Culprit("call", "logits", "not masked", producer))
    # two encoders that start alike and are shown one view give this too, and rightly
    made_of = suspicious if itself else violated
    return made_of(
        "self-counted",
        "each sample's similarity to itself is "
        + ("the correct answer" if itself else "among the wrong answers"),
        culprits=culprits,
        location=place,
        observed=f"the similarities are symmetric, and the diagonal takes {share:.0%} of the softmax",
        cause="every sample is ranked among candidates that include the sample itself",
        because="a sample is always most similar to itself, regardless of the model",
        fix="use the other view as the target"
        if itself
        else "set the diagonal of the similarities to -inf before the softmax",
    )


def _reshaping_line(subject: Subject) -> Location | None:
    """Return the line of the loss that first takes one dimension for another, or else reshapes a tensor."""
    batch = subject.batch().clone()
    found: list[Location] = []
    crossing: list[Location] = []

    class Reshapes(LossWatch):
        def after(self, func, args, kwargs, result, token):  # type: ignore[no-untyped-def]
            bare = getattr(func, "__name__", "")
            if bare in _REORDERING and args and isinstance(args[0], torch.Tensor):
                place = self.locate()
                given, made = tuple(args[0].shape), tuple(getattr(result, "shape", args[0].shape))
                if place is not None and (given != made or bare in ("roll", "flip")):
                    found.append(place)
                    if bare in ("view", "reshape") and crossed(given, made) is not None:
                        crossing.append(place)

    with subject.pristine(train=False, seeded=True) as model, torch.no_grad():
        output = subject.call(model, batch)
        with Reshapes(model):
            subject.compute_loss(output, batch)
    return next(iter([*crossing, *found]), None)


def tied(subject: Subject, found: TiedOutputs, name: str) -> Finding:
    """Explain outputs that are one number at many places whose targets differ."""
    count, total = int(found.members.sum()), found.members.numel()
    alike = _alike_tensors(subject.model, found.members)
    place = alike[0].location if alike else loss_line(subject)
    chain = [place] if place is not None else []
    for at in chain:
        chain += [one for one in deciding(at) if one not in chain and len(chain) < _CHAIN]
    return violated(
        "outputs-tied",
        f"{count} of {total} entries of {found.path} are always equal, and their targets are not",
        culprits=[
            *alike,
            Culprit("output", found.path, "one number at these entries", loss_line(subject)),
            *(Culprit("call", "made here", "what it is computed from", at) for at in chain[1:]),
        ],
        location=place,
        observed=f"the targets at these entries differ by {found.spread:.0%} of the spread of all of {name}",
        cause=f"the model computes the same at {count} places"
        + (f": {alike[0].name} has the same values at all of them" if alike else ""),
        because="they are equal at two other settings of the weights and with noise in the inputs too, in float64, "
        "so no training can separate them",
        fix="give what distinguishes the places different values there"
        + (f": look at how {alike[0].name} is computed" if alike else ""),
        evidence={"entries": count, "of": total},
    )


def _alike_tensors(model: nn.Module, members: torch.Tensor) -> list[Culprit]:
    """Return buffers with the last dimensions of an output that are constant over its equal entries, but not over all."""
    found = []
    places = members.reshape(-1, *members.shape[-2:]).all(0) if members.dim() > 2 else members
    for name, buffer in model.named_buffers():
        fits = buffer.dim() >= places.dim() and buffer.shape[-places.dim() :] == places.shape
        if not fits or not buffer.is_floating_point() or not bool(places.any()):
            continue
        values = buffer.detach().reshape(-1, *places.shape)[:, places.to(buffer.device)]
        if bool((values == values[:, :1]).all()) and len(buffer.unique()) > 1:
            owner, _, leaf = name.rpartition(".")
            at = sources.of_assignment(model.get_submodule(owner), leaf)
            found.append(Culprit("buffer", name, f"equal at {int(places.sum())} places", at))
    return found

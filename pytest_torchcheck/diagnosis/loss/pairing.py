"""Targets and samples that are compared with the wrong ones, or count by their order or place, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import listed
from ...findings import Culprit, Finding, Location
from ...probes.loss.consumption import LossCall, LossWatch
from ...probes.loss.slopes import LossOfOutput
from ...probes.numbers.views import moved as crossed
from ...probes.recorded.operations import record
from ...text.wording import percent
from ...verdicts import suspicious, violated
from ..lines.conditions import deciding
from .along_axes import told_along
from .consumed import loss_line
from .targets import made_for_loss

if TYPE_CHECKING:
    from torch import nn

    from ...batches import Batch
    from ...probes.loss.places import ByPlace, Deaf
    from ...probes.recorded.operations import Step, Trace
    from ...runs.losses.order import Reordered
    from ...runs.tied_outputs import TiedOutputs
    from ...subject import Subject

_CHAIN = 6
"""How many lines behind a tensor are cited."""
_REORDERING = ("view", "reshape", "flatten", "transpose", "permute", "unflatten")


def misplaced(
    subject: Subject,
    path: str,
    name: str,
    reached: dict[tuple[int, ...], set[tuple[int, ...]]],
    turned: str = "",
) -> Finding:
    """Explain a loss that compares outputs with targets of other positions; ``turned`` is in which order, if in one.

    A model may return its positions in reverse order, as a recurrent one that reads backward does.
    """
    reshaped, moved = _reordering_line(subject)
    shown = []
    for at, where in list(reached.items())[:2]:
        listed = ", ".join(str(list(item)) for item in sorted(where)[:3])
        more = "" if len(where) <= 3 else f" and {len(where) - 3} more"
        shown.append(f"{name}{list(at)} reaches {path} at {listed}{more}")
    place = moved or reshaped or loss_line(subject)
    make = suspicious if turned else violated
    made = make(
        "target-misplaced",
        f"{name} are compared with outputs of other positions{', ' * bool(turned)}{turned}",
        culprits=[Culprit("loss", "loss", "positions mixed", place)],
        observed="; ".join(shown),
        cause="the loss reorders one of the two; where the model returns its positions in that order, it is right"
        if turned
        else "output and targets are compared in different orders"
        if moved or not reshaped
        else "output and targets are given one shape by a reshape that reorders one of them",
        because="the offset between a target and the outputs that it affects differs from one "
        f"target to the next{turned and f'; {turned}, it is the same'}",
        fix="bring output and targets into the same order: what reorders one of them must reorder the other"
        if moved or not reshaped
        else "move the class axis with movedim or transpose; view and reshape only keep the order "
        "of the elements",
    )
    return made if moved else told_along(subject, made, path, name)


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


def order(
    subject: Subject, call: LossCall, change: float, size: int, *, classes: bool = False
) -> Finding:
    """Explain a loss whose targets do not follow the samples: a contrastive one, or one over ``classes``."""
    made = call.target_op
    place = (made.location if made is not None else None) or call.op.location or loss_line(subject)
    return violated(
        "pairs-mixed",
        "the loss changes with the order of the samples"
        if classes
        else "the loss that ranks the samples against each other changes with their order",
        culprits=[
            Culprit("target", "labels", "wrong partners", place),
            Culprit("loss", "loss", call.op.name, call.op.location),
        ],
        observed=f"the same {size} samples in another order change the loss by at least {percent(change)}",
        cause=f"what {call.op.name} compares a sample with is not its own target"
        if classes
        else "the class used as target is not each sample's own partner",
        because=f"with {'their own targets' if classes else 'the partners as targets'}, only the order of the terms "
        "of a mean would change",
        fix="compare each row of the output with the target of the same sample"
        if classes
        else "use the column of each row's own partner as target: torch.arange(len(logits))",
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


def _reordering_line(subject: Subject) -> tuple[Location | None, Location | None]:
    """Return the line of the loss that first takes one dimension for another, or else reshapes; and one that reorders.

    The second is None where a view takes one dimension for another.
    """
    batch = subject.batch().clone()
    found: list[Location] = []
    crossing: list[Location] = []
    moving: list[Location] = []
    turned: dict[int, tuple[torch.Tensor, Location]] = {}  # kept, so that no number is given twice

    class Reshapes(LossWatch):
        def after(self, func, args, kwargs, result, token):  # type: ignore[no-untyped-def]
            bare = getattr(func, "__name__", "")
            place = self.locate() if args and isinstance(args[0], torch.Tensor) else None
            if place is None:
                return
            given, made = tuple(args[0].shape), tuple(getattr(result, "shape", args[0].shape))
            if bare in ("roll", "flip") or _permutes(bare, args):
                moving.append(place)
            elif bare in _REORDERING and given != made:
                found.append(place)
                if bare in ("view", "reshape") and crossed(given, made) is not None:
                    # the last axis is taken apart as if it were another one: not that was moved there
                    other = made[-1] != given[-1] and made[-1] in given[:-1]
                    crossing.append(turned.get(id(args[0]), (None, place))[1] if other else place)
            if bare in _TURNING:
                turned[id(result)] = result, place

    with subject.pristine(train=False, seeded=True) as model, torch.no_grad():
        output = subject.call(model, batch)
        with Reshapes(model):
            subject.compute_loss(output, batch)
    return next(iter([*crossing, *found]), None), next(iter(() if crossing else moving), None)


_TURNING = frozenset({"permute", "movedim", "moveaxis", "transpose", "swapaxes", "swapdims"})


def _permutes(name: str, args: tuple[Any, ...]) -> bool:
    """Say whether an operation takes all the entries of a dimension, by a tensor of their places in another order."""
    if name not in ("__getitem__", "index_select"):
        return False
    dim = args[1] if name == "index_select" and len(args) > 2 else 0
    index = args[2] if name == "index_select" and len(args) > 2 else args[1]
    if not isinstance(dim, int) or not isinstance(index, torch.Tensor) or index.dim() != 1:
        return False
    places = torch.arange(args[0].shape[dim], device=index.device)
    if index.dtype != torch.int64 or len(index) != len(places) or torch.equal(index, places):
        return False
    return torch.equal(index.sort().values, places)


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
    """Return buffers with an output's last dimensions that are constant over its equal entries, but not over all."""
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


_REPEATS = (
    "cat",
    "concat",
    "repeat",
    "repeat_interleave",
    "tile",
    "stack",
    "reshape",
    "view",
    "flatten",
)


def order_of_pairs(subject: Subject, found: Reordered) -> Finding:
    """Name where the loss puts side by side two tensors whose samples are in different orders."""
    meeting, repeated = _meeting(found)
    named = [
        Culprit(
            "call", step.op.name, "repeats the samples in an order of its own", step.op.location
        )
        for step in repeated
    ]
    lines = " and ".join(f"line {c.location.line}" for c in named if c.location is not None)
    place: Location | None = (
        named[-1].location if named else meeting.op.location if meeting is not None else None
    )
    return violated(
        "order-matters",
        "the loss compares the samples of a batch with each other, and changes with their order",
        culprits=named or [Culprit("loss", "loss", "depends on the order", place)],
        location=place or loss_line(subject),
        observed=f"outputs and targets of the same {found.size} samples in another order change the loss by at "
        f"least {percent(found.change)}",
        cause=f"the tensors that {meeting.op.name} combines hold the samples in different orders: {lines} repeat "
        "them in different ways"
        if len(named) > 1 and meeting is not None
        else "what belongs to one sample is combined with what belongs to another",
        because="with each sample's own label beside its output, only the order of the terms of a sum would change",
        fix="repeat labels and outputs alike: torch.cat and repeat(n) keep whole batches together, "
        "repeat_interleave(n) and flatten the copies of one sample",
    )


def _meeting(found: Reordered) -> tuple[Step | None, list[Step]]:
    """Return the first operation whose values change with the order, and what repeated the samples of its operands."""
    first, second = record(found.first), record(found.second)
    if len(first.steps) != len(second.steps):
        return None, []
    for one, two in zip(first.steps, second.steps, strict=True):
        if one.op.name == two.op.name and _other_values(first, one, second, two):
            origins = [_repeated(first, place, found.size) for place in one.operands]
            steps = [step for step in origins if step is not None]
            places = {(s.op.location.file, s.op.location.line) for s in steps if s.op.location}
            return one, steps if len(places) > 1 else []
    return None, []


def _other_values(a: Trace, one: Step, b: Trace, two: Step) -> bool:
    """Say whether a result holds other values, in whatever order."""
    for mine, theirs in zip(one.results, two.results, strict=False):
        x, y = a.values[mine].values, b.values[theirs].values
        if x is None or y is None or x.shape != y.shape or not x.is_floating_point():
            continue
        x, y = x.flatten().sort().values, y.flatten().sort().values
        if not torch.allclose(x, y, rtol=1e-4, atol=1e-5 * float(x.abs().max() if len(x) else 0)):
            return True
    return False


def _repeated(trace: Trace, place: int, size: int) -> Step | None:
    """Follow a value back to the operation that made more entries than samples of one dimension."""
    stack, seen = [place], set()
    while stack:
        at = stack.pop(0)
        step = trace.makers.get(at)
        if step is None or at in seen:
            continue
        seen.add(at)
        stack += step.operands
        made = trace.values[at].shape
        if step.op.name.rpartition(".")[2] not in _REPEATS:
            continue
        for operand in step.operands:
            given = trace.values[operand].shape
            if size in given[:1] and made and made[0] > size and made[0] % size == 0:
                return step
    return None


def by_place(subject: Subject, found: ByPlace) -> Finding:
    """Explain a loss in which the weight of a sample is that of its place in the batch."""
    place = _place(subject, r"\[0\]|\[:|\[-|arange|linspace|weight|enumerate|\*\*")
    sure = found.far and found.any_size
    return (violated if sure else suspicious)(
        "weight-by-place",
        "the weight of a sample in the loss depends on its place in the batch",
        culprits=[Culprit("loss", "loss", "weighs by place", place)],
        location=place,
        observed=f"moved with its targets to place {found.place}, sample {found.sample} has a gradient of the same "
        f"direction and {found.factor:.4g} times the length",
        cause="the loss multiplies each sample by a number that belongs to the place",
        because="outputs and targets were moved together; the gradient of every sample kept its direction, so "
        "the samples do not interact",
        fix="weigh samples by what they are (their class, a weight in the batch), or take the plain mean",
        evidence={"factors": list(found.others)},
    )


def deaf_gradient(subject: Subject, loss: LossOfOutput | None, found: Deaf) -> Finding:
    """Explain a loss whose value follows the targets, and whose gradient does not."""
    place = (
        _place(subject, r"\.detach\(|no_grad|\.data\b|\.item\(")
        if loss is not None
        else sources.search(type(subject.model).forward, r"\.detach\(|no_grad|\.data\b|\.item\(")
        or sources.of_own_class(subject.model)
    )
    paths = listed(list(found.paths))
    return violated(
        "gradient-without-targets",
        f"the loss changes with {paths}, its gradient does not",
        culprits=[
            *(Culprit("target", path, "does not reach the gradient") for path in found.paths),
            Culprit("loss", "loss", "has the gradient of something else", place),
        ],
        observed=f"{len(found.values)} other targets give losses from {min(found.values):.4g} to "
        f"{max(found.values):.4g} instead of {found.base:.4g}, and the same gradient each time",
        cause="the part of the loss that compares with the targets is cut off from its gradient",
        because="only the targets were changed, to very different ones, with the same outputs and seed",
        fix="compute the term that compares with the targets from the output without detach(), no_grad() or .data",
    )


def _place(subject: Subject, pattern: str) -> Location | None:
    """Return the line of the loss that matches, else its own."""
    loss = subject.contract.loss
    found = sources.search(loss, pattern) if callable(loss) else None
    return found or loss_line(subject)

"""Relations between a loss and its targets that hold for every batch, whatever the loss computes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from ...codes import loss as explain
from ...codes.undecided import BLOCKED
from ...objects import trees
from ...probes.loss.arguments import by_own_loss, targets_of
from ...probes.loss.own import OwnLoss
from ...probes.loss.places import deaf_gradient
from ...probes.loss.pulls import (
    ROUNDING,
    Pulls,
    interchangeable,
    is_unpaired,
    pulls_of,
)
from ...probes.loss.slopes import LossOfOutput, Slopes
from ...probes.positions.choosing import by_place, chosen_by_loss, is_remainder, unpulled
from ...runs.facts import forward_facts, output_for_loss
from ...runs.liveness.unread import lost_results
from ...runs.losses.consumption import evidence, loss_calls
from ...runs.losses.shapes import mutual
from ...runs.losses.suiting import one_for_all
from ...specs import Labels
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, not_applicable, passed
from .unread import idle_fields, ignores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...findings import Finding
    from ...probes.loss.places import Deaf
    from ...subject import Subject

_FEW: Final = 3
"""How many samples a model that computes its own loss gets: it runs again for each changed label.

Of two, a label that is taken from two samples further on would be the sample's own.
"""
_RELATES: Final = "the loss that the model computes relates samples with each other"
BY_SAMPLE: Final = (
    "NllLoss", "MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "SoftMarginLoss",
)  # fmt: skip
"""Autograd nodes of torch's losses with one term per sample, where the loss is nothing else."""


def loss_of_output(subject: Subject) -> LossOfOutput | str:
    """Return the loss as a function of the base batch's output, or why it cannot be tried."""
    if isinstance(subject.contract.loss, str):
        return "the model computes its own loss"
    batch = subject.batch().clone()
    output = output_for_loss(subject)
    if not all(map(trees.computable, trees.floats(output).values())):
        return (
            "the output is sparse, nested or of a class that wraps tensors: it cannot be replaced"
        )
    loss = LossOfOutput(subject, output, batch)
    return loss if loss.rebuilt else "the output is of a class that cannot be rebuilt"


def base_slopes(subject: Subject, loss: LossOfOutput) -> Slopes | None:
    """Return the loss of the base batch and its gradients by the output; cached, as several checks begin with it."""
    if "base-slopes" not in subject.cache:
        subject.cache["base-slopes"] = loss.slopes()
    found: Slopes | None = subject.cache["base-slopes"]
    return found


def repeats(loss: LossOfOutput, base: Slopes) -> bool:
    """Say whether the loss is the same number when it is called again; one of torch's criteria alone always is."""
    again = base if base.plain is not None else loss.slopes()
    return again is not None and again.value == base.value


def is_plain(subject: Subject) -> bool:
    """Say whether the declared loss is one of torch's criteria and nothing else."""
    try:
        loss = loss_of_output(subject)
        base = None if isinstance(loss, str) else base_slopes(subject, loss)
    except SubjectError:
        return False  # other checks explain it
    return base is not None and base.plain is not None


def target_ownership(subject: Subject) -> Iterator[Finding]:
    """Change the targets of one sample at a time, and see whose outputs get another gradient."""
    if not isinstance(subject.contract.loss, str) and not targets_of(subject.batch()):
        yield not_applicable("the batch has no targets")
        return
    loss = loss_of_output(subject)
    if isinstance(loss, str):
        yield from _of_own_loss(subject, loss)
        return
    paths, ignored = ignores(subject, loss.batch, lambda b: {"loss": loss.run(b)[0].detach()}, loss)
    if ignored is not None:
        yield ignored
        return
    if paths and (lost := lost_results(partial(loss.run, loss.batch))):
        yield explain.without_effect(paths, lost[0])
        return
    axis, symbol = subject.contract.batch_dim, subject.source.leading_symbol
    size = 0 if axis is None or symbol is None else loss.samples(axis)
    if axis is None or symbol is None or size < 2 or loss.batch.sizes.get(symbol) != size:
        yield not_applicable("the outputs do not have one entry for each of at least two samples")
        return
    base = base_slopes(subject, loss)
    if base is None or not base.finite or not repeats(loss, base):
        yield inconclusive("the loss has no finite gradient that repeats with the same seed")
        return
    if (suited := one_for_all(loss, base, _classes(subject, loss))) is not None:
        yield explain.one_suits_all(subject, suited)
        return
    axes = subject.source.axes(symbol)
    findings, seen, beyond = _pulled(subject, loss, base, axes, size)
    elsewhere = all(finding.code == "target-of-another-sample" for finding in findings)
    whole = size < 3 or not loss.targets().keys() <= axes.keys()  # what else may move is not known
    paired = whole or not elsewhere or bool(base.plain) or not is_unpaired(loss, base, axes)
    if findings and paired:
        yield from findings
    elif seen and paired and paths and (unused := idle_fields(subject, paths)) is not None:
        yield unused
    elif seen and paired:
        rest = (
            f"{beyond} of them that of others too" if beyond else "no other by more than a factor"
        )
        yield passed(f"{seen} targets each affect the loss of their own sample, {rest}")
    elif not seen and (deaf := _deaf(loss, base)):
        yield explain.deaf_gradient(subject, loss, deaf)
    elif not paired and any(map(mutual, evidence(subject).broadcasts)):
        words = "each output is compared with the targets of all samples; loss-shapes tells why"
        yield inconclusive(words, code=BLOCKED)
    elif not paired:
        yield explain.unpaired(subject, loss, list(loss.targets()))
    else:
        yield inconclusive("no change of one sample's target changed the gradient of the loss")


def _classes(subject: Subject, loss: LossOfOutput) -> dict[str, int]:
    """Return how many classes labels may be of, where any of them may be drawn."""
    specs = () if loss.batch.origin == "real" else subject.source.specs.items()
    return {path: spec.classes for path, spec in specs if isinstance(spec, Labels)}


def _deaf(loss: LossOfOutput, base: Slopes) -> Deaf | None:
    return None if loss.reaches_weights() else deaf_gradient(loss, base, loss.targets())


def _pulled(
    subject: Subject, loss: LossOfOutput, base: Slopes, axes: dict[str, int], size: int
) -> tuple[list[Finding], int, int]:
    """Return what is wrong with the pulls, of how many targets there are any, and how many reach other samples."""
    seen = beyond = 0
    findings: list[Finding] = []
    for path, target in loss.targets().items():
        if path not in axes or target.is_complex():
            continue
        # in a square batch any of these may hold the samples: time may come first in the output
        ways = [pulls_of(loss, base, target, axes[path], a, size) for a in loss.axes_of(size)]
        judged = [list(_judged(subject, loss, base, path, pulls)) for pulls in ways]
        seen += max(sum(pull is not None for pull in pulls.values()) for pulls in ways)
        beyond += min(sum(map(_is_shared, pulls.values())) for pulls in ways)
        findings += [explained() for explained in min(judged, key=len)]
    return findings, seen, beyond


def _of_own_loss(subject: Subject, otherwise: str) -> Iterator[Finding]:
    """Look whether a model that computes its own loss reads the labels, and each for its own sample."""
    if not isinstance(subject.contract.loss, str):
        yield not_applicable(otherwise)
        return
    across = [one for one in evidence(subject).directions if one.way == "over-samples"]
    if across:
        yield explain.over_samples(across[0])
        return
    adapted, batch = subject.contract.adapted, subject.batch()
    given = adapted is not None and adapted.call is not None
    if given and (ignored := ignores(subject, batch, partial(by_own_loss, subject))[1]) is not None:
        yield ignored
        return
    try:
        found = _owned(subject)
    except SubjectError:
        found = otherwise  # no loss in eval mode, or of other labels
    if isinstance(found, list) and found:
        yield from found
    elif isinstance(found, list):
        yield passed("labels affect the loss of their own sample only")
    elif given and targets_of(batch):
        yield passed("the loss that the model computes changes with its targets")
    else:
        yield not_applicable(found)


def _owned(subject: Subject) -> list[Finding] | str:
    """Return what is wrong with the labels of a model's own loss, or why it cannot be told.

    Raises:
        SubjectError: The model raises in eval mode.
    """
    axis, symbol = subject.contract.batch_dim, subject.source.batch_symbol
    whole = subject.batch()
    batch = subject.few(whole, _FEW, aligned=True) or whole
    size = 0 if symbol is None else batch.sizes.get(symbol, 0)
    axes = {} if symbol is None else subject.source.axes(symbol)
    if axis is None or size < 2 or any(axes.get(path) != axis for path in batch.tensors()):
        return "not every tensor of the batch has one entry for each of at least two samples"
    loss = OwnLoss(subject, batch, axis)
    labels = {p: t for p, t in loss.targets().items() if not t.is_complex() and t.numel()}
    if not labels:
        return "the model computes its own loss, and none of its inputs is a label by its name"
    base = loss.slopes()
    if base is None or not base.finite or not base.by_output:
        return "the loss that the model computes has no finite gradient with respect to its inputs"
    facts = forward_facts(subject)
    # the loss is among the outputs; another seed has left them alone where they are steady
    random = facts.consumed or not facts.steady
    if random and base.value != float(loss.reseeded().run()[0].detach()):
        return "the loss that the model computes is random in eval mode"
    if any(t.dim() <= axis or t.shape[axis] != size for t in base.by_output.values()):
        return _RELATES
    found: list[Finding] = []
    seen = False
    for path, target in labels.items():
        pulls = loss.pulls(base, target, size)
        seen = seen or any(pull is not None for pull in pulls.values())
        found += [explained() for explained in _judged(subject, loss, base, path, pulls)]
    if found and not loss.is_separate(base, size):
        return _RELATES
    if not seen and (deaf := deaf_gradient(loss, base, labels)) is not None:
        return [explain.deaf_gradient(subject, None, deaf)]
    return found if seen else "no change of one sample's label changed the loss's gradient"


def _judged(
    subject: Subject, loss: LossOfOutput, base: Slopes, path: str, pulls: Pulls
) -> Iterator[Callable[[], Finding]]:
    """Yield what is wrong with the pulls of one target tensor, each to be explained if it counts."""
    read = {sample: moved for sample, moved in pulls.items() if moved is not None}
    unread = [sample for sample, moved in pulls.items() if moved is None]
    if not read:  # whether the loss reads them at all is another question
        return
    axis = None if isinstance(loss, OwnLoss) else subject.contract.batch_dim
    placed = bool(unread) and by_place(loss, base, axis)
    mined = bool(unread) and not placed and _mined(loss, base, list(read), unread, axis)
    if unread and not mined and not _masked(subject, loss, unread):
        rest = axis is not None and is_remainder(loss, base, axis)
        yield partial(explain.unread, subject, loss, path, unread, len(pulls), sure=not rest)
        return
    elsewhere = {s: m for s, m in read.items() if float(m[s]) <= ROUNDING * float(m.max())}
    if (
        2 * len(elsewhere) > len(read) > 1
    ):  # an order that is reversed leaves the middle in its place
        yield partial(explain.of_other_samples, subject, loss, path, elsewhere)
        return
    shared: Pulls = {s: m for s, m in read.items() if _is_shared(m)}
    if len(shared) > 1 and _has_terms_apart(subject, loss, base, path, shared):
        yield partial(explain.shared, subject, loss, path, shared)


def _mined(
    loss: LossOfOutput, base: Slopes, read: list[int], unread: list[int], axis: int | None
) -> bool:
    """Say whether samples are chosen by their losses: those that are read with any targets, or with their own."""
    if axis is None:
        return False
    if chosen_by_loss(loss, read, unread, axis):
        return True
    still = unpulled(base, axis)
    pulled = [n for n in range(loss.samples(axis)) if n not in still]
    return bool(still and pulled) and chosen_by_loss(loss, pulled, still, axis)


def _is_shared(moved: torch.Tensor | None) -> bool:
    return moved is not None and int((moved > 0).sum()) > 1


def _has_terms_apart(
    subject: Subject, loss: LossOfOutput, base: Slopes, path: str, shared: Pulls
) -> bool:
    """Say whether the terms of the loss belong to one sample each.

    They do in one of torch's criteria and nothing else. A model's own loss is tried: labels that move
    every sample, and may change their places without any change, belong to no sample.
    """
    if isinstance(loss, OwnLoss):
        everywhere = all(bool((moved > 0).all()) for moved in shared.values() if moved is not None)
        return everywhere and interchangeable(loss, base, {path: subject.contract.batch_dim or 0})
    apart = base.last.startswith(BY_SAMPLE) and not _ranks(subject, loss)
    return apart and not _groups(subject, loss, path)


def _groups(subject: Subject, loss: LossOfOutput, path: str) -> bool:
    """Say whether what the criterion is given changes with the targets: the mean of each class, say."""
    target = loss.targets()[path]
    other = loss.with_targets(target, target.roll(1, 0))
    one, two = ([c.input for c in loss_calls(subject, loss, b)] for b in (None, other))
    return any(not trees.same(a, b) for a, b in zip(one, two, strict=False))


def _ranks(subject: Subject, loss: LossOfOutput) -> bool:
    """Say whether the criterion ranks samples against each other: as many classes as samples.

    Each is its own class there, or the matrix is no output of the model.
    """
    calls = loss_calls(subject, loss)
    for call in calls:
        rows, own = call.input, call.target
        if own is not None and own.dim() == 1 and own.dtype == torch.int64 and rows.dim() == 2:
            numbers = torch.arange(len(own), device=own.device)
            if len(own) == rows.shape[1] and torch.equal(own, numbers):
                return True
    sizes = {t.shape[0] for t in loss.outputs.values() if t.dim()}
    return any(
        call.input.dim() == 2 and any(n > 1 and call.input.shape[1] % n == 0 for n in sizes)
        and call.input.shape not in {t.shape for t in loss.outputs.values()}
        for call in calls
    )  # fmt: skip


def _masked(subject: Subject, loss: LossOfOutput, unread: list[int]) -> bool:
    """Say whether a mask among targets or inputs leaves these samples out: zero for each of them in full."""

    def leaves_out(value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.is_complex():
            return False
        if value.shape[0] <= max(unread):
            return False
        flags = value.dtype == torch.bool or bool(((value == 0) | (value == 1)).all())
        return flags and all(not bool(value[sample].any()) for sample in unread)

    specs = subject.source.specs  # of two classes, labels look like flags
    flags = (t for p, t in loss.batch.tensors().items() if not isinstance(specs.get(p), Labels))
    return any(map(leaves_out, flags))

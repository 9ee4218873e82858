"""Why a training step leaves out samples or inputs of its batch, or compares samples with the targets of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import by_forward
from ...findings import Culprit, Finding
from ...text.wording import names_text
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from ...findings import Location
    from ...runs.losses.step_reads import StepReads
    from ...runs.training.step_rows import Pairs
    from ...subject import Subject


def skipped(subject: Subject, seen: StepReads) -> Finding:
    """Explain a training step that leaves out samples of its batch, or all of a later one."""
    place = sources.of_object(subject.contract.train_step)
    if seen.inputs:
        return _inputs(subject, seen, place)
    if seen.pairs is not None:
        return _pairs(seen.pairs, place)
    if seen.later or seen.targets:
        of, what = ("the targets of ", "targets") if seen.targets else ("", "samples")
        return violated(
            "targets-ignored",
            f"the training step reads {of}its first batch alone",
            culprits=[Culprit("call", "train_step", f"never reads {of}a later batch", place)],
            observed=f"a second step with other {what} gives bit-equal weights, gradients and loss",
            cause=f"the step keeps {of}its first batch, or what it made of it",
            because=f"other {what} in the first step do change its result",
            fix="compute the loss from the inputs and targets of each call",
        )
    names = ", ".join(map(str, seen.skipped[:4])) + (", ..." if len(seen.skipped) > 4 else "")
    return (violated if seen.sure else suspicious)(
        "target-unread",
        f"the training step never reads {len(seen.skipped)} of its {seen.size} samples",
        culprits=[Culprit("call", "train_step", f"leaves out samples {names}", place)],
        location=place,
        observed=f"other inputs and targets of sample {names} leave weights, gradients and loss "
        "bit-equal",
        cause="the step is computed over a part of the batch",
        because="another sample in place of one that is read does change the result, "
        "under the same seed",
        fix="train on every sample: check slices, and loops over parts of the batch",
    )


def _inputs(subject: Subject, seen: StepReads, place: Location | None) -> Finding:
    """Explain a step that computes its loss without inputs of the batch."""
    names = [by_forward(subject, path) for path in seen.inputs]
    return (violated if seen.sure else suspicious)(
        "input-ignored",
        f"{names_text(names)} {'has' if len(names) == 1 else 'have'} no influence on the training step",
        culprits=[Culprit("input", name, "is never read by the step", place) for name in names],
        location=place,
        observed="other values in every sample leave weights, gradients and loss bit-equal, under three seeds",
        cause="the step gives the model something else than the inputs of its batch",
        because="same seed, and only these inputs differed; other targets of the batch do change the result",
        fix="compute the loss from the inputs of each call, or drop what is not an input of the step",
    )


def _pairs(seen: Pairs, place: Location | None) -> Finding:
    """Explain a step whose outputs are computed from other samples than the targets that they are compared with."""
    ours, theirs = (", ".join(map(str, rows)) for rows in (seen.outputs, seen.targets))
    observed = (
        f"other inputs of sample {seen.sample} move row{'s' * (len(seen.outputs) > 1)} {ours} of the outputs; other "
        f"targets of it change the gradient of row{'s' * (len(seen.targets) > 1)} {theirs}"
    )
    because = "only this sample differed between steps that began from one state and one seed"
    if seen.mixed:
        return suspicious(
            "samples-mixed",
            "the training step mixes the inputs of samples, and not their targets",
            culprits=[Culprit("call", "train_step", "mixes samples", place)],
            location=place,
            observed=observed,
            cause="outputs are computed from samples whose targets they are not compared with",
            because=because,
            fix="mix the targets, or the losses, by the factor of the inputs: factor * loss(y, a) + (1 - factor) * "
            "loss(y, b)",
        )
    return violated(
        "target-of-another-sample",
        "the training step compares samples with the targets of others",
        culprits=[
            Culprit("call", "train_step", "pairs outputs and targets of other samples", place)
        ],
        location=place,
        observed=observed,
        cause="outputs and targets are not reordered alike on their way to the loss",
        because=because,
        fix="keep the outputs in the order of the targets, or index both alike",
    )

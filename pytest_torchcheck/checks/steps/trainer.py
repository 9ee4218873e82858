"""A trainer's own loop against the model by itself: accumulation as the trainer does it, in the precision that it uses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ... import sources
from ...findings import Culprit, Finding
from ...loop.trainers import (
    Accumulated,
    accumulate,
    labels_of,
    learnt_shift,
    loss_of,
    other_labels,
    padded_labels,
    with_labels,
)
from ...verdicts import inconclusive, not_applicable, passed, suspicious, violated
from ..datasets.samples import data_parts
from .loop import whole_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ...adapters import Loop
    from ...batches import Batch
    from ...findings import Location
    from ...subject import Subject

_EXACT = 1e-3
_ROUGH = 5e-2
"""In the trainer's precision; a mean of means is off by tens of percent, a missing division by a
whole factor."""


def trainer_runs(subject: Subject) -> Iterator[Finding]:
    """Read the losses of the recorded steps."""
    loop = subject.contract.loop
    assert loop is not None
    trace = whole_trace(subject)
    if trace.error is not None:
        raise trace.error
    place = sources.of_object(loop.defined) if loop.defined is not None else None
    bad = [n for n, loss in enumerate(trace.losses) if not math.isfinite(loss)]
    if bad and not all(math.isnan(loss) for loss in trace.losses[:1]):
        first = bad[0]
        yield violated(
            "non-finite-forward",
            f"the loss is {trace.losses[first]} in step {first} of {loop.name}'s loop",
            culprits=(Culprit("loss", loop.name, f"step {first}", place),),
            observed=(f"losses of {len(trace.losses)} steps: {', '.join(f'{loss:.4g}' for loss in trace.losses)}"),
            cause=("the trainer's learning rate or precision makes the weights or activations overflow"),
            because="the first loss is finite, and every step trains on the same batch",
            fix="lower the learning rate, clip the gradients, or train in a wider precision",
        )  # fmt: skip
        return
    steps = trace.optimizer_steps()
    yield passed(
        f"{len(steps)} optimizer steps of {loop.name} ran, {loop.window} batch{'es' * (loop.window > 1)} each; "
        f"losses {', '.join(f'{loss:.4g}' for loss in trace.losses)}"
    )


def trainer_accumulation(subject: Subject) -> Iterator[Finding]:
    """Run the trainer's loop over the parts of a batch and over the whole of it; compare before the step."""
    loop = subject.contract.loop
    assert loop is not None
    if loop.window < 2:
        yield not_applicable("no trainer accumulates gradients")
        return
    last: Accumulated | None = None
    for unequal in (False, True):
        made = accumulate(subject, loop, unequal=unequal)
        if made is None:
            continue
        last = made
        limit = _ROUGH if loop.mixed else _EXACT
        if made.error > limit:
            yield _differs(subject, made, limit)
            return
    if last is None:
        yield inconclusive(
            f"a batch cannot be cut into {loop.window} parts, or the loop ran other passes over them"
        )
        return
    counts = f" with {', '.join(map(str, last.counts))} valid targets" if last.counts else ""
    yield passed(
        f"{loop.window} batches{counts} give the gradient of the whole batch up to {last.error:.1e}"
    )


def trainer_labels(subject: Subject) -> Iterator[Finding]:
    """Change labels, then those of padding alone; read off the gradient which token a causal model learns."""
    loop = subject.contract.loop
    assert loop is not None
    batch = subject.batch()
    named = labels_of(batch)
    if named is None:
        yield not_applicable("the batch holds no tensor that is called labels")
        return
    name, labels = named
    found = list(_labels_wrong(subject, loop, batch, name, labels))
    yield from found
    if not found:
        yield passed(f"the loss depends on {name} {list(labels.shape)}")


def _labels_wrong(
    subject: Subject, loop: Loop, batch: Batch, name: str, labels: torch.Tensor
) -> Iterator[Finding]:
    place = sources.of_object(loop.defined) if loop.defined is not None else None
    plain = loss_of(subject, batch)
    if loss_of(subject, with_labels(batch, labels, other_labels(labels))) == plain:
        function = getattr(loop.defined, "__qualname__", f"{loop.name}.compute_loss")
        yield violated(
            "input-ignored",
            f"the loss does not depend on {name}: {function} does not use it",
            culprits=(
                Culprit("input", name, "ignored"),
                Culprit("function", function, "computes the loss", place),
            ),
            observed=f"loss {plain:.6g} with the batch's labels, and with others",
            cause="the labels are taken from the batch but not compared with the output",
            because=f"only {name} {list(labels.shape)} changed between two forwards",
            fix=f"compute the loss from the output and {name}",
        )
        return
    collate, at = _collator(subject)
    padding = padded_labels(batch, labels)
    if padding is not None:
        count = int(padding.sum())
        if loss_of(subject, with_labels(batch, labels, other_labels(labels, padding))) != plain:
            yield violated(
                "padding-counted",
                f"{count} of {labels.numel()} labels belong to padding, and the loss counts them",
                culprits=(
                    Culprit("function", collate, "makes the labels", at),
                    Culprit("input", name, "not -100 at padding"),
                ),
                location=at or place,
                observed=f"where attention_mask is 0, {name} is {_few(labels[padding])}; changing it there changes the loss",
                cause="the padded positions are not marked as ignored",
                because=f"the loss is {plain:.6g} and changes with the labels at these {count}",
                fix=f"{name}.masked_fill(attention_mask == 0, -100) in {collate}",
            )
    if loop.causal and loop.graded is not None:
        learnt = learnt_shift(subject, batch, loop.graded)
        if learnt is not None and learnt.shift != 1:
            twice = learnt.shift > 1
            yield violated(
                "label-shift",
                f"the model is trained on the token {learnt.shift} ahead instead of the next one"
                if twice
                else "the model is trained on the current token instead of the next one",
                culprits=(
                    Culprit("function", collate, "makes the labels", at),
                    Culprit("input", name, f"{learnt.share:.0%} of positions"),
                ),
                location=at or place,
                observed=f"at {learnt.share:.0%} of the logits the gradient favours input_ids[t+{learnt.shift}]",
                cause="the labels are shifted twice: by the model, and before the model" if twice
                else "nothing shifts the labels against the inputs",
                because=f"{learnt.next_share:.0%} of the logits are trained on the next token",
                fix=f"give {name} = input_ids unshifted; the model shifts them" if twice
                else "compare the logits of each position with the next token",
            )  # fmt: skip


def _collator(subject: Subject) -> tuple[str, Location | None]:
    """Return the name and line of the function that makes the trainer's batches."""
    for part in data_parts(subject) if subject.contract.dataset is not None else ():
        collate = getattr(part.plan.collate_fn, "data_collator", part.plan.collate_fn)
        if collate is not None:
            name = getattr(collate, "__name__", type(collate).__name__)
            return name, sources.of_object(collate)
    return "the data collator", None


def _few(labels: torch.Tensor) -> str:
    return ", ".join(str(value) for value in labels.unique()[:4].tolist())


def _differs(subject: Subject, made: Accumulated, limit: float) -> Finding:
    loop = subject.contract.loop
    assert loop is not None
    place = sources.of_object(loop.defined) if loop.defined is not None else None
    name = getattr(loop.defined, "__qualname__", loop.name)
    scaled = made.residual <= limit
    summed = scaled and abs(made.ratio - loop.window) <= 0.05 * loop.window
    counts = f"; valid targets {', '.join(map(str, made.counts))}" if made.counts else ""
    if summed:
        cause = f"the mean losses of the batches are added up and not divided by the {loop.window} batches"
        fix = "divide by num_items_in_batch, which the trainer passes for the whole step, or by the number of batches"
    elif scaled:
        cause = "the accumulated gradient is scaled by a constant"
        fix = f"divide the loss so that {loop.window} batches give the mean over all of them"
    else:
        cause = "the mean of the batches' means is taken: batches with few targets count as much as those with many"
        fix = "sum the losses of all targets and divide by the number of valid targets in the whole step"
    # a sum over a batch is as right as a mean of it: the trainer's division makes it a mean of sums
    own = loop.defined is not None and abs(made.ratio * loop.window - 1) > 0.05
    return (violated if own or not scaled else suspicious)(
        "accumulation-scale",
        f"{loop.window} accumulated batches give {made.ratio:.3g} times the gradient of the whole batch"
        if scaled
        else f"{loop.window} accumulated batches give a different gradient from the whole batch: "
        f"off by {made.error:.1%}",
        culprits=(
            Culprit("loss", name, "of each batch", place),
            *(Culprit("parameter", n, "differs") for n in made.worst),
        ),
        location=place,
        observed=f"relative difference {made.error:.3g}, ratio {made.ratio:.4g}, {made.residual:.2g} across{counts}",
        cause=cause,
        because=f"{loop.name}'s loop ran over {loop.window} parts of a batch and over the whole of it, on the same weights",
        fix=fix,
        evidence={"ratio": made.ratio, "error": made.error, "counts": list(made.counts)},
    )

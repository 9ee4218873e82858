"""Class labels and other targets lie within what the loss they are given to is defined for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...codes import labels as explain
from ...objects import trees
from ...probes.loss.arguments import Alignable, frames_left
from ...runs.losses.consumption import Consumed, evidence
from ...runs.losses.first_class import without_zero
from ...specs import Labels, TensorSpec
from ...specs.domains import Integers
from ...specs.sequences import ClassLabels
from ...specs.walk import spec_leaves
from ...verdicts import not_applicable, passed, suspicious

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...subject import Subject


def label_range(subject: Subject) -> Iterator[Finding]:
    """Compare the labels with the size of the class dimension and with the declared classes.

    So are the targets of torch's other losses with what their pages allow: 0 to 1 of a binary cross entropy, where the
    loss heeds them; -1 and 1 of those of margins and of pairs; each class of a row once of a multi-label margin.
    Labels of a CTC loss count up to ``target_lengths``: its frames count to the end of the longest one. Drawn targets
    are judged where the contract declares their values.
    """
    seen = evidence(subject)
    known = subject.batch().origin != "drawn" or _values_declared(subject)
    ranged = [(u, u.range) for u in seen.consumed if known and u.range is not None]
    if (beyond := next(((u, r) for u, r in ranged if r.outside), None)) is not None:
        yield explain.beyond_the_range(subject, *beyond, certain=_is_of_two_classes(subject))
        return
    aligned = [(u, u.ctc) for u in seen.consumed if known and u.ctc is not None]
    if (wrong := next(_of_ctc(subject, aligned), None)) is not None:
        yield wrong
        return
    used = next((u for u in seen.consumed if u.classes), None)
    if used is None and aligned:
        labels = aligned[0][1]
        yield passed(
            f"{labels.counted} labels of a CTC loss, from {labels.low} to {labels.top}, fit {labels.classes} classes "
            f"with the blank at {labels.blank}"
        )
        return
    if used is None and ranged:
        call, found = ranged[0]
        heeded = ", those that the loss uses" if found.allowed.startswith("between") else ""
        yield passed(f"{found.counted} targets of {call.function}{heeded}: {found.allowed}")
        return
    if used is None:
        yield not_applicable("the loss takes no class indices")
        return
    targets = subject.contract.targets
    classes = targets.classes if isinstance(targets, Labels) else None
    if isinstance(classes, int) and classes > used.classes:
        yield explain.too_few_outputs(subject, classes, used)
    elif isinstance(classes, int) and classes < used.classes:
        yield from _larger_head(used, classes)
    elif (count := without_zero(subject, used)) >= 4 * used.classes:
        yield suspicious(
            "label-base",
            f"class 0 never occurs among {count} labels",
            observed=f"labels from {used.low} to {used.top}, {used.classes} classes",
            cause="the labels may start at one",
            because=f"with {count} labels over {used.classes} classes, 0 is expected to occur",
            fix="subtract one from the labels where they are read, if they start at one",
        )
    else:
        left = f"; {used.left} more are left out of the loss" if used.left else ""
        yield passed(
            f"{used.counted} labels from {used.low} to {used.top} fit {used.classes} classes{left}"
        )


def _values_declared(subject: Subject) -> bool:
    """Say whether the values of every target are declared; what is said by its shape alone is drawn as we like."""
    specs = spec_leaves(subject.contract.targets, "targets").values()
    return bool(specs) and all(spec.values is not None for spec in specs)


def _is_of_two_classes(subject: Subject) -> bool:
    """Say whether a target of the batch is 0 or 1 itself: what a loss makes of others may be 0 for equal ones."""
    targets = trees.tensors(subject.batch().targets).values()
    return any(t.numel() > 0 and bool(((t == 0) | (t == 1)).all()) for t in targets)


def _of_ctc(subject: Subject, aligned: list[tuple[Consumed, Alignable]]) -> Iterator[Finding]:
    for call, labels in aligned:
        if labels.blanks:
            yield explain.blank_labels(subject, call, labels)
        elif labels.low < 0 or labels.top >= labels.classes:
            yield explain.beyond_the_classes(subject, call, labels)
        elif subject.batch().origin == "drawn":
            if _may_be_blank(subject, labels):
                yield explain.blank_declared(subject, call, labels)
        elif frames_left(labels, subject.batch(), subject.source.batch_symbol or ""):
            yield explain.frames_unread(subject, call, labels)


def _may_be_blank(subject: Subject, labels: Alignable) -> bool:
    """Say whether the declared targets, which the loss is given as they are, may be the blank."""
    spec, target = subject.contract.targets, subject.batch().targets
    if not isinstance(spec, TensorSpec) or not isinstance(target, torch.Tensor):
        return False
    drawn = (target.numel(), int(target.min()), int(target.max()))
    values = spec.values
    low, high = (values.low, values.high) if isinstance(values, Integers) else (0, 0)
    high = values.classes if isinstance(values, ClassLabels) else high
    return drawn == (labels.counted, labels.low, labels.top) and low <= labels.blank < high


def _larger_head(used: Consumed, classes: int) -> Iterator[Finding]:
    """Report a head with more classes than are declared."""
    yield suspicious(
        "label-classes",
        f"the head has {used.classes} classes, but {classes} are declared",
        observed=f"logits {list(used.shape)}; Labels(classes={classes})",
        cause="the head has more outputs than there are classes",
        because="the class dimension and the declaration differ",
        fix=f"give the head {classes} outputs, unless the others are reserved",
        location=used.place,
    )

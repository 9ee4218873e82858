"""What a training run takes from its dataset and loader: samples, labels, workers, order, splits."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import torch

from ...codes import data as explain
from ...codes.undecided import BLOCKED
from ...data import labels, pickling, randomness, splits, validity
from ...data.collation import collate_writes as collating
from ...data.collation import dropped_fields
from ...data.plan import Part, by_keys, parts
from ...data.relations import (
    blended_labels,
    drawn_labels,
    dropped_results,
    faint_bytes,
    flipped_apart,
    inverted_boxes,
    mutation,
    stood_in,
)
from ...data.relations import class_names as naming
from ...data.relations import confused_samples as confusing
from ...data.relations import kept_draws as keeping
from ...data.relations import replayed_draws as replaying
from ...data.relations.near_samples import near_samples
from ...data.relations.split_scales import scaled_apart
from ...data.validity import Survey, survey
from ...objects.peek import attribute
from ...specs import Labels, as_spec_tree
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from ...verdicts import inconclusive, not_applicable, passed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...batches import Batch
    from ...findings import Finding
    from ...subject import Subject

_IGNORED = -100  # what torch's losses ignore by default


@remembered("data-parts")
def data_parts(subject: Subject) -> tuple[Part, ...]:
    """Return the datasets of a contract with their loaders."""
    return tuple(map(by_keys, parts(subject.contract.dataset, subject.contract.loader)))


@remembered("surveys")
def surveys(subject: Subject) -> tuple[Survey, ...]:
    """Read up to 256 samples of every dataset, once per subject."""
    return tuple(in_data(survey, part, seed=subject.seed) for part in data_parts(subject))


def pickle_failures(subject: Subject, part: Part) -> list[pickling.Unpicklable]:
    """Find what of a loader cannot be pickled for its workers; looked for once."""
    key = ("data", "pickling", part.role)
    if key not in subject.cache:
        subject.cache[key] = [
            *pickling.unpicklable(part.dataset),
            *pickling.unpicklable(part.plan.collate_fn, "collate_fn"),
            *pickling.unpicklable(part.plan.worker_init_fn, "worker_init_fn"),
        ]
    found: list[pickling.Unpicklable] = subject.cache[key]
    return found


def in_data(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what reads the user's data, and say of its errors that they are the data's."""
    try:
        return function(*args, **kwargs)
    except mutation.ReadingError as error:
        raise SubjectError("data", error.cause) from error
    except Exception as error:  # the user's dataset may raise anything
        raise SubjectError("data", error) from error


def samples_valid(subject: Subject) -> Iterator[Finding]:
    """Read evenly spread samples and look at every leaf; collate one batch of the least alike.

    Stored bytes must move a sample by more than a twentieth of its values, and not wrap around. What a library's
    function returns must not be dropped. No sample must be given for an index at which an error is caught.
    """
    for found in surveys(subject):
        if found.errors:
            yield explain.read_error(found)
            continue
        if not found.samples:
            yield explain.empty(found)
            continue
        if all(leaf.kind == "none" for one in found.samples for leaf in one.leaves):
            yield explain.nothing(found)
            continue
        collates = (
            validity.try_collate(found)
            if found.part.is_map_style and found.part.plan.makes_batches
            else None
        )
        declared = None if subject.contract.model is None else subject.contract.batch
        missing = declared is not None and validity.holds_nan(subject.batch().inputs)
        bad = [
            *explain.not_finite(found, subject.seed, nan=not missing),
            *explain.elsewhere(found),
            *explain.inconsistent(found, collates, subject.contract.location),
            *_out_of_range(subject, found),
            *([explain.used_up(found)] if found.used_up else []),
            *([explain.identical(found)] if validity.identical_inputs(found) else []),
        ]
        if not bad and (wrong := faint_bytes.misread(found)) is not None:
            bad.append(explain.misread(found, wrong))
        if not bad and (again := in_data(stood_in.stood_in, found)) is not None:
            bad.append(explain.stood_in(found, again))
        if not bad and (lost := in_data(dropped_results.dropped, found)) is not None:
            bad.append(explain.dropped_result(found, lost))
        yield from bad
        if not bad:
            leaves = len(found.samples[0].leaves)
            yield passed(
                f"{found.part.prefix}{found.read} were read: {leaves} leaves each, finite and "
                "of one structure"
                + (" (NaN aside, which the contract's batch holds too)" if missing else ""),
                evidence={
                    "samples": validity.leaf_rows(found),
                    "reading": [{"read": len(found.samples), "seconds": round(found.seconds, 6)}],
                },
            )


def _out_of_range(subject: Subject, found: Survey) -> Iterator[Finding]:
    """Hold the inputs to the range that their spec declares, leaf by leaf in order."""
    if subject.contract.inputs is None or not found.part.is_map_style:
        return
    specs = _flat(as_spec_tree(subject.contract.inputs, "inputs"))
    leaves = found.samples[0].inputs
    if len(specs) != len(leaves):
        return
    for spec, leaf in zip(specs, leaves, strict=True):
        low, high = (getattr(spec.values, name, None) for name in ("low", "high"))
        if not isinstance(low, int | float) or not isinstance(high, int | float):
            continue
        top = high - 1 if isinstance(high, int) and not spec.dtype.is_floating_point else high
        for sample in found.samples:
            own = next(one for one in sample.leaves if one.path == leaf.path)
            if own.low is not None and own.high is not None and (own.low < low or own.high > top):
                yield explain.out_of_range(found, leaf.path, low, top, own, sample.index)
                break


def _flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict | list | tuple):
        values = tree.values() if isinstance(tree, dict) else tree
        return [leaf for value in values for leaf in _flat(value)]
    return [tree]


def samples_unchanged(subject: Subject) -> Iterator[Finding]:
    """Read items under a seed, under another, and under the first again."""
    for part, found in zip(data_parts(subject), surveys(subject), strict=True):
        if not part.is_map_style:
            yield not_applicable(f"{part.prefix}{part.name} is a stream: its samples have no index")
            continue
        if found.errors:
            yield unreadable(found)
            continue
        again = in_data(mutation.reread, part, seed=subject.seed)
        if not again.comparable:
            yield inconclusive(
                f"{part.prefix}samples of {part.name} hold nothing that can be compared"
            )
        elif again.overwritten:
            yield explain.overwritten(
                part, again, mutation.trace_buffer(part, again, seed=subject.seed)
            )
        elif again.fills and (other := in_data(confusing.find_confusion, part, seed=subject.seed)):
            yield confusing.confused(part, other)
        elif again.ordered:
            yield in_data(confusing.in_order, part, again, seed=subject.seed)
        elif (
            again.settles
            and not (part.evaluates or subject.contract.promised("RandomAugmentation"))
            and keeping.is_judged(part)
            and (same := in_data(keeping.find_kept, part, subject.contract.location))
        ):
            yield keeping.kept(part, same, promised=False)
        elif not again.differing and (
            writes := in_data(collating.find_writes, part, seed=subject.seed)
        ):
            yield collating.written(part, writes)
        elif not again.differing or again.held_randomness:
            why = " once its own generator is reset" if again.held_randomness else ""
            yield passed(
                f"{part.prefix}{len(again.indices)} samples are equal when read again with the "
                f"same seed{why}"
            )
        elif again.changes:
            traced = None
            if again.changes[0].held.kind != "attribute":
                traced = mutation.trace_write(part, again.changes[0], seed=subject.seed)
            yield explain.damaged(part, again, traced)
        elif subject.contract.promised("RandomAugmentation"):
            yield inconclusive(
                f"{part.prefix}samples differ with the same seed; see random-augmentation",
                code="random",
            )
        else:
            name, place = in_data(randomness.find_divergence, part)
            yield explain.not_repeatable(part, again, name, place)


def unreadable(found: Survey) -> Finding:
    """Return the finding of a check that cannot go on where samples cannot be read."""
    return inconclusive(
        f"{found.part.prefix}sample {found.errors[0].index} cannot be read (see samples-valid)",
        code=BLOCKED,
        root="samples-valid/sample-raises",
    )


def dataset_labels(subject: Subject) -> Iterator[Finding]:
    """Compare labels with those declared and with the dataset's own; see whether a replayed transform repeats.

    Maps of classes must not be resized by averaging, what is named boxes must not be mirrored with its corners in the
    old order, a target map must not be flipped or rotated apart from its input (where reads have equal inputs, their
    maps are no mirror images of each other), and no whole number is drawn anew beside features that stay the same.
    """
    if subject.contract.model is None or subject.contract.has_targets:
        unlike = in_data(naming.unlike_names, surveys(subject))
        if unlike is not None:
            yield naming.differing(unlike, subject.contract.location)
    for found in surveys(subject):
        part = found.part
        if part.is_map_style and found.samples:
            yield from _turned(found, subject.seed)
        if not found.samples:
            yield (
                unreadable(found)
                if found.errors
                else inconclusive(f"{part.prefix}no sample was read")
            )
            continue
        measured = labels.measure(found)
        if measured is None:
            yield inconclusive(
                f"{part.prefix}no label can be identified in a sample "
                f"({found.samples[0].structure})"
            )
            continue
        classes, ignore, wants_float = _declared_labels(subject, part)
        if part.plan.collate_fn is not None or _is_all_input(subject, found):
            wants_float = None  # no label of a sample is the target as it is
        given = subject.batch() if _has_targets(subject) else None
        other = dropped_fields.why_no_label(found, measured, given, wants_float)
        if other is not None:
            yield inconclusive(f"{part.prefix}no label can be identified in a sample: {other}")
            continue
        bad = list(explain.labels_wrong(part, measured, classes, ignore, wants_float))
        if part.is_map_style and len(measured.shape) > 1 and not measured.is_floating:
            mixed = in_data(blended_labels.blended, part, measured.path)
            bad += [] if mixed is None else [explain.blended(part, measured.path, mixed)]
        bad = bad or _drawn(subject, found, measured)
        if not bad and wants_float and measured.collated:
            said = _refusal(subject, measured.collated)
            given = subject.batch().targets.dtype == measured.collated
            bad = [explain.dtype_refused(part, measured, said, given)] if said else []
        yield from bad
        if not bad:
            kinds = (
                f"{len(measured.values)} values"
                if measured.values
                else f"{measured.low:g} to {measured.high:g}"
            )
            within = f", within {classes} classes" if classes is not None else ""
            rows = [{"label": k, "samples": n} for k, n in sorted(measured.values.items())]
            summary = f"{part.prefix}{measured.count} labels of {measured.dtype}: {kinds}{within}"
            yield passed(summary, evidence={"labels": rows} if rows else None)


def _has_targets(subject: Subject) -> bool:
    return subject.contract.model is not None and subject.contract.has_targets


def _turned(found: Survey, seed: int) -> Iterator[Finding]:
    """Ask whether targets are flipped and rotated as their inputs are."""
    part = found.part
    replay = in_data(replaying.find_replay, part, seed=seed)
    if replay is not None:
        yield replaying.replayed_in_vain(part, replay)
    mirrored = in_data(inverted_boxes.inverted, found)
    if mirrored is not None:
        yield explain.boxes_inverted(part, mirrored)
    apart = None if replay is not None else in_data(flipped_apart.flipped_apart, found)
    if apart is not None:
        yield explain.flipped_apart(part, apart)


def _drawn(subject: Subject, found: Survey, measured: labels.Labels) -> list[Finding]:
    """Ask whether labels are drawn at each read, unless they are an input by declaration."""
    if _is_all_input(subject, found):
        return []
    drawn = in_data(drawn_labels.drawn_labels, found, measured)
    return [] if drawn is None else [explain.drawn(found.part, drawn)]


def _is_all_input(subject: Subject, found: Survey) -> bool:
    """Say whether a sample holds no more than the model's inputs."""
    model = subject.contract.model
    return model is not None and len(found.samples[0].leaves) <= len(
        list(subject.batch().input_leaves())
    )


def _refusal(subject: Subject, dtype: torch.dtype) -> str:
    """Return what torch says to targets of this dtype in a step; empty where it takes them, or no other."""
    own = subject.batch()
    usual = next((p.dtype for p in subject.model.parameters() if p.is_floating_point()), dtype)
    if dtype == usual or not isinstance(own.targets, torch.Tensor):
        return ""
    said = [
        _step_error(subject, dataclasses.replace(own, targets=own.targets.to(kind)))
        for kind in (dtype, usual)
    ]
    return said[0] if not said[1] else ""


def _step_error(subject: Subject, batch: Batch) -> str:
    try:
        if subject.contract.train_step is not None:
            with subject.pristine(steps=True, train=True) as model:
                subject.train_step(model, subject.make_optimizer(model), batch.clone())
        elif subject.contract.loss is not None:
            with subject.backward(batch):
                pass
    except SubjectError as error:
        return str(error.error) or type(error.error).__name__
    return ""


def _declared_labels(subject: Subject, part: Part) -> tuple[int | None, int, bool | None]:
    """Return the number of classes, the ignored label, and whether targets are floats, as far as declared."""
    contract = subject.contract
    spec = _flat(as_spec_tree(contract.targets, "targets")) if contract.targets is not None else []
    named = attribute(part.dataset, "classes")
    classes = len(named) if isinstance(named, list | tuple) and named else None
    if len(spec) == 1 and isinstance(spec[0], Labels):
        ignored = spec[0].ignore_index
        return spec[0].classes, _IGNORED if ignored is None else ignored, False
    if not _has_targets(subject):
        return classes, _IGNORED, None
    targets = subject.batch().targets
    known = isinstance(targets, torch.Tensor)
    return classes, _IGNORED, targets.is_floating_point() if known else None


def split_hygiene(subject: Subject) -> Iterator[Finding]:
    """Compare every pair of splits by indices, stored rows or contents, and in small ones by distance.

    Samples of one split that lie fifty times as near to one of the other, with the same target, as
    samples of the other lie to each other are the same samples with a little noise. So are windows
    of one series of which both halves, what follows them included, stand within windows of the other split.
    Values that are fifty times as large in one split, sample by sample, are suspicious.
    """
    parts = data_parts(subject)
    if len(splits_ := [part for part in parts if part.is_map_style]) < 2:
        streams = ", ".join(part.role for part in parts if not part.is_map_style)
        yield not_applicable(
            'the contract declares one dataset; give {"train": ..., "eval": ...} to compare splits'
            if len(parts) < 2
            else f"samples cannot be compared by their index: {streams} is a stream"
        )
        return
    read = {one.part.role: one for one in surveys(subject)}
    for first, second in itertools.combinations(splits_, 2):
        found = in_data(splits.overlap, first, second, seed=subject.seed)
        both = read[first.role], read[second.role]
        scales = scaled_apart(*both)
        if found is not None and found.shared:
            yield explain.leaked(first, second, found, subject.contract.location)
        elif scales is not None:
            yield explain.scaled_apart(*both, scales, subject.contract.location)
        elif found is None:
            yield inconclusive(f"{first.role} and {second.role} hold nothing that can be compared")
        elif not found.random and (near := in_data(near_samples, first, second, seed=subject.seed)):
            yield explain.nearly_leaked(first, second, near, subject.contract.location)
        elif found.random or not found.is_complete:
            why = "reading is random" if found.random else "not all were compared"
            yield inconclusive(
                f"no sample of {second.role} was seen in {first.role}, but {why}: "
                f"{found.compared[0]} of {found.total[0]} with {found.compared[1]} of {found.total[1]}"
            )
        else:
            one, other = found.total
            yield passed(f"{one} samples of {first.role} and {other} of {second.role}: none shared")

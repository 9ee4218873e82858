"""How samples get from a dataset to the loop: pickling, workers, randomness, order, last batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...codes import data as explain
from ...codes.undecided import BLOCKED
from ...data import delivery, labels, order, plan, randomness, validity
from ...data.collation import (
    collate_writes,
    masked_labels,
    mixed_weights,
    pairing,
    random_batches,
)
from ...data.collation import dropped_fields as dropping
from ...data.collation import lost_values as losing
from ...data.relations import kept_draws as keeping
from ...data.relations import never_drawn as never
from ...data.relations import worker_agreement as agreement
from ...text.wording import counted
from ...verdicts import inconclusive, not_applicable, passed
from .samples import data_parts, in_data, pickle_failures, surveys, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...data.plan import Part
    from ...findings import Finding
    from ...subject import Subject


def dataset_pickling(subject: Subject) -> Iterator[Finding]:
    """Pickle as multiprocessing would, and name the smallest thing that refuses."""
    for part in data_parts(subject):
        found = pickle_failures(subject, part)
        if found:
            yield explain.not_picklable(part, found)
        else:
            yield passed(
                f"{part.prefix}{part.name}, its collate function and worker_init_fn pickle"
            )


def collate_pairing(subject: Subject) -> Iterator[Finding]:
    """Collate samples together and one by one, find their rows, and compare labels and other fields.

    A field that is exchanged for another sample's must change the batch. Where a batch mixes samples, their labels
    must have the weights of their inputs. Labels of masked tokens are what was masked.
    """
    for part, found in zip(data_parts(subject), surveys(subject), strict=True):
        if not part.is_map_style or part.plan.collate_fn is None or not part.plan.makes_batches:
            yield not_applicable(f"{part.prefix}the loader declares no collate function")
        elif found.errors:
            yield unreadable(found)
        elif (lost := in_data(dropping.dropped_of, found)) is not None:
            yield dropping.field_dropped(part, lost)
        elif (late := in_data(masked_labels.covered, found)) is not None:
            yield masked_labels.labels_covered(part, late)
        elif (mix := in_data(mixed_weights.mixed, found)) is not None:
            words = (
                f"{part.prefix}labels have the weights of their inputs in {mix.count} mixed rows"
            )
            yield mixed_weights.weights_exchanged(part, mix) if mix.crossed else passed(words)
        else:
            made = pairing.pairing_of(found)
            wrong = made is not None and (made.shifted or made.mixed or made.mask)
            gone = None if wrong else in_data(losing.lost_of, found)
            if gone is not None:
                yield losing.values_lost(part, gone)
            elif made is None:
                yield not_applicable(
                    f"{part.prefix}a batch does not show what belongs to which sample"
                )
            elif made.shifted is not None:
                yield collate_writes.indices_shifted(part, made.shifted)
            elif made.mixed:
                yield pairing.fields_mixed(part, made)
            elif made.mask is not None:
                yield collate_writes.mask_too_long(part, made.mask)
            else:
                what = "labels" if made.path else "fields"
                yield passed(f"{part.prefix}{made.count} samples of a batch keep their own {what}")


def worker_delivery(subject: Subject) -> Iterator[Finding]:
    """Start a fresh interpreter that does what a spawned DataLoader worker does."""
    for part in data_parts(subject):
        if part.plan.num_workers == 0:
            yield not_applicable(f"{part.prefix}the loader declares no workers")
        elif pickle_failures(subject, part):
            yield inconclusive(
                f"{part.prefix}{part.name} cannot be sent to a worker (see dataset-pickling)",
                code=BLOCKED,
                root="dataset-pickling/not-picklable",
            )
        else:
            made = delivery.deliver(part, seed=subject.seed)
            if made.outcome == "delivered":
                other = in_data(agreement.disagreement, part, made.told, seed=subject.seed)
                if other is not None:
                    yield explain.differing(part, other)
                    continue
                yield passed(
                    f"{part.prefix}a spawned worker delivered {made.batches} batches in {made.seconds:.1f} s"
                )
            else:
                yield _undelivered(subject, part, made)


def _undelivered(subject: Subject, part: Part, made: delivery.Delivery) -> Finding:
    """Tell what a worker did not do; where the main process fails alike, as what follows from the samples.

    Samples are read here only after the worker has raised: what ends a process, or hangs, would do
        so here.
    """
    told = explain.undelivered(part, made, delivery.DEADLINE_S)
    if made.outcome != "raised" or made.phase not in ("read", "collate", "send"):
        return told
    found = next(each for each in surveys(subject) if each.part.role == part.role)
    if made.phase == "read" or not found.samples:
        return unreadable(found) if found.errors else told
    if any(leaf.attached for sample in found.samples for leaf in sample.leaves):
        return told.replace(root="samples-valid/sample-graph")
    failed = validity.try_collate(found) if part.is_map_style else None
    if failed is None:
        return told
    causes = explain.inconsistent(found, failed, subject.contract.location)
    return told.replace(root=next((f"samples-valid/{cause.code}" for cause in causes), None))


def worker_sharding(subject: Subject) -> Iterator[Finding]:
    """Simulate two workers of a stream and compare what they deliver.

    Of a stream that ends, all workers together deliver what one process does.
    """
    for part in data_parts(subject):
        if part.is_map_style:
            yield not_applicable(
                f"{part.prefix}{part.name} is read by index: the loader's sampler splits it "
                "between workers"
            )
        elif part.plan.num_workers < 2 and part.plan.declared:
            yield not_applicable(
                f"{part.prefix}the loader declares {part.plan.num_workers} workers"
            )
        else:
            found = in_data(order.shards, part)
            if not found.items or found.repeated > found.items // 2:
                yield inconclusive(f"{part.prefix}samples of {part.name} cannot be distinguished")
            elif found.shared * 2 > found.items and (
                found.drawn is None or found.drawn * 2 > found.items
            ):
                yield explain.shards_shared(part, found)
            elif found.shared * 2 > found.items:
                yield inconclusive(
                    f"{part.prefix}samples of {part.name} are random: whether workers deliver "
                    "the same samples cannot be determined"
                )
            elif found.left_out:
                yield explain.shards_leave_out(part, found)
            else:
                yield passed(
                    f"{part.prefix}two workers share {found.shared} of their first {found.items} samples"
                )


def random_augmentation(subject: Subject) -> Iterator[Finding]:
    """Simulate two workers and two epochs, and compare the states of the generators drawn from."""
    applies = False
    for part, survey in zip(data_parts(subject), surveys(subject), strict=True):
        if part.evaluates or not part.is_map_style:
            continue
        applies = True
        if survey.errors:
            yield unreadable(survey)
            continue
        found = in_data(randomness.measure, part)
        if not found.comparable:
            yield inconclusive(
                f"{part.prefix}items of {part.name} hold nothing that can be compared"
            )
        elif (
            found.kept
            and keeping.is_judged(part)
            and (same := in_data(keeping.find_kept, part, subject.contract.location))
        ) or (not found.random and (same := in_data(keeping.find_cached_function, part))):
            yield keeping.kept(part, same, promised=True)
        elif not found.random:
            yield _fixed_items(subject, part, found)
        elif not found.repeats:
            yield explain.unseeded(part, found, *in_data(randomness.find_divergence, part))
        elif found.duplicates:
            yield from explain.duplicated(part, found)
        else:
            between = f"{found.workers} workers and 2 epochs" if found.workers else "2 epochs"
            yield passed(
                f"{part.prefix}items differ between {between} and repeat with the seed: {', '.join(found.used)}"
            )
    if not applies:
        yield not_applicable("no map-style training dataset is declared")


def _fixed_items(subject: Subject, part: Part, found: randomness.Augmentation) -> Finding:
    """Judge items that are not random: what makes batches of them may be."""
    by = random_batches.made_by(part)
    drawn = in_data(random_batches.draws, part, subject.seed) if by else False
    if drawn is None:
        return inconclusive(
            f"{part.prefix}items of {part.name} are not random; whether {by} augments them cannot be told"
        )
    if drawn:
        return passed(f"{part.prefix}batches of the same items differ: {by} augments them")
    fixed = in_data(randomness.find_reseeding, part)
    return explain.not_random(part, found, fixed, subject.contract.location)


def loader_order(subject: Subject) -> Iterator[Finding]:
    """Compare what the sampler draws from with the dataset; draw the indices of two epochs, and of the first again.

    A sampler of your own that no epoch brings some samples from, and that draws all in batches of one, drops the
    batches that are not full; nor should one draw the same sample again and again. Samples that stand sorted by
    class should not be trained on in that order.
    """
    for part in data_parts(subject):
        if part.is_map_style and part.reads_in_order:
            survey = next(each for each in surveys(subject) if each.part.role == part.role)
            if (found := labels.in_runs(survey)) is not None:
                yield explain.by_class(part, *found, subject.contract.location)
                continue
        other = in_data(order.reach, part) if part.is_map_style else None
        if other is not None:
            yield explain.reach_wrong(
                part, other, _classes(subject, part), subject.contract.location
            )
            continue
        if plan.sampler_of(part) is None or not part.is_map_style:
            yield not_applicable(
                f"{part.prefix}"
                + (
                    "the order is that of torch's samplers: it repeats with the seed"
                    if part.plan.declared and part.is_map_style
                    else f"{part.name} is a stream: its order is its own"
                    if part.plan.declared
                    else f"no loader that reads {part.name} is declared"
                )
            )
            continue
        drawn = in_data(order.measure, part, seed=subject.seed)
        bad = list(
            explain.order_wrong(part, drawn, plan.sampler_of(part), subject.contract.location)
        )
        if not bad and drawn.alone is not None and part.length > 1:
            bad = [explain.drawn_alone(part, drawn, subject.contract.location)]
        if not bad and (lost := in_data(never.never_drawn, part, seed=subject.seed)) is not None:
            bad = [explain.never_drawn(part, lost)]
        yield from bad
        if not bad:
            epochs = (
                "new in every epoch"
                if drawn.renews
                else "ascending"
                if not drawn.shuffles
                else "fixed"
            )
            yield passed(
                f"{part.prefix}{drawn.count} indices repeat with the seed; the order is {epochs}"
            )


def _classes(subject: Subject, part: Part) -> int | None:
    """Return how many values the labels of a dataset have, as far as they were read."""
    survey = next((each for each in surveys(subject) if each.part.role == part.role), None)
    measured = labels.measure(survey) if survey is not None and survey.samples else None
    return len(measured.values) if measured is not None and measured.values else None


def last_batch(subject: Subject) -> Iterator[Finding]:
    """Look at the sizes of an epoch's batches; train on one as small as the smallest."""
    for part, survey in zip(data_parts(subject), surveys(subject), strict=True):
        if not part.plan.declared or not part.is_map_style or not part.plan.makes_batches:
            yield not_applicable(f"{part.prefix}no loader that makes batches is declared")
            continue
        found = in_data(order.epoch_of, part, seed=subject.seed)
        bad = list(explain.last_batch_wrong(part, found, subject.contract.location))
        if not bad and not survey.errors and found.batches:
            bad = list(_small_batch(subject, part, found))
        yield from bad
        if not bad:
            yield passed(
                f"{part.prefix}{found.samples} samples in {counted(found.batches, 'batch', 'batches')}, "
                f"the last of {found.last}"
            )


def _small_batch(subject: Subject, part: Part, found: order.Epoch) -> Iterator[Finding]:
    """Train on a batch as small as the last one, where it is smaller than the others and the model takes it."""
    if subject.contract.model is None or part.evaluates or found.last >= found.size:
        return
    if _try(subject, part, found.size) is not None:
        return  # the samples are not the model's inputs: the loop prepares them first
    error = _try(subject, part, found.last)
    if error is not None:
        yield explain.last_batch_fails(
            part, found.last, error, _normalisation(subject, error), subject.contract.location
        )


def _try(subject: Subject, part: Part, size: int) -> validity.CollateError | None:
    with subject.pristine() as model:
        return validity.try_last_batch(part, model, list(range(size)), subject.seed)


def _normalisation(subject: Subject, error: validity.CollateError) -> str:
    """Name the first normalisation over the batch, where that is what failed."""
    if "more than 1 value" not in error.message:
        return ""
    named = subject.model.named_modules()
    return next((name for name, module in named if "BatchNorm" in type(module).__name__), "")

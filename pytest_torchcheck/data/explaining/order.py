"""From evidence on order, splits and last batches to findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...objects.peek import attributes
from ...verdicts import suspicious, violated
from ..wording import dataset_culprit, line_ref, own_line
from .declared_lines import making_line
from .making_lines import loader_told, sampler_made

if TYPE_CHECKING:
    from ...findings import Location
    from .. import validity
    from ..order import Epoch, Order, Reach, Shards
    from ..plan import Part
    from ..relations.near_samples import Near
    from ..splits import Overlap
    from ..validity import Survey


def order_wrong(
    part: Part, found: Order, sampler: Any, declared: Location | None = None
) -> Iterator[Finding]:
    """An order that no seed repeats, or that every epoch repeats; ``declared`` is where the contract stands."""
    place = sources.search(type(sampler), r"def __iter__") if sampler is not None else None
    if place is None or sources.rank(place.file) < 2:  # torch's own: what it was told is the user's
        words = ("sampler", "batch_sampler", "generator", "shuffle")
        place = loader_told(part, declared, words) or place
    name = found.sampler or "the sampler"
    culprit = (dataset_culprit(part, name, "", place),)
    if found.count and not found.following:
        yield _used_up(part, found, sampler, place)
    elif not found.repeats:
        yield violated(
            "order-not-repeatable",
            f"{part.prefix}{name} gives a different order with the same seed",
            culprits=culprit,
            location=place,
            observed=f"{found.count} indices of one epoch were drawn twice with the same seed; "
            "they differ",
            cause="it draws from a generator that is not seeded",
            because="the seeds of torch, random and NumPy were equal",
            fix="draw the order from torch's generator, or from one seeded by the epoch",
        )
    elif found.shuffles and not found.renews and found.count > 8:
        make = violated if found.has_set_epoch or found.draws else suspicious
        cause = (
            "set_epoch changes nothing"
            if found.has_set_epoch
            else "it draws its order anew in every epoch, from a generator that starts alike each time"
            if found.draws
            else "the order is kept, or its generator starts alike in every epoch"
        )
        seeds = sources.search(
            type(sampler), r"\.manual_seed\(|default_rng\(|RandomState\(|Random\("
        )
        if seeds is not None and sources.rank(seeds.file) >= 2:
            place = seeds
        yield make(
            "order-fixed",
            f"{part.prefix}the sampler {name} shuffles every epoch into the same order",
            culprits=culprit,
            location=place,
            observed=f"two epochs of {found.count} indices are equal, and shuffled",
            cause=cause,
            because="epoch 0 and epoch 1 were drawn one after the other"
            + (", with set_epoch(0) and set_epoch(1)" if found.has_set_epoch else ""),
            fix="seed the generator with seed + epoch in __iter__"
            if found.has_set_epoch
            else "seed the generator from the seed and the number of the epoch, or make it once, in __init__",
        )


def _used_up(part: Part, found: Order, sampler: Any, place: Location | None) -> Finding:
    """A sampler that has nothing left after its first epoch: it iterates over an iterator that it holds."""
    name = found.sampler or "the sampler"
    return _emptied(part, name, sampler, f"{found.count} indices", place)


def stream_used_up(survey: Survey) -> Finding:
    """A stream that has nothing left after its first epoch."""
    part = survey.part
    return _emptied(part, part.name, part.own, survey.read, part.class_line)


def _emptied(part: Part, name: str, owner: Any, gave: str, place: Location | None) -> Finding:
    own = attributes(owner)
    held = next((key for key, value in own.items() if isinstance(value, Iterator)), "")
    made = sources.of_assignment(owner, held) if held else None
    kind = type(own.get(held)).__name__
    return violated(
        "epoch-empty",
        f"{part.prefix}{name} gives {gave} in its first epoch, and none in the next",
        culprits=[
            *(dataset_culprit(part, f"{name}.{held}", f"is a {kind}", made),) * bool(held),
            dataset_culprit(part, name, "is used up", place),
        ],
        location=made or place,
        observed="two epochs were drawn one after the other",
        cause=f"{held} is an iterator: it gives its items once"
        if held
        else "what it reads from is used up",
        because=f"its attribute {held} is of type {kind}"
        if held
        else "the second epoch ended at once",
        fix=f"keep a list: list(...){on_line(made)}"
        if held
        else "let __iter__ begin anew in each epoch",
    )


def reach_wrong(
    part: Part, found: Reach, classes: int | None, declared: Location | None
) -> Finding:
    """A sampler made for another number of samples; ``classes`` is how many label values there are."""
    per_class = found.given == "weights" and found.length == classes
    places, given, assigned = sampler_made(part, found.sampler, declared, per_class=per_class)
    name, what = type(found.sampler).__name__, given or found.given
    made = places[0] if len(places) == 1 else None
    short = found.length < found.size
    thing = "weights" if found.given == "weights" else "samples"
    left = found.size - found.length
    make = violated if found.certain else suspicious
    at = assigned[-1] if len(assigned) == 1 else made
    return make(
        "sampler-length",
        f"{part.prefix}{name} never draws {left} of the {found.size} samples: it received "
        f"{found.length} {thing}"
        if short
        else f"{part.prefix}{name} draws indices up to {found.length - 1}, and there are {found.size} samples",
        culprits=(
            *(dataset_culprit(part, what, f"{found.length} {thing}", line) for line in assigned),
            *(
                dataset_culprit(
                    part,
                    name,
                    f"received {found.length} {thing}"
                    + ("" if made else ", created here or elsewhere"),
                    place,
                )
                for place in places or (None,)
            ),
        ),
        location=at
        or (
            None
            if places
            else loader_told(part, declared, ("sampler", "batch_sampler")) or part.class_line
        ),
        observed=f"len({found.given}) of the sampler is {found.length}, the loader reads from "
        f"{found.size} samples",
        cause=f"{what} has one weight for each class, but the sampler needs one for each sample"
        if per_class
        else f"the sampler received {what}, which does not belong to the {found.size} samples "
        "that the loader reads",
        because=f"it draws from 0..{found.length - 1}"
        + (
            f": samples {found.length}..{found.size - 1} are never drawn"
            if short
            else f"; index {found.size} cannot be read"
        )
        + (f"; the labels read have {classes} values" if per_class else ""),
        fix=f"give each sample the weight of its class: {what}[labels]"
        + (f", at {line_ref(at)}" if at else "")
        if per_class
        else f"create the sampler from the {thing} of the dataset that the loader reads"
        + (f", at {line_ref(at)}" if at else ""),
    )


def leaked(first: Part, second: Part, found: Overlap, declared: Location | None = None) -> Finding:
    """Two splits share samples; ``declared`` is where the contract names them."""
    place = making_line(declared, second.role)
    share = found.shared / max(found.compared[1], 1)
    certain = share > max(0.01, 3 * found.repeated)
    a, b = found.pairs[0]
    make = violated if certain else suspicious
    how = {
        "indices": "indices of one dataset",
        "rows": f"rows of {found.where}",
        "contents": "contents",
    }[found.how]
    return make(
        "split-overlap",
        f"{found.shared} of {found.compared[1]} samples of {second.role} are in {first.role} too",
        culprits=[_sample(second, b, declared), _sample(first, a, declared)],
        location=place or second.class_line,
        observed=f"{how} compared: {found.compared[0]} of {found.total[0]} with "
        f"{found.compared[1]} of {found.total[1]}; {share:.1%} shared",
        cause="the splits are not disjoint"
        if certain
        else "the data contains duplicates, or the splits share a few samples",
        because=f"{second.role}[{b}] equals {first.role}[{a}]; {found.repeated:.1%} of "
        f"{first.role} occurs there more than once",
        fix="split once, by shuffled indices, before any dataset is created",
        evidence={"pairs": [list(pair) for pair in found.pairs], "shared": found.shared},
    )


def _sample(part: Part, index: int, declared: Location | None) -> Culprit:
    place = making_line(declared, part.role) or part.class_line
    return Culprit("dataset", f"{part.role}[{index}]", location=place)


def nearly_leaked(
    first: Part, second: Part, found: Near, declared: Location | None = None
) -> Finding:
    """Samples of two splits are the same but for a trifle; ``declared`` is where the contract names them."""
    a, b = found.pairs[0]
    within = found.within
    return violated(
        "split-near",
        f"{found.near} of {found.compared} samples of {second.role} "
        + (
            f"lie within samples of {first.role}"
            if within
            else f"are samples of {first.role}, changed a little"
        ),
        culprits=[_sample(second, b, declared), _sample(first, a, declared)],
        location=making_line(declared, second.role) or second.class_line,
        observed=f"both halves of each occur, value for value, in samples of {first.role}, at other positions"
        if within
        else f"their median distance to a sample of {first.role} with the same target is {found.distance:.3g}; that "
        f"of samples of {first.role} to their third-nearest neighbour is {found.usual:.3g}",
        cause="windows that overlap are split one by one"
        if within
        else f"{second.role} is made from samples that {first.role} holds too",
        because=f"the later half of {second.role}[{b}] is within {first.role}[{a}]"
        if within
        else f"{second.role}[{b}] is beside {first.role}[{a}]; distances are in standard deviations of each input",
        fix="split the series by time, or by recording, and make windows of each part"
        if within
        else "split once, by shuffled indices, before samples are augmented, windowed or given noise",
        evidence={"pairs": [list(pair) for pair in found.pairs], "near": found.near},
    )


def by_class(part: Part, count: int, classes: int, declared: Location | None = None) -> Finding:
    """Warn of samples that stand sorted by class, and that training reads in that order."""
    return suspicious(
        "order-by-class",
        f"{part.prefix}training reads one class after the other: the samples are sorted, and the loader keeps "
        "their order",
        culprits=(dataset_culprit(part, "shuffle", "the loader does not shuffle"),),
        location=loader_told(part, declared, ("shuffle", "batch_size")),
        observed=f"{count} labels from the first sample to the last: {classes} classes, each in one run",
        cause="the samples of a class follow each other, so that consecutive batches hold the same one",
        because="the loader has no sampler of its own and does not shuffle",
        fix="pass shuffle=True to the loader",
    )


def last_batch_wrong(
    part: Part, found: Epoch, declared: Location | None = None
) -> Iterator[Finding]:
    """An epoch that leaves samples out, or has none; ``declared`` is where the contract stands."""
    place = loader_told(part, declared)
    size, missing = part.plan.batch_size, found.drawn - found.samples
    culprit = (dataset_culprit(part, "drop_last", f"batch_size={size}"),)
    drawn = part.plan.batch_sampler if size is None else part.plan.sampler
    if found.batches == found.drawn == 0 and part.length:
        yield violated(
            "loader-empty",
            f"{part.prefix}an epoch has no batch: {type(drawn).__name__} yields nothing for {part.length} samples",
            culprits=culprit,
            location=place,
            observed=f"0 batches of {part.length} samples",
            cause="the sampler of the loader is empty",
            because=f"a whole epoch was drawn from {type(drawn).__name__}",
            fix="give the sampler the indices that it is to draw",
        )
    elif part.plan.drop_last and found.batches == 0 and found.drawn:
        yield violated(
            "loader-empty",
            f"{part.prefix}an epoch has no batch: {found.drawn} samples, batch_size={size}, drop_last=True",
            culprits=culprit,
            location=place,
            observed=f"0 batches of {found.drawn} samples",
            cause="the only batch is partial, and drop_last drops it",
            because=f"batch_size={size} is more than the {found.drawn} samples",
            fix="drop_last=False, or a smaller batch_size",
        )
    elif part.evaluates and part.plan.drop_last and missing > 0:
        yield violated(
            "evaluation-drops-samples",
            f"{part.prefix}{missing} of {found.drawn} samples are never evaluated: drop_last=True",
            culprits=culprit,
            location=place,
            observed=f"an epoch reads {found.samples} of {found.drawn} samples",
            cause="drop_last drops the partial batch in evaluation",
            because=f"{found.drawn} samples in batches of {size} leave {missing} over",
            fix="drop_last=False for evaluation",
        )


def last_batch_fails(
    part: Part,
    size: int,
    error: validity.CollateError,
    module: str,
    declared: Location | None = None,
) -> Finding:
    """The model cannot train on the loader's last, smaller batch; ``declared`` is where the contract stands."""
    place = loader_told(part, declared, ("drop_last", "batch_size"))
    sized = loader_told(part, declared, ("batch_size",))
    batch_size = part.plan.batch_size
    return violated(
        "last-batch-fails",
        f"{part.prefix}the last batch of an epoch has {size} sample{'s' * (size > 1)}, which {module or 'the model'} "
        f"cannot train on: {error.type}",
        culprits=(
            Culprit("module", module or "model", error.type, error.location),
            dataset_culprit(part, "drop_last", "False: the partial batch is trained on", place),
            *(
                (dataset_culprit(part, "batch_size", f"{batch_size}, which leaves {size}", sized),)
                if batch_size is not None
                else ()
            ),
        ),
        location=error.location or place,
        observed=f"{part.length} samples in batches of {batch_size} leave {size} over; it raised "
        f"{error.type}",
        cause="a normalisation over the batch needs more than one value per channel"
        if module
        else "the model does not run with so small a batch",
        because=f"torch said: {error.message[:200]}"
        + (f"; the loader at {line_ref(place)} keeps the partial batch" if place else ""),
        fix="drop_last=True for training, or a batch_size that leaves no single sample"
        + (f", at {line_ref(place)}" if place else ""),
    )


def shards_leave_out(part: Part, found: Shards) -> Finding:
    """A stream whose workers together deliver less than one process does."""
    divided = sources.search(type(part.own), r"//\s*[\w.]*workers?\b")
    place = divided or own_line(part, r"def __iter__")
    return violated(
        "worker-drops",
        f"{part.prefix}the {found.workers} workers of {part.name} leave out {found.left_out} of its "
        f"{found.whole} samples",
        culprits=(dataset_culprit(part, part.name, f"sample {found.first} is in no worker's share", place),),
        location=place,
        observed=f"one process delivers {found.whole} samples; {found.left_out} of them, the first at place "
        f"{found.first}, are not among those of {found.workers} workers",
        cause="the shares of the workers do not add up to the whole stream",
        because="one process and each worker were simulated with one seed, and read to their ends",
        fix="start at get_worker_info().id and step by num_workers in __iter__, so that no remainder is lost",
    )  # fmt: skip

"""Say how the data that ranks were given differs from one epoch's samples, shared out evenly."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from .. import sources
from ..findings import Culprit, Finding
from ..verdicts import suspicious, violated
from .explain import broken, stopped_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..findings import Location
    from ..subject import Subject
    from .epochs import Pass
    from .launch import Outcome

_ENOUGH = 4


def training(passes: Sequence[Pass]) -> list[Pass]:
    """Return the passes during which an optimizer stepped."""
    return [each for each in passes if each.steps]


def shared(subject: Subject, outcome: Outcome) -> Iterator[Finding]:
    """Explain samples that all ranks train on, batches that are uneven, and epochs that repeat their order."""
    found = outcome.stages["epochs"]
    by_rank = [training(each["passes"]) for each in found]
    place = by_rank[0][0].location or sources.of_object(_run(subject))
    if (finding := _not_shared(found, by_rank, place)) is not None:
        yield finding
    else:
        yield from _uneven(outcome, by_rank, place)
    if (finding := _repeated(by_rank[0])) is not None:
        yield finding


def hung(subject: Subject, outcome: Outcome) -> Finding:
    """Explain that the loop deadlocks: batches that only some ranks had, where that was counted."""
    finding = broken(subject, outcome)
    found = outcome.stages.get("epochs")
    if found is None or finding.code != "hang":
        return finding
    counts = [[len(each.sizes) for each in training(rank["passes"])] for rank in found]
    totals = [sum(each) for each in counts]
    if len(set(totals)) == 1:
        return finding
    most = max(range(len(totals)), key=totals.__getitem__)
    place = _line_of(found[most]["passes"])
    told = ", ".join(f"rank {rank}: {total}" for rank, total in enumerate(totals))
    return finding.replace(
        code="uneven-batches",
        summary=f"ranks are given different numbers of batches ({told}), and deadlock",
        culprits=(_loader(place, f"{told} batches"),),
        location=place,
        cause="a rank with an extra batch waits in backward for gradients that no other rank sends",
        because=f"the batches delivered were counted on each rank ({told}); then no rank made progress "
        f"for {outcome.quiet:.0f} s",
        fix=_EVEN,
    )


_EVEN = (
    "split the samples with DistributedSampler (it pads to equal numbers), or set drop_last=True"
)


def _run(subject: Subject) -> Any:
    return next((p.run for p in subject.contract.promised("SharesData")), None)  # type: ignore[attr-defined]


def _line_of(passes: Sequence[Pass]) -> Location | None:
    return next((each.location for each in training(passes) if each.location), None)


def _loader(place: Location | None, detail: str) -> Culprit:
    return Culprit("dataset", "the training loader", detail, place)


def _not_shared(
    found: Sequence[dict[str, Any]], by_rank: Sequence[Sequence[Pass]], place: Location | None
) -> Finding | None:
    ranks = len(found)
    firsts = [passes[0] for passes in by_rank]
    same_data = (
        firsts[0].dataset < len(found[0].get("probes", ()))
        and found[0]["probes"][firsts[0].dataset] != []
        and all(
            each.get("probes", [])[one.dataset : one.dataset + 1]
            == found[0]["probes"][firsts[0].dataset : firsts[0].dataset + 1]
            for each, one in zip(found, firsts, strict=True)
        )
    )
    equal = all(one.contents == firsts[0].contents for one in firsts) and bool(firsts[0].contents)
    drawn = [one.indices for one in firsts]
    repeats = any(len(set(each)) < len(each) for each in drawn)  # drawn with replacement: no shards
    total = sum(len(each) for each in drawn)
    unique = len({index for each in drawn for index in each})
    twice = total - unique
    if equal and sum(firsts[0].sizes) >= _ENOUGH:
        observed = (
            f"{len(firsts[0].contents)} batches of {ranks} ranks are bit-equal, in the same order"
        )
        because = (
            "the digests of the batches delivered in the first epoch are the same on all ranks"
        )
    elif same_data and not repeats and total >= _ENOUGH and twice > ranks * max(1, total // 20):
        observed = f"{ranks} ranks drew {total} samples of the first epoch, of which only {unique} are distinct"
        because = (
            f"the indices drawn on each rank were compared: {twice} occur more than once, where "
            f"padding needs at most {ranks - 1}"
        )
    else:
        return None
    return violated(
        "data-not-shared",
        f"{ranks} ranks train on the same samples: the data is not split among them",
        culprits=[_loader(place, f"order by {firsts[0].sampler}")],
        location=place,
        observed=observed,
        cause=f"the order comes from {firsts[0].sampler}, which does not depend on the rank",
        because=because,
        fix="give the DataLoader sampler=DistributedSampler(dataset), and call its set_epoch before each epoch",
    )


def _uneven(
    outcome: Outcome, by_rank: Sequence[Sequence[Pass]], place: Location | None
) -> Iterator[Finding]:
    ranks = len(by_rank)
    for number in range(min(len(passes) for passes in by_rank)):
        passes = [each[number] for each in by_rank]
        sizes = [each.sizes for each in passes]
        counts = {len(each) for each in sizes}
        if len(counts) > 1:
            told = ", ".join(f"rank {rank}: {len(each)}" for rank, each in enumerate(sizes))
            yield violated(
                "uneven-batches",
                f"ranks are given different numbers of batches in an epoch ({told})",
                culprits=[_loader(passes[0].location, f"{told} batches")],
                location=passes[0].location or place,
                observed=f"batches of epoch {number + 1}: {told}",
                cause="after the last common batch, ranks average gradients of different "
                "steps, and the last rank waits forever",
                because=f"the batches delivered in epoch {number + 1} were counted on each rank",
                fix=_EVEN,
            )
            return
        at = next((k for k in range(len(sizes[0])) if len({each[k] for each in sizes}) > 1), None)
        if at is None:
            continue
        told = ", ".join(f"rank {rank}: {each[at]}" for rank, each in enumerate(sizes))
        step = outcome.stages.get("steps")
        local = outcome.stages["local"][0]
        error = step[0].get("uneven") if step is not None else None
        by_step = error is not None
        if error is None:
            error = local.get("uneven")
        if error is None or error <= max(1e-9, 10 * local["noise"]):
            continue  # the step weighs its samples, or it cannot be measured
        made = violated if by_step else suspicious
        yield made(
            "uneven-last-batch",
            (f"batch {at + 1} of an epoch has a different size on each rank ({told}), so "
                "its samples get unequal weights"),
            culprits=[_loader(passes[0].location, f"batch {at + 1}: {told} samples")],
            location=passes[0].location or place,
            observed=f"batch {at + 1} of {len(sizes[0])}: {told}; with shards of unequal sizes the "
                f"{'train step' if by_step else 'loss'} gives a gradient "
            f"{error:.2g} (relative) away from that of the mean over all samples",
            cause="each rank's loss is the mean over its own shard, and the ranks average these means unweighted",
            because=f"the sizes were counted on {ranks} ranks, and the same samples in one batch "
                "in one process give a different gradient",
            fix=f"{_EVEN}; or weight the loss by ranks * own samples / all samples",
        )  # fmt: skip
        return


def _repeated(passes: Sequence[Pass]) -> Finding | None:
    """Tell of two epochs in one order from a sampler that would renew it."""
    for old, new in itertools.pairwise(
        passes
    ):  # a second phase of training may begin again at epoch 0
        if (
            new.dataset == old.dataset
            and new.renewable
            and new.epoch == old.epoch
            and len(new.indices) >= _ENOUGH
            and new.is_shuffled
            and new.indices == old.indices
        ):
            return violated(
                "set-epoch-missing",
                f"every epoch has the same order: set_epoch of {new.sampler} is never called",
                culprits=[_loader(new.location, f"{new.sampler}.epoch stays {new.epoch}")],
                location=new.location,
                observed=f"the {len(new.indices)} indices of rank 0 are the same, in the same order in two epochs; "
                f"{new.sampler}.epoch is {new.epoch} in both",
                cause=f"{new.sampler} shuffles from seed + epoch, and the epoch stays {new.epoch}",
                because="the indices of both passes were recorded as they were drawn",
                fix="call loader.sampler.set_epoch(epoch) at the start of every epoch",
            )
    return None


def is_stuck(outcome: Outcome) -> bool:
    """Say whether the ranks stopped in the user's loop."""
    return stopped_at(outcome) == "epochs"

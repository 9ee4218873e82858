"""Say what differs between ranks, why, and which line of the user's makes it so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .. import sources
from ..findings import Culprit, Finding, Location
from ..verdicts import suspicious, violated
from .differences import (
    TIGHT,
    culprits_of,
    differing,
    in_model,
    late_parameters,
    line,
    listed,
    tie_split,
    untied,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..subject import Subject
    from .launch import Outcome

_DURING: Final = {
    "start": "while starting", "single": "in the training step, as the only rank", "join": "while joining the group",
    "init": "while building the model", "local": "in forward or backward without any wrapper",
    "ddp": "in forward or backward of DistributedDataParallel", "consistency": "in forward after wrapping",
    "steps": "in the training step", "checkpoint": "while saving or loading a checkpoint", "sharded": "under FSDP",
    "meta": "under FSDP, built on meta", "epochs": "in the loop over epochs",
    "statistics": "with synchronised batch normalisation", "unused": "in the second step with DistributedDataParallel's defaults",
    "end": "at the end",
}  # fmt: skip


def stopped_at(outcome: Outcome) -> str:
    """Return the stage in which the ranks failed or hung, or an empty string."""
    if outcome.failures:
        return outcome.failures[0].stage
    # a rank that waits alone lets the others go on until they need it
    return min((s.stage for s in outcome.stuck), key=list(_DURING).index, default="")


def message_of(outcome: Outcome) -> str:
    """Return the first error in one line, or that the ranks hang."""
    if not outcome.failures:
        return "the ranks deadlock"
    first = outcome.failures[0]
    return f"{first.kind}: {_line(first.message):.160}"


def _line(message: str) -> str:
    return (message.splitlines() or [""])[0]


def _at(place: Location | None) -> str:
    return f"{place.file.rpartition('/')[2]}:{place.line}" if place else "outside the user's code"


def broken(subject: Subject, outcome: Outcome) -> Finding:
    """Explain that a rank raised, or that ranks deadlock."""
    evidence: dict[str, Any] = {
        "ranks": [
            {"rank": f.rank, "stage": f.stage, "error": f.kind, "traceback": f.traceback}
            for f in outcome.failures
        ]
        + [{"rank": s.rank, "stage": s.stage, "stack": s.stack} for s in outcome.stuck]
    }
    during = _DURING.get(stopped_at(outcome), "")
    first = next(iter(outcome.failures), None)
    if first is None:
        return _hang(outcome, during, evidence)
    location = first.location
    alone = len({f.rank for f in outcome.failures if not f.follows}) < outcome.ranks
    hidden = "'DistributedDataParallel' object has no attribute" in first.message
    return violated(
        "wrapper-hides-attribute" if hidden else "rank-raised",
        f"rank {first.rank} raises {first.kind} {during}: {_line(first.message):.200}",
        culprits=[Culprit("rank", f"rank {first.rank}", f"{first.kind} {during}", location)],
        observed=f"{message_of(outcome)}; "
        + ("the other ranks raised no error of their own" if alone else "every rank raises it"),
        cause="DistributedDataParallel wraps the model as .module and does not forward its attributes"
        if hidden
        else "this rank does something the others do not"
        if alone
        else "the code works in one process but not on several ranks",
        because=f"the traceback of rank {first.rank} ends at {_at(location)}",
        fix="use model.module.<name> for attributes of a wrapped model"
        if hidden
        else "make that line work on every rank; each rank's traceback is in the report",
        evidence=evidence,
    )


def _hang(outcome: Outcome, during: str, evidence: dict[str, Any]) -> Finding:
    """Explain ranks that deadlock."""
    places = [(s.rank, s.location) for s in outcome.stuck]
    where = "; ".join(f"rank {rank} at {_at(place)}" for rank, place in places)
    lines = {place.line if place else 0 for _, place in places}
    ended = outcome.ranks - len(places)
    return violated(
        "hang",
        f"the ranks deadlock {during}: {where}",
        culprits=[
            Culprit("rank", f"rank {rank}", f"waits at {_at(place)}", place)
            for rank, place in places
        ],
        observed=f"no rank made progress for {outcome.quiet:.0f} s, so all were stopped; {where}",
        cause="not all ranks reach the same collective operation in the same order",
        because=f"the stacks are at {len(lines)} different lines"
        if len(lines) > 1
        else "all stacks are at the same line"
        if not ended
        else f"{ended} of {outcome.ranks} ranks had already finished",
        fix=(
            "call the same collectives on every rank (barrier, all_reduce, backward of the "
            "wrapped model), regardless of rank and data"
        ),
        evidence=evidence,
    )


def unused(subject: Subject, names: list[str], outcome: Outcome) -> Finding:
    """Name the parameters whose gradients DistributedDataParallel waits for and never gets."""
    local = outcome.stages["local"]
    sets = [set(found["missing"]) for found in local]
    varies = any(found != sets[0] for found in sets)
    stopped = stopped_at(outcome) == "unused"
    error = next((f for f in outcome.failures if f.stage == "unused" and not f.follows), None)
    said = _line(error.message)[:140] if error else "the ranks deadlock" if stopped else ""
    by_rank = ", ".join(
        f"rank {rank}: {listed(sorted(found)) or 'none'}" for rank, found in enumerate(sets)
    )
    return violated(
        "unused-parameter",
        f"{listed(names)} {'receives' if len(names) == 1 else 'receive'} no gradient"
        + (" on some ranks only" if varies else "")
        + ", yet DistributedDataParallel waits for one",
        culprits=culprits_of(subject, names, "parameter", "grad is None"),
        observed=f"without a gradient, by rank: {by_rank}"
        + (f"; the second step fails: {said}" if said else ""),
        cause="forward takes a branch that depends on the rank or the data"
        if varies
        else "the loss does not depend on them in this step",
        because="without any wrapper, backward leaves their grad None"
        + (", and step 2 fails with the wrapper's defaults" if stopped else ""),
        fix="use them in every step or remove them; otherwise wrap with find_unused_parameters=True and declare "
        "MayLackGradient for them",
        evidence={
            "by rank": [sorted(found) for found in sets],
            "error": error.traceback if error else "",
        },
    )


def root_of(outcome: Outcome) -> str | None:
    """Return the finding on which an error of the wrapper rests: models that are not the same on all ranks."""
    init = outcome.stages.get("init")
    if init is None or stopped_at(outcome) != "ddp":
        return None
    if untied(init):
        return "rank-consistency/tie-split"
    apart = len({tuple(sorted(each["first"])) for each in init}) > 1
    return "rank-consistency/rank-dependent-init" if apart else None


def gradients(subject: Subject, outcome: Outcome, exact: float) -> Iterator[Finding]:
    """Explain gradients of the ranks that are not the single process's."""
    local, ddp = outcome.stages["local"][0], outcome.stages["ddp"]
    first, ranks = ddp[0], outcome.ranks
    if first["late"]:
        yield late_parameters(subject, first["late"])
        return
    bound = max(exact, 10 * local["noise"])
    uneven = differing([found["gradients"] for found in ddp])
    if uneven or first["error"] > bound:
        names = uneven or first["worst"]
        yield violated(
            "gradients-differ",
            f"the gradients averaged over {ranks} ranks are not the mean of the ranks' gradients (worst: {names[0]})",
            culprits=culprits_of(
                subject,
                names,
                "parameter",
                "differs between ranks" if uneven else "not the ranks' mean",
            ),
            observed=(
                f"{len(uneven)} gradients differ between ranks after the all-reduce; relative "
                f"error {first['error']:.3g}"
            ),
            cause=(
                "part of the gradient comes from outside the wrapped forward: from another "
                "module, or a parameter created after wrapping"
            ),
            because=(
                f"the mean gradient of the same shards in one process is {first['error']:.3g} "
                "away; rounding explains 1e-16"
            ),
            fix="create every parameter in __init__, and call only the wrapped model in the step",
        )
        return
    accumulated = first.get("accumulated")
    if accumulated is not None and accumulated > bound:
        yield violated(
            "accumulation-differs",
            (
                "gradients accumulated under no_sync differ from those of the whole shard "
                f"(relative error {accumulated:.3g})"
            ),
            observed=f"relative error {accumulated:.3g}, ratio {first['accumulated_ratio']:.4g}",
            culprits=culprits_of(subject, first["worst"], "parameter", "differs when accumulated"),
            cause="the model carries state from one backward to the next",
            because=f"one step without accumulation agrees to {first['error']:.1e}",
            fix="let forward depend on its inputs and parameters only",
        )
    if local["decomposes"] <= max(bound, exact * 10):
        return
    yield from _not_a_mean(subject, local, ranks)


def _not_a_mean(subject: Subject, local: Mapping[str, Any], ranks: int) -> Iterator[Finding]:
    """Explain a loss or a model whose gradient on the whole batch is not the mean over its shards."""
    coupled = local["coupled"]
    if coupled == coupled and coupled > TIGHT:
        # the outputs themselves change with the batch: no bug of the loss, nor of the ranks
        yield suspicious(
            "batch-coupled",
            (
                f"a sample's output depends on the rest of its batch (by {coupled:.2g}, "
                "relative), so ranks compute something different"
            ),
            culprits=[Culprit("module", type(subject.model).__name__)],
            location=sources.of_object(type(subject.model).forward),
            observed=(
                f"outputs change by {coupled:.3g} (relative) when the batch is cut into "
                f"{ranks} shards; gradients by {local['decomposes']:.3g}"
            ),
            cause="each rank computes batch statistics over its own shard",
            because=(
                "it also happens in one process without a wrapper, with every normalization "
                "layer of torch on its running statistics"
            ),
            fix="synchronize the statistics over ranks (as SyncBatchNorm does), or skip this check and give the reason",
        )
        return
    finding = _loss_not_a_mean(subject.contract.loss, local, ranks)
    if finding is not None:
        yield finding


def _loss_not_a_mean(loss: Any, local: Mapping[str, Any], ranks: int) -> Finding | None:
    ratio = local["ratio"]
    name = "the loss" if loss is None else str(getattr(loss, "__name__", type(loss).__name__))
    where = None if isinstance(loss, str) else line(loss, r"\.sum\(", r"reduction\s*=")
    culprits = [Culprit("loss", name, location=where)]
    if abs(ratio * ranks - 1) < TIGHT and local["across"] < TIGHT:
        return violated(
            "loss-sum",
            f"{name} is a sum over samples, so {ranks} ranks train with 1/{ranks} of "
            "the gradient of a single process",
            culprits=culprits,
            location=where,
            observed=(
                f"averaged gradient = {ratio:.6g} x that of the full batch; the rest differs "
                f"by {local['across']:.1e}"
            ),
            cause="DistributedDataParallel averages over ranks, which preserves only a mean over samples",
            because=(
                f"in one process, the mean gradient of {ranks} shards is exactly 1/{ranks} of "
                "that of the whole batch"
            ),
            fix="use the mean over samples in the loss (or multiply it by the number of ranks)",
        )
    if loss is None:
        return None
    return suspicious(
        "loss-coupled",
        ("the loss is not a mean over samples: the gradient averaged over ranks differs "
            f"from that of the full batch by {local['decomposes']:.2g} (relative)"),
        culprits=culprits,
        location=where,
        observed=(f"relative difference {local['decomposes']:.3g}, ratio {ratio:.4g}; the rest "
            f"differs by {local['across']:.3g}"),
        cause=("the loss divides by a count of its own shard (valid tokens, weights), or compares "
            "samples with each other"),
        because="splitting the batch changes the gradients but not the outputs, even in one process",
        fix=("divide by the count over all ranks (all_reduce it, then multiply by the number of "
            "ranks), or skip this check and give the reason"),
    )  # fmt: skip


def parameters_differ(subject: Subject, names: list[str], outcome: Outcome) -> Finding:
    """Name the parameters that ranks disagree on after plain SGD steps."""
    return violated(
        "parameters-differ",
        f"{listed(names)} {'differs' if len(names) == 1 else 'differ'} between ranks after two steps",
        culprits=culprits_of(subject, names, "parameter", "not bit-equal on all ranks"),
        observed=f"{len(names)} parameters differ over {outcome.ranks} ranks after two SGD steps",
        cause="the wrapper neither broadcast their initial values nor averaged their gradients",
        because="the digests of all ranks were compared after the step",
        fix="create every parameter in __init__, before wrapping",
    )


def consistency(subject: Subject, outcome: Outcome) -> Iterator[Finding]:
    """Explain ranks that start with different models, or draw the same noise."""
    ranks = outcome.ranks
    if "init" in outcome.stages:
        yield from _built_apart(subject, outcome)
    found = outcome.stages.get("consistency")
    if found is None:
        return
    apart = differing([each["output"] for each in found])
    if apart:
        names = differing([each["wrapped"] for each in found]) + differing(
            [each["plain"] for each in found]
        )
        yield violated(
            "not-broadcast",
            (
                f"{listed(names) or 'state outside parameters and buffers'} differs between "
                "ranks after wrapping, and so do the outputs"
            ),
            culprits=culprits_of(subject, names, "tensor", "not broadcast by the wrapper"),
            observed=f"{listed(apart)} of the same batch in eval mode differs between {ranks} ranks",
            cause="DistributedDataParallel broadcasts the parameters and buffers of rank 0; this is neither",
            because="all ranks ran the same batch with the same seed, after each built the model with its own seed",
            fix=f"call register_buffer({names[0].rpartition('.')[2]!r}, ...) instead of assigning a plain attribute"
            if names
            else "keep all state in parameters and buffers",
        )
    if found[0]["dropouts"] and not apart:
        drawn = [each["noisy"] for each in found]
        if all(pair[0] == pair[1] for pair in drawn) or not differing([pair[0] for pair in drawn]):
            name = found[0]["dropouts"][0]
            yield violated(
                "same-noise",
                f"{name} drops the same elements on every rank and in every step",
                culprits=culprits_of(subject, [name], "module", "the same noise on every rank"),
                location=in_model(subject, r"manual_seed|fork_rng|set_rng_state|set_state"),
                observed=f"training outputs of one batch are bit-equal on {ranks} ranks whose seeds differ",
                cause="forward sets the random state itself",
                because=f"rank 0 with two seeds gives {'equal' if drawn[0][0] == drawn[0][1] else 'different'} outputs",
                fix="remove the seeding from forward",
            )


def _built_apart(subject: Subject, outcome: Outcome) -> Iterator[Finding]:
    """Explain factories that do not build the same model on every rank."""
    init, ranks = outcome.stages["init"], outcome.ranks
    factory = subject.contract.model if subject.contract.is_factory else None
    unseeded = [n for n in init[0]["first"] if init[0]["first"][n] != init[0]["second"].get(n)]
    split = untied(init)
    names = [
        n for n in differing([found["first"] for found in init]) if n not in (*unseeded, *split)
    ]
    if names:
        place = line(factory, r"[rR][aA][nN][kK]", r"manual_seed")
        yield violated(
            "rank-dependent-init",
            (
                f"{listed(names)} {'starts' if len(names) == 1 else 'start'} with different "
                "values on each rank, although the seed is the same"
            ),
            culprits=culprits_of(subject, names, "parameter", "not bit-equal on all ranks"),
            location=in_model(subject, r"get_rank|RANK") or place,
            observed=f"{len(names)} of {len(init[0]['first'])} tensors differ over {ranks} ranks before wrapping",
            cause="the initialisation depends on the rank",
            because="every rank used the same seed, and rank 0 builds the same model twice",
            fix="initialise from one seed on all ranks; let only data and dropout depend on the rank",
        )
    elif unseeded:
        yield suspicious(
            "unseeded-init",
            (
                f"{listed(unseeded)} {'is' if len(unseeded) == 1 else 'are'} not set by "
                "torch's seed, so ranks start from different values"
            ),
            culprits=culprits_of(subject, unseeded, "parameter", "a different value in each build"),
            observed=f"rank 0 built the model twice from one seed; {len(unseeded)} tensors differ",
            cause="the factory draws from a generator that torch.manual_seed does not seed",
            because="the same seed was set before each build",
            fix="draw from torch's generator, or seed your own generator with a number from the configuration",
        )
    if untied(init):
        yield tie_split(
            subject, [each["ties"] for each in init], "one tensor on some ranks only after building",
            "the factory ties them on some ranks only", line(factory, r"[rR][aA][nN][kK]"),
        )  # fmt: skip

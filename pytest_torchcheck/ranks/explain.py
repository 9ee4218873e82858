"""Say what differs between ranks, why, and which line of the user's makes it so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_torchcheck import sources
from pytest_torchcheck.findings import Culprit, Finding, Location
from pytest_torchcheck.loop.closures import functions_of

from ..verdicts import suspicious, violated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_torchcheck.subject import Subject

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
_TIGHT = 1e-6


def stopped_at(outcome: Outcome) -> str:
    """Return the stage in which the ranks failed or hung, or an empty string."""
    if outcome.failures:
        return outcome.failures[0].stage
    # a rank that waits alone lets the others go on until they need it
    return min((s.stage for s in outcome.stuck), key=list(_DURING).index, default="")


def message_of(outcome: Outcome) -> str:
    """Return the first error in one line, or that the ranks hang."""
    if not outcome.failures:
        return "the ranks wait for each other for ever"
    first = outcome.failures[0]
    return f"{first.kind}: {(first.message.splitlines() or [''])[0]:.160}"


def differing(found: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names whose digests are not the same on all ranks, in the first rank's order."""
    names = dict.fromkeys(name for each in found for name in each)
    return [name for name in names if len({each.get(name) for each in found}) > 1]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _culprits(subject: Subject, names: Sequence[str], kind: Any, detail: str) -> list[Culprit]:
    return [
        Culprit(
            kind=kind,
            name=name,
            detail=detail,
            location=sources.of_parameter(subject.model, name.partition("[")[0]),
        )
        for name in names[:8]
    ]


def _line(thing: Any, *patterns: str) -> Location | None:
    """Return the first line, of a user's function or those it calls, that matches; its own otherwise."""
    if thing is None:
        return None
    functions = functions_of(thing)
    for pattern in patterns:
        for function in functions:
            if (found := sources.search(function, pattern)) is not None:
                return found
    return sources.of_object(thing)


def _at(place: Location | None) -> str:
    return (
        "outside the user's code"
        if place is None
        else f"{place.file.rpartition('/')[2]}:{place.line}"
    )


def broken(subject: Subject, outcome: Outcome) -> Finding:
    """Explain that a rank raised, or that ranks wait for each other for ever."""
    evidence: dict[str, Any] = {
        "ranks": [
            {"rank": f.rank, "stage": f.stage, "error": f.kind, "traceback": f.traceback}
            for f in outcome.failures
        ]
        + [{"rank": s.rank, "stage": s.stage, "stack": s.stack} for s in outcome.stuck],
    }
    during = _DURING.get(stopped_at(outcome), "")
    first = next((f for f in outcome.failures if not f.follows), None) or next(
        iter(outcome.failures), None
    )
    if first is None:
        places = [(s.rank, s.location) for s in outcome.stuck]
        where = "; ".join(f"rank {rank} at {_at(place)}" for rank, place in places)
        lines = {place.line if place else 0 for _, place in places}
        ended = outcome.ranks - len(places)
        return violated(
            "hang",
            f"the ranks wait for each other for ever {during}: {where}",
            culprits=[
                Culprit(
                    kind="rank",
                    name=f"rank {rank}",
                    detail=f"waits at {_at(place)}",
                    location=place,
                )
                for rank, place in places
            ],
            observed=f"no rank got on for {outcome.quiet:.0f} s and all were ended; {where}",
            cause="not all ranks reach the same collective operation in the same order",
            because=f"the stacks stand at {len(lines)} different lines"
            if len(lines) > 1
            else "all stacks stand at the same line"
            if not ended
            else f"{ended} of {outcome.ranks} ranks had already gone on and ended",
            fix="let every rank call the same collectives (barrier, all_reduce, backward of the wrapped model), whatever its rank or its data",
            evidence=evidence,
        )
    location = first.location
    alone = len({f.rank for f in outcome.failures if not f.follows}) < outcome.ranks
    hidden = "'DistributedDataParallel' object has no attribute" in first.message
    return violated(
        "wrapper-hides-attribute" if hidden else "rank-raised",
        f"rank {first.rank} raises {first.kind} {during}: {(first.message.splitlines() or [''])[0]:.200}",
        culprits=[
            Culprit(
                kind="rank",
                name=f"rank {first.rank}",
                detail=f"{first.kind} {during}",
                location=location,
            )
        ],
        location=location,
        observed=f"{message_of(outcome)}; "
        + ("the other ranks had no error of their own" if alone else "so do all ranks"),
        cause="DistributedDataParallel gives the module only as .module; its own attributes are not the model's"
        if hidden
        else "this rank does something that the others do not"
        if alone
        else "what works in one process does not work among ranks",
        because=f"the traceback of rank {first.rank} ends at {_at(location)}",
        fix="use model.module.<name> for attributes of a wrapped model"
        if hidden
        else "make that line work on every rank; each rank's traceback is in the report",
        evidence=evidence,
    )


def unused(subject: Subject, names: list[str], outcome: Outcome) -> Finding:
    """Name the parameters for which DistributedDataParallel waits in vain."""
    local = outcome.stages["local"]
    sets = [set(found["missing"]) for found in local]
    varies = any(found != sets[0] for found in sets)
    stopped = stopped_at(outcome) == "unused"
    error = next((f for f in outcome.failures if f.stage == "unused" and not f.follows), None)
    said = (
        (error.message.splitlines() or [""])[0][:140]
        if error
        else ("the ranks wait for each other for ever" if stopped else "")
    )
    by_rank = ", ".join(
        f"rank {rank}: {_listed(sorted(found)) or 'none'}" for rank, found in enumerate(sets)
    )
    return violated(
        "unused-parameter",
        f"{_listed(names)} {'gets' if len(names) == 1 else 'get'} no gradient"
        + (" on some ranks only" if varies else "")
        + ", for which DistributedDataParallel waits in vain",
        culprits=_culprits(subject, names, "parameter", "grad is None"),
        observed=f"without a gradient from its shard: {by_rank}"
        + (f"; the second step fails: {said}" if said else ""),
        cause="the forward takes another branch, by rank or by data, or never uses them"
        if varies
        else "the loss does not depend on them in this step",
        because="without any wrapper, backward leaves their grad None"
        + (", and with the wrapper's defaults step 2 fails" if stopped else ""),
        fix="use them in every step or remove them; else wrap with find_unused_parameters=True and declare "
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
    if _untied(init):
        return "rank-consistency/tie-split"
    apart = len({tuple(sorted(each["first"])) for each in init}) > 1
    return "rank-consistency/rank-dependent-init" if apart else None


def gradients(subject: Subject, outcome: Outcome, exact: float) -> Iterator[Finding]:
    """Explain gradients of the ranks that are not the single process's."""
    local, ddp = outcome.stages["local"][0], outcome.stages["ddp"]
    first, ranks = ddp[0], outcome.ranks
    if first["late"]:
        yield _late(subject, first["late"], outcome)
        return
    bound = max(exact, 10 * local["noise"])
    uneven = differing([found["gradients"] for found in ddp])
    if uneven or first["error"] > bound:
        names = uneven or first["worst"]
        yield violated(
            "gradients-differ",
            f"the gradients that {ranks} ranks average are not the mean of the ranks' gradients (worst: {names[0]})",
            culprits=_culprits(
                subject,
                names,
                "parameter",
                "differs between ranks" if uneven else "not the ranks' mean",
            ),
            observed=f"{len(uneven)} gradients differ between ranks after the all-reduce; relative error {first['error']:.3g}",
            cause="part of the gradient is not made by the wrapped forward: another module's, or one made after wrapping",
            because=f"the same shards in one process give a mean gradient {first['error']:.3g} away, where rounding gives 1e-16",
            fix="make every parameter in __init__, and call only the wrapped model in the step",
        )
        return
    accumulated = first.get("accumulated")
    if accumulated is not None and accumulated > bound:
        yield violated(
            "accumulation-differs",
            f"gradients accumulated under no_sync are not those of the whole shard's halves (relative error {accumulated:.3g})",
            observed=f"relative error {accumulated:.3g}, ratio {first['accumulated_ratio']:.4g}",
            culprits=_culprits(subject, first["worst"], "parameter", "differs when accumulated"),
            cause="the model keeps something from one backward to the next",
            because=f"one step without accumulation is right to {first['error']:.1e}",
            fix="let forward depend on its inputs and parameters only",
        )
    if local["decomposes"] <= max(bound, exact * 10):
        return
    coupled, ratio = local["coupled"], local["ratio"]
    if coupled == coupled and coupled > _TIGHT:
        # the outputs themselves change with the batch: no bug of the loss, nor of the ranks
        yield suspicious(
            "batch-coupled",
            f"a sample's output depends on the rest of its batch (by {coupled:.2g}, relative), so that ranks compute something else",
            culprits=[Culprit(kind="module", name=type(subject.model).__name__)],
            location=sources.of_object(type(subject.model).forward),
            observed=f"outputs change by {coupled:.3g} (relative) when the batch is cut into {ranks} shards; gradients by {local['decomposes']:.3g}",
            cause="statistics over the batch: each rank has its own",
            because="this happens in one process already, with no wrapper and every normalisation of torch on its running statistics",
            fix="gather the statistics over ranks (as SyncBatchNorm does), or skip this check with the reason",
        )
        return
    loss = subject.contract.loss
    where = (
        None if loss is None or isinstance(loss, str) else _line(loss, r"\.sum\(", r"reduction\s*=")
    )
    if abs(ratio * ranks - 1) < _TIGHT and local["across"] < _TIGHT:
        yield violated(
            "loss-sum",
            f"{getattr(loss, '__name__', None) or 'the loss'} is a sum over samples, so that {ranks} ranks train with 1/{ranks} "
            "of the single process's gradient",
            culprits=[
                Culprit(
                    kind="loss",
                    name=str(getattr(loss, "__name__", type(loss).__name__)),
                    location=where,
                )
            ],
            location=where,
            observed=f"averaged gradient = {ratio:.6g} x the full batch's, {local['across']:.1e} across",
            cause="DistributedDataParallel averages over ranks; only a mean over samples stays the same",
            because=f"the mean of {ranks} shards' gradients is exactly 1/{ranks} of the whole batch's, in one process",
            fix="use the mean over samples in the loss (or multiply it by the number of ranks)",
        )
        return
    if loss is None:
        return
    yield suspicious(
        "loss-coupled",
        f"the loss is no mean over samples: the ranks' averaged gradient is {local['decomposes']:.2g} (relative) away from the full batch's",
        culprits=[
            Culprit(
                kind="loss", name=str(getattr(loss, "__name__", type(loss).__name__)), location=where
            )
        ],
        location=where,
        observed=f"relative difference {local['decomposes']:.3g}, ratio {ratio:.4g}, across {local['across']:.3g}",
        cause="the loss divides by a count of its own shard (valid tokens, weights), or compares samples with each other",
        because="outputs do not change when the batch is cut, gradients do; this happens in one process already",
        fix="divide by the count over all ranks (all_reduce it, then multiply by the number of ranks), or skip with the reason",
    )  # fmt: skip


def parameters_differ(subject: Subject, names: list[str], outcome: Outcome) -> Finding:
    """Name the parameters that ranks disagree on after plain SGD steps."""
    return violated(
        "parameters-differ",
        f"{_listed(names)} {'differs' if len(names) == 1 else 'differ'} between ranks after two steps",
        culprits=_culprits(subject, names, "parameter", "not bit-equal on all ranks"),
        observed=f"{len(names)} parameters differ over {outcome.ranks} ranks after two SGD steps",
        cause="the wrapper neither sent their start nor averaged their gradient",
        because="the digests of all ranks were compared after the step",
        fix="make every parameter in __init__, before wrapping",
    )


def consistency(subject: Subject, outcome: Outcome) -> Iterator[Finding]:
    """Explain ranks that start with other models, or draw the same noise."""
    init, ranks = outcome.stages.get("init"), outcome.ranks
    factory = subject.contract.model if subject.contract.is_factory else None
    if init is not None:
        unseeded = [n for n in init[0]["first"] if init[0]["first"][n] != init[0]["second"].get(n)]
        split = _untied(init)
        names = [
            n for n in differing([found["first"] for found in init]) if n not in (*unseeded, *split)
        ]
        if names:
            place = _line(factory, r"[rR][aA][nN][kK]", r"manual_seed")
            yield violated(
                "rank-dependent-init",
                f"{_listed(names)} {'starts' if len(names) == 1 else 'start'} with other values on each rank, from the same seed",
                culprits=_culprits(subject, names, "parameter", "not bit-equal on all ranks"),
                location=_in_model(subject, r"get_rank|RANK") or place,
                observed=f"{len(names)} of {len(init[0]['first'])} tensors differ over {ranks} ranks before wrapping",
                cause="the initialisation depends on the rank",
                because="every rank was seeded alike, and rank 0 builds the same model twice",
                fix="initialise from one seed on all ranks; let only data and dropout depend on the rank",
            )
        elif unseeded:
            yield suspicious(
                "unseeded-init",
                f"{_listed(unseeded)} {'is' if len(unseeded) == 1 else 'are'} not decided by torch's seed, so that ranks start apart",
                culprits=_culprits(
                    subject, unseeded, "parameter", "another value at each building"
                ),
                observed=f"rank 0 built the model twice from one seed; {len(unseeded)} tensors differ",
                cause="the factory draws from a source of its own",
                because="the same seed was set before each building",
                fix="draw from torch's generator, or seed your own one with a number from the configuration",
            )
    if init is not None and _untied(init):
        yield tie_split(
            subject, [each["ties"] for each in init], "one tensor on some ranks only, after building",
            "the factory ties them on some ranks only", _line(factory, r"[rR][aA][nN][kK]"),
        )  # fmt: skip
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
            f"{_listed(names) or 'state outside parameters and buffers'} differs between ranks after wrapping, and so do the outputs",
            culprits=_culprits(subject, names, "tensor", "not sent by the wrapper"),
            observed=f"{_listed(apart)} of the same batch in eval mode differs between {ranks} ranks",
            cause="DistributedDataParallel sends parameters and buffers of rank 0; this is neither",
            because="all ranks ran the same batch with the same seed, having built the model with seeds of their own",
            fix=f"register_buffer({names[0].rpartition('.')[2]!r}, ...) in place of a plain attribute"
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
                culprits=_culprits(subject, [name], "module", "the same noise on every rank"),
                location=_in_model(subject, r"manual_seed|fork_rng|set_rng_state|set_state"),
                observed=f"training outputs of one batch are bit-equal on {ranks} ranks whose seeds differ",
                cause="the forward sets the random state itself",
                because=f"rank 0 with two seeds gives {'equal' if drawn[0][0] == drawn[0][1] else 'different'} outputs",
                fix="remove the seeding from forward",
            )


def _in_model(subject: Subject, pattern: str) -> Location | None:
    for module in subject.model.modules():
        place = sources.of_object(type(module))
        own = place is not None and sources.rank(place.file) == 2
        if own and (found := sources.search(type(module), pattern)) is not None:
            return found
    return None


def steps(subject: Subject, outcome: Outcome, exact: float) -> Iterator[Finding]:
    """Explain ranks that part company in the user's own training step."""
    found = outcome.stages["steps"]
    step = subject.contract.train_step
    late = sorted({name for each in found for name in each["late"]})
    if late:
        told = "ddp" in outcome.stages and bool(outcome.stages["ddp"][0]["late"])
        finding = _late(subject, late, outcome)
        yield finding.replace(root="ddp-equivalence/late-parameter") if told else finding
    if any(set(each["ties"]) - set(each["tied"]) for each in found):
        yield tie_split(
            subject, [each[key] for each in found for key in ("ties", "tied")],
            "one tensor before the train step and two after it",
            "the step puts another tensor in the place of one of them",
            _line(step, r"assign\s*=\s*True", r"nn\.Parameter\(", r"\.weight\s*="),
        )  # fmt: skip
        return  # what is split also trains apart
    for index in range(len(found[0]["steps"])):
        rows = [each["steps"][index] for each in found]
        names = [n for n in differing([row["parameters"] for row in rows]) if n not in late]
        if names:
            yield _apart(subject, names, rows, index)
            break
    else:
        if late:
            return  # what is never averaged changes the gradient too
        yield from _factor(subject, outcome, exact)
    norms = set(found[0]["norms"])
    drifting = [
        name
        for name in differing([each["steps"][-1]["buffers"] for each in found])
        if name not in norms and not subject.is_promised("MayChange", name)
    ]
    if drifting:
        yield violated(
            "buffer-drift",
            f"{_listed(drifting)} {'holds' if len(drifting) == 1 else 'hold'} other values on each rank after {len(found[0]['steps'])} steps",
            culprits=_culprits(subject, drifting, "buffer", "not bit-equal on all ranks"),
            location=_in_model(subject, rf"self\.{drifting[0].rpartition('.')[2]}\b.*(\w_\(|[-+*/]?=[^=])(?!.*register)")
            or _line(step, rf"\b{drifting[0].rpartition('.')[2]}\b"),
            observed=f"{len(drifting)} buffers differ over {outcome.ranks} ranks",
            cause="each rank updates it from its own shard; rank 0's then overwrites the others, whose data is lost",
            because="the digests of all ranks were compared after the step; batch normalisation is not counted",
            fix="all_reduce what the update is made from, or promise MayChange with the reason",
        )  # fmt: skip


def tie_split(
    subject: Subject,
    groups: Sequence[Sequence[tuple[str, ...]]],
    what: str,
    cause: str,
    place: Location | None,
    fix: str = "tie them again after every operation that makes new tensors, on every rank",
) -> Finding:
    """Name parameters that are one tensor here and two there; ``groups`` of names, as seen in turn."""
    names = next(
        (g for one in groups for g in sorted(one) if any(g not in other for other in groups)),
        ("parameters",),
    )
    return violated(
        "tie-split",
        f"{' and '.join(names[:3])} are {what}",
        culprits=_culprits(subject, names, "parameter", "no longer tied"),
        location=place,
        observed="names that are one tensor: "
        + "; ".join(_groups(each) for each in dict.fromkeys(tuple(map(tuple, g)) for g in groups)),
        cause=cause,
        because="the parameters were compared by identity before and after, on every rank",
        fix=fix,
    )


def _untied(init: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names that are tied on some ranks and not, or to others, on other ranks."""
    groups: list[set[tuple[str, ...]]] = [{tuple(g) for g in each["ties"]} for each in init]
    apart = {group for one in groups for other in groups for group in one - other}
    return {name for group in apart for name in group}


def _groups(ties: Sequence[tuple[str, ...]]) -> str:
    return ", ".join(" = ".join(names) for names in ties[:4]) or "none"


def _late(subject: Subject, late: list[str], outcome: Outcome) -> Finding:
    owner = subject.model
    for part in late[0].split(".")[:-1]:
        owner = getattr(owner, part, owner)
    attribute = late[0].split(".")
    place = next(
        (p for name in reversed(attribute) if (p := sources.of_assignment(owner, name))), None
    ) or _line(subject.contract.train_step, rf"\b{attribute[0]}\b")
    return violated(
        "late-parameter",
        f"{_listed(late)} {'is' if len(late) == 1 else 'are'} made after wrapping, so that the ranks never average "
        f"{'its gradient' if len(late) == 1 else 'their gradients'}",
        culprits=[
            Culprit(kind="parameter", name=name, detail="not there when wrapped", location=place)
            for name in late[:8]
        ],
        location=place,
        observed=f"{len(late)} parameters are there after the first steps that were not there at wrapping",
        cause="DistributedDataParallel knows only the parameters that the model has when it is wrapped",
        because="the names of all parameters were compared before and after the steps",
        fix="make the parameter in __init__ (or run one batch before wrapping)",
    )


def _apart(subject: Subject, names: list[str], rows: list[dict[str, Any]], index: int) -> Finding:
    step = subject.contract.train_step
    gradients_ = [row["gradients"] or {} for row in rows]
    uneven = differing(gradients_)
    sizes = ", ".join(
        f"rank {rank}: {row['norm']:.4g}"
        for rank, row in enumerate(rows)
        if row["norm"] is not None
    )
    steppers = sum(row["gradients"] is not None for row in rows)
    ranked = r"get_rank\(\)|\brank\b\s*(==|!=|>|<)|not\s+rank\b|\bRANK\b|is_main"
    if steppers < len(rows):
        cause, place = (
            f"only {steppers} of {len(rows)} ranks step the optimizer",
            _line(step, ranked, r"\.step\("),
        )
        fix = "step the optimizer on every rank"
    elif uneven:
        cause = "the gradients are changed on one rank only after they were averaged, or are never averaged"
        place = _line(step, ranked, r"\.module\s*\(", r"no_sync", r"clip_grad", r"\.backward\(")
        fix = "do the same to the gradients on every rank (clipping included), and call the wrapped model, not model.module"
    else:
        cause, place = (
            "the update depends on the rank, though the gradients do not",
            _line(step, ranked, r"\.step\("),
        )
        fix = "make every write to parameters the same on all ranks"
    return violated(
        "parameters-differ",
        f"{_listed(names)} {'differs' if len(names) == 1 else 'differ'} between ranks after step {index + 1} of the train step",
        culprits=_culprits(subject, names, "parameter", "not bit-equal on all ranks"),
        location=place,
        observed=f"{len(names)} parameters differ over {len(rows)} ranks; gradient norms at the step: {sizes or 'none'}",
        cause=cause,
        because=f"{len(uneven)} gradients differ between ranks when the optimizer steps"
        if uneven
        else f"{steppers} of {len(rows)} ranks stepped, with equal gradients",
        fix=fix,
        evidence={"gradients that differ": uneven[:16]},
    )


def _factor(subject: Subject, outcome: Outcome, exact: float) -> Iterator[Finding]:
    """Compare the gradient at the optimizer's step with that of a single rank on the whole batch."""
    first, ranks = outcome.stages["steps"][0], outcome.ranks
    error, ratio, across = first.get("error"), first.get("ratio"), first.get("across")
    if error is None or ratio is None or across is None:
        return
    local = outcome.stages["local"][0]
    if error <= max(exact, 10 * local["noise"]):
        return
    step = subject.contract.train_step
    observed = f"gradient at the optimizer's step with {ranks} ranks = {ratio:.6g} x that with one rank, {across:.1e} across"
    if across < _TIGHT and min(abs(ratio - ranks), abs(ratio * ranks - 1)) < _TIGHT * ranks:
        sums = ratio > 1
        yield violated(
            "gradient-sum" if sums else "loss-sum",
            f"{ranks} ranks train with {ranks if sums else f'1/{ranks}'} x the gradient of one process on the same batch",
            culprits=_culprits(subject, first["worst"], "parameter", f"{ratio:.4g} x too large")
            if sums
            else [Culprit(kind="loss", name="loss", detail="a sum over samples")],
            location=_line(
                step,
                *((r"all_reduce", r"world_size") if sums else (r"reduction\s*=", r"\.sum\(")),
                r"\.backward\(",
            ),
            observed=observed,
            cause="gradients are added over ranks instead of averaged (or the loss is multiplied once too often)"
            if sums
            else "the loss is a sum over samples (or divided by the ranks twice), and the ranks average",
            because=f"the same step with the whole batch on one rank gives exactly {'1/' if sums else ''}{ranks} of it"
            if sums
            else f"the same step with the whole batch on one rank gives exactly {ranks} x as much",
            fix="divide by the number of ranks after all_reduce (or use ReduceOp.AVG)"
            if sums
            else "use the mean over samples",
        )
        return
    if subject.contract.loss is None or local["decomposes"] > 1e-9:
        return  # the user's loss may be no mean over samples, which one process cannot be held against
    yield suspicious(
        "step-differs",
        f"{ranks} ranks train with another gradient than one process on the same batch (relative difference {error:.2g})",
        culprits=_culprits(subject, first["worst"], "parameter", "differs most"),
        location=_line(step, r"clip_grad", r"all_reduce", r"\.backward\("),
        observed=observed,
        cause="the step treats shards unlike the whole batch",
        because=f"the declared loss by itself gives the same gradient to {local['decomposes']:.1e}",
        fix="average what the step makes of its shard over ranks",
    )

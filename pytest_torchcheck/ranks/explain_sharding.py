"""Say what FSDP2 or the user's own step does otherwise on each rank, what it unties, and what a build on meta loses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import sources
from ..findings import Culprit, Finding
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
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..findings import Location
    from ..subject import Subject
    from .launch import Outcome

_SHARD = r"fully_shard"


def _plan(subject: Subject) -> Any:
    return next((p.wrap for p in subject.contract.promised("FullyShards")), None)  # type: ignore[attr-defined]


def _place(subject: Subject, *patterns: str) -> Location | None:
    plan = _plan(subject)
    return (
        line(plan, *patterns, _SHARD)
        if plan is not None
        else sources.of_object(type(subject.model))
    )


def sharding(subject: Subject, outcome: Outcome, exact: float) -> Iterator[Finding]:
    """Explain what the sharded model does differently from the plain one."""
    found = outcome.stages["sharded"][0]
    if not found["units"]:
        yield violated(
            "nothing-sharded",
            "the plan shards nothing: no module is under FSDP after it",
            culprits=[Culprit("function", str(getattr(_plan(subject), "__name__", "wrap")))],
            location=_place(subject),
            observed=f"0 units, {len(found['managed'])} parameters that every rank holds whole",
            cause="fully_shard is never called, or its result is not the module passed in",
            because="the modules were inspected after the plan ran",
            fix="call fully_shard(model) last in the plan: it changes the module in place",
        )  # fmt: skip
        return
    if found["ties"] != found["tied"]:
        yield split(subject, found)
        return
    yield from _differing(subject, outcome, found, exact)
    yield from _state(subject, found)


def split(subject: Subject, found: Mapping[str, Any]) -> Finding:
    """Name tied parameters that units of FSDP make two of."""
    lost = next(iter(set(found["ties"]) - set(found["tied"])), ())
    owner = lost[-1].rpartition(".")[0].rpartition(".")[2] if lost else ""
    return tie_split(
        subject,
        [found["ties"], found["tied"]],
        "one tensor before sharding and two after it",
        "fully_shard gives each unit its own parameters, and the tied modules are in different units",
        _place(subject, rf"fully_shard\([^)]*\b{owner}\b" if owner else _SHARD),
        fix="keep both modules in one unit, such as the root: fully_shard(model), or fully_shard([a, b])",
    )


def _differing(
    subject: Subject, outcome: Outcome, found: Mapping[str, Any], exact: float
) -> Iterator[Finding]:
    local = outcome.stages["local"][0]
    bound = max(exact, 10 * local["noise"])
    if found["managed"] and found["error"] > bound:
        names = found["managed"]
        yield violated(
            "not-sharded",
            f"{listed(names)} {'is' if len(names) == 1 else 'are'} in no unit of FSDP, so the ranks never average "
            f"{'its gradient' if len(names) == 1 else 'their gradients'}",
            culprits=culprits_of(subject, names, "parameter", "in no unit"),
            location=_place(subject),
            observed=f"{len(names)} parameters are not DTensors after the plan; gradients differ by "
            f"{found['error']:.3g} (relative)",
            cause="the plan shards some modules but not the model that contains them",
            because="the units were listed after the plan ran: "
            f"{listed([name or 'the model' for name in found['units']])}",
            fix="call fully_shard(model) on the whole model last: it shards what is left",
        )
        return
    parts = {
        "output": found["output"],
        "gradient": found["error"],
        "parameters after a step": found["stepped"],
    }
    wrong = next((name for name, value in parts.items() if value > bound), None)
    if wrong is None and not found["missing"]:
        return
    names = found["missing"] or found["worst"]
    yield violated(
        "fsdp-differs",
        f"under FSDP the {wrong or 'gradient'} differs from that of one process (worst: {names[0]})",
        culprits=culprits_of(subject, names, "parameter", "no gradient" if found["missing"] else "differs"),
        location=_place(subject),
        observed=", ".join(f"{name} {value:.3g}" for name, value in parts.items())
        + f" (relative differences); ratio {found['ratio']:.6g}",
        cause="part of the model is used outside the forward of its unit, where its parameters are shards"
        if wrong == "output" else "the gradients of the shards are not averaged over ranks",
        because="the same shards without FSDP give the exact outputs, and float64 rounding "
            f"stays below {bound:.0e}",
        fix="use a sharded module's parameters only inside its own forward, and reduce gradients by the mean",
    )  # fmt: skip


def _state(subject: Subject, found: Mapping[str, Any]) -> Iterator[Finding]:
    if found["keys"] != found["expected"] or found["unloadable"]:
        names = sorted({*found["keys"]} ^ {*found["expected"]}) or found["unloadable"]
        yield violated(
            "sharded-state",
            f"the state_dict under FSDP has different names than that of the plain model: {listed(names)}",
            culprits=[Culprit("tensor", name) for name in names[:8]],
            location=_place(subject),
            observed=f"{len(found['keys'])} names under FSDP, {len(found['expected'])} in the plain "
            f"model; {len(names)} are in only one of them",
            cause="the plan also wraps or renames modules",
            because="both lists of names were compared",
            fix="shard in place (fully_shard keeps all names), or strip the prefix of the wrapper before saving",
        )
    elif found["lost"] or found["restored"]:
        names = found["lost"] or found["restored"]
        yield violated(
            "sharded-state",
            f"{listed(names)} {'does' if len(names) == 1 else 'do'} not survive the "
                "state_dict round trip under FSDP",
            culprits=culprits_of(subject, names, "parameter", "different after loading"),
            location=_place(subject),
            observed=f"{len(names)} parameters differ after "
            + ("gathering the state_dict" if found["lost"] else "loading it into a fresh sharded model"),
            cause="a hook of the model changes the state_dict, or part of it is kept elsewhere",
            because="the values before and after were compared bit by bit",
            fix="keep every parameter under its own name in state_dict",
        )  # fmt: skip


def meta(subject: Subject, outcome: Outcome, exact: float) -> Iterator[Finding]:
    """Explain what a model built on meta lacks after it was materialized and loaded."""
    found = outcome.stages["meta"][0]
    materialise = next((p.meta for p in subject.contract.promised("FullyShards")), None)  # type: ignore[attr-defined]
    place = line(materialise, r"to_empty", r"def ") if callable(materialise) else None
    if found["ties"] != found["tied"]:
        yield tie_split(
            subject, [found["ties"], found["tied"]], "one tensor on meta and two after materialization",
            "each name is allocated separately", place or _place(subject),
        )  # fmt: skip
        return
    if found["on_meta"]:
        names = found["on_meta"]
        yield violated(
            "meta-left",
            f"{listed(names)} {'stays' if len(names) == 1 else 'stay'} on meta, without values",
            culprits=culprits_of(subject, names, "tensor", "on meta"),
            location=place or _place(subject),
            observed=f"{len(names)} tensors are on meta after the model was materialized",
            cause="the function that materializes the model leaves them out",
            because="the devices of all parameters and buffers were listed",
            fix="call model.to_empty(device=...) on the whole model",
        )
        return
    lost = found["lost"]
    if not lost and not found["output"] > max(exact, 1e-12):
        return
    absent = [name for name in lost if name not in found["persistent"]]
    owner, _, last = (absent or lost or [""])[0].rpartition(".")
    module = subject.model
    for part in filter(None, owner.split(".")):
        module = getattr(module, part, module)
    where = sources.of_assignment(module, last) if last else None
    yield violated(
        "meta-not-restored",
        f"{listed(absent or lost or ['the output'])} "
            f"{'has' if len(absent or lost) <= 1 else 'have'} no values after a build on meta",
        culprits=culprits_of(subject, absent or lost, "buffer" if absent else "tensor", "not in the state_dict" if absent else "another value"),
        location=where or place or _place(subject),
        observed=f"built on meta, sharded, materialized and loaded: {len(lost)} tensors differ, "
            f"outputs by {found['output']:.3g} (relative)",
        cause="a buffer that is not in the state_dict is computed in __init__, where meta tensors have no values"
        if absent else ("the function that materializes the model runs after loading, or without loading, "
            "and overwrites values"),
        because="tensors were compared one by one with the model that was built on the device",
        fix=f"compute {last or 'it'} again after to_empty (in reset_parameters, called by "
            "FullyShards(meta=...)), or make it persistent",
    )  # fmt: skip


def steps(subject: Subject, outcome: Outcome, exact: float) -> Iterator[Finding]:
    """Explain ranks that diverge in the user's own training step."""
    found = outcome.stages["steps"]
    step = subject.contract.train_step
    late = sorted({name for each in found for name in each["late"]})
    if late:
        told = "ddp" in outcome.stages and bool(outcome.stages["ddp"][0]["late"])
        finding = late_parameters(subject, late)
        yield finding.replace(root="ddp-equivalence/late-parameter") if told else finding
    if any(set(each["ties"]) - set(each["tied"]) for each in found):
        yield tie_split(
            subject, [each[key] for each in found for key in ("ties", "tied")],
            "one tensor before the train step and two after it",
            "the step replaces one of them with another tensor",
            line(step, r"assign\s*=\s*True", r"nn\.Parameter\(", r"\.weight\s*="),
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
            f"{listed(drifting)} {'holds' if len(drifting) == 1 else 'hold'} different values "
                f"on each rank after {len(found[0]['steps'])} steps",
            culprits=culprits_of(subject, drifting, "buffer", "not bit-equal on all ranks"),
            location=in_model(subject, rf"self\.{drifting[0].rpartition('.')[2]}\b.*(\w_\(|[-+*/]?=[^=])(?!.*register)")
            or line(step, rf"\b{drifting[0].rpartition('.')[2]}\b"),
            observed=f"{len(drifting)} buffers differ over {outcome.ranks} ranks",
            cause="each rank updates it from its own shard; rank 0's value then overwrites the others, which are lost",
            because="the digests of all ranks were compared after the step; batch normalisation is not counted",
            fix="all_reduce the values that the update uses, or promise MayChange and give the reason",
        )  # fmt: skip


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
            line(step, ranked, r"\.step\("),
        )
        fix = "step the optimizer on every rank"
    elif uneven:
        cause = "the gradients change on one rank after they were averaged, or are never averaged"
        place = line(step, ranked, r"\.module\s*\(", r"no_sync", r"clip_grad", r"\.backward\(")
        fix = (
            "do the same to the gradients on every rank (clipping included), and call the "
            "wrapped model, not model.module"
        )
    else:
        cause, place = (
            "the update depends on the rank, although the gradients do not",
            line(step, ranked, r"\.step\("),
        )
        fix = "write the same values to the parameters on all ranks"
    return violated(
        "parameters-differ",
        f"{listed(names)} {'differs' if len(names) == 1 else 'differ'} between ranks after "
        f"step {index + 1} of the train step",
        culprits=culprits_of(subject, names, "parameter", "not bit-equal on all ranks"),
        location=place,
        observed=f"{len(names)} parameters differ over {len(rows)} ranks; gradient norms at the "
        f"step: {sizes or 'none'}",
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
    observed = (
        f"gradient at the optimizer's step with {ranks} ranks = {ratio:.6g} x that with one "
        f"rank; the rest differs by {across:.1e}"
    )
    if across < TIGHT and min(abs(ratio - ranks), abs(ratio * ranks - 1)) < TIGHT * ranks:
        sums = ratio > 1
        yield violated(
            "gradient-sum" if sums else "loss-sum",
            f"{ranks} ranks train with {ranks if sums else f'1/{ranks}'} x the gradient of "
            "one process on the same batch",
            culprits=culprits_of(subject, first["worst"], "parameter", f"{ratio:.4g} x too large")
            if sums
            else [Culprit("loss", "loss", "a sum over samples")],
            location=line(
                step,
                *((r"all_reduce", r"world_size") if sums else (r"reduction\s*=", r"\.sum\(")),
                r"\.backward\(",
            ),
            observed=observed,
            cause=(
                "gradients are added over ranks instead of averaged (or the loss is multiplied "
                "by the number of ranks once too often)"
            )
            if sums
            else "the loss is a sum over samples (or is divided by the number of ranks twice), and the ranks average",
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
        f"{ranks} ranks train with a different gradient than one process on the same batch "
        f"(relative difference {error:.2g})",
        culprits=culprits_of(subject, first["worst"], "parameter", "differs most"),
        location=line(step, r"clip_grad", r"all_reduce", r"\.backward\("),
        observed=observed,
        cause="the step treats shards differently from the whole batch",
        because=f"the declared loss by itself gives the same gradient to {local['decomposes']:.1e}",
        fix="average over ranks what the step computes from its shard",
    )

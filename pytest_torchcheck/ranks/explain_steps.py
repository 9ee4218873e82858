"""Say why the user's own step leaves other parameters on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from collections.abc import Iterator

    from ..subject import Subject
    from .launch import Outcome


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

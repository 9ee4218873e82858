"""Sharded by FSDP2 and normalised over ranks, the model is the one that a single process trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...codes import ranks as explain
from ...findings import Culprit, Finding
from ...ranks.evidence import evidence
from ...ranks.statistics import runs_on, synchronised
from ...verdicts import inconclusive, not_applicable, passed, violated
from .replicas import exact_of, is_double, unusable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...ranks import Outcome
    from ...subject import Subject

_STATISTICS = 1e-9


def fsdp_equivalence(subject: Subject) -> Iterator[Finding]:
    """Shard on every rank by the promised plan; compare with the plain model, in float64.

    Outputs, averaged gradients and the parameters after one step; the state_dict, loaded into a
    plain and into another sharded model; tied parameters; and where promised a build on meta.
    Dropout is off and normalisations use their running statistics.
    """
    made = evidence(subject)
    if (reason := unusable(made, ("sharded", "meta"))) is not None:
        yield reason
        return
    outcome = made.outcome
    assert outcome is not None
    stage = outcome.stages.get("sharded")
    if stage is None or (
        explain.stopped_at(outcome) == "sharded" and stage[0]["ties"] == stage[0]["tied"]
    ):
        yield explain.broken(subject, outcome)
        return
    found = stage[0]
    if found["precision"]:
        yield inconclusive(
            f"the plan computes in {found['precision']}, so equality in float64 cannot be "
            "tested; promise a plan without mixed precision to compare",
            code="mixed-precision",
        )
        return
    exact = exact_of(outcome)
    findings = list(explain.sharding(subject, outcome, exact))
    on_meta = outcome.stages.get("meta")
    if not findings and on_meta is None and explain.stopped_at(outcome) == "meta":
        findings = [explain.broken(subject, outcome)]
    elif not findings and on_meta is not None:
        findings = list(explain.meta(subject, outcome, exact))
    yield from findings
    if findings:
        return
    if not found.get("placed"):
        yield inconclusive("no parameter is sharded: there is nothing to compare", code="no-shard")
        return
    wide = " in float64" if is_double(outcome) else ""
    tied = f", {len(found['ties'])} tied groups stay tied" if found["ties"] else ""
    meta = ", and a build on meta is restored" if on_meta is not None else ""
    yield passed(
        f"{len(found['units'])} units on {outcome.ranks} ranks give outputs to "
        f"{found['output']:.1e}, gradients to {found['error']:.1e} and a step to "
        f"{found['stepped']:.1e} (relative){wide}; the state_dict is restored bit for "
        f"bit{tied}{meta}"
    )


def synchronised_statistics(subject: Subject) -> Iterator[Finding]:
    """Train one step on the ranks' shards with live statistics; compare with plain batch normalisation on all of them.

    Gradients and running statistics are compared in float64. torch's own SyncBatchNorm refuses CPU
    tensors, so that on a CPU nothing is said.
    """
    names = synchronised(subject.model)
    if not names:
        yield not_applicable("the model has no SyncBatchNorm")
        return
    made = evidence(subject)
    if (reason := unusable(made, ("statistics",), optional=True)) is not None:
        yield reason
        return
    outcome = made.outcome
    assert outcome is not None
    device = "cuda" if made.device == "cuda" else "cpu"
    if not runs_on(subject.model, device):
        yield inconclusive(
            f"{names[0]} needs a GPU for each rank: torch's SyncBatchNorm has no CPU implementation, nor has gloo",
            code="needs-gpu",
        )
        return
    stage = outcome.stages.get("statistics")
    if stage is None:
        yield explain.broken(subject, outcome)
        return
    found = stage[0]
    wrong = {n: gap for n, gap in found["buffers"].items() if gap > _bound(outcome)}
    if not wrong and found["error"] <= _bound(outcome):
        yield passed(
            f"{len(names)} modules on {outcome.ranks} ranks give the whole batch's "
            f"gradient to {found['error']:.1e} and its "
            f"running statistics to {max(found['buffers'].values(), default=0.0):.1e} (relative)"
        )
        return
    worst = max(wrong, key=lambda name: wrong[name], default=names[0])
    yield violated(
        "statistics-differ",
        f"{worst} over {outcome.ranks} ranks differs from that of the whole batch",
        culprits=[
            Culprit(
                "buffer" if wrong else "module",
                worst,
                location=sources.of_parameter(subject.model, worst),
            )
        ],
        observed=f"gradient off by {found['error']:.3g}, {len(wrong)} of {len(found['buffers'])} "
        f"running statistics off by up to {max(wrong.values(), default=0.0):.3g} (relative)",
        cause="statistics are not gathered over all ranks, or shards are weighted unequally",
        because="the same samples in one process, with plain batch normalisation, were compared in float64",
        fix="convert with nn.SyncBatchNorm.convert_sync_batchnorm before wrapping, with the group of all ranks",
    )


def _bound(outcome: Outcome) -> float:
    return _STATISTICS if is_double(outcome) else 1e-3

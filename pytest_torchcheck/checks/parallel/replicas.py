"""Data-parallel ranks compute what one process computes, start alike and stay alike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...codes import ranks as explain
from ...codes.undecided import BLOCKED
from ...ranks.evidence import CHECK_OF, Evidence, evidence
from ...verdicts import inconclusive, not_applicable, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...ranks import Outcome
    from ...subject import Subject

EXACT = 1e-12
"""Largest relative difference in float64 between what the ranks average and the mean of their gradients."""
PLAIN = 1e-5
"""The same where the model refuses float64."""
GPU = 100
"""Factor on it on GPUs, where kernels sum a shard and the whole batch in different orders."""


def unusable(made: Evidence, stages: tuple[str, ...], *, optional: bool = False) -> Finding | None:
    """Return why nothing can be said of these stages: the ranks never started, or stopped in another one.

    Args:
        made: What the ranks left.
        stages: Of the check that asks.
        optional: Whether ranks that stopped nowhere may lack them.
    """
    if made.reason:
        return inconclusive(made.reason, code=made.code)
    outcome = made.outcome
    assert outcome is not None
    if any(stage in outcome.stages for stage in stages if stage != "local"):
        return None
    stage = explain.stopped_at(outcome)
    if stage in stages:
        return None
    if optional and not stage:
        return None
    name = CHECK_OF.get(stage, "ddp-equivalence")
    first = next(iter(outcome.failures), None)
    said = f"{first.kind}: {(first.message.splitlines() or [''])[0]:.160}" if first else "a hang"
    if stage == "start":
        return inconclusive(f"the ranks could not be started: {said}", code="cannot-start")
    return inconclusive(
        f"could not be checked: the ranks stopped earlier, in {name} ({said})", code=BLOCKED
    )


def ddp_equivalence(subject: Subject) -> Iterator[Finding]:
    """Compare the gradients of DistributedDataParallel over spawned processes with one process's, in float64.

    Dropout is off and normalisations use their running statistics. Two steps are taken, gradients
    are also accumulated under ``no_sync``, and the parameters of all ranks are compared afterwards.
    """
    subject.require_trainable()
    made = evidence(subject)
    if (reason := unusable(made, ("local", "ddp", "unused", "join", "end"))) is not None:
        yield reason
        return
    outcome = made.outcome
    assert outcome is not None
    local, ddp = outcome.stages.get("local"), outcome.stages.get("ddp")
    stopped = explain.stopped_at(outcome)
    if local is None or (ddp is None and stopped != "ddp"):
        yield from _before_gradients(stopped, subject, outcome)
        return
    unused = sorted({name for found in local for name in found["missing"]})
    demanded = [name for name in unused if not subject.is_promised("MayLackGradient", name)]
    told = False
    if demanded:
        yield explain.unused(subject, demanded, outcome)
        told = True
    if ddp is None:
        finding = explain.broken(subject, outcome)
        root = explain.root_of(outcome)
        yield finding if root is None else finding.replace(root=root)
        return
    exact = exact_of(outcome)
    noise, norm = local[0]["noise"], local[0]["norm"]
    if norm == 0.0 or not math.isfinite(norm):
        yield inconclusive(
            f"the norm of the single process's gradient is {norm}: there is nothing to compare",
            code="no-gradient",
        )
        return
    if noise > exact and not ddp[0]["late"]:  # a layer made in forward starts at random each time
        yield inconclusive(
            f"the gradient of one batch changes by {noise:.2g} (relative) with the random "
            "numbers, although every dropout module is off: an exact comparison is impossible",
            code="noisy",
        )
        return
    for finding in explain.gradients(subject, outcome, exact):
        yield finding
        told = True
    differing = explain.differing([found["parameters"] for found in ddp])
    if differing and not ddp[0]["late"]:
        yield explain.parameters_differ(subject, differing, outcome)
        told = True
    if told:
        return
    yield from _equal_replicas(local, unused, ddp, outcome)


def _before_gradients(stopped: str, subject: Subject, outcome: Outcome) -> Iterator[Finding]:
    """Report what raises in the ranks before gradients could be compared."""
    yield (
        explain.broken(subject, outcome)
        if stopped in ("join", "end")
        else inconclusive(
            f"could not be checked: {explain.message_of(outcome)} in each rank before any "
            "communication",
            code=BLOCKED,
        )
    )


def _equal_replicas(
    local: list[dict[str, Any]], unused: list[Any], ddp: list[dict[str, Any]], outcome: Outcome
) -> Iterator[Finding]:
    """Report ranks that average the single process's gradient."""
    norms = local[0]["norms"]
    still = (
        f"; {norms[0]}{f' and {len(norms) - 1} more' if norms[1:] else ''} used running statistics, since each rank's "
        "batch statistics are its own"
        if norms
        else ""
    )
    wide = " in float64" if local[0]["double"] else ""
    finds = f"; find_unused_parameters=True is needed for {unused[0]}" if unused else ""
    yield passed(
        f"{outcome.ranks} ranks average the single process's gradient to "
        f"{max(ddp[0]['error'], local[0]['decomposes']):.1e} "
        f"(relative){wide}, also under no_sync, and their parameters are bit-equal after two steps{still}{finds}"
        if ddp[0].get("accumulated") is not None
        else f"{outcome.ranks} ranks average the single process's gradient to {ddp[0]['error']:.1e} (relative){wide}, "
        f"and their parameters are bit-equal after two steps{still}{finds}",
        evidence={"seconds": outcome.seconds, "error": ddp[0]["error"], "unused": unused},
    )


def rank_consistency(subject: Subject) -> Iterator[Finding]:
    """Build the model on every rank, with one seed and with a seed of each rank's own, and compare.

    With one seed all parameters must be bit-equal before the wrapper; with own seeds the wrapper
    must have sent everything that decides the output, and dropout must differ.
    """
    if not any(p.requires_grad for p in subject.model.parameters()):
        yield not_applicable("no parameter requires a gradient, so there is nothing to wrap")
        return
    made = evidence(subject)
    if (reason := unusable(made, ("init", "consistency"))) is not None:
        yield reason
        return
    outcome = made.outcome
    assert outcome is not None
    if explain.stopped_at(outcome) in ("init", "consistency"):
        yield explain.broken(subject, outcome)
        return
    findings = list(explain.consistency(subject, outcome))
    if findings:
        yield from findings
        return
    consistent = outcome.stages.get("consistency")
    if consistent is None:
        yield inconclusive("could not be checked: the ranks stopped earlier", code=BLOCKED)
        return
    noise = ", and dropout differs by rank" if consistent[0]["dropouts"] else ""
    built = (
        "build bit-equal models from one seed and "
        if "init" in outcome.stages
        else "receive a copy of the module and "
    )
    yield passed(
        f"{outcome.ranks} ranks {built}give equal outputs after wrapping with different "
        f"seeds{noise}"
    )


def distributed_steps(subject: Subject) -> Iterator[Finding]:
    """Run the declared train step with the wrapped model on every rank's shard; compare the ranks afterwards.

    Parameters and buffers must be bit-equal after every step, and the gradient that the optimizer
    sees must be the one that it sees with a single rank on the whole batch.
    """
    made = evidence(subject)
    if (reason := unusable(made, ("single", "steps"))) is not None:
        yield reason
        return
    outcome = made.outcome
    assert outcome is not None
    steps = outcome.stages.get("steps")
    if steps is None:
        yield explain.broken(subject, outcome)
        return
    findings = list(explain.steps(subject, outcome, exact_of(outcome)))
    yield from findings
    if not findings:
        norms = set(steps[0]["norms"])
        note = " (batch statistics off)" if norms else ""
        alone = (
            f"; the first gradient is the single process's to {steps[0]['error']:.1e}"
            if steps[0].get("error") is not None
            else ""
        )
        yield passed(
            f"parameters and buffers of {outcome.ranks} ranks are bit-equal after "
            f"{len(steps[0]['steps'])} steps{alone}{note}"
        )


def exact_of(outcome: Outcome) -> float:
    """Return the largest relative difference that is none."""
    return (EXACT if is_double(outcome) else PLAIN) * (GPU if outcome.device == "cuda" else 1)


def is_double(outcome: Outcome) -> bool:
    """Say whether the ranks computed in float64."""
    local = outcome.stages.get("local")
    return bool(local and local[0]["double"])

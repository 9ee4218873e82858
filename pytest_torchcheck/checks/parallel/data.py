"""Data and checkpoints among ranks: each sample once per epoch, and files that one process can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...codes import ranks as explain
from ...findings import Culprit, Finding
from ...ranks.checkpoint import PREFIXES
from ...ranks.evidence import evidence
from ...verdicts import inconclusive, passed, violated
from .replicas import unusable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ...subject import Subject


def rank_data(subject: Subject) -> Iterator[Finding]:
    """Run the promised loop on every rank with the wrapped model, and record what its loaders deliver.

    Only loaders during whose epochs an optimizer steps count. Batches whose sizes differ between
    ranks are a mistake only where the training step, given such shards, does not make the mean over
    all samples of them.
    """
    made = evidence(subject)
    if (reason := unusable(made, ("epochs",))) is not None:
        yield reason
        return
    outcome = made.outcome
    assert outcome is not None
    if explain.is_stuck(outcome):
        yield explain.hung(subject, outcome)
        return
    passes = [explain.training(each["passes"]) for each in outcome.stages["epochs"]]
    if not all(passes):
        yield inconclusive(
            "on some rank no optimizer stepped while a torch DataLoader delivered batches: there "
            "is nothing to compare",
            code="no-epoch",
        )
        return
    findings = list(explain.shared(subject, outcome))
    yield from findings
    if findings:
        return
    if len(passes[0]) < 2:
        yield inconclusive(
            "the loop runs one epoch only: whether the next one has another order cannot be "
            "determined",
            code="one-epoch",
        )
        return
    sizes = sum(passes[0][0].sizes)
    yield passed(
        f"{outcome.ranks} ranks split {len(passes[0])} epochs, {sizes} samples for rank 0 in each; "
        + (
            f"{passes[0][0].sampler} changes its order"
            if passes[0][0].is_shuffled
            else "in a fixed order"
        )
    )


def rank_checkpoint(subject: Subject) -> Iterator[Finding]:
    """Save with the wrapped model on every rank; load into a plain model that started from another seed.

    Every parameter and buffer must come back, on every rank, and tied ones must stay tied.
    """
    made = evidence(subject)
    if (reason := unusable(made, ("checkpoint",))) is not None:
        yield reason
        return
    outcome = made.outcome
    assert outcome is not None
    found = outcome.stages.get("checkpoint")
    if found is None:
        yield explain.broken(subject, outcome)
        return
    stopped = explain.stopped_at(outcome) == "checkpoint"
    if stopped and not (outcome.failures and _prefixed(found[0]["keys"])):
        yield explain.broken(subject, outcome)
        return
    if stopped:
        yield _prefix(subject, found, explain.message_of(outcome))
        return
    lost = sorted({name for each in found for name in _lost(each)})
    ignored = [each for each in found if each["loaded"] == each["before"]]
    if lost and _prefixed(found[0]["keys"]):
        yield _prefix(
            subject,
            found,
            f"load does not raise; {len(lost)} of {len(found[0]['saved'])} tensors keep old values",
        )
    elif lost:
        yield violated(
            "checkpoint-lost",
            f"{explain.listed(lost)} {'does' if len(lost) == 1 else 'do'} not come back from a checkpoint of the ranks",
            culprits=explain.culprits(subject, lost, "tensor", "different after loading"),
            location=explain.line(_function(subject, "load"), r"load_state_dict", r"load\("),
            observed=f"{len(lost)} of {len(found[0]['saved'])} tensors differ after loading"
            + (f"; {len(ignored)} ranks loaded nothing at all" if ignored else ""),
            cause="load leaves them as they are" if ignored else "save or load leaves them out",
            because="saved and loaded tensors were compared by digest on every rank",
            fix="save and load model.module.state_dict() on every rank, with strict=True",
        )
    split = [each for each in found if set(each["ties"]) - set(each["tied"])]
    if split and not lost:
        yield explain.tie_split(
            subject,
            [split[0]["ties"], split[0]["tied"]],
            "one tensor before loading, two after it",
            "loading replaces the tied tensors by separate ones",
            explain.line(
                _function(subject, "load"), r"assign\s*=\s*True", r"load_state_dict", r"load\("
            ),
            fix="load without assign=True, or tie them again afterwards",
        )
    elif not lost:
        yield passed(
            f"{len(found[0]['saved'])} tensors of {outcome.ranks} ranks are bit-equal in a "
            "plain model"
        )


def _function(subject: Subject, which: str) -> Any:
    return next((getattr(p, which) for p in subject.contract.promised("Checkpoints")), None)


def _lost(found: dict[str, Any]) -> list[str]:
    return [name for name, digest in found["saved"].items() if found["loaded"].get(name) != digest]


def _prefixed(keys: list[str]) -> list[str]:
    return [key for key in keys if key.startswith(PREFIXES)]


def _prefix(subject: Subject, found: list[dict[str, Any]], what: str) -> Finding:
    keys = _prefixed(found[0]["keys"])
    prefix = next(p for p in PREFIXES if keys[0].startswith(p))
    place = explain.line(_function(subject, "save"), r"state_dict\(\)", r"save\(")
    return violated(
        "state-dict-prefix",
        f"the checkpoint of the ranks names its tensors {prefix}*, which the plain model does not "
        "have",
        culprits=[Culprit("tensor", key, location=place) for key in keys[:8]],
        location=place or sources.of_object(_function(subject, "save")),
        observed=f"{len(keys)} of {len(found[0]['keys'])} names in the file start with {prefix}; {what}",
        cause="the state_dict of the wrapper was saved, not the model's",
        because="the names in the file were read; the plain model's are not among them",
        fix="save model.module.state_dict() (or strip the prefix when loading)",
    )

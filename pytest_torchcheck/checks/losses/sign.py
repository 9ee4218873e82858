"""The loss falls as outputs move towards their targets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...codes import loss as explain
from ...probes.loss.coupling import pulled_off, weighed
from ...probes.loss.directions import turned
from ...probes.loss.slopes import repelled
from ...runs.losses.bootstrapped import bootstrapped
from ...runs.losses.consumption import evidence
from ...runs.losses.in_steps import step_evidence
from ...runs.losses.levels import levels_of
from ...runs.losses.parted import parted
from ...verdicts import inconclusive, not_applicable, passed
from .targets import loss_of_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...runs.losses.consumption import Consumed, LossEvidence
    from ...runs.losses.parted import Parted
    from ...subject import Subject


def loss_sign(subject: Subject) -> Iterator[Finding]:
    """Look at the slope of the loss towards the true class or the target value, and on both sides of each target.

    A loss that is highest at every target of one sign, and lowest at those of the other, scales the error by
    the target itself. Entries of an output that are pulled to one minus the levels which the loss holds are
    quantiles of the other side. An output that is fitted to a target must not be pulled off it by the term of labels.
    A target that adds outputs to a declared number, up to a declared end, should not be trained itself.
    Where labels only say which samples are alike, outputs that they tell apart must be no worse than outputs in one
    point.
    """
    seen = evidence(subject)
    classes = [used for used in seen.consumed if not math.isnan(used.rising)]
    own = loss_of_output(subject) if subject.contract.loss is not None else ""
    pulled = None if isinstance(own, str) else pulled_off(own)
    wrong = [used for used in classes if used.rising > 0.95 and used.counted >= 2]
    if wrong:
        yield explain.wrong_sign(
            subject,
            f"raising the true class's logit raises the loss for {wrong[0].rising:.0%} of "
            f"{wrong[0].counted} targets",
            wrong[0].place,
            opposed=len(wrong) < len(classes),
            weighed=None
            if len(wrong) < len(classes) or isinstance(own, str)
            else weighed(own, wrong[0].shape),
        )
        if pulled is not None:
            yield explain.pulled_off(subject, pulled)
        return
    # outputs that one target pulls apart are compared with each other, not with the target; where a loss of
    # torch's pulls what it is given towards the target, the output may be a distance, which falls as a score rises
    away = seen.away if all(share > 0.95 for share in seen.away.values()) else {}
    if away and not classes and not _pulls_towards(subject):
        path, share = next(iter(away.items()))
        yield explain.wrong_sign(
            subject,
            f"moving {path} towards its target raises the loss in {share:.0%} of the samples",
            None,
        )
        return
    if (turn := turned(seen.directions)) is not None:
        yield explain.turned(subject, turn)
        return
    if not isinstance(own, str) and (found := repelled(own)) is not None:
        yield explain.repels(subject, own, found)
        return
    if pulled is not None:
        yield explain.pulled_off(subject, pulled)
        return
    if not isinstance(own, str) and (trained := bootstrapped(subject, own)) is not None:
        yield explain.bootstrapped(trained)
        return
    if not isinstance(own, str) and (levels := levels_of(own, subject.contract.loss)):
        words = f"the loss pulls the entries of {levels.path} to the quantiles that it holds"
        yield explain.turned_levels(levels) if levels.turned else passed(words)
        return
    relation = None if isinstance(own, str) or classes else parted(own)
    yield _agreed(subject, seen, classes) if relation is None else _grouped(subject, relation)


def _grouped(subject: Subject, found: Parted) -> Finding:
    """Judge a loss for which labels only say which samples are alike."""
    words = f"samples are grouped by {found.target} than where all are in one place"
    return (
        explain.unlike_joined(subject, found)
        if found.joins
        else passed(f"the loss is lower where {words}")
    )


def _agreed(subject: Subject, seen: LossEvidence, classes: list[Consumed]) -> Finding:
    """Say what was seen of a loss of which nothing is wrong; ``classes`` are the calls with classes of a target."""
    towards = [one for one in seen.directions if one.way == "towards"]
    if towards:
        known = any(one.moved == 0 for one in towards)
        return passed(
            "the loss falls as outputs move towards the labels"
            if known
            else f"the loss falls as outputs move towards what {towards[0].function} compares them with"
        )
    if classes:
        weight = sum(used.counted for used in classes) or 1
        share = sum((1 - used.rising) * used.counted for used in classes) / weight
        return passed(
            f"the loss falls as the logits of the classes that {classes[0].function} is given rise "
            f"({share:.0%} of those with a gradient)"
        )
    if seen.away:
        path, share = max(seen.away.items(), key=lambda item: item[1])
        return passed(
            f"moving {path} towards its target lowers the loss in {1 - share:.0%} of the samples"
        )
    if not subject.contract.declares("targets"):
        return not_applicable("there are no targets, and no detached output can serve as target")
    return inconclusive(
        "no output could be matched with its target, so the sign could not be determined"
    )


def _pulls_towards(subject: Subject) -> bool:
    """Say whether a loss function of torch's pulls what it is given towards labels of the batch, in a step."""
    seen = step_evidence(subject)
    return seen is not None and any(one.way == "towards" for one in seen.directions)

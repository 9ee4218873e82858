"""One root cause, once: findings that follow from one fact point to it.

A finding is folded only where a line of :data:`RULES` says that its failure can follow from the other
one, and where what the two name fits (the same parameters, tensor or line). Two findings that no
rule links stay apart, also when they name the same line: a parameter can be both unused and
uninitialised. Rules lead from the more fundamental fact to what it entails, never back.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..findings import Finding

Link = Literal["model", "raises", "within", "overlap", "line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which findings can follow from which.

    Attributes:
        causes: Patterns of ``check/code`` of the fact.
        follows: Patterns of ``check/code`` of what it entails.
        link: What must fit besides. ``model``: nothing, the fact concerns the whole model (but an
            exception is a fact of its own); ``raises``: the follower is an exception; ``within``: everything that the follower names lies within what the cause names; ``overlap``: they
            share a name; ``line``: they point to the same line.
        why: The entailment in words.
    """

    causes: tuple[str, ...]
    follows: tuple[str, ...]
    link: Link
    why: str


def _rule(causes: str, follows: str, link: Link, why: str) -> Rule:
    return Rule(causes=tuple(causes.split()), follows=tuple(follows.split()), link=link, why=why)


STUCK = "overfit/overfit-stuck overfit/step-learns-nothing"
"""Ways of not learning a batch that say nothing of their reason; ``overfit-blind`` and
``optimizer-diverges`` are measured causes of their own."""

COMPARED = (
    "batch-independence/* batch-sizes/batch-size-dependent eval-purity/eval-not-repeatable causality/* "
    "padding-invariance/* permutation-invariance/* permutation-equivariance/* state-dict-roundtrip/state-lost "
    "copy-and-pickle/copy-differs copy-and-pickle/pickle-differs layout-invariance/layout-differs"
)
"""Findings of checks that compare two evaluations of the model."""

RULES: tuple[Rule, ...] = (
    # what is wrong with the data or the loss shows in everything that trains on it
    _rule("*/label-range */label-one-based */label-dtype */label-classes */label-negative */label-shape */label-shifted",
          f"label-range/* loss-at-start/* {STUCK}", "model", "labels that mean something else cannot be learnt"),
    _rule("dataset-pickling/*", "worker-delivery/* worker-sharding/* random-augmentation/* loader-order/*", "raises",
          "what cannot be pickled never reaches a worker"),
    _rule("dataset-pickling/*", "worker-delivery/worker-cannot-unpickle worker-delivery/worker-dies", "model",
          "a worker cannot start without its dataset"),
    _rule("samples-unchanged/dataset-mutated", "random-augmentation/* loader-order/order-not-repeatable", "model",
          "a sample that is changed by reading differs at the next reading"),
    _rule("samples-valid/*", "worker-delivery/* last-batch/*", "raises", "samples that are unlike make no batch"),
    _rule("loss-shapes/loss-broadcast", f"loss-at-start/* loss-sign/* {STUCK}", "model",
          "a loss over all pairs of samples is another loss"),
    _rule("loss-arguments/target-mutated",
          f"target-alignment/* loss-sign/* loss-at-start/* seeding/* resume/* repeatable-steps/* accumulation/* {STUCK}",
          "model", "a loss that changes its targets is another loss at its next call"),
    _rule("target-alignment/target-misplaced", "target-ownership/samples-share-targets", "model",
          "positions that are mixed across samples meet other samples too"),
    _rule("target-ownership/target-of-another-sample target-ownership/target-unread", "target-alignment/*", "model",
          "what meets another sample stands at another position as well"),
    _rule("loss-input/*", f"loss-at-start/* {STUCK}", "model", "a squashed input bounds the loss from below"),
    _rule("loss-input/loss-arguments-swapped", f"*/probability-range loss-sign/* gradients-finite/* label-range/* {STUCK}", "model",
          "a loss whose arguments are swapped is another loss"),
    _rule("loss-input/loss-arguments-swapped", "*/probability-range */non-finite-forward", "raises",
          "a step along a gradient to the targets is not finite"),
    _rule("loss-sign/*", STUCK, "model", "a loss that rewards the wrong thing is not learnt"),
    _rule("loss-sound/loss-recreated loss-sound/loss-disconnected",
          f"gradients-exist/* weights-update/* input-influence/* dead-modules/* sampling-paths/* {STUCK}",
          "model", "a loss without a graph gives no gradient to anything"),
    _rule("loss-sound/loss-recreated loss-sound/loss-disconnected", "*/no-graph */loss-not-tensor", "raises",
          "backward of a loss without a graph fails"),
    _rule("loss-sound/loss-not-scalar", "*/loss-not-scalar", "raises", "backward needs a scalar"),
    # what is not finite in the forward is not finite afterwards
    _rule("*/non-finite-forward initialisation/parameter-non-finite initialisation/never-written",
          f"gradients-finite/* output-spec/output-range loss-sound/* loss-at-start/* degenerate-inputs/* signal-propagation/* {STUCK}",
          "model", "NaN and infinities spread"),
    _rule("*/non-finite-forward initialisation/parameter-non-finite initialisation/never-written",
          "gradients-exist/grad-zero input-influence/* dead-modules/* weights-update/* state-dict-roundtrip/state-lost", "model",
          "gradients behind NaN are zero or NaN, and outputs that are NaN compare as equal"),
    _rule("gradients-finite/*", STUCK, "model", "a step along NaN destroys the weights"),
    # randomness where none may be
    _rule("eval-determinism/* mode-flags/mode-stuck", f"{COMPARED} seeding/*", "model",
          "two evaluations differ for their random numbers alone"),
    _rule("mode-flags/mode-stuck", "eval-determinism/*", "model", "a module that stays in training mode is random in evaluation"),
    _rule("inputs-unchanged/*", "*/inplace-leaf */inplace-saved", "overlap", "an input that is changed in place cannot get a gradient"),
    _rule("rng-hygiene/*", "eval-determinism/* seeding/*", "model", "a reseeding forward decides all later draws"),
    _rule("seeding/reseeds", "evaluation-leaves-trace/step-reseeds", "model", "a forward that seeds a generator is a step that does"),
    _rule("eval-purity/eval-writes", "eval-determinism/*", "model", "a forward that changes the model changes the next one"),
    # what the model does not know of
    _rule("registration/*",
          "optimizer-coverage/* gradients-exist/* weights-update/* dead-modules/* unregistered-tensors/* device-portability/* "
          "dtype-conversion/* state-dict-roundtrip/* tied-weights/* mode-flags/* eval-determinism/*",
          "overlap", "what is not registered is not moved, saved, switched or trained"),
    _rule("registration/module-hidden", STUCK, "model", "hidden layers do not train"),
    _rule("unregistered-tensors/*", "device-portability/* dtype-conversion/* state-dict-roundtrip/*", "overlap",
          "a tensor that is no buffer is not moved, converted or saved"),
    _rule("device-portability/*", "dtype-conversion/*", "line", "a tensor made without device= and dtype= keeps both defaults"),
    # gradients that do not arrive
    _rule("gradients-exist/* sampling-paths/*", "gradients-exist/* weights-update/* dead-modules/* checkpointing/*", "within",
          "without a gradient a parameter does not move"),
    _rule("gradients-exist/* sampling-paths/*", "gradients-exist/* input-influence/*", "line",
          "what stands before a cut gets no gradient: parameters and inputs alike"),
    _rule("gradients-exist/grad-zero", "dead-units/*", "line", "a unit that gives zero hands no gradient on"),
    _rule("input-influence/*", STUCK, "model", "what the model does not see it cannot learn from"),
    _rule("gradients-exist/*", "device-portability/numpy-on-device device-portability/cpu-tensor device-portability/host-sync", "line",
          "what leaves torch for NumPy or Python loses both its graph and its device"),
    _rule("gradients-exist/nothing-trainable", "*/no-graph */optimizer-parameters", "raises",
          "a loss that nothing trainable leads to has no graph"),
    _rule("gradients-exist/* sampling-paths/*", STUCK, "model", "a part of the model gets no gradient"),
    _rule("dead-modules/*", "gradients-exist/* weights-update/*", "within", "a module that takes no part has no gradient"),
    _rule("signal-propagation/*", "gradients-exist/grad-zero", "overlap", "a vanished signal leaves no gradient"),
    _rule("gradcheck/*", "double-backward/* gradcheck-module/* custom-ops/*", "overlap", "a wrong first derivative makes wrong second ones"),
    # steps that do not train
    _rule("optimizer-coverage/*", "weights-update/*", "within", "what the optimizer does not hold does not move"),
    _rule("mode-flags/requires-grad-of-module", "frozen-stays/frozen-moved gradients-exist/grad-off", "within",
          "a flag on a module leaves its parameters as they were"),
    _rule("optimizer-coverage/* weights-update/*", STUCK, "model", "a part of the model does not move"),
    _rule("optimizer-coverage/* weights-update/* step-protocol/* scheduler-order/* gradients-exist/*",
          "overfit/optimizer-crawls", "model", "what does not move its weights does not move its loss"),
    _rule("step-protocol/*", f"weights-update/* accumulation/* {STUCK}", "model", "a wrong order of calls undoes the step"),
    _rule("step-protocol/zero-grad-missing", "overfit/optimizer-diverges", "model", "gradients that add up grow the step"),
    _rule("signal-propagation/* initialisation/* dead-units/*", f"{STUCK} overfit/optimizer-crawls", "model",
          "a start from which training does not get away"),
    _rule("signal-propagation/signal-explodes", "loss-at-start/*", "model", "logits behind an exploding signal are huge"),
    _rule("backward/second-backward", "graph-kept/graph-carried repeatable-steps/*", "model", "one carried graph fails every second step"),
    _rule("graph-kept/graph-retained", "*/inplace-saved */second-backward", "raises",
          "a graph that is carried on and kept ends in weights that have changed since"),
    _rule("*/second-backward graph-kept/*", "weights-update/*", "model", "a step that fails is the last one that was looked at"),
    _rule("evaluation-leaves-trace/* step-protocol/* mode-flags/mode-stuck seeding/*", "resume/*", "model",
          "a run that depends on its past cannot be resumed"),
    _rule("*/second-backward", "graph-kept/graph-carried repeatable-steps/*", "line", "the graph that is carried over is what backward runs into"),
    _rule("graph-kept/* repeatable-steps/*", "step-leak/*", "model", "a graph that is kept keeps its tensors"),
    _rule("*/state-dict-keys", "state-dict-roundtrip/state-grows", "overlap", "a key that a forward adds does not fit a model as built"),
    _rule("step-leak/*", "inference-memory/*", "overlap", "what piles up in training piles up in evaluation"),
    # behaviour
    _rule("batch-independence/*", "batch-sizes/batch-size-dependent accumulation/* ddp-equivalence/*", "model",
          "a sample that depends on its neighbours changes with the batch"),
    _rule("padding-invariance/*", "padding-loss/* ignored-targets/*", "line", "the same mask is missing"),
)  # fmt: skip


def names_of(finding: Finding) -> frozenset[str]:
    """Return the parameters, buffers, modules and tensors that a finding names, those of its evidence included."""
    kinds = ("parameter", "buffer", "module", "tensor", "output", "input", "function")
    names = {culprit.name for culprit in finding.culprits if culprit.kind in kinds}
    evidence: Mapping[str, object] = finding.evidence
    for key in ("parameters", "buffers", "modules"):
        listed = evidence.get(key)
        if isinstance(listed, list | tuple):
            names.update(str(name) for name in listed)
    return frozenset(names)


def raised(finding: Finding) -> bool:
    """Say whether a finding tells of an exception of the user's code."""
    return "traceback" in finding.evidence


def _covers(name: str, other: str) -> bool:
    """Say whether ``other`` is ``name`` or lies below it: ``encoder`` covers ``encoder.proj.weight``."""
    return other == name or other.startswith((f"{name}.", f"{name}["))


def _line(finding: Finding) -> tuple[str, int] | None:
    return None if finding.location is None else (finding.location.file, finding.location.line)


def _fits(link: Link, cause: Finding, follower: Finding) -> bool:
    if link in ("model", "raises"):
        return raised(follower) == (link == "raises")
    if link == "line":
        return _line(cause) is not None and _line(cause) == _line(follower)
    ours, theirs = names_of(cause), names_of(follower)
    if link == "within":
        # what is named beside parameters (the module that cuts, the loss) is part of the explanation
        wanted = _parameters(follower) or theirs
        return bool(wanted) and all(any(_covers(own, name) for own in ours) for name in wanted)
    mine, its = _functions(cause), _functions(follower)
    if mine and its:  # that two Functions both call an input x links nothing
        return not mine.isdisjoint(its)
    return any(_covers(a, b) or _covers(b, a) for a in ours for b in theirs)


def _functions(finding: Finding) -> frozenset[str]:
    return frozenset(culprit.name for culprit in finding.culprits if culprit.kind == "function")


def _parameters(finding: Finding) -> frozenset[str]:
    named = {culprit.name for culprit in finding.culprits if culprit.kind == "parameter"}
    listed = finding.evidence.get("parameters")
    if isinstance(listed, list | tuple):
        named.update(str(name) for name in listed)
    return frozenset(named)


def _matches(patterns: tuple[str, ...], finding: Finding) -> bool:
    key = finding.key
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _one_run(a: Finding, b: Finding) -> bool:
    """Say whether one run of one check reported both: then as two facts, or it would have reported one."""
    return a.check == b.check and (a.device, a.dtype) == (b.device, b.dtype)


def _same_fact(a: Finding, b: Finding) -> bool:
    """Say whether two findings tell of one fact: the same symptom of the same things on the same line."""
    if a.code != b.code or _line(a) != _line(b):
        return False
    if _one_run(a, b):
        return False
    ours, theirs = {c.name for c in a.culprits}, {c.name for c in b.culprits}
    return ours == theirs if a.check == b.check else bool(ours & theirs)


def _entails(cause: Finding, follower: Finding) -> bool:
    if _one_run(cause, follower):
        return False
    return any(
        _matches(rule.causes, cause)
        and _matches(rule.follows, follower)
        and _fits(rule.link, cause, follower)
        for rule in RULES
    )


def fold(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings; those that follow from another one get its ``check/code`` as ``root``.

    Only ``violated`` findings are causes. ``violated`` and ``suspicious`` ones are folded; a root that
    a check has given stays if that cause was found, and findings of different contracts are never
    linked. A root has no root of its own, so that every folded finding leads to a cause in one step.

    Args:
        findings: In the order in which the checks ran.
    """
    known = {(f.contract, f.key) for f in findings if f.status == "violated"}
    # a failure whose cause was not found (it was not asked for, or is skipped) is told as its own
    found = [
        f.replace(root=None)
        if f.status in ("violated", "suspicious") and (f.contract, f.root) not in known
        else f
        for f in findings
    ]
    causes = [place for place, f in enumerate(found) if f.status == "violated" and f.root is None]
    follows: dict[int, int] = {}
    for place, finding in enumerate(found):
        if finding.status not in ("violated", "suspicious") or finding.root is not None:
            continue
        for other in causes:
            cause = found[other]
            if other == place or cause.contract != finding.contract:
                continue
            if _leads_to(other, place, follows):
                continue  # two rules that lead in a circle: the first one stands
            if (other < place and _same_fact(cause, finding)) or (
                not _same_fact(cause, finding) and _entails(cause, finding)
            ):
                follows[place] = other
                break
    return tuple(
        f if place not in follows else f.replace(root=found[_end(place, follows)].key)
        for place, f in enumerate(found)
    )


def _end(place: int, follows: Mapping[int, int]) -> int:
    while place in follows:
        place = follows[place]
    return place


def _leads_to(start: int, goal: int, follows: Mapping[int, int]) -> bool:
    """Say whether following the causes of ``start`` ends up at ``goal``."""
    while start in follows:
        start = follows[start]
        if start == goal:
            return True
    return False

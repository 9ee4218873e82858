"""One root cause, once: findings that follow from one fact point to it.

A finding is folded only where a line of :data:`RULES` says that its failure can follow from the other
one, and where what the two name fits (the same parameters, tensor or line). Two findings that no
rule links stay apart, also when they name the same line: a parameter can be both unused and
uninitialised. Rules lead from the more fundamental fact to what it entails, never back.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from . import (
    behaviour,
    data,
    devices,
    functions,
    gradients,
    initialisation,
    labels,
    loss,
    memory,
    state,
    training,
    updates,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..findings import Finding
    from .rule import Link, Rule

RULES: tuple[Rule, ...] = tuple(
    rule
    for family in (
        behaviour,
        data,
        devices,
        functions,
        gradients,
        initialisation,
        labels,
        loss,
        memory,
        state,
        training,
        updates,
    )
    for rule in family.ENTAILS
)


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

    What is ``violated`` follows from what is ``violated`` only; what is ``suspicious`` also from what is
    ``suspicious``. A root that a check has given stays if that cause was found, and findings of different contracts are never
    linked. A root has no root of its own, so that every folded finding leads to a cause in one step.

    Args:
        findings: In the order in which the checks ran.
    """
    if not any(f.status in ("violated", "suspicious") for f in findings):
        return tuple(findings)
    known = {(f.contract, f.key) for f in findings if f.status in ("violated", "suspicious")}
    # a failure whose cause was not found (it was not asked for, or is skipped) is told as its own
    found = [
        f.replace(root=None)
        if f.status in ("violated", "suspicious") and (f.contract, f.root) not in known
        else f
        for f in findings
    ]
    causes = [
        place
        for status in ("violated", "suspicious")
        for place, f in enumerate(found)
        if f.status == status and f.root is None
    ]
    follows: dict[int, int] = {}
    for place, finding in enumerate(found):
        if finding.status not in ("violated", "suspicious") or finding.root is not None:
            continue
        for other in causes:
            cause = found[other]
            if other == place or cause.contract != finding.contract:
                continue
            if finding.status == "violated" != cause.status:
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

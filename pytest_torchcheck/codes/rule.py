"""Which findings can follow from which."""

from __future__ import annotations

from typing import Literal

from ..lean import dataclass

Link = Literal["model", "raises", "within", "overlap", "line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which findings can follow from which.

    Attributes:
        causes: Patterns of ``check/code`` of the fact.
        follows: Patterns of ``check/code`` of what it entails.
        link: What must fit besides. ``model``: nothing, the fact concerns the whole model (but an
            exception is a fact of its own); ``raises``: the follower is an exception; ``within``:
            everything that the follower names lies within what the cause names; ``overlap``: they
            share a name; ``line``: they point to the same line.
        why: The entailment in words.
    """

    causes: tuple[str, ...]
    follows: tuple[str, ...]
    link: Link
    why: str


def rule(causes: str, follows: str, link: Link, why: str) -> Rule:
    """Return a rule; patterns are separated by spaces."""
    return Rule(causes=tuple(causes.split()), follows=tuple(follows.split()), link=link, why=why)


STUCK = "overfit/overfit-stuck overfit/step-learns-nothing"
"""Codes for failing to learn a batch that do not state a reason; ``overfit-blind`` and
``optimizer-diverges`` are measured causes of their own."""

COMPARED = (
    "batch-independence/* batch-sizes/batch-size-dependent eval-purity/eval-not-repeatable causality/* "
    "padding-invariance/* permutation-invariance/* permutation-equivariance/* state-dict-roundtrip/state-lost "
    "copy-and-pickle/copy-differs copy-and-pickle/pickle-differs layout-invariance/layout-differs"
)
"""Findings of checks that compare two evaluations of the model."""

"""A model beside another version of it: with the same weights both give the same."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import promises
from ..codes import behaviour as explain
from ..probes.recorded.bisection import apart, first_parting, module_calls, paired
from ..probes.recorded.divergence import record
from ..probes.recorded.operations import narrow
from ..state import isolated, seed_everything
from ..subject.errors import SubjectError
from ..verdicts import inconclusive, passed
from .batching import EXACT, ROUNDING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..findings import Finding
    from ..probes.recorded.bisection import ModuleCall
    from ..subject import Subject


def reference_match(subject: Subject) -> Iterator[Finding]:
    """Load the model's weights into the reference, run both in eval mode and compare, submodule by submodule.

    The submodule that is named was given the same in both versions and gave something else, while
    all that it calls itself agrees. Submodules are matched by their names.
    """
    for promise in subject.contract.promised("Matches"):
        assert isinstance(promise, promises.Matches)
        yield _compare(subject, promise)


def _compare(subject: Subject, promise: promises.Matches) -> Finding:
    with isolated():
        seed_everything(subject.seed)
        other = promise.reference
        other = copy.deepcopy(other) if isinstance(other, nn.Module) else other()
    if not isinstance(other, nn.Module):
        return inconclusive(
            f"the reference is not a module: its factory returned {type(other).__name__}",
            code="no-reference",
        )
    state = {name: value.detach().clone() for name, value in subject.model.state_dict().items()}
    state = state if promise.rename is None else promise.rename(state)
    unlike = explain.unlike(subject, state, dict(other.state_dict()))
    if unlike is not None:
        return unlike
    subject.convert(other)
    other.load_state_dict(state)
    try:
        with subject.in_double() as model:
            subject.convert(other, torch.float64)
            ours, theirs = (_calls(subject, one, torch.float64) for one in (model, other))
            allowed = EXACT
    except SubjectError:
        subject.convert(other, next(iter(subject.model.parameters()), torch.zeros(1)).dtype)
        other.load_state_dict(state)
        with subject.pristine() as model:
            ours, theirs = (_calls(subject, one, None) for one in (model, other))
            allowed = ROUNDING
    gap = apart(ours[-1].gave, theirs[-1].gave)
    if allowed == EXACT < gap <= ROUNDING and _rounds(subject, other):
        allowed = ROUNDING
    if gap <= allowed:
        return passed(
            f"{len(ours[-1].gave)} outputs equal those of {type(other).__name__} with the same "
            "weights"
        )
    pairs = paired(ours, theirs)
    return explain.differs(subject, other, pairs, first_parting(pairs, allowed), allowed)


def _rounds(subject: Subject, other: nn.Module) -> bool:
    """Say whether one of two versions in float64 computes in a narrower dtype in between, and rounds to that."""
    batch = subject.batch()
    if explain.computes_narrow(subject, batch):
        return True
    wide = batch.to(dtype=torch.float64).clone()
    with torch.no_grad():
        return narrow(record(lambda: subject.call(other, wide), other))


def _calls(subject: Subject, model: nn.Module, dtype: torch.dtype | None) -> tuple[ModuleCall, ...]:
    batch = subject.batch()
    batch = (batch if dtype is None else batch.to(dtype=dtype)).clone()

    def run() -> Any:
        seed_everything(subject.seed)
        return subject.call(model, batch)

    model.eval()
    with torch.no_grad():
        return module_calls(run, model)

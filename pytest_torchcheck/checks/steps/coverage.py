"""The optimizer holds every trainable parameter exactly once."""

from __future__ import annotations

import dis
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from ...codes import updates as explain
from ...loop.closures import functions_of
from ...loop.recorder import trace_of
from ...runs.training.observation import observe
from ...runs.training.stale_copies import kept_copies
from ...runs.training.steps import trajectory
from ...verdicts import inconclusive, passed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...findings import Finding
    from ...subject import Subject


def optimizer_coverage(subject: Subject) -> Iterator[Finding]:
    """Compare the identities of the optimizer's parameters with the model's."""
    made = trajectory(subject)
    coverage = made.coverage
    if not coverage.optimizers:
        yield inconclusive(
            "the optimizer function returned no torch.optim.Optimizer", code="no-optimizer"
        )
        return
    missing = [
        name
        for name in coverage.missing
        if not subject.is_promised("Frozen", name)
        and not subject.is_promised("MayLackGradient", name)
        # an averaged or copied weight that the user's own step writes is trained by that step
        and not (subject.contract.train_step is not None and made.moved.get(name, 0.0) > 0.0)
    ]
    if missing and subject.contract.train_step is not None:
        # the step may hold optimizers of its own
        applied = {name for names in trace_of(subject).parameters.values() for name in names}
        missing = [name for name in missing if name not in applied | kept_copies(subject).keys()]
    several = len(coverage.optimizers) > 1
    if missing:
        yield explain.missing(subject, missing, coverage)
    yield from _of_loss(subject)
    twice = _applied_twice(subject, coverage.twice) if several else list(coverage.twice)
    hung = [] if twice or several else _applied_twice(subject, made.moved, hung=True)
    if twice or hung:
        yield explain.twice(subject, twice or hung, coverage, several=several or bool(hung))
        return
    if not missing and (kinds := _made_anew(subject)):
        yield explain.made_anew(subject, kinds)
        return
    asks = not missing and _asks_what_is_in(subject.contract.optimizer)
    if (whole := explain.compared_whole(subject) if asks else None) is not None:
        yield whole
    elif not missing:
        total = sum(p.requires_grad for p in subject.model.parameters())
        more = f"; {len(coverage.foreign)} tensors are not the model's" if coverage.foreign else ""
        if coverage.twice:
            more += (
                f"; several hold {len(coverage.twice)} of them, each for backward passes of its own"
            )
        yield passed(
            f"{', '.join(coverage.optimizers)} hold {total} of {total} trainable parameters{more}"
        )


def _of_loss(subject: Subject) -> Iterator[Finding]:
    """Report parameters of a loss that is a module, where none of the declared optimizers holds them."""
    loss = subject.contract.loss
    if not isinstance(loss, torch.nn.Module) or subject.contract.optimizer is None:
        return
    if any(p.requires_grad for p in loss.parameters()):
        left = [f for f in observe(subject).foreign if f.name and not (f.in_output or f.held)]
        yield from [explain.weights_of_loss(subject, left)] if left else []


def _made_anew(subject: Subject) -> list[str]:
    """Return the classes of the optimizers that step, where each call has its own, and the declared one never steps."""
    if subject.contract.train_step is None or subject.contract.optimizer is None:
        return []
    trace = trace_of(subject)
    calls = [{e.owner for e in trace.optimizer_steps(step=n)} for n in range(trace.steps)]
    stepped = set().union(*calls) if calls else set()
    idle = [key for key, names in trace.parameters.items() if names and key not in stepped]
    if len(calls) < _CALLS or not all(calls) or len(stepped) != sum(map(len, calls)) or not idle:
        return []
    return sorted({trace.classes.get(key, "") for key in stepped})


def _asks_what_is_in(optimizer: Any) -> bool:
    """Say whether an optimizer function, or one inside it, asks whether anything is ``in`` anything."""
    codes: list[CodeType] = [function.__code__ for function in functions_of(optimizer)]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return any(
        step.opname == "CONTAINS_OP" for code in codes for step in dis.get_instructions(code)
    )


def _applied_twice(subject: Subject, names: Iterable[str], *, hung: bool = False) -> list[str]:
    """Return the parameters to which two optimizers apply the gradient of one backward pass.

    Two losses that train what they share, each by its own optimizer, apply each pass once.

    Where ``hung``, optimizers that the optimizer function does not return count too, but for one of the user's
    that lets another one step.
    """
    shared = set(names)
    if not shared or subject.contract.train_step is None:
        return [] if hung else sorted(shared)
    applied: dict[tuple[int, str], set[int]] = {}
    trace = trace_of(subject)
    for step in trace.optimizer_steps():
        if hung and not hasattr(torch.optim, trace.classes.get(step.owner, "")):
            continue
        for place in step.fresh:
            for name in step.sources.get(place, frozenset()) & shared:
                applied.setdefault((place, name), set()).add(step.owner)
    return sorted({name for (_, name), owners in applied.items() if len(owners) > 1})


_CALLS = 2
"""So many calls of a step show that each makes an optimizer of its own."""

"""The custom functions and operators of a model: declared ones and those that runs have called."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import sources
from ..late import Late
from ..lean import dataclass
from ..runs.facts import forward_facts
from ..runs.training.observation import observe
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..subject.remembered import remembered
from .binding import function_behind
from .coverage import CoverageRow, row_for
from .defined import short_name
from .discovery import RecordedCall, recording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..findings import Finding
    from ..subject import Subject

definition_of = Late("functions.operators:definition_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One Function, operator or module to check, and how it came up.

    Attributes:
        name: Its name.
        kind: ``function``, ``operator`` or ``module``.
        thing: The class, the overload, the module or the callable.
        calls: What to call it with: recorded calls, or the declared inputs.
        row: Its line of the coverage table, without a verdict.
    """

    name: str
    kind: str
    thing: Any
    row: CoverageRow
    calls: tuple[RecordedCall, ...] = ()
    inputs: Any = None


@dataclass(slots=True)
class Evidence:
    """What the model's run applied, and what was found of it; kept while the contract runs."""

    found: list[Found] = field(default_factory=list)
    verdicts: dict[tuple[int, bool], list[Finding]] = field(default_factory=dict)
    error: SubjectError | None = None


@remembered("functions")
def evidence(subject: Subject) -> Evidence:
    """Take what one step in training and one forward in eval mode applied; cached."""
    known = Evidence()
    for name, (fn, inputs) in subject.contract.functions.items():
        known.found.append(_declared(name, fn, inputs))
    if subject.contract.model is None:
        return known
    calls: list[RecordedCall] = []
    for shared, run in (
        (_applied_in_training, lambda: _step(subject)),
        (_applied_in_eval, lambda: subject.forward()),
    ):
        if (applied := shared(subject)) is not None:
            calls += applied
            continue
        seen: list[RecordedCall] = []
        try:
            with recording() as seen:
                run()
        except SubjectError as error:  # another check reports it; what ran until then is known
            known.error = error
        calls += seen
    for thing, same in _grouped(calls).items():
        known.found.append(_recorded(thing, same))
    if known.found:
        known.error = None
    return known


def _applied_in_training(subject: Subject) -> tuple[RecordedCall, ...] | None:
    """Return what the step that is watched anyway applied, or None where it is not the user's, or raised."""
    if subject.contract.train_step is not None:
        return None
    try:
        return observe(subject).applied
    except SubjectError:
        return None


def _applied_in_eval(subject: Subject) -> tuple[RecordedCall, ...] | None:
    """Return what a forward in eval mode that is run anyway applied, or None where it cannot be repeated."""
    try:
        seen = forward_facts(subject)
    except SubjectError:
        return None
    return seen.applied if seen.repeats else None


def _step(subject: Subject) -> None:
    with subject.pristine(steps=True) as model, torch.enable_grad():
        model.train()
        if subject.contract.train_step is not None:
            subject.train_step(model, subject.make_optimizer(model), subject.batch().clone())
            return
        batch = subject.batch().clone()
        output = subject.call(model, batch)
        try:
            loss = subject.compute_loss(output, batch)
        except SubjectError:
            return  # another check reports the loss; the forward's Functions are known
        if loss.requires_grad:
            with subject.phase("backward", batch):
                loss.sum().backward()


def applied_when_trained(subject: Subject, found: Found, steps: int) -> Found | None:
    """Return a Function with the calls that a training step applies after some others; None where there are none."""
    seen: list[RecordedCall] = []
    with subject.pristine(steps=True) as model, torch.enable_grad():
        model.train()
        try:
            seed_everything(subject.seed)
            made = subject.make_optimizer(model)
            for step in range(steps):
                seed_everything(subject.seed + step)
                subject.train_step(model, made, subject.batch().clone())
            with recording() as seen:
                subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return None  # other checks explain it
    calls = tuple(call for call in seen if call.function is found.calls[0].function)
    return replace(found, calls=calls) if calls else None


def _grouped(calls: Sequence[RecordedCall]) -> dict[Any, list[RecordedCall]]:
    grouped: dict[Any, list[RecordedCall]] = {}
    for call in calls:
        grouped.setdefault(call.function, []).append(call)
    return grouped


def _declared(name: str, fn: Any, inputs: Any) -> Found:
    function = function_behind(fn)
    thing: Any = fn
    if isinstance(fn, nn.Module):
        kind, label = "module", type(fn).__name__
    elif isinstance(
        fn,
        torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._library.custom_ops.CustomOpDef,
    ):
        kind, label = "operator", name
    else:
        kind = "function"
        label = short_name(function) if function is not None else name
    owner = function or fn
    module = getattr(owner, "__module__", "") or ""
    row = row_for(label, kind, module, sources.of_object(owner))
    return Found(name=label, kind=kind, thing=thing, row=row, inputs=inputs)


def _recorded(thing: Any, calls: Sequence[RecordedCall]) -> Found:
    first = calls[0]
    if first.kind == "operator":
        definition = definition_of(thing)
        module = getattr(getattr(definition, "_init_fn", None), "__module__", "") or thing.namespace
    else:
        module = thing.__module__
    row = row_for(first.name, first.kind, module, first.defined or first.location)
    return Found(name=first.name, kind=first.kind, thing=thing, row=row, calls=tuple(calls))

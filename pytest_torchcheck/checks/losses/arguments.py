"""What a loss is given stays as it is, and is not one value twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...codes import loss as explain
from ...objects import trees
from ...runs.losses.consumption import evidence, loss_calls
from ...runs.losses.shapes import PAIRED
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, not_applicable, passed
from .targets import loss_of_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...probes.loss.consumption import LossCall
    from ...runs.losses.consumption import LossEvidence
    from ...subject import Subject

_SAME = 1e-5
"""Relative difference of two losses of the same values, with a wide margin for the order of a sum."""


def loss_arguments(subject: Subject) -> Iterator[Finding]:
    """Where the loss writes to an argument, call it twice with the same ones and compare."""
    if isinstance(subject.contract.loss, str):
        yield not_applicable("the model computes its own loss")
        return
    written = evidence(subject).written
    if not written:
        yield passed("the loss writes to none of its arguments")
        return
    first = _calls(subject, anew=False)
    if not first.changed:
        yield passed(f"{written[0]} is written to, but its values stay the same")
        return
    if _alike(first.values[0], first.values[1]):
        yield passed(
            f"{first.changed[0]} is changed in the first call only: a second call gives the "
            "same loss"
        )
        return
    control = _calls(subject, anew=True)
    if not _alike(control.values[0], control.values[1]):
        yield inconclusive(
            "a second call gives another loss with fresh arguments too", code="not-repeatable"
        )
        return
    yield explain.changed_arguments(subject, first.changed, first.sizes, first.values)


class _Calls:
    """Two calls of the loss."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.changed: tuple[str, ...] = ()
        self.sizes: tuple[float, ...] = ()  # of the first changed argument: before, after each call


def _calls(subject: Subject, *, anew: bool) -> _Calls:
    """Call the loss twice, on the same arguments or each time on new ones of the same values."""
    found = _Calls()
    batch = subject.batch().clone()
    output = subject.forward(batch, train=True)
    for call in range(2):
        if call and anew:
            batch = subject.batch().clone()
            output = subject.forward(batch, train=True)
        given = trees.tensors(batch.targets, "targets") | trees.tensors(output)
        before = {path: tensor.detach().clone() for path, tensor in given.items()}
        seed_everything(subject.seed)
        with torch.no_grad():
            found.values.append(float(subject.compute_loss(output, batch).float().mean()))
        changed = tuple(path for path, t in given.items() if not _equal(t, before[path]))
        if not call:
            found.changed = changed
            if changed:
                found.sizes = (_size(before[changed[0]]), _size(given[changed[0]]))
        elif found.changed and not anew:
            found.sizes = (*found.sizes, _size(given[found.changed[0]]))
    return found


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = trees.dense(a), trees.dense(b)
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _size(tensor: torch.Tensor) -> float:
    values = trees.dense(tensor.detach())
    values = values.abs() if values.is_complex() else values.double().abs()
    return float(values.max()) if values.numel() else 0.0


def _alike(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= _SAME * max(abs(a), abs(b)) or (a != a and b != b)


def against_itself(subject: Subject, seen: LossEvidence) -> LossCall | None:
    """Return a call that compares a value with itself, also where the elements of each output have changed places."""
    loss = loss_of_output(subject)
    compared = (*PAIRED, "F.kl_div")
    if isinstance(loss, str) or not any(used.function in compared for used in seen.consumed):
        return None
    draw = torch.Generator().manual_seed(subject.seed)
    for path, tensor in loss.outputs.items():
        places = torch.randperm(tensor.numel(), generator=draw).to(tensor.device)
        loss = loss.at(path, trees.dense(tensor).detach().flatten()[places].view(tensor.shape))
    try:
        calls = loss_calls(subject, loss)
    except SubjectError:
        return None
    return next((c for c in calls if c.op.name in compared and _is_itself(c)), None)


def _is_itself(call: LossCall) -> bool:
    given, target = call.input.detach(), call.target
    if target is None or given.shape != target.shape or given.numel() < 2 or not given.std() > 0:
        return False
    if call.op.name == "F.kl_div" and not call.options.get("log_target"):
        given = given.exp()
    return torch.allclose(given.double(), target.detach().double(), rtol=1e-5, atol=1e-7)

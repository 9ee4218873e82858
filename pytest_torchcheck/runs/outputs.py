"""The outputs of a model in evaluation mode, and how far two sets of them lie apart."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..objects import trees
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..subject.remembered import remembered
from .facts import forward_facts

if TYPE_CHECKING:
    from ..batches import Batch
    from ..subject import Subject

ROUNDING, ROUNDING_ELSEWHERE = 1e-5, 1e-3
"""Largest difference, in parts of the largest output, that other memory explains, on the CPU and on other devices."""


Outputs = dict[str, torch.Tensor]


def outputs_of(subject: Subject, model: nn.Module, batch: Batch | None = None) -> Outputs:
    """Return the outputs of a batch (the base one) in eval mode, detached, by path.

    Raises:
        SubjectError: The model raised.
    """
    batch = (subject.batch() if batch is None else batch).clone()
    model.eval()
    seed_everything(subject.seed)
    with torch.no_grad():
        found = trees.tensors(subject.call(model, batch))
    return {path: trees.dense(tensor).clone() for path, tensor in found.items()}


@remembered("eval-outputs")
def reference(subject: Subject) -> Outputs:
    """Return the outputs of the pristine model; cached.

    Raises:
        SubjectError: The model raised.
    """
    return {path: trees.dense(t) for path, t in forward_facts(subject).outputs.items()}


@dataclass(frozen=True, slots=True)
class Expected:
    """What the pristine model gives.

    Attributes:
        batch: The first two samples; the base batch where it cannot be cut, or two are refused.
        some: The outputs of ``batch``.
        whole: The outputs of the base batch.
    """

    batch: Batch
    some: Outputs
    whole: Outputs


def expectations(subject: Subject) -> Expected:
    """Return what the pristine model gives for two samples and for all; cached. Ask before changing the model.

    What two samples do not show is hardly ever shown by more of them, and they cost less.

    Raises:
        SubjectError: The model raised for the whole batch.
    """
    if "expected" not in subject.cache:
        whole, batch = reference(subject), subject.batch()
        found = Expected(batch, whole, whole)
        with contextlib.suppress(SubjectError):
            if (few := subject.few(batch)) is not None:
                with subject.pristine() as model:
                    found = Expected(few, outputs_of(subject, model, few), whole)
        subject.cache["expected"] = found
    known: Expected = subject.cache["expected"]
    return known


def unlike(subject: Subject, model: nn.Module, expected: Expected) -> tuple[str, float] | None:
    """Return where a model's outputs lie apart from the expected ones: of two samples, then of all.

    Raises:
        SubjectError: The model raised.
    """
    found = gap(outputs_of(subject, model, expected.batch), expected.some)
    if found is None or expected.some is expected.whole:
        return found
    with contextlib.suppress(SubjectError):  # two samples may have left a state for two
        return gap(outputs_of(subject, model), expected.whole) or found
    return found


def gap(a: Outputs, b: Outputs) -> tuple[str, float] | None:
    """Return the output that differs most and ``max|a - b|``, or None where all are equal up to alignment."""
    if a.keys() != b.keys():
        return next(iter(set(a) ^ set(b))), float("inf")
    found: tuple[str, float] | None = None
    for path, tensor in a.items():
        if trees.same(tensor, b[path]):
            continue
        distance = trees.worst(tensor, b[path])
        rounding = ROUNDING if tensor.device.type == "cpu" else ROUNDING_ELSEWHERE
        if distance > rounding * trees.scale(b[path]) and (found is None or distance > found[1]):
            found = path, distance
    return found

"""Rows of one parameter that start equal, get equal gradients and are equal after steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ...objects import trees
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...subject import Subject

_TWINS = (
    1e-5  # largest relative difference between the gradients of equal rows that rounding explains
)


_MOVED = 1e-3  # the same of rows after steps, over the way that they went


STEPS = 3


_HOLDERS = (nn.Embedding, nn.ParameterList, nn.ParameterDict)
"""Classes of torch's whose parameters the user initialises, and whose rows are no units of a layer."""


def equal_rows(subject: Subject) -> list[tuple[str, int]]:
    """Find parameters whose rows start equal, get equal gradients and are equal after steps.

    Rows that anything tells apart (their position, the content that they meet, dropout, a router)
    get other gradients. So do those that are equal only because nothing has reached them: a
    gradient of zero tells nothing.
    """
    suspects = {
        (name, dim)
        for name, parameter in _free(subject.model)
        for dim in _equal_dims(parameter.detach())
    }
    for index in range(2):
        if not suspects:
            return []
        with subject.backward(subject.batch(index), seed=index):
            grads = {
                n: trees.dense(p.grad)
                for n, p in subject.named_parameters().items()
                if p.grad is not None
            }
            largest = max((trees.scale(g) for g in grads.values()), default=0.0)
            suspects = {
                (name, dim)
                for name, dim in suspects
                if name in grads and _alike(grads[name], dim, largest)
            }
    return sorted(_still_equal(subject, suspects)) if suspects else []


def _free(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Iterate over the trainable parameters with rows that are no weights of torch's own layers."""
    for prefix, module in model.named_modules():
        if type(module).__module__.startswith("torch.") and not isinstance(module, _HOLDERS):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            plain = parameter.layout == torch.strided and parameter.is_floating_point()
            if plain and parameter.requires_grad and parameter.dim() > 1:
                yield f"{prefix}.{name}" if prefix else name, parameter


def _equal_dims(values: torch.Tensor) -> list[int]:
    """Return the dimensions, the last one aside, along which all slices of two elements or more are equal."""
    return [
        dim
        for dim in range(values.dim() - 1)
        if values.shape[dim] > 1
        and values.numel() > values.shape[dim]
        and bool((values.narrow(dim, 0, 2) == values.narrow(dim, 0, 1)).all())
        and bool((values == values.narrow(dim, 0, 1)).all())
    ]


def _alike(grad: torch.Tensor, dim: int, largest: float) -> bool:
    """Say whether all slices of a gradient are equal, and no rounding around zero."""
    size = trees.scale(grad)
    first = grad.narrow(dim, 0, 1)
    return size > 1e-6 * largest and float((grad - first).abs().max()) <= _TWINS * size


def _still_equal(subject: Subject, suspects: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return those whose rows went somewhere in a few steps of the user's, all to the same place."""
    before = {name: p.detach().clone() for name, p in subject.named_parameters().items()}
    with subject.pristine(steps=True, train=True) as model:
        try:
            optimizer = subject.make_optimizer(model)
            for index in range(STEPS):
                subject.train_step(model, optimizer, subject.batch(index).clone())
        except SubjectError:
            return set()  # told by others
        after = {name: p.detach().clone() for name, p in model.named_parameters()}
    found = set()
    for name, dim in suspects:
        way = trees.worst(after[name], before[name])
        apart = float((after[name] - after[name].narrow(dim, 0, 1)).abs().max())
        if way > 0 and apart <= _MOVED * way:
            found.add((name, dim))
    return found

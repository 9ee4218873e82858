"""One recorded training step: run, backward if it did none, gradients put back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .watch import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.autograd.graph import Node

    from .recording import Recorder
    from .values import Value


@contextmanager
def gradients_kept(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Take the gradients of some leaves away for a while, and put them back."""
    kept = [(p, p.grad) for p in {id(p): p for p in parameters}.values()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def record_step(
    run: Callable[[], object], recorder: Recorder, *, backward: bool = True
) -> list[Value]:
    """Run once under the recorder; return the values of the loss.

    Args:
        run: Returns the loss, or any nest of tensors (then their sum is the loss).
        recorder: Not entered yet. The gradients it measures are complete afterwards.
        backward: Whether to run the backward that ``run`` left out.

    Raises:
        RuntimeError: What ``run`` raised, unless it is a ``backward`` from a tensor without a graph:
            then that tensor is the loss.
    """
    with recorder:
        try:
            result = run()
        except RuntimeError:
            if not recorder.backward_roots or recorder.backward_roots[-1].requires_grad:
                raise
            result = None
        tensors = {id(t): t for t in (*tensors_in(result), *recorder.backward_roots)}
        roots = [recorder.value_of(tensor) for tensor in tensors.values()]
        live = [value.tensor for value in roots if value.tensor.requires_grad]
        if backward and live and not recorder.backward_roots:
            leaves = [p for p in _leaves(live) if p.grad is not None]
            with gradients_kept(leaves):
                torch.autograd.backward(live, [torch.ones_like(t) for t in live])
    return roots


def _leaves(roots: Iterable[Tensor]) -> Iterator[Tensor]:
    """Iterate over the leaves outside of any module that a backward would write to."""
    stack = [tensor.grad_fn for tensor in roots if tensor.grad_fn is not None]
    seen: set[Node] = set(stack)
    while stack:
        node = stack.pop()
        if isinstance(variable := getattr(node, "variable", None), Tensor):
            yield variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


def values_behind(roots: Iterable[Value], *, alias: bool) -> set[Value]:
    """Return the values from which others were computed, these included."""
    found = set(roots)
    stack = list(found)
    while stack:
        call = stack.pop().maker
        if call is None or call.shape_only or (call.kind == "alias" and not alias):
            continue
        for value in call.inputs:
            if value not in found:
                found.add(value)
                stack.append(value)
    return found

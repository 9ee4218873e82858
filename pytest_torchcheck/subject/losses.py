"""A loss from a model's output: the one it returns, or a projection of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, MutableMapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..objects import trees
from ..objects.kinds import here
from ..objects.peek import attribute
from .errors import NothingToDifferentiate, SubjectError

if TYPE_CHECKING:
    from ..batches import Batch


def loss_on(device: torch.device, loss: Any, made: dict[Any, Any]) -> Any:
    """Return a declared loss; a module whose tensors are elsewhere as a copy on this device.

    Args:
        device: Where the outputs are.
        loss: The loss, a module or not.
        made: Keeps the copy for the next call.
    """
    if not isinstance(loss, nn.Module):
        return loss
    if {t.device.type for t in (*loss.parameters(), *loss.buffers())} <= {device.type}:
        return loss
    if "loss-on-device" not in made:
        made["loss-on-device"] = copy.deepcopy(loss).to(device)
    return made["loss-on-device"]


def probe_loss(output: Any, seed: int = 0) -> torch.Tensor:
    """Return a random projection of every differentiable output, a scalar.

    Sums and means of an output can have a gradient of exactly zero in a correct model (after a
    normalisation, or a softmax), so that they must not be used to look for dead parameters.

    Raises:
        SubjectError: No output is differentiable.
    """
    generator = torch.Generator().manual_seed(seed)
    total: torch.Tensor | None = None
    for tensor in trees.floats(output).values():
        if not tensor.requires_grad and tensor.device.type != "meta" and torch.is_grad_enabled():
            continue
        values = _dense_with_graph(tensor)
        direction = torch.randn(values.shape, generator=generator, dtype=torch.float32)
        direction = direction.to(
            device=values.device, dtype=torch.float32 if values.is_complex() else values.dtype
        )
        parts = torch.view_as_real(values).sum(-1) if values.is_complex() else values
        term = (parts * direction).sum() / math.sqrt(max(values.numel(), 1))
        total = term if total is None else total + term.to(total.dtype)
    if total is None:
        raise no_gradient(output)
    return total


def no_gradient(output: Any, batch: Batch | None = None) -> SubjectError:
    """Return the error of an output without a gradient: a mistake only where any of it is floating-point."""
    if trees.floats(output):
        error: Exception = RuntimeError("no output of the model requires a gradient")
    else:
        error = NothingToDifferentiate(
            "the contract declares no loss, and no output is a floating-point tensor: "
            "there is nothing to train on"
        )
    return SubjectError("loss", error, batch)


def _dense_with_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a sparse, nested or distributed tensor as a strided one, differentiably."""
    tensor = here(tensor)
    if tensor.is_nested:
        return torch.cat([part.reshape(-1) for part in tensor.unbind()])
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def as_number(loss: torch.Tensor) -> torch.Tensor:
    """Return a loss of one element as the number that ``backward()`` takes it for, of shape ``[]``.

    A subclass of Tensor that holds its own values comes as a plain tensor: two whose classes do not know
    each other, such as those that a function defines in each call, cannot be compared.
    """
    kind = type(loss)
    if kind is not torch.Tensor and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        with torch._C.DisableTorchFunctionSubclass():
            loss = loss.as_subclass(torch.Tensor)
    return loss.reshape(()) if loss.shape == (1,) else loss


def own_loss(
    output: Any, known: MutableMapping[tuple[Any, ...], list[Any]] | None = None
) -> torch.Tensor:
    """Return the loss that a model returns with, or as, its output.

    A scalar tensor; ``output["loss"]`` or ``output.loss``; a tuple's first scalar; a dict of losses
    is summed.

    Args:
        output: What the model returned.
        known: Keeps which values of a dict are losses, by its keys, for calls that build no graph.

    Raises:
        TypeError: None of them is there.
    """
    if isinstance(output, torch.Tensor):
        return output
    named = isinstance(output, Mapping)
    loss = output.get("loss") if named else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    if named and (losses := _losses(output, {} if known is None else known)):
        return torch.stack([output[key].sum() for key in losses]).sum()
    if isinstance(output, tuple | list):
        for item in output:
            if isinstance(item, torch.Tensor) and item.dim() == 0 and item.is_floating_point():
                return item
    raise TypeError(
        'loss="output" needs a model that returns a scalar tensor, a dict with "loss" or of scalar losses, '
        f"an object with .loss, or a tuple with a scalar; it returned {_returned(output)}"
    )


def _losses(
    output: Mapping[Any, Any], known: MutableMapping[tuple[Any, ...], list[Any]]
) -> list[Any]:
    """Return the keys of a dict's losses: all of it where all are scalars with a graph, else those named so.

    A scalar without a graph beside those that have one is a count or a score. Where nothing has one,
    as under ``no_grad``, they are those of the call that had.
    """
    keys = tuple(output)
    called = [k for k in keys if "loss" in str(k) and isinstance(output[k], torch.Tensor)]
    if not keys or not all(_is_scalar(value) for value in output.values()):
        return called
    graph = [key for key in keys if output[key].requires_grad]
    if not graph:
        return known.get(keys) or called or list(keys)
    known[keys] = graph if len(graph) == len(keys) else called or graph
    return known[keys]


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() == 1


def _returned(output: Any) -> str:
    """Say what a model returned: an article, the type, and the keys of a dict."""
    kind = f"a {type(output).__name__}"
    return (
        f"{kind} with the keys {', '.join(map(str, output))}" if isinstance(output, dict) else kind
    )


def step_loss(returned: Any) -> torch.Tensor | float | None:
    """Return the loss that a step returns: one number, ``returned["loss"]`` or ``returned.loss``; else None.

    A whole number is a count, such as that of the samples.
    """
    if not isinstance(returned, torch.Tensor | Real):
        named = isinstance(returned, Mapping)
        returned = returned.get("loss") if named else attribute(returned, "loss")
    if isinstance(returned, torch.Tensor):
        return returned if returned.numel() == 1 else None
    number = isinstance(returned, Real) and not isinstance(returned, Integral | bool)
    return float(returned) if number else None

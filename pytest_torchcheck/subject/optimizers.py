"""The optimizers of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import nn

from ..lean import dataclass
from ..objects import trees
from ..objects.peek import attribute, entries
from .errors import UnmeasurableError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Which parameters an optimizer holds.

    Attributes:
        missing: Trainable parameters in no optimizer.
        twice: Parameters that stand in more than one group or optimizer.
        frozen: Parameters that require no gradient but stand in an optimizer.
        foreign: Shapes of tensors in an optimizer that are none of the model's parameters.
        optimizers: Class names.
        held: Parameters that stand in an optimizer.
    """

    missing: tuple[str, ...]
    twice: tuple[str, ...]
    frozen: tuple[str, ...]
    foreign: tuple[tuple[int, ...], ...]
    optimizers: tuple[str, ...]
    held: frozenset[str]


def aliases(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, str]:
    """Return the parameters of whose state an entry is the parameter's own memory, with the entry's key."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: str(key)
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        if id(parameter) in names and isinstance(state, dict) and parameter.numel()
        for key, held in state.items()
        if isinstance(held, torch.Tensor)
        and held.shape == parameter.shape
        and (place := trees.address(held)) is not None
        and place == trees.address(parameter)
    }


def gradient_aliases(
    model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]
) -> dict[str, tuple[dict[Any, Any], Any]]:
    """Return the parameters of whose state an entry shares the memory of the gradient, with the state and the key.

    Torch's own optimizers copy what they keep, and are not looked at.
    """
    names = {id(p): n for n, p in model.named_parameters() if p.grad is not None and p.numel()}
    found: dict[str, tuple[dict[Any, Any], Any]] = {}
    own = (o for o in optimizers if not type(o).__module__.startswith("torch.optim."))
    for optimizer in own if names else ():
        for parameter, state in optimizer.state.items():
            if id(parameter) not in names or not isinstance(state, dict):
                continue
            memory = None if parameter.grad is None else trees.storage_of(parameter.grad)
            for key, held in state.items() if memory is not None else ():
                if isinstance(held, torch.Tensor) and trees.storage_of(held) == memory:
                    found[names[id(parameter)]] = (state, key)
    return found


def default_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the checks' own optimizer: Adam at 1e-3, or SGD where gradients are sparse."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    require_steppable(model)
    if any(attribute(m, "sparse", False) is True for m in model.modules()):
        return torch.optim.SGD(trainable, lr=1e-2)
    return torch.optim.Adam(trainable, lr=1e-3)


def require_steppable(model: nn.Module) -> None:
    """See that the checks' own optimizer can hold what is to be trained.

    Raises:
        UnmeasurableError: A parameter is stored in a sparse layout, which it cannot update.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.layout != torch.strided:
            layout = str(parameter.layout).removeprefix("torch.")
            raise UnmeasurableError(
                f"{name} is stored as {layout}, which the checks' own optimizer (Adam) does not update; declare the "
                "one that trains it: optimizer=..."
            )


def optimizers_of(made: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers in what a user's ``optimizer`` function returned.

    One optimizer, a sequence, a dict, or pairs of optimizer and scheduler.
    """
    return _instances_of(torch.optim.Optimizer, made)


@runtime_checkable
class Steps(Protocol):
    """What a plain step needs of an optimizer: a wrapper of one is often no subclass of torch's."""

    def step(self) -> Any:
        """Update the parameters."""

    def zero_grad(self) -> Any:
        """Clear their gradients."""


def stepping_in(made: Any) -> list[Steps]:
    """Return what a plain step steps, of what a user's ``optimizer`` function returned."""
    return _instances_of(Steps, made)  # type: ignore[type-abstract]  # a protocol of methods


def clear_by(optimizers: Iterable[Steps]) -> None:
    """Clear the gradients as the usual loop does."""
    for each in optimizers:
        if isinstance(each, torch.optim.Optimizer):
            each.zero_grad(set_to_none=True)
        else:
            each.zero_grad()


def schedulers_of(made: Any) -> list[torch.optim.lr_scheduler.LRScheduler]:
    """Return the learning-rate schedulers in what a user's ``optimizer`` function returned."""
    return _instances_of(torch.optim.lr_scheduler.LRScheduler, made)


def step_schedulers(made: Any, loss: Any) -> None:
    """Step the schedulers in what a user's ``optimizer`` function returned, as a loop around the plain step would.

    Args:
        made: What it returned.
        loss: Of the step: what a schedule that waits for a plateau is given.
    """
    for scheduler in schedulers_of(made):
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(float(loss))
        else:
            scheduler.step()


_T = TypeVar("_T")


def _instances_of(kind: type[_T], made: Any) -> list[_T]:
    found: list[_T] = []
    stack = [made]
    while stack:
        value = stack.pop(0)
        if isinstance(value, kind):
            found.append(value)
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(entries(value))
    return found


def cover(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> Coverage:
    """Compare the optimizers' parameters with the model's."""
    held = [
        p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]
    ]
    counts: dict[int, int] = {}
    for parameter in held:
        counts[id(parameter)] = counts.get(id(parameter), 0) + 1
    named = dict(model.named_parameters())
    own = {id(p) for p in named.values()}
    return Coverage(
        missing=tuple(name for name, p in named.items() if p.requires_grad and id(p) not in counts),
        twice=tuple(name for name, p in named.items() if counts.get(id(p), 0) > 1),
        frozen=tuple(name for name, p in named.items() if not p.requires_grad and id(p) in counts),
        foreign=tuple(tuple(p.shape) for p in held if id(p) not in own),
        optimizers=tuple(type(optimizer).__name__ for optimizer in optimizers),
        held=frozenset(name for name, p in named.items() if id(p) in counts),
    )

"""One batch learnt by the last layer alone: whoever can learn it so, can by all layers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from ...declared.limits import UNDECLARED
from ...lean import dataclass
from ...objects import trees
from ...record.hooks import hooked
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from .attempts import (
    LITTLE,
    QUICK,
    SHARE,
    Attempt,
    adams,
    declared_learns,
    first_rate,
    over,
)
from .one_batch import (
    FORWARD,
    Budget,
    few_samples,
    follow,
    look_from,
    remaining,
    without_dropout,
)
from .reach import eased

if TYPE_CHECKING:
    from torch import nn

    from ...batches import Batch
    from ...declared.limits import Overfit
    from ...subject import Subject
    from .one_batch import Look

_STEPS = 40
"""Of a layer whose inputs stay: they cost next to nothing."""
_LAST = 8
"""So many calls of layers are kept, of which one made the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Last:
    """The layer whose output is the model's, and what it was given.

    Attributes:
        name: Of the layer.
        layer: The module.
        given: Its arguments.
        made: What it returned, a tensor of the model's output.
        output: The model's output.
    """

    name: str
    layer: nn.Module
    given: tuple[torch.Tensor, ...]
    made: torch.Tensor
    output: Any

    def again(self, _: Batch) -> Any:
        """Return the model's output as the layer is now."""
        return trees.substitute(self.output, {id(self.made): self.layer(*self.given)})


def layer_attempt(subject: Subject, goal: Overfit, budget: Budget) -> tuple[Look, Attempt] | None:
    """Train the last layer on what it is given for a few samples, as long as these are learnt so.

    It is asked where the gradients of all layers are known to lower the loss as they say, and where the declared
    optimizer is seen to lower it: what is left to know is whether outputs follow the labels as the loss asks.

    Returns:
        What was seen before the first step, and the run; None where the layer alone does not reach the goal.
    """
    contract, descent = subject.contract, subject.cache.get("descent")
    if goal is not UNDECLARED or contract.train_step is not None or not callable(contract.loss):
        return None  # who declares how far means the whole model
    if descent is None or not descent.holds or not declared_learns(subject, budget):
        return None
    batch = few_samples(subject)
    if not budget.take(FORWARD):
        return None
    try:
        with subject.pristine(steps=True) as model:
            last = _last(subject, without_dropout(model), batch)
            return None if last is None else _trained(subject, last, goal, batch)
    except (SubjectError, RuntimeError):
        return None  # the whole model tells


def _trained(
    subject: Subject, last: _Last, goal: Overfit, batch: Batch
) -> tuple[Look, Attempt] | None:
    seen = look_from(subject, last.layer, batch, Budget(1.0), last.again)
    floor = seen.floor
    if not floor.known or not (seen.loss - floor.value > LITTLE and seen.slope > LITTLE):
        return None
    goal, losses = eased(subject, goal, seen), [seen.loss]
    rate = first_rate(seen.loss, floor, seen.slope, SHARE)
    optimizers = list(adams(last.layer, rate, QUICK))
    for _ in range(_STEPS):
        for optimizer in optimizers:
            optimizer.step()
        clear_gradients(last.layer)
        seed_everything(subject.seed)
        with torch.enable_grad():
            given = batch.clone()
            loss = subject.compute_loss(last.again(given), given)
            now = float(loss.detach())
            if ended := over([*losses, now], goal, floor, _STEPS):
                break
            loss.backward()
        for optimizer in optimizers:
            follow(optimizer, losses, now, floor)
        losses.append(now)
    else:
        return None
    if ended != "reached":
        return None
    losses.append(now)
    return seen, Attempt(
        name=f"Adam from a rate of {rate:.2g} on {last.name} alone, for a few samples",
        losses=tuple(losses),
        remaining=remaining(losses, floor),
        ended=ended,
    )


def _last(subject: Subject, model: nn.Module, batch: Batch) -> _Last | None:
    """Run the model once; return the trained layer that makes its output, called once and sharing nothing."""
    calls: deque[tuple[str, nn.Module, tuple[Any, ...], Any]] = deque(maxlen=_LAST)
    owners: dict[int, int] = {}
    handles = []
    for name, module in model.named_modules():
        own = [p for p in module._parameters.values() if p is not None]
        for parameter in own:
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        if any(p.requires_grad for p in own):
            handles.append(
                module.register_forward_hook(
                    lambda m, given, made, name=name: calls.append((name, m, given, made))
                )
            )
    with hooked(handles), torch.no_grad():
        seed_everything(subject.seed)
        output = subject.call(model, batch.clone())
    leaves = {id(t) for t in trees.floats(output).values()}
    made = [call for call in calls if id(call[3]) in leaves]
    if len(made) != 1:
        return None
    name, layer, given, result = made[0]
    if sum(call[1] is layer for call in calls) > 1 or not all(map(trees.is_tensor, given)):
        return None
    if any(owners.get(id(p), 0) != 1 for p in layer.parameters()):
        return None  # it is tied to another layer
    return _Last(name=name, layer=layer, given=given, made=result, output=output)

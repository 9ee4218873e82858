"""A parameter that a step puts another tensor in place of, while the optimizer keeps the old one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...objects import trees
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ..replay import replay

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    import torch
    from torch import nn

    from ...findings import Location
    from ...record.tracing import Watcher
    from ...subject import Subject


class Rebinding:
    """Knows which parameters of a model are other tensors than before, and since when."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._first = dict(model.named_parameters())
        self._since: dict[str, int] = {}
        self._then: dict[str, torch.Tensor] = {}
        self._steps = 0

    def look(self) -> None:
        """Look at the parameters after a step."""
        for name, parameter in self._model.named_parameters():
            if self.before(name, parameter) is not parameter:
                self._since.setdefault(name, self._steps)
                self._then.setdefault(name, parameter.detach().clone())
        self._steps += 1

    def before(self, name: str, parameter: nn.Parameter) -> nn.Parameter:
        """Return the parameter that had a name at first."""
        return self._first.get(name, parameter)

    def left_behind(self, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, int]:
        """Return those that no optimizer holds and that hardly move, and in which step each was first put in place.

        What the last step puts in place is not judged, nor is what the step itself moves: an
            average of its own.
        """
        held = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
        return {
            name: self._since[name]
            for name, parameter in self._model.named_parameters()
            if name in self._since and id(parameter) not in held and parameter.requires_grad
            and self._since[name] < self._steps - 1 and _hardly_moves(self._then[name], parameter.detach())
        }  # fmt: skip


_HARDLY = 1e-4
"""Share of its size by which a parameter may change that is only brought back into its range."""


def _hardly_moves(before: torch.Tensor, after: torch.Tensor) -> bool:
    if before.shape != after.shape or not after.numel():
        return False
    return float((after - before).abs().max()) <= _HARDLY * float(before.abs().max())


def is_trained(subject: Subject, name: str, since: int) -> bool:
    """Say whether the gradient of a parameter decides its next values, once a step has put it in place.

    The step after that runs twice: as it is, and with this gradient turned round. Also True where
        it has none.
    """
    plain, turned = _stepped(subject, name, since, None), _stepped(subject, name, since, -3.0)
    return plain is None or turned is None or not trees.same(plain, turned)


def _stepped(subject: Subject, name: str, since: int, factor: float | None) -> torch.Tensor | None:
    """Return a parameter after a step in which its gradient was multiplied; None where it got none."""
    reached: list[bool] = []

    def turn(gradient: torch.Tensor) -> torch.Tensor | None:
        reached.append(bool(gradient.any()))
        return None if factor is None else factor * gradient

    with subject.pristine(steps=True, train=True, seeded=True) as model:
        made = subject.make_optimizer(model)
        clear_gradients(model)
        try:
            for step in range(since + 2):
                seed_everything(subject.seed + step)
                if step == since + 1:
                    dict(model.named_parameters())[name].register_hook(turn)
                subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return None
        end = dict(model.named_parameters()).get(name)
        return None if end is None or not any(reached) else end.detach().clone()


def where_rebound(subject: Subject, name: str) -> Location | None:
    """Find the line of the user's step that puts another tensor in a parameter's place."""

    def watch(model: nn.Module, _: Any) -> Watcher:
        first = model.get_parameter(name)

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            return event != "call" and dict(model.named_parameters()).get(name) is not first

        return watcher

    return replay(subject, watch)

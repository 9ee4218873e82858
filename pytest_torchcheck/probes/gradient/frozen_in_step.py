"""Which calls of a step switch gradients on and off, and which modules only ever run with all parameters off."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ... import sources
from ...lean import dataclass
from ...record.passing import passing
from ..recorded.recording import SWITCHES
from ..recorded.watch import Watch, name_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ...findings import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One call of a step that switches the gradients of parameters.

    Attributes:
        location: The line that chose the parameters, or whether they are on: of a helper that is given them, its call.
        helper: The function that is called there; empty where the line itself switches.
        on: Whether they are on afterwards.
        names: Of the parameters.
    """

    location: Location
    helper: str
    on: bool
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What a step was seen to do with the gradients of parameters.

    Attributes:
        switches: In the order of the step.
        ran: Modules that ran and hold parameters of their own.
        off: Those of them of which no parameter required a gradient, whenever they ran.
        idle: Names of the parameters of modules that ran, which required no gradient whenever these did.
        stepped: Names of the parameters that an optimizer held as it stepped.
    """

    switches: tuple[Switch, ...]
    ran: frozenset[str]
    off: frozenset[str]
    idle: frozenset[str]
    stepped: frozenset[str]

    def freezing(self, name: str) -> Switch | None:
        """Return the one call that switches a parameter off; None where several do, or none."""
        found = [one for one in self.switches if name in one.names and not one.on]
        return found[0] if len({one.location for one in found}) == 1 else None

    def again(self, first: Switch) -> list[Switch]:
        """Return the later calls, on other lines, of the function that a call switches by."""
        later = self.switches[self.switches.index(first) + 1 :]
        found = {
            one.location: one
            for one in later
            if first.helper and one.helper == first.helper and one.location != first.location
        }
        return list(found.values())


class _Watch(Watch):
    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.known = {id(p): n for n, p in module.named_parameters()}
        self.calls: list[tuple[Location, str, bool, list[str]]] = []
        self.modules: dict[str, bool] = {}
        self.parameters: dict[str, bool] = {}
        self.stepped: set[str] = set()

    def module_entered(self, module: nn.Module, args: Any) -> None:
        """Note whether a parameter of a module's own requires a gradient."""
        name = self.scopes[-1].name
        if own := list(module.parameters(recurse=False)) or _parametrized(module):
            self.modules[name] = self.modules.get(name, False) or any(p.requires_grad for p in own)
        for one in own:
            known = self.known.get(id(one), "")
            self.parameters[known] = self.parameters.get(known, False) or one.requires_grad

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Note a call that switches the gradient of a parameter."""
        if name_of(func) not in SWITCHES or (name := self.known.get(id(args[0]))) is None:
            return
        frames = [f for f in self.frames() if sources.rank(f.f_code.co_filename) == 2]
        if not frames:
            return
        place, helper = _place(frames, args[0])
        on = args[0].requires_grad
        if not self.calls or (place, on) != (self.calls[-1][0], self.calls[-1][2]):
            self.calls.append((place, helper, on, []))
        self.calls[-1][-1].append(name)

    def stepping(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Note what an optimizer holds that is about to step."""
        held = (p for group in optimizer.param_groups for p in group["params"])
        self.stepped.update(self.known[id(p)] for p in held if id(p) in self.known)


def frozen_in_step(run: Callable[[], object], module: nn.Module) -> Frozen:
    """Run a step and note what it freezes, thaws and runs.

    Args:
        run: The step, with its backward passes.
        module: The model.
    """
    watch = _Watch(module)
    with register_optimizer_step_pre_hook(watch.stepping), watch:
        run()
    return Frozen(
        switches=tuple(
            Switch(location=place, helper=helper, on=on, names=tuple(names))
            for place, helper, on, names in watch.calls
        ),
        ran=frozenset(watch.modules),
        off=frozenset(name for name, on in watch.modules.items() if not on),
        idle=frozenset(name for name, on in watch.parameters.items() if not on),
        stepped=frozenset(watch.stepped),
    )


def _parametrized(module: nn.Module) -> list[nn.Parameter]:
    held = getattr(module, "parametrizations", None)
    return list(held.parameters()) if isinstance(held, nn.Module) else []


def _place(frames: list[FrameType], parameter: torch.Tensor) -> tuple[Location, str]:
    """Return the line that chose what is switched, and the function that it calls for it."""
    at = 0
    flag = passing(frames, "requires_grad", 0)
    while at + 1 < len(frames) and (
        _is_given(frames[at], parameter) or (at == 0 and flag is not None)
    ):
        at += 1
    code = frames[at].f_code
    place = sources.of_line(code.co_filename, frames[at].f_lineno, code.co_qualname)
    return place, frames[at - 1].f_code.co_name if at else ""


def _is_given(frame: FrameType, parameter: torch.Tensor) -> bool:
    """Say whether a function was given a parameter, or modules that hold it; a method's own object does not count."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS)
    given = code.co_varnames[:count]
    return any(
        _holds(frame.f_locals.get(name), parameter) for name in given if name not in ("self", "cls")
    )


def _holds(value: object, parameter: torch.Tensor) -> bool:
    if isinstance(value, nn.Module):
        return any(p is parameter for p in value.parameters())
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        return any(_holds(one, parameter) for one in value)
    return value is parameter

"""Methods named ``backward`` of modules, which autograd does not know of."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ... import sources
from ...lean import dataclass
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..training.observation import observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncalled:
    """A module that ran, and whose own backward did not.

    Attributes:
        name: Of the module.
        kind: Its class.
        method: Its backward.
    """

    name: str
    kind: type[nn.Module]
    method: Callable[..., Any]


def uncalled_backwards(subject: Subject) -> list[Uncalled]:
    """Return the modules within the model that define a backward of a gradient, and whose step calls it nowhere.

    Cost: nothing where no module defines one; else one step.
    """
    calls = observe(subject).signals.calls
    found = {
        name: Uncalled(name=name, kind=type(module), method=method)
        for name, module in subject.model.named_modules()
        if name and calls[name] and (method := _method(module)) is not None
    }
    if not found:
        return []
    called: set[str] = set()
    with subject.pristine(steps=True, train=True) as model:
        for name, one in found.items():
            module = model.get_submodule(name)
            vars(module)["backward"] = _noting(called, name, one.method, module)
        try:
            seed_everything(subject.seed)
            made = subject.make_optimizer(model)
            subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return []  # weights-update explains it
        finally:
            for name in found:
                vars(model.get_submodule(name)).pop("backward", None)
    return [one for name, one in found.items() if name not in called]


def _noting(
    called: set[str], name: str, method: Callable[..., Any], module: nn.Module
) -> Callable[..., Any]:
    def backward(*args: Any, **kwargs: Any) -> Any:
        called.add(name)
        return method(module, *args, **kwargs)

    return backward


def _method(module: nn.Module) -> Callable[..., Any] | None:
    """Return a class's own backward that takes a gradient, where the user wrote it."""
    method = next(
        (vars(c)["backward"] for c in type(module).__mro__ if "backward" in vars(c)), None
    )
    if not inspect.isfunction(method) or sources.rank(method.__code__.co_filename) != 2:
        return None
    names = list(inspect.signature(method).parameters)[1:]
    return method if names and "grad" in names[0].lower() else None

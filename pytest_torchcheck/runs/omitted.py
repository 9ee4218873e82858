"""Parameters that a forward reads only where it is given an argument that this contract leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from .. import sources
from ..functions.discovery import is_compiled
from ..probes.stand_ins import left_out, read_with, stand_in
from ..state import seed_everything

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..findings import Location
    from ..subject import Subject

_MOST: Final = 24
"""How many arguments of a forward are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Omitted:
    """An argument that was not given, and without which a parameter is not read.

    Attributes:
        module: Qualified name of the module whose forward has it, ``""`` for the model.
        called: Class of that module.
        argument: Its name.
        line: The line that reads the parameter where the argument is given.
    """

    module: str
    called: str
    argument: str
    line: Location | None


def read_where_given(subject: Subject, names: Collection[str]) -> dict[str, Omitted]:
    """Name the parameters, of those that no operation reads, that one reads where an optional argument is given.

    Each argument that a call leaves at None or False is tried alone, by a value of which nothing is
    known and by tensors like the inputs. The arguments are those of the model, and those of a module
    of another package that the user's own modules call: what its class can do beside is not theirs.
    A module that the user wrote, and calls without an argument that nothing else gives, is another
    matter.

    Args:
        subject: Its model runs a few times for each argument, as far as that goes.
        names: Qualified names of parameters.
    """
    known: dict[str, Omitted | None] = subject.cache.setdefault("read where given", {})
    pending = {name for name in names if name not in known}
    if pending and not is_compiled(subject.model):
        known.update(_found(subject, pending))
    known.update({name: None for name in pending if name not in known})
    return {name: omitted for name in names if (omitted := known[name]) is not None}


def _found(subject: Subject, pending: set[str]) -> dict[str, Omitted]:
    found: dict[str, Omitted] = {}
    calls = _calls(subject)
    usual = _read(subject, "", {}, pending)
    for module, (args, kwargs) in calls.items():
        host = subject.model.get_submodule(module)
        for argument in left_out(host, args, kwargs)[:_MOST]:
            for value in (stand_in(), *_likely(args, kwargs)):
                left = pending - set(found) - set(usual)
                if not left:
                    return found
                for name, line in _read(subject, module, {argument: value}, left).items():
                    found[name] = Omitted(
                        module=module, called=type(host).__name__, argument=argument, line=line
                    )
    return found


def _read(
    subject: Subject, module: str, given: dict[str, Any], names: set[str]
) -> dict[str, Location | None]:
    batch = subject.batch().clone()
    with subject.pristine() as model, torch.no_grad():
        model.train()
        seed_everything(subject.seed)
        host = model.get_submodule(module)
        return read_with(lambda: subject.call(model, batch), model, host, given, names)


def _likely(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield ones in the shape of each tensor that a call gets: a mask, or the ids of a second segment."""
    shapes = set()
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and tuple(value.shape) not in shapes:
            shapes.add(tuple(value.shape))
            yield torch.ones_like(value)


def _calls(subject: Subject) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return what the model is called with, and the modules of other packages that its own modules call."""
    found: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    batch = subject.batch().clone()

    def note(name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            found.setdefault(name, (args, kwargs))

        return hook

    with subject.pristine() as model, torch.no_grad():
        handles = [
            module.register_forward_pre_hook(note(name), with_kwargs=True)
            for name, module in _hosts(model, "")
        ]
        try:
            model.train()
            seed_everything(subject.seed)
            subject.call(model, batch)
        finally:
            for handle in handles:
                handle.remove()
    return found


def _hosts(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the model, and below the user's own modules the first of each installed package."""
    own = sources.is_own_class(type(module))
    if not name or (not own and sources.of_user_object(type(module)) is not None):
        yield name, module
    if own or type(module).__module__.startswith("torch."):
        for key, child in module.named_children():
            yield from _hosts(child, f"{name}.{key}" if name else key)

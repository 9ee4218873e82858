"""Parameters that a forward reads only where it is given an argument that this contract leaves out, or other data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from .. import sources
from ..functions.discovery import is_compiled
from ..lean import dataclass
from ..probes.stand_ins import left_out, read_with, stand_in
from ..state import seed_everything
from .again import forward_and_loss
from .liveness.branches import in_untaken_branches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..findings import Location
    from ..subject import Subject

_MOST: Final = 100
"""How many runs are made at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Omitted:
    """An argument that was not given, or a branch that was not taken, and without which a parameter is not read.

    Attributes:
        module: Qualified name of the module whose forward has it, ``""`` for the model.
        called: Class of that module.
        argument: Its name; empty where data decide whether the line is reached.
        line: The line that reads the parameter where the argument is given.
        by_user: Whether a module of the user's own calls that module.
    """

    module: str
    called: str
    argument: str
    line: Location | None
    by_user: bool = False


def read_where_given(subject: Subject, names: Collection[str]) -> dict[str, Omitted]:
    """Name the parameters, of those that no operation reads, that one reads where an optional argument is given.

    Each argument that a call leaves at None or False is tried alone, by a value of which nothing is
    known; those of the model by tensors like the inputs too. Further arguments are those of modules of
    installed packages: what their classes can do beside is not the user's. A module that the user
    wrote, and calls without an argument that nothing else gives, is another matter.

    Args:
        subject: Its model runs a few times for each argument, as far as that goes.
        names: Qualified names of parameters.
    """
    known: dict[str, Omitted | None] = subject.cache.setdefault("read where given", {})
    pending = {name for name in names if name not in known}
    if pending and not is_compiled(subject.model):
        known.update(_found(subject, pending))
        known.update(_beside(subject, {name for name in pending if name not in known}))
    known.update({name: None for name in pending if name not in known})
    return {name: omitted for name in names if (omitted := known[name]) is not None}


def _found(subject: Subject, pending: set[str]) -> dict[str, Omitted]:
    found: dict[str, Omitted] = {}
    hosts = _hosts(subject.model, pending)
    calls = _calls(subject, hosts)
    usual = _read(subject, [], {}, pending)
    tried = 0
    for kind, names in hosts.items():
        args, kwargs = calls.get(kind, ((), {}))
        likely = list(_likely(args, kwargs)) if "" in names else []
        for argument in left_out(kind, args, kwargs) if kind in calls else ():
            for value in (stand_in(), *likely):
                left = pending - set(found) - set(usual)
                tried += 1
                if not left or tried > _MOST:
                    return found
                for name, line in _read(subject, names, {argument: value}, left).items():
                    owner = next((n for n in names if not n or name.startswith(f"{n}.")), names[0])
                    found[name] = Omitted(
                        module=owner,
                        called=kind.__name__,
                        argument=argument,
                        line=line,
                        by_user=_is_called_by_user(subject.model, owner),
                    )
    return found


def _beside(subject: Subject, names: set[str]) -> Iterator[tuple[str, Omitted]]:
    """Yield the parameters that a branch reads which the forward did not take for the base batch."""
    # what evaluation reads, training should too: that branch is the mode's
    read = {**_read(subject, [], {}, names), **_read(subject, [], {}, names, train=False)}
    with subject.pristine():
        lines = in_untaken_branches(
            forward_and_loss(subject), subject.model, [name for name in names if name not in read]
        )
    for name, line in lines.items():
        called = line.function.rpartition(".")[0]
        yield name, Omitted(module="", called=called, argument="", line=line)


def _read(
    subject: Subject,
    modules: list[str],
    given: dict[str, Any],
    names: set[str],
    *,
    train: bool = True,
) -> dict[str, Location | None]:
    batch = subject.batch().clone()
    with subject.pristine(train=train, seeded=True) as model, torch.no_grad():
        hosts = [model.get_submodule(module) for module in modules]
        return read_with(lambda: subject.call(model, batch), model, hosts, given, names)


def _likely(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield ones in the shape of each tensor that a call gets: a mask, or the ids of a second segment."""
    shapes = set()
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and tuple(value.shape) not in shapes:
            shapes.add(tuple(value.shape))
            yield torch.ones_like(value)


def _calls(
    subject: Subject, hosts: dict[type[nn.Module], list[str]]
) -> dict[type[nn.Module], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return what the first module of each class is called with."""
    found: dict[type[nn.Module], tuple[tuple[Any, ...], dict[str, Any]]] = {}
    batch = subject.batch().clone()

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        found.setdefault(type(module), (args, kwargs))

    with subject.pristine() as model, torch.no_grad():
        handles = [
            model.get_submodule(name).register_forward_pre_hook(note, with_kwargs=True)
            for names in hosts.values()
            for name in names
        ]
        try:
            model.train()
            seed_everything(subject.seed)
            subject.call(model, batch)
        finally:
            for handle in handles:
                handle.remove()
    return found


def _hosts(model: nn.Module, pending: Collection[str]) -> dict[type[nn.Module], list[str]]:
    """Return the model, and the modules of installed packages that hold one of some parameters, by their classes."""
    found: dict[type[nn.Module], list[str]] = {}
    for name, module in model.named_modules():
        inside = name and any(one.startswith(f"{name}.") for one in pending)
        if not name or (inside and _is_installed(module)):
            found.setdefault(type(module), []).append(name)
    return found


def _is_installed(module: nn.Module) -> bool:
    kind = type(module)
    return not sources.is_own_class(kind) and sources.of_user_object(kind) is not None


def _is_called_by_user(model: nn.Module, name: str) -> bool:
    """Say whether the nearest owner with a class outside of torch is written by the user."""
    while name:
        name = name.rpartition(".")[0]
        owner = type(model.get_submodule(name))
        if not owner.__module__.startswith("torch."):
            return sources.is_own_class(owner)
    return False

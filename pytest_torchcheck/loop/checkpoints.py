"""What a checkpoint of the steps that run anyway holds."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..data.contents import Contents, has_state
from ..objects import trees
from ..sources.locations import rank
from ..state import ModuleState
from ..subject.optimizers import optimizers_of, schedulers_of
from .patches import listening

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..subject import Subject

_KEPT_BYTES = 2**26
"""Of a checkpoint that waits until it is asked for; a larger one costs a step more, and no memory."""


CHECKPOINT = "checkpoint"
STEPS = 3
"""Steps that run anyway."""
_SHORT = 2
"""One up to a checkpoint that holds everything, and one behind it."""


def keep_checkpoint(subject: Subject, model: nn.Module, made: Any) -> int:
    """Keep the states after the first of the steps that run anyway, for :func:`is_resumed`.

    Nothing is kept where the step is the user's own, whose closures may hold more than these states
    do, or where they are large.

    Returns:
        After how many steps a resumed run is compared with them.
    """
    if subject.contract.train_step is not None:
        return STEPS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            things = {"model": model, **pieces_of(made)}
            states = {name: thing.state_dict() for name, thing in things.items()}
            tensors = trees.tensors(states).values()
            if sum(t.nbytes for t in tensors if t.layout == torch.strided) <= _KEPT_BYTES:
                subject.cache[CHECKPOINT] = copied(states)
        except (
            Exception
        ):  # a piece may refuse in its own words: the run that needs the states tells
            subject.cache.pop(CHECKPOINT, None)
    return _SHORT if saves_all(subject, made) else STEPS


_ATOMS = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size)
_TORCHS_OWN = frozenset(vars(nn.Module()))


def saves_all(subject: Subject, made: Any) -> bool:
    """Say whether nothing is seen that a plain step could change and a checkpoint does not hold.

    The optimizers are torch's own, without hooks or schedules; so is the loss; no module holds more than
    tensors, plain values, functions of torch and a library's objects of plain values, such as its
    configurations; and a watched step changed nothing outside of the state dict.
    """
    contract, watched = subject.contract, subject.cache.get("observation")
    if contract.train_step is not None or schedulers_of(made):
        return False
    if watched is None or watched.changed or watched.strangers:
        return False
    known: set[int] = set()
    return all(map(is_torchs, (*optimizers_of(made), contract.loss))) and all(
        key in _TORCHS_OWN or _is_plain(value, known)
        for module in subject.model.modules()
        for key, value in vars(module).items()
    )


def is_torchs(thing: Any) -> bool:
    """Say whether an optimizer without hooks, or a loss, is one of torch's."""
    if isinstance(thing, torch.optim.Optimizer):
        # a wrapper of the user's may lack what torch's constructor sets
        return _is_torchs_class(thing) and not (
            thing._optimizer_step_pre_hooks or thing._optimizer_step_post_hooks
        )
    home = thing if callable(thing) and hasattr(thing, "__name__") else type(thing)
    return thing == "output" or str(home.__module__).startswith("torch.")


def _is_torchs_class(thing: Any) -> bool:
    return type(thing).__module__.startswith("torch.optim.")


def _is_plain(value: Any, known: set[int]) -> bool:
    """Say whether a value is one that no step changes unseen; a watched step has seen numbers in containers.

    Args:
        value: What a module holds.
        known: By id, the objects that were asked of already, and are plain as far as they are known.
    """
    if isinstance(value, (*_ATOMS, torch.Tensor)):
        return True
    if id(value) in known:
        return True
    known.add(id(value))
    if type(value) in (tuple, list):
        return all(_is_plain(one, known) for one in value)
    if type(value) is dict:
        return all(_is_plain(one, known) for item in value.items() for one in item)
    if isinstance(value, set | frozenset):  # of names
        return all(isinstance(one, str) for one in value)
    if callable(value):
        return str(getattr(value, "__module__", "") or "torch.").startswith("torch.")
    return _of_library(value) and all(_is_plain(one, known) for one in vars(value).values())


def _of_library(value: Any) -> bool:
    """Say whether an object, all of which its ``vars`` show, is of a class that an installed package defines."""
    kind = type(value)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if not file or rank(file) != 1 or not hasattr(value, "__dict__"):
        return False
    return not any(getattr(base, "__slots__", ()) for base in kind.__mro__)


def copied(states: Any) -> Any:
    """Return a deep copy of what ``state_dict`` returned, its tensors copied at the speed of memory."""
    tensors = [t for t in trees.tensors(states).values() if t.layout == torch.strided]
    # what a deep copy meets in its memo it takes: a storage is copied byte by byte
    return copy.deepcopy(states, {id(t): t.detach().clone() for t in tensors})


def pieces_of(made: Any) -> dict[str, Any]:
    """Name the optimizers and schedulers that a user's optimizer function returned, and what hangs on them.

    An attribute that was set on an optimizer of torch's has a state of its own, such as a scheduler that the
    step finds there; a class of the user's saves what it holds itself, or forgets it.
    """
    found: dict[str, Any] = {}
    for kind, things in (("optimizer", optimizers_of(made)), ("scheduler", schedulers_of(made))):
        for place, thing in enumerate(things):
            found[kind if len(things) == 1 else f"{kind}{place}"] = thing
    for name, thing in list(found.items()):
        for key, value in vars(thing).items() if _is_torchs_class(thing) else ():
            if has_state(value) and not any(value is one for one in found.values()):
                found[f"{name}.{key}"] = value
    return found


def counterparts(saved: list[str], live: list[str]) -> dict[str, str]:
    """Say which object of the resumed run takes which saved state.

    The same name, or the same place among those of one container: a dict keyed by ``id(optimizer)`` has
    other keys in the resumed run.
    """
    pairs = {name: name for name in saved if name in live}
    for base in dict.fromkeys(_container(name) for name in saved if name not in pairs):
        left = [name for name in saved if name not in pairs and _container(name) == base]
        free = [name for name in live if name not in pairs and _container(name) == base]
        if base and len(left) == len(free):
            pairs |= dict(zip(left, free, strict=True))
    return pairs


def _container(name: str) -> str:
    """Return the variable whose element a name such as ``schedulers[1402]`` is, or nothing."""
    return name.rpartition("[")[0] if name.endswith("]") else ""


@contextlib.contextmanager
def noting_steps() -> Iterator[list[Any]]:
    """Collect the optimizers, schedulers and scalers that are stepped inside, each once."""
    found: list[Any] = []

    def note(thing: Any) -> None:
        if not any(thing is one for one in found):
            found.append(thing)

    def around(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        note(args[0])
        return original(*args, **kwargs)

    with listening(
        {"scheduler-step": around, "scaler-step": around},
        before_step=lambda optimizer, args, kwargs: note(optimizer),
    ):
        yield found


def strangers_of(stepped: list[Any], saved: list[Any]) -> tuple[str, ...]:
    """Name the classes of what was stepped and is neither saved nor part of something that is."""
    known = {id(one) for one in saved}
    known |= {id(held.value) for one in saved for held in Contents(one).objects}
    return tuple(dict.fromkeys(type(one).__name__ for one in stepped if id(one) not in known))


@contextlib.contextmanager
def kept_module(model: nn.Module) -> Iterator[None]:
    """Put a module back as it is now."""
    state = ModuleState(model, copy_parameters=True)
    try:
        yield
    finally:
        state.restore(last=True)

"""What a run changes and no checkpoint holds."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import nn

from ..data.contents import Contents, Held, is_array
from ..data.describing import describe_leaf
from ..data.generators import is_generator
from ..lean import dataclass
from .checkpoints import pieces_of
from .replay import replay

if TYPE_CHECKING:
    from types import FrameType

    from ..findings import Location
    from ..record.tracing import Watcher
    from ..subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A value that the run changes and the checkpoint does not hold.

    Attributes:
        path: ``model.ema``, ``optimizer.moments``.
        location: The line that makes it.
        held: Where it is.
        beside: The module beside the model that holds it, as the step calls it, such as a loss with a
            memory bank; empty where none does.
    """

    path: str
    location: Location | None
    held: Held
    beside: str = ""

    @property
    def restarts(self) -> bool:
        """Whether it may be meant to start anew: a tensor of the model's, such as a carried hidden state."""
        number = isinstance(self.held.value, bool | int | float | str)
        return self.path.startswith("model.") and not number


Plain = dict[str, tuple[Any, Held | None]]


def plain_values(thing: Any) -> Plain:
    """Return the values that an object holds outside of its ``state_dict``, by path, as digests."""
    found: Plain = {}
    contents = Contents(thing)
    for held in contents.arrays:
        found[held.path] = (describe_leaf("", held.value).digest, held)
    for owner in contents.objects:
        for name, value in vars(owner.value).items():
            if isinstance(value, bool | int | float | str) and not name.startswith("_"):
                path = f"{owner.path}.{name}" if owner.path else name
                one = Held(
                    path=path, kind="attribute", value=value, owner=owner.value, attribute=name
                )
                found[path] = (value, one)
    return found


def unsaved(name: str, thing: Any, before: Plain, saved: set[str]) -> tuple[Missing, ...]:
    """Return what an object holds, has changed, and does not save."""
    found = []
    for path, (value, held) in plain_values(thing).items():
        if path in saved or held is None or path.rpartition(".")[2] in ("training", "last_epoch"):
            continue
        if name != "model" and path.startswith(("state", "param_groups", "base_lrs", "optimizer")):
            continue
        if before.get(path, (None, None))[0] != value and not isinstance(held.value, nn.Parameter):
            beside = name if name != "model" and isinstance(thing, nn.Module) else ""
            found.append(
                Missing(path=f"{name}.{path}", location=held.location, held=held, beside=beside)
            )
    return tuple(found)


Carried = list[tuple[str, str, Any]]
"""Of each object by its path: an attribute, and a copy of its value."""


def taken(things: dict[str, Any], missing: tuple[Missing, ...]) -> dict[str, Carried]:
    """Copy, by the name of a thing, the attributes that hold what is missing; nothing where one refuses a copy.

    What may be meant to start anew is left out.

    Args:
        things: The model, and what has a state of its own.
        missing: What may belong to them.
    """
    try:
        return {name: _take(thing, missing, shared(things)) for name, thing in things.items()}
    except Exception:  # an object of the user's: what it decides is left open
        return {}


def shared(things: dict[str, Any]) -> tuple[Any, ...]:
    """Return what copies refer to as it is: the things, the modules and tensors of the model."""
    model = things["model"]
    return (*model.modules(), *model.parameters(), *model.buffers(), *things.values())


def _take(thing: Any, missing: tuple[Missing, ...], shared: tuple[Any, ...]) -> Carried:
    wanted = {(id(m.held.owner), m.held.attribute) for m in missing if not m.restarts}
    memo = {id(one): one for one in shared}
    return [
        (owner.path, name, copy.deepcopy(value, memo))
        for owner in Contents(thing).objects
        for name, value in vars(owner.value).items()
        if (id(owner.value), name) in wanted and not is_generator(value)
    ]


def give(thing: Any, carried: Carried, shared: tuple[Any, ...]) -> None:
    """Give the counterpart of an object what :func:`taken` copied, copied once more: a run writes to it."""
    owners = {owner.path: owner.value for owner in Contents(thing).objects}
    memo = {id(one): one for one in shared}
    for path, name, value in carried:
        if path in owners:
            vars(owners[path])[name] = copy.deepcopy(value, memo)


def writing_line(subject: Subject, missing: Missing, steps: int) -> Location | None:
    """Return the line of the first steps that gives an optimizer's or scheduler's own attribute another value.

    That line could have written to what is saved instead. A module declares what it saves, so that
    none is returned for what modules keep; nor for an entry of a container.

    Args:
        subject: Whose steps.
        missing: What the checkpoint lacks.
        steps: How many steps to watch.
    """
    if isinstance(missing.held.owner, nn.Module) or missing.path.endswith("]"):
        return None
    where, _, attribute = missing.path.rpartition(".")

    def watch(_: nn.Module, made: Any) -> Watcher:
        owner = next(
            (
                one.value
                for name, thing in pieces_of(made).items()
                for one in Contents(thing).objects
                if (f"{name}.{one.path}" if one.path else name) == where
            ),
            None,
        )

        def now() -> object:
            value = getattr(owner, "__dict__", {}).get(attribute)
            return describe_leaf("", value).digest if is_array(value) else value

        before = [now()]

        def watcher(_frame: FrameType, event: str, _line: int) -> bool:
            was, before[0] = before[0], now()
            return event != "call" and was is not None and was != before[0]

        return watcher

    return replay(subject, watch, steps=steps)

"""What a factory loads into its modules while it builds a model."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from .. import sources
from ..lean import dataclass
from .patches import wrap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..findings import Location

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A call of ``load_state_dict`` that raised nothing.

    Attributes:
        owner: The ``id`` of each module whose state it may have changed, the module itself first.
        kind: Class of the module.
        expected: Some of the module's keys.
        given: Some of the keys that it was given.
        matched: How many keys are among both.
        lacking: The module's keys that it was not given.
        location: The line of the call.
    """

    owner: tuple[int, ...]
    kind: str
    expected: tuple[str, ...]
    given: tuple[str, ...]
    matched: int
    lacking: frozenset[str]
    location: Location | None


@contextlib.contextmanager
def watched_loads(found: list[Load]) -> Iterator[None]:
    """Add to a list what ``load_state_dict`` loads within the block, where both sides have keys."""

    def load(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, *others = args
        loaded = others[0] if others else kwargs.get("state_dict")
        given = tuple(loaded) if isinstance(loaded, dict) else ()
        result = original(*args, **kwargs)
        own = tuple(module.state_dict())
        if given and own:
            found.append(
                Load(
                    owner=tuple(id(part) for part in module.modules()),
                    kind=type(module).__name__,
                    expected=own[:_SHOWN],
                    given=tuple(map(str, given[:_SHOWN])),
                    matched=len(set(own).intersection(given)),
                    lacking=frozenset(own).difference(given),
                    location=sources.of_frame(),
                )
            )
        return result

    with contextlib.ExitStack() as stack:
        wrap(stack, nn.Module, "load_state_dict", load)
        yield


def idle_load(loads: list[Load]) -> Load | None:
    """Return the first load of which no key matched, where no other one gave these modules anything."""
    filled = {one for load in loads if load.matched for one in load.owner}
    return next(
        (load for load in loads if not load.matched and filled.isdisjoint(load.owner)), None
    )


def lacking_load(module: nn.Module, name: str) -> Load | None:
    """Load a module's own state into it, and return the call that was not given an entry; None where none is.

    Args:
        module: Whose ``load_state_dict`` may hand on other keys than it gets.
        name: Key of the entry.
    """
    loads: list[Load] = []
    try:
        with watched_loads(loads):
            module.load_state_dict(module.state_dict())
    except Exception:  # a load_state_dict of the user's may raise anything
        return None
    return next((load for load in loads if name in load.lacking and load.location), None)

"""Which tensors of a batch are flags of the ends of episodes and the rewards beside them, by their names and values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ...lean import dataclass
from ...objects import trees

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from ...batches import Batch

_ENDS: Final = re.compile(
    r"(?:\w+_)?(?:dones?|terminals?|terminated|terminations?|ends|is_last|is_terminal)(?:_\w+)?"
)
_OPEN: Final = re.compile(r"(?:\w+_)?(?:not_?dones?|non_?terminals?)(?:_\w+)?")
"""Flags that are 1 where an episode goes on."""
_REWARDS: Final = re.compile(r"(?:\w+_)?(?:rewards?|rews?)(?:_\w+)?|r")
_OTHERWISE: Final = re.compile(r"next|prev|last_|option|skill|goal|sub|int|curio|novel|bonus|trial")
"""Ends of something else than an episode, and rewards that may run through its end, as those of curiosity do."""
_LARGEST: Final = 4_000_000
"""Numbers of a tensor that is looked at."""


def is_ends(name: str) -> bool:
    """Say whether a name is that of flags of the ends of episodes, or of steps that end none."""
    known = _ENDS.fullmatch(name.lower()) or _OPEN.fullmatch(name.lower())
    return known is not None and _OTHERWISE.search(name.lower()) is None


def is_rewards(name: str) -> bool:
    """Say whether a name is that of the rewards of an environment."""
    return _REWARDS.fullmatch(name.lower()) is not None and not _OTHERWISE.search(name.lower())


def key_of(path: str) -> str:
    """Return the last name of a path such as ``y['dones']``; empty for ``y[2]``."""
    found = re.search(r"([A-Za-z_]\w*)['\"]?\]?$", path)
    return found[1] if found else ""


def is_spelled(step: Any) -> bool:
    """Say whether a function has variables named as ends and as rewards."""
    codes = [getattr(getattr(step, "__func__", step), "__code__", None)]
    names: set[str] = set()
    for code in filter(None, codes):
        names |= {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        codes += [one for one in code.co_consts if hasattr(one, "co_varnames")]
    return any(map(is_ends, names)) and any(map(is_rewards, names))


def named(batch: Batch, spelled: bool) -> dict[str, Tensor] | None:
    """Return the flags and rewards of a batch by their paths, without those that only frames may name.

    None where there are no flags of a shape with one or two dimensions beside numbers of that shape.
    """
    leaves = {p: t for p, t in batch.tensors().items() if trees.computable(t) and _time(t)}
    flags = {p: t for p, t in leaves.items() if (spelled or is_ends(key_of(p))) and _flags(t)}
    shapes = {t.shape for t in flags.values()}
    numbers = {
        p: t
        for p, t in leaves.items()
        if t.is_floating_point() and t.shape in shapes and p not in flags
        and (spelled or is_rewards(key_of(p)))
    }  # fmt: skip
    return {**flags, **numbers} if flags and numbers else None


def _time(tensor: Tensor) -> bool:
    return len(shape_of(tensor)) in (1, 2) and max(tensor.shape) > 2


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape without a last dimension of one number."""
    shape = tuple(tensor.shape)
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape


def _flags(tensor: Tensor) -> bool:
    if tensor.is_complex() or not 0 < tensor.numel() <= _LARGEST:
        return False
    on = tensor == 1
    return bool((on | (tensor == 0)).all()) and bool(on.any()) and not bool(on.all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Flags of ends and the rewards beside them.

    Attributes:
        ends, rewards: Their paths in the batch, and names.
        on: Where an episode ends.
        values: The rewards.
    """

    ends: tuple[str, str]
    rewards: tuple[str, str]
    on: Tensor
    values: Tensor

    @property
    def dims(self) -> int:
        """How many dimensions there are, of which one is time."""
        return self.values.dim()

    @property
    def goes_on(self) -> str:
        """How it is written that a step ends no episode."""
        name = self.ends[1]
        return name if _OPEN.fullmatch(name.lower()) else f"1 - {name}"

    def written(self, time: int, column: int) -> str:
        """Return how a step of a column is written, with ``{}`` for the step."""
        return "[{}]" if self.dims == 1 else ("[{}, %d]", "[%d, {}]")[time] % column

    def place(self, time: int) -> tuple[int, int] | None:
        """Return step and column of an end after which another episode goes on; what follows it is no padding."""
        ends, values = timed(self.on, time), timed(self.values, time)
        going_on = (ends | (values != 0)).flip(0).cummax(0).values.flip(0)  # now or later
        found = (ends[1:-1] & ~ends[2:] & going_on[2:]).nonzero()
        return (int(found[0, 0]) + 1, int(found[0, 1])) if len(found) else None


def timed(tensor: Tensor, time: int) -> Tensor:
    """Return a tensor with steps first and columns second."""
    return tensor.movedim(time, 0).reshape(tensor.shape[time], -1)


def pairs_of(batch: Batch, names: Mapping[str, str]) -> Iterator[Pair]:
    """Yield the flags and rewards of one shape that have names as these.

    Args:
        batch: The batch.
        names: By path, what the user's code calls a tensor.
    """
    tensors = batch.tensors()
    for path, name in names.items():
        if not is_ends(name):
            continue
        on = tensors[path] == (0 if _OPEN.fullmatch(name.lower()) else 1)
        for other, called in names.items():
            if is_rewards(called) and tensors[other].shape == tensors[path].shape:
                shape = shape_of(on)
                yield Pair(
                    ends=(path, name),
                    rewards=(other, called),
                    on=on.reshape(shape),
                    values=tensors[other].detach().reshape(shape),
                )

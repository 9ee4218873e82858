"""Two versions' state dicts: what an old checkpoint needs to load."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..lean import dataclass
from ..text.printable import message_of
from .snapshot import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..subject import Subject
    from .running import Load

    Entries = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """How the entries of two state dicts differ.

    Attributes:
        removed, added: Names that only the old one, or only the new one, has.
        reshaped: By name, old and new shape of what both have.
        recast: By name, old and new dtype.
        renames: Old names by which new entries of the same shape go; the same initial values prefer
            a pair.
        sure: Whether every pair of :attr:`renames` has the same initial values.
        made: By old name, the line that made it, as plain data, where it is known.
    """

    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    reshaped: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    recast: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)
    sure: bool = False
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether anything differs."""
        return bool(self.removed or self.added or self.reshaped or self.recast)

    @property
    def complete(self) -> bool:
        """Whether renaming alone would make an old checkpoint load."""
        whole = set(self.renames) == set(self.removed)
        return whole and set(self.renames.values()) == set(self.added) and not self.reshaped

    def lines(self) -> list[str]:
        """Return a line for each difference."""
        lines = [f"{old} is now {new}" for old, new in self.renames.items()]
        lines += [f"{name} is gone" for name in self.removed if name not in self.renames]
        taken = set(self.renames.values())
        lines += [f"{name} is new" for name in self.added if name not in taken]
        lines += [f"{name}: shape {a}, now {b}" for name, (a, b) in self.reshaped.items()]
        return lines + [f"{name}: {a}, now {b}" for name, (a, b) in self.recast.items()]


def compare_state(old: Entries, new: Entries) -> StateChange:
    """Compare the entries of two state dicts; see :func:`~.snapshot.state_of`."""
    removed = tuple(name for name in old if name not in new)
    added = tuple(name for name in new if name not in old)
    both = [name for name in old if name in new]
    renames, sure = _renames(old, new, removed, added)
    return StateChange(
        removed=removed,
        added=added,
        reshaped={
            n: (old[n]["shape"], new[n]["shape"])
            for n in both
            if old[n]["shape"] != new[n]["shape"]
        },
        recast={
            n: (old[n]["dtype"], new[n]["dtype"])
            for n in both
            if old[n]["dtype"] != new[n]["dtype"]
        },
        renames=renames,
        sure=sure,
        made={name: old[name].get("line") for name in removed},
    )


def _renames(
    old: Entries, new: Entries, removed: tuple[str, ...], added: tuple[str, ...]
) -> tuple[dict[str, str], bool]:
    """Pair names that are gone with new ones of the same shape and dtype: equal values first, then a like ending."""
    found: dict[str, str] = {}
    free = list(added)
    sure = True
    for name in removed:
        alike = [
            n for n in free if all(old[name][key] == new[n][key] for key in ("shape", "dtype"))
        ]
        if not alike:
            continue
        ranked = max(
            alike,
            key=lambda n: (
                old[name]["digest"] == new[n]["digest"], _ending(name, n), -free.index(n),
            ),
        )  # fmt: skip
        if not _ending(name, ranked) and old[name]["digest"] != new[ranked]["digest"]:
            continue
        sure = sure and old[name]["digest"] == new[ranked]["digest"]
        found[name] = ranked
        free.remove(ranked)
    return found, sure and bool(found)


def _ending(one: str, two: str) -> int:
    """Count the last parts that two names share."""
    count = 0
    for a, b in zip(reversed(one.split(".")), reversed(two.split(".")), strict=False):
        if a != b:
            break
        count += 1
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How old weights get into the model as it is.

    Attributes:
        load: Loads them; None where they cannot be loaded.
        how: ``strict``, ``mapped`` (by the contract), ``renamed``, ``partly`` or ``none``.
        error: What strict loading raised.
    """

    load: Load | None
    how: str
    error: str = ""


def find_loading(
    subject: Subject,
    weights: Mapping[str, torch.Tensor],
    change: StateChange,
    mapping: Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]] | None = None,
) -> Loading:
    """Find how the weights of the old version load: strictly, by a mapping, renamed, or those that both have."""
    state = dict(weights)
    if mapping is not None:
        mapped = loading(dict(mapping({k: v.clone() for k, v in state.items()})))
        error = _tried(subject, mapped)
        return Loading(
            load=None if error else mapped, how="none" if error else "mapped", error=error
        )
    strict = loading(state)
    error = _tried(subject, strict)
    if not error:
        return Loading(load=strict, how="strict")
    if change.renames:
        renamed = loading({change.renames.get(k, k): v for k, v in state.items()})
        if not _tried(subject, renamed):
            return Loading(load=renamed, how="renamed", error=error)
    with_parameters = {name for name, _ in subject.model.named_parameters(remove_duplicate=False)}
    if change.reshaped or with_parameters & set(change.added):
        return Loading(load=None, how="none", error=error)
    partly = _partly(state)
    if _tried(subject, partly):
        return Loading(load=None, how="none", error=error)
    return Loading(load=partly, how="partly", error=error)


def _partly(state: dict[str, torch.Tensor]) -> Load:
    """Load what both versions have, and buffers that the new one has and does not save."""

    def load(model: nn.Module) -> None:
        model.load_state_dict({k: v.clone() for k, v in state.items()}, strict=False)
        for name, buffer in model.named_buffers():
            value = state.get(name)
            if value is not None and value.shape == buffer.shape:
                buffer.copy_(value)

    return load


def _tried(subject: Subject, load: Load) -> str:
    """Return what loading raises, empty where it does not."""
    with subject.pristine(steps=True) as model, torch.no_grad():
        try:
            load(model)
        except Exception as error:  # a model's own hooks may raise anything
            return message_of(error)
    return ""

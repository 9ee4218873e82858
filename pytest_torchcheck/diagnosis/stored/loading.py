"""The line of a model's own loading after which an entry of a checkpoint has another name, or other values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import torch

from ...findings import Culprit
from ...lean import dataclass
from ...objects import trees
from ...record.tracing import find_line, line_of, returns
from ...runs.saving import LOADING
from ...state.tensors import named_tensors
from ..lines.conditions import assigned_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ...findings import Location
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """A line of the user's loading that loses an entry.

    Attributes:
        kind: ``renamed``: the entry is held under a key that is not its own; ``remade``: a tensor is put
            under its key whose values are not those that were saved.
        location: The line.
        key: The key.
        permuted: Of one that is remade: whether it has the same values in another order.
        chosen: The variables that the line reads, with the lines that gave them their values.
    """

    kind: Literal["renamed", "remade", "left"]
    location: Location
    key: str
    permuted: bool
    chosen: tuple[tuple[str, Location], ...]

    @property
    def cause(self) -> str:
        """What the line does, as a clause."""
        if self.kind == "renamed":
            return f"line {self.location.line} names the entry {self.key!r}, which no part of the model has"
        if self.kind == "left":
            return f"line {self.location.line} returns before {self.key} is loaded"
        order = ": the same values in another order" if self.permuted else ""
        made = f"line {self.location.line} makes {self.key} from other entries"
        return f"{made}, with other values than were saved{order}"

    @property
    def fix(self) -> str:
        """The edit."""
        line = self.location.line
        if self.kind == "renamed":
            anywhere = (
                "; str.replace() changes every occurrence, removeprefix() the first characters only"
            )
            told = anywhere if ".replace(" in self.location.text else ""
            return f"give it a key that the model has on line {line}{told}"
        if self.kind == "left":
            return f"load every entry that nn.Module's own method loads: call it by super() on line {line}"
        return f"put the entries together on line {line} as the saving takes them apart"

    def culprits(self) -> list[Culprit]:
        """Return the line, and the lines that gave it what it reads."""
        named = [Culprit("call", name, "is read by it", at) for name, at in self.chosen]
        done = "returns without a load" if self.kind == "left" else self.kind
        return [Culprit("call", "load_state_dict", done, self.location), *named]


def losing_line(subject: Subject, name: str) -> Loading | None:
    """Load a model's state into itself, and return the line that loses an entry; None where none was seen to.

    Args:
        subject: Whose model; it is put back.
        name: Qualified name of a parameter or buffer.
    """
    seen: list[tuple[Literal["renamed", "remade"], str, bool]] = []
    ran: set[tuple[str, int]] = set()
    with subject.pristine(steps=True) as model, torch.no_grad():
        state = model.state_dict()
        for key, value in list(state.items()):
            state[key] = value.clone() if isinstance(value, torch.Tensor) else value
        own = _tensor(model, name)
        if own is None:
            return None
        given = {id(value) for value in state.values()}
        entry, names = state.get(name), tuple(state)

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event == "call":
                return False
            place = line_of(frame.f_code, line)
            ran.add((place.file, line))
            for key, value in _held(frame):
                if value is entry and not any(_means(key, known, ()) for known in names):
                    seen.append(("renamed", key, False))
                elif id(value) not in given and _means(key, name, names) and _unlike(value, own):
                    seen.append(("remade", name, _permuted(value, own)))
            return bool(seen)

        place = find_line(lambda: model.load_state_dict(state, strict=True), watcher)
    if place is None or not seen:
        return _left(subject, name)
    kind, key, permuted = seen[0]
    chosen = tuple((name, at) for name, at in assigned_for(place) if (at.file, at.line) in ran)
    return Loading(kind=kind, location=place, key=key, permuted=permuted, chosen=chosen)


def _left(subject: Subject, name: str) -> Loading | None:
    """Return the ``return`` by which the loading of an entry's own module ends early; None where it does not."""
    with subject.pristine(steps=True) as model, torch.no_grad():
        owner, state = model.get_submodule(name.rpartition(".")[0]), model.state_dict()
        ended = returns(lambda: model.load_state_dict(state, strict=True))
        places = [
            line_of(one.frame.f_code, one.line)
            for one in ended
            if one.frame.f_locals.get("self") is owner and one.frame.f_code.co_name in LOADING
        ]
    place = next((at for at in places if re.match(r"return\b(?!.*super\()", at.text)), None)
    if place is None:
        return None
    return Loading(kind="left", location=place, key=name, permuted=False, chosen=())


def leaving_line(subject: Subject, name: str) -> Location | None:
    """Save a model, and return the line of its own saving after which an entry is gone, or that returns without it."""
    with subject.pristine() as model:
        place = trees.address(named_tensors(model)[name])
        if place is None:
            return None
        had: set[FrameType] = set()

        def watcher(frame: FrameType, event: str, _line: int) -> bool:
            if any(trees.address(value) == place for _, value in _held(frame)):
                had.add(frame)
            return (
                event == "line" and frame in had and not _has(list(frame.f_locals.values()), place)
            )

        if (found := find_line(model.state_dict, watcher)) is not None:
            return found
        last = [
            one for one in returns(model.state_dict) if one.frame.f_code.co_name == "state_dict"
        ]
        if not last or _has([last[-1].value], place):
            return None
        return line_of(last[-1].frame.f_code, last[-1].line)


def _has(held: list[object], place: int | None) -> bool:
    return any(trees.address(value) == place for _, value in _entries(held))


def _tensor(model: torch.nn.Module, name: str) -> torch.Tensor | None:
    """Return a copy of a parameter or buffer by its name."""
    known = named_tensors(model)
    return known[name].detach().clone() if name in known else None


def _held(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that the variables of a frame hold in dicts, by key."""
    return _entries(list(frame.f_locals.values()))


def _entries(values: list[object]) -> Iterator[tuple[str, torch.Tensor]]:
    for held in values:
        if isinstance(held, dict):
            for key, value in list(held.items()):
                if isinstance(key, str) and isinstance(value, torch.Tensor):
                    yield key, value


def _means(key: str, name: str, names: tuple[str, ...]) -> bool:
    """Say whether a key is an entry's name or the end of it, and of no other one's of ``names``."""
    end = f".{key}"
    return key == name or (
        name.endswith(end) and not any(n.endswith(end) for n in names if n != name)
    )


def _unlike(value: torch.Tensor, own: torch.Tensor) -> bool:
    return value.shape == own.shape and not torch.equal(value.to(own), own)


def _permuted(value: torch.Tensor, own: torch.Tensor) -> bool:
    return torch.equal(value.to(own).flatten().sort().values, own.flatten().sort().values)

"""Is a generator replayed within one reading, to transform image and mask alike, while the transforms draw from another?

The classic way of it sets ``random`` back to a state, or seeds it twice alike, and applies one
transform to both. It does nothing where the transform draws from torch or NumPy. That is seen by a
state that is set back although nothing drew from that generator since, while one line draws from
another generator both before and after.
"""

from __future__ import annotations

import contextlib
import random
import sys
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Finding, Location
from ...lean import dataclass
from ...record.tracing import find_line, line_of
from ...state import isolated, seed_process
from ...verdicts import violated
from ..contents import Contents
from ..generators import fingerprint, global_generators
from ..snapshot import Snapshot
from ..validity import spread
from ..wording import line_ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ..plan import Part

_SAMPLES = 2  # of each dataset are read under watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A generator set back in vain.

    Attributes:
        name: Of the generator: ``random``, ``np.random``, ``torch``.
        call: What sets it back, such as ``random.setstate``.
        location: Where.
        other: The generator that is drawn from instead.
        drawn: The line that draws from it, before and after.
        index: Of the sample that was read.
    """

    name: str
    call: str
    location: Location | None
    other: str
    drawn: Location
    index: int


@dataclass(slots=True)
class _Event:
    """A call that reads or sets the state of a generator of the process; states by name before and after it."""

    name: str
    call: str
    sets: bool
    location: Location | None
    before: dict[str, bytes]
    after: dict[str, bytes] = field(default_factory=dict)


def find_replay(part: Part, *, seed: int = 0) -> Replay | None:
    """Read a few samples and record who sets a generator; trace the reading only where one is set back in vain."""
    places = spread(part.length, _SAMPLES)
    contents = Contents(part.dataset, places)
    generators = {held.path: held.value for held in contents.generators} | global_generators()
    snapshot = Snapshot(contents)
    for index in places:

        def call(index: int = index) -> Any:
            return part.dataset[index]

        with _fresh(snapshot, seed + index):
            events, end = _recorded(call, generators)
        for start, back, other in _in_vain(events, end):
            with _fresh(snapshot, seed + index):
                drawn = _drawn_twice(call, generators, other, start, back)
            if drawn is not None:
                event = events[back]
                return Replay(
                    name=event.name,
                    call=event.call,
                    location=event.location,
                    other=other,
                    drawn=drawn,
                    index=index,
                )
    return None


@contextlib.contextmanager
def _fresh(snapshot: Snapshot, seed: int) -> Iterator[None]:
    """Seed the process for one reading; put the process and the dataset back after it."""
    with isolated():
        try:
            seed_process(seed)
            yield
        finally:
            snapshot.restore()


def _states(generators: dict[str, Any]) -> dict[str, bytes]:
    return {name: fingerprint(generator) for name, generator in generators.items()}


def _watched() -> list[tuple[Any, str, str, str, bool]]:
    """Return the functions that read or set a generator of the process: owner, attribute, generator, name, whether it sets."""
    found: list[tuple[Any, str, str, str, bool]] = [
        (random, "getstate", "random", "random.getstate", False),
        (random, "setstate", "random", "random.setstate", True),
        (random, "seed", "random", "random.seed", True),
    ]
    for owner in (torch, torch.random):
        found += [
            (owner, "get_rng_state", "torch", "torch.get_rng_state", False),
            (owner, "set_rng_state", "torch", "torch.set_rng_state", True),
            (owner, "manual_seed", "torch", "torch.manual_seed", True),
        ]
    if (numpy := sys.modules.get("numpy")) is not None:
        found += [
            (numpy.random, "get_state", "np.random", "np.random.get_state", False),
            (numpy.random, "set_state", "np.random", "np.random.set_state", True),
            (numpy.random, "seed", "np.random", "np.random.seed", True),
        ]
    return found


def _recorded(
    call: Callable[[], Any], generators: dict[str, Any], events: list[_Event] | None = None
) -> tuple[list[_Event], dict[str, bytes]]:
    """Run a call and return the events of it, and the states at its end; what the call raises ends it."""
    events = [] if events is None else events

    def recorder(original: Callable[..., Any], name: str, label: str, sets: bool) -> Any:
        def record(*args: Any, **kwargs: Any) -> Any:
            event = _Event(name, label, sets, sources.of_frame(skip=1), _states(generators))
            result = original(*args, **kwargs)
            event.after = _states(generators)
            events.append(event)
            return result

        return record

    with contextlib.ExitStack() as stack:
        for owner, attribute, name, label, sets in _watched():
            original = getattr(owner, attribute)
            stack.callback(setattr, owner, attribute, original)
            setattr(owner, attribute, recorder(original, name, label, sets))
        with contextlib.suppress(Exception):  # what reading raises is told by samples-valid
            call()
    return events, _states(generators)


def _in_vain(events: list[_Event], end: dict[str, bytes]) -> Iterator[tuple[int, int, str]]:
    """Yield the events between which a generator stood still while another, which nothing sets, was drawn from, then and later."""
    for back, second in enumerate(events):
        if not second.sets or second.before[second.name] != second.after[second.name]:
            continue
        for start, first in enumerate(events[:back]):
            if first.name != second.name or first.after[first.name] != second.after[first.name]:
                continue
            set_again = {event.name for event in events[start + 1 :] if event.sets}
            for other, state in first.after.items():
                if other == second.name or other in set_again:
                    continue
                if state != second.before[other] and second.after[other] != end[other]:
                    yield start, back, other


def _drawn_twice(
    call: Callable[[], Any], generators: dict[str, Any], other: str, start: int, back: int
) -> Location | None:
    """Return the line that draws from a generator both between two events and after the second; None where it is set back."""
    events: list[_Event] = []
    states = [fingerprint(generators[other])]
    lines: dict[bool, list[tuple[Any, int]]] = {False: [], True: []}

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        state = fingerprint(generators[other])
        if event != "call" and state != states[-1]:
            states.append(state)
            if len(events) > start:
                lines[len(events) > back].append((frame.f_code, line))
        return False

    _recorded(lambda: find_line(call, watcher, least=1), generators, events)
    if len(set(states)) < len(states):
        return None  # it came back to an earlier state: that one is replayed too
    both = [place for place in lines[False] if place in lines[True]]
    return line_of(*both[0]) if both else None


def replayed_in_vain(part: Part, found: Replay) -> Finding:
    """A transform is meant to be repeated, and draws anew."""
    return violated(
        "transform-not-repeated",
        f"{part.prefix}{found.call} has no effect: the transform draws from {found.other}, not "
        f"from {found.name}",
        culprits=(
            Culprit("call", found.call, f"no draw from {found.name} since", found.location),
            Culprit("dataset", found.other, "drawn from before and after", found.drawn),
        ),
        observed=f"sample {found.index}: the state of {found.name} is unchanged before and after "
        "the call",
        cause="image and mask, which must be transformed alike, are transformed with different "
        f"draws from {found.other}",
        because=f"{line_ref(found.drawn)} draws from {found.other} before {line_ref(found.location)} and after it",
        fix=f"restore {found.other} at {line_ref(found.location)}, or draw the transform's "
        "parameters once and apply them to both",
    )

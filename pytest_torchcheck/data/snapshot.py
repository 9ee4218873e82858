"""Take everything that a dataset holds, say what changed, and put it back."""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..lean import dataclass
from ..objects.held import unlocked
from ..state import isolated
from .contents import Contents, Held, is_object_array
from .generators import generator_state, set_generator_state

FULL_COPY_BYTES = 4 * 2**20
"""Arrays of up to this many bytes are copied whole; of larger ones only the rows that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An array, container or attribute of the dataset that was written to.

    Attributes:
        held: Which one.
        rows: First indices of an array's first dimension that differ, at most 8.
        elements: How many elements differ, or of a container are new, gone or replaced.
    """

    held: Held
    rows: tuple[int, ...]
    elements: int


class Snapshot:
    """What a dataset held at one moment.

    Args:
        contents: Of which object.
        budget: How many bytes of arrays are copied whole, the small ones first; ``FULL_COPY_BYTES``
            by default.
    """

    def __init__(self, contents: Contents, *, budget: int | None = None) -> None:
        self.contents = contents
        self._attributes = [(held, dict(held.value.__dict__)) for held in contents.objects]
        self._elements = [
            (held, _shallow(held.value))
            for held in contents.containers
            if not isinstance(held.value, tuple | frozenset)
        ]
        self._states = [(held.value, generator_state(held.value)) for held in contents.generators]
        self.copies: list[tuple[Held, tuple[int, ...] | None, Any]] = []
        budget = FULL_COPY_BYTES if budget is None else budget
        for held in sorted(contents.arrays, key=lambda held: _nbytes(held.value)):
            size = _nbytes(held.value)
            rows = (
                None if size <= budget else tuple(r for r in contents.rows if r < len(held.value))
            )
            budget -= size if rows is None else 0
            self.copies.append((held, rows, _take(held.value, rows)))

    def changes(self) -> list[Change]:
        """Return what differs from what was taken: arrays, then containers, then attributes."""
        found = []
        for held, rows, copy in self.copies:
            different = _differing(_part(held.value, rows), copy)
            if different is None:
                continue
            where, elements = different
            named = where if rows is None else tuple(rows[i] for i in where)
            found.append(Change(held=held, rows=named[:8], elements=elements))
        found.sort(key=lambda change: change.held.path)
        for held, elements in self._elements:
            if count := _unlike(held.value, elements):
                found.append(Change(held=held, rows=(), elements=count))
        for held, attributes in self._attributes:
            for name, value in held.value.__dict__.items():
                if attributes.get(name, self) is not value:
                    path = f"{held.path}.{name}" if held.path else name
                    bound = Held(
                        path=path, kind="attribute", value=value, owner=held.value, attribute=name
                    )
                    found.append(Change(held=bound, rows=(), elements=1))
        return found

    def filled(self) -> list[tuple[Held, list[Any]]]:
        """Return the mappings and lists with entries that are new or replaced, and their keys or places."""
        found = []
        for held, elements in self._elements:
            now = held.value
            if isinstance(now, Mapping):
                keys = [key for key, value in now.items() if elements.get(key, self) is not value]
            elif isinstance(now, list):
                keys = [
                    place
                    for place, value in enumerate(now)
                    if place >= len(elements) or elements[place] is not value
                ]
            else:
                continue
            if keys:
                found.append((held, keys))
        return found

    def stored(self) -> bool:
        """Say whether an entry of a container is new or replaced, or an attribute bound to another object."""
        return bool(self.filled()) or any(
            held.value.__dict__.get(name, self) is not attributes.get(name, self)
            for held, attributes in self._attributes
            for name in {*held.value.__dict__, *attributes}
        )

    def changed(self, held: Held) -> bool:
        """Say whether one array or container differs from what was taken."""
        for one, rows, copy in self.copies:
            if one.value is held.value:
                return _differing(_part(one.value, rows), copy) is not None
        for one, elements in self._elements:
            if one.value is held.value:
                return _unlike(one.value, elements) > 0
        for one, attributes in self._attributes:
            if one.value is held.owner:
                return one.value.__dict__.get(held.attribute) is not attributes.get(held.attribute)
        return False

    def restore_generators(self) -> None:
        """Put back the states of the dataset's own generators only."""
        for generator, state in self._states:
            set_generator_state(generator, state)

    def restore(self) -> None:
        """Put back attributes, containers, generator states and the values of arrays."""
        for owner, attributes in self._attributes:
            current = owner.value.__dict__
            if len(current) != len(attributes) or any(
                current.get(key, self) is not value for key, value in attributes.items()
            ):
                current.clear()
                current.update(attributes)
        for held, elements in self._elements:
            if _unlike(held.value, elements):
                _refill(held.value, elements)
        self.restore_generators()
        for held, rows, copy in self.copies:
            if _differing(_part(held.value, rows), copy) is not None:
                _put(held.value, rows, copy)


@contextlib.contextmanager
def put_back(dataset: Any, indices: tuple[int, ...] = ()) -> Iterator[Snapshot]:
    """Take a snapshot; put back at the end what the dataset holds, and the process's state.

    Args:
        dataset: Of whatever kind.
        indices: Samples that are read meanwhile: what a large array holds for others is not kept.
    """
    snapshot = Snapshot(Contents(dataset, indices))
    with isolated():
        try:
            yield snapshot
        finally:
            snapshot.restore()


def _nbytes(array: Any) -> int:
    if isinstance(array, torch.Tensor):
        return 0 if array.device.type == "meta" else array.element_size() * array.numel()
    return int(array.nbytes)


def _part(array: Any, rows: tuple[int, ...] | None) -> Any:
    if rows is None:
        return array
    return array[list(rows)]  # advanced indexing copies, in torch as in NumPy


def _take(array: Any, rows: tuple[int, ...] | None) -> Any:
    part = _part(array, rows)
    if isinstance(part, torch.Tensor):
        return part.detach().clone() if part.device.type != "meta" else part
    return part.copy()


def _put(array: Any, rows: tuple[int, ...] | None, copy: Any) -> None:
    where: Any = ... if rows is None else list(rows)
    if isinstance(array, torch.Tensor):
        array.data[where] = copy
    else:
        with unlocked(array):
            array[where] = copy


def _differing(now: Any, then: Any) -> tuple[tuple[int, ...], int] | None:
    """Return the first rows that differ bit by bit, and how many elements; None where nothing does."""
    if isinstance(now, torch.Tensor):
        if now.device.type == "meta" or now.is_sparse or now.layout != torch.strided:
            return None
        now, then = now.detach(), then.detach()
        if torch.equal(now, then):
            return None
        unequal = (now != then) & ~((now != now) & (then != then))  # NaN stays NaN
        if unequal.dim() == 0:
            return ((), 1) if bool(unequal) else None
        rows = torch.nonzero(unequal.flatten(1).any(1) if unequal.dim() > 1 else unequal).flatten()
        return (tuple(rows[:8].tolist()), int(unequal.sum())) if len(rows) else None
    numpy = sys.modules["numpy"]
    if numpy.array_equal(now, then):
        return None
    unequal = (now != then) & ~((now != now) & (then != then))
    if not unequal.any():
        return None
    if unequal.ndim == 0:
        return (), 1
    rows = numpy.nonzero(unequal.reshape(len(unequal), -1).any(1))[0]
    return tuple(int(row) for row in rows[:8]), int(unequal.sum())


def _shallow(container: Any) -> Any:
    if isinstance(container, Mapping):
        return dict(container)
    return container.copy() if hasattr(container, "copy") else list(container)


def _unlike(container: Any, elements: Any) -> int:
    """Count the elements of a container that are new, gone or replaced."""
    if isinstance(container, Mapping):
        here = sum(
            1 for key, value in elements.items() if container.get(key, elements) is not value
        )
        return here + sum(1 for key in container if key not in elements)
    if isinstance(container, set):
        return len(container ^ elements)
    pairs = zip(container, elements, strict=False)
    return abs(len(container) - len(elements)) + sum(1 for a, b in pairs if a is not b)


def _refill(container: Any, elements: Any) -> None:
    if isinstance(container, dict | set):
        container.clear()
        container.update(elements)
    elif isinstance(container, list | collections.deque):
        container.clear()
        container.extend(elements)
    elif is_object_array(container):
        container[...] = elements

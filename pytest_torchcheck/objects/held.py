"""What an object may hold beside tensors and containers: random generators, arrays, slots, iterators."""

from __future__ import annotations

import array
import contextlib
import random
import sys
import types
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_BYTES: Final = 256 * 2**20
"""Larger arrays are not copied."""

_MISSING: Final = object()


def keeper(value: Any) -> Callable[[], None] | None:
    """Take the state of a value that changes in place; return what puts it back, or None for any other value.

    Args:
        value: A generator of torch, numpy or random (not one of the process, which is put back with
            the process), an
            array of numpy that may be written to, a ``bytearray`` or an ``array.array``.
    """
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return None if _is_global(value) else lambda: _set_generator(value, state)
    if isinstance(value, random.Random):
        if isinstance(value, random.SystemRandom) or _is_global(value):
            return None
        python = value.getstate()
        return lambda: value.setstate(python)
    if isinstance(value, bytearray | array.array):
        items = value[:]
        return lambda: _refill(value, items)
    return _of_numpy(value)


def _of_numpy(value: Any) -> Callable[[], None] | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        state = bits.state
        return lambda: setattr(bits, "state", state)
    if isinstance(value, numpy.random.RandomState):
        if _is_global(value):
            return None
        legacy = value.get_state(legacy=False)
        return lambda: value.set_state(legacy)
    if isinstance(value, numpy.ndarray):
        if not value.flags.writeable or value.nbytes > MOST_BYTES:
            return None
        copy = value.copy()
        return lambda: _rewrite(value, copy)
    return None


def random_state(value: Any) -> object | None:
    """Return the state of a generator of random numbers, for :func:`same_state`; None of any other value."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate()
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.Generator):
        return value.bit_generator.state
    if isinstance(value, numpy.random.RandomState):
        return value.get_state(legacy=False)
    return None


def same_state(one: object, two: object) -> bool:
    """Say whether two states of generators are equal."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return torch.equal(one, two)
    return repr(one) == repr(two)  # NumPy's are dicts that may hold an array


def set_random_state(value: Any, state: Any) -> None:
    """Give a generator a state that :func:`random_state` returned of one of its kind."""
    if hasattr(value, "bit_generator"):
        value.bit_generator.state = state
    elif hasattr(value, "setstate"):
        value.setstate(state)
    else:
        value.set_state(state)


def items_of(value: Any) -> list[Any]:
    """Return the objects that an array of objects holds; of anything else, nothing."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray) or value.dtype != object:
        return []
    found: list[Any] = value.ravel().tolist()
    return found


def _is_global(generator: Any) -> bool:
    if isinstance(generator, torch.Generator):
        return generator is torch.default_generator
    if isinstance(generator, random.Random):
        return generator is getattr(random, "_inst", None)
    return generator is sys.modules["numpy"].random.mtrand._rand


def _set_generator(generator: torch.Generator, state: torch.Tensor) -> None:
    if not torch.equal(generator.get_state(), state):
        generator.set_state(state)


def _refill(value: Any, items: Any) -> None:
    if value != items:
        value[:] = items


def _rewrite(value: Any, copy: Any) -> None:
    writeable = value.flags.writeable
    if not writeable:  # what the run has changed and then locked
        value.flags.writeable = True
    if value.shape != copy.shape:
        value.resize(copy.shape, refcheck=False)
    value[...] = copy
    value.flags.writeable = writeable


Slots = dict["types.MemberDescriptorType", Any]


def slots_of(thing: Any) -> Slots:
    """Return what an object holds in the ``__slots__`` of its classes, by their descriptors; unset ones are left out."""
    found: Slots = {}
    for cls in type(thing).__mro__:
        members = vars(cls)
        if "__slots__" not in members:
            continue
        for member in members.values():
            if isinstance(member, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # unset
                    found[member] = member.__get__(thing)
    return found


def put_slots(thing: Any, values: Slots) -> None:
    """Let an object's slots hold these values again, also where its class refuses to be written to."""
    now = slots_of(thing)
    for member in now.keys() - values.keys():
        member.__delete__(thing)
    for member, value in values.items():
        if now.get(member, _MISSING) is not value:
            member.__set__(thing, value)


def is_iterator(value: Any) -> bool:
    """Say whether a value is an iterator of Python's own, which ends where it was read to."""
    return type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator)


def copied(iterator: Any) -> Any:
    """Return an iterator that gives what another one has yet to give, without reading from it; None if none can.

    What it iterates over is not copied, so that items stay the same objects.

    Args:
        iterator: One that :func:`is_iterator` accepts. Generators cannot be copied.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of itertools, from Python 3.12 on
        try:
            return _rebuilt(iterator)
        except (TypeError, AttributeError, NotImplementedError):
            return None


def _rebuilt(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_rebuilt, value))
    if not isinstance(value, Iterator):
        return value
    if not is_iterator(value) or isinstance(value, types.GeneratorType):
        raise TypeError(f"a {type(value).__name__} cannot be copied")
    if hasattr(value, "__copy__"):
        return value.__copy__()
    reduced: Any = value.__reduce__()
    function, arguments, *state = reduced
    made = function(*map(_rebuilt, arguments))
    if state and state[0] is not None:
        made.__setstate__(_state_of(state[0]))
    return made


def _state_of(state: Any) -> Any:
    """Copy an iterator's own state: a list in it, as that of ``itertools.cycle``, is one that it fills."""
    if type(state) is tuple:
        return tuple(list(item) if type(item) is list else _rebuilt(item) for item in state)
    return _rebuilt(state)


def position(generator: types.GeneratorType[Any, Any, Any]) -> int:
    """Return how far a generator has run: the instruction it waits at; -1 before its start, -2 behind its end."""
    frame = generator.gi_frame
    return -2 if frame is None else frame.f_lasti

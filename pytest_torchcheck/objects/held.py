"""What an object may hold beside tensors and containers: random generators, arrays, files, slots, iterators, functions."""

from __future__ import annotations

import array
import collections
import contextlib
import functools
import io
import operator
import random
import sys
import types
import warnings
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import torch

from ..lean import dataclass
from .peek import NONE, attributes, closed_over

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_BYTES: Final = 256 * 2**20
"""Larger arrays are not copied."""

_MISSING: Final = object()


def keeper(value: Any) -> Callable[[], None] | None:
    """Take the state of a value that changes in place; return what puts it back, or None for any other value.

    Args:
        value: A generator of torch, numpy or random (not one of the process, which is put back with
            the process), an array of numpy that may be written to, a ``bytearray``, a view of
            memory, an ``array.array``, a file in memory, or one that can be read from any place.
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
    if isinstance(value, memoryview) and value.contiguous and not value.readonly:
        octets, seen = value.cast("B"), value.tobytes()
        return lambda: _refill(octets, seen)
    if isinstance(value, io.StringIO | io.BytesIO):
        return None if value.closed else _of_memory(value)
    if isinstance(value, io.IOBase):
        return _of_file(value)
    return _of_numpy(value)


def _of_memory(value: Any) -> Callable[[], None]:
    """Return what lets a file in memory hold what it held, at the place where it stood."""
    held, place = value.getvalue(), value.tell()

    def put_back() -> None:
        if not value.closed:
            if value.getvalue() != held:
                value.seek(0)
                value.truncate()
                value.write(held)
            value.seek(place)

    return put_back


def _of_file(value: io.IOBase) -> Callable[[], None] | None:
    """Return what puts back the place in a file that is only read; None where it has none."""
    try:
        place = value.tell() if value.seekable() and not value.writable() else None
    except (OSError, ValueError):  # closed, or in the midst of an iteration over its lines
        return None
    return None if place is None else lambda: _seek(value, place)


def _seek(value: io.IOBase, place: int) -> None:
    if not value.closed:
        value.seek(place)


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


def random_state(value: Any) -> Any:
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


@contextlib.contextmanager
def unlocked(array: Any) -> Iterator[None]:
    """Let an array be written to that a run has changed and then locked.

    NumPy refuses to set the flag of an array in another library's memory, even where it is set.
    """
    if array.flags.writeable:
        yield
        return
    array.flags.writeable = True
    try:
        yield
    finally:
        array.flags.writeable = False


def _rewrite(value: Any, copy: Any) -> None:
    with unlocked(value):
        if value.shape != copy.shape:
            value.resize(copy.shape, refcheck=False)
        value[...] = copy


CONTAINERS: Final = (list, dict, set, collections.deque)


def shallow(container: Any) -> list[Any]:
    """Return the items of a container, whatever its class makes of ``len`` and iteration."""
    if isinstance(container, dict):
        return list(dict.items(container))
    base = next(kind for kind in (list, set, collections.deque) if isinstance(container, kind))
    return list(base.__iter__(container))


def same_items(now: Mapping[Any, Any], then: Mapping[Any, Any]) -> bool:
    """Say whether two dicts hold the very same keys and values in the same order."""
    return (
        len(now) == len(then)
        and all(map(operator.is_, now, then))
        and all(map(operator.is_, now.values(), then.values()))
    )


def restore_container(container: Any, copy: list[Any]) -> None:
    """Let a container hold what it held again, whatever its class makes of writing to it."""
    now = shallow(container)
    if isinstance(container, dict):
        if not same_items(dict(now), dict(copy)):
            base = collections.OrderedDict if _is_ordered(container) else dict
            base.clear(container)
            for key, value in copy:
                base.__setitem__(container, key, value)
        return
    if len(now) == len(copy) and all(a is b for a, b in zip(now, copy, strict=True)):
        return
    if isinstance(container, set):
        set.clear(container)
        set.update(container, copy)
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), copy)
    else:
        collections.deque.clear(container)
        collections.deque.extend(container, copy)


def _is_ordered(container: Any) -> bool:
    return isinstance(container, collections.OrderedDict)


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


def within(value: Any) -> list[Any]:
    """Return what a bound method, a partial function, or an iterator that wraps others is made of.

    Of a function only what its closure holds as data: it may reach whatever its file does.
    """
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.FunctionType):
        held = list(closed_over(value).values())
        return [one for one in held if _is_data(one)]
    if is_iterator(value) and not isinstance(value, types.GeneratorType):
        with contextlib.suppress(TypeError, AttributeError, NotImplementedError):
            return list(value.__reduce__()[1])
    return []


def _is_data(value: Any) -> bool:
    kinds = (torch.Tensor, list, dict, set, tuple, bytearray, array.array, Iterator)
    return (
        isinstance(value, kinds) or random_state(value) is not None or _of_numpy(value) is not None
    )


@dataclass(frozen=True, slots=True)
class Unkept:
    """What a run may change and nothing can put back.

    Attributes:
        value: The object.
        kind: What it is, as a message says it.
        then: What tells a change: how far it was read, or a checksum; None where nothing does.
    """

    value: Any
    kind: str
    then: object

    @classmethod
    def of(cls, value: Any) -> Unkept | None:
        """Return what cannot be put back of a value that nothing else keeps, or None where it cannot change."""
        numpy = sys.modules.get("numpy")
        if isinstance(value, types.GeneratorType):
            kind = "a generator"
        elif numpy is not None and isinstance(value, numpy.ndarray) and value.flags.writeable:
            kind = f"an array of more than {MOST_BYTES // 2**20} MiB"
        elif isinstance(value, Iterator) and attributes(value).get("_num_yielded") is not None:
            kind = "an iterator of a DataLoader"
        elif isinstance(value, Iterator) and attributes(value) is NONE and not within(value):
            kind = f"an iterator of type {type(value).__name__}"
        else:
            return None
        return cls(value, kind, _mark(value))

    @property
    def large(self) -> bool:
        """Whether to look at it takes time."""
        return hasattr(self.value, "nbytes")

    def moved(self) -> bool:
        """Say whether it is not as it was, or may not be."""
        return self.then is None or _mark(self.value) != self.then


def _mark(value: Any) -> object:
    if isinstance(value, types.GeneratorType):
        return position(value)
    if isinstance(value, Iterator):
        return attributes(value).get("_num_yielded")
    return zlib.crc32(value.reshape(-1).view("uint8")) if value.flags.c_contiguous else None


def position(generator: types.GeneratorType[Any, Any, Any]) -> int:
    """Return how far a generator has run: the instruction it waits at; -1 before its start, -2 behind its end."""
    frame = generator.gi_frame
    return -2 if frame is None else frame.f_lasti

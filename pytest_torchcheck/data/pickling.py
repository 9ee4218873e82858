"""What of a dataset cannot go to a spawned worker, by attribute path.

The dataset is pickled as :mod:`multiprocessing` would, into nothing: tensors and arrays are stood
in for, because ForkingPickler would move the user's storages into shared memory.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import io
import pickle
import sys
import types
from collections.abc import Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Literal

import torch

from .. import sources
from ..lean import dataclass
from ..text.printable import message_of
from .contents import locate

if TYPE_CHECKING:
    from ..findings import Location

Kind = Literal[
    "lambda", "local function", "local class", "open file", "lock", "generator", "module", "CUDA tensor",
    "tensor with a graph", "object",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpicklable:
    """One thing that cannot be pickled.

    Attributes:
        path: How the user reaches it: ``transform``, ``transforms[2].fn``, ``collate_fn``.
        kind: What it is.
        error: What pickle said.
        location: The line that makes it.
        shares_handle: True for open files, which forked workers share too.
    """

    path: str
    kind: Kind
    error: str
    location: Location | None
    shares_handle: bool = False


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


def _stand_in() -> None:
    return None


class _Trial(ForkingPickler):
    """Pickles as ForkingPickler does, with stand-ins for the data of tensors and arrays."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.grad_fn is not None:
                raise RuntimeError(
                    "a tensor that carries an autograd graph cannot go to another process; detach() it"
                )
            if value.device.type not in ("cpu", "meta"):
                raise RuntimeError(
                    f"a tensor on {value.device} ties every worker to that device; keep datasets on the CPU"
                )
            return _stand_in, ()
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype != object:
            return _stand_in, ()
        return NotImplemented


def failure(value: Any) -> str | None:
    """Return why a value cannot be pickled for a spawned process, or None."""
    try:
        _Trial(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(value)
    except RecursionError:
        return "RecursionError: nested too deeply for pickle"
    except Exception as error:  # any object may refuse to be pickled, in its own words
        return f"{type(error).__name__}: {message_of(error)}"
    return None


def unpicklable(
    value: Any, path: str = "", *, owner: Any = None, attribute: str = ""
) -> tuple[Unpicklable, ...]:
    """Return what keeps a value from being pickled, at most eight things, each the smallest there is.

    Args:
        value: A dataset, a collate function, a ``worker_init_fn``.
        path: Its name for the user; attributes of a dataset (path ``""``) are named without a prefix.
        owner: Object that has it as an attribute.
        attribute: Its name there.
    """
    error = failure(value)
    if error is None:
        return ()
    found: list[Unpicklable] = []
    _search(value, path, owner, attribute, error, found, set())
    return tuple(found)


def _search(
    value: Any,
    path: str,
    owner: Any,
    attribute: str,
    error: str,
    found: list[Unpicklable],
    seen: set[int],
) -> None:
    if id(value) in seen or len(found) >= 8:
        return
    seen.add(id(value))
    before = len(found)
    for child_path, child, child_owner, child_attribute in _children(value, path, owner, attribute):
        child_error = failure(child)
        if child_error is not None:
            _search(child, child_path, child_owner, child_attribute, child_error, found, seen)
    if len(found) == before:
        kind = _kind(value)
        found.append(
            Unpicklable(
                path=path or type(value).__name__,
                kind=kind,
                error=error,
                location=_location(value, kind, owner, attribute),
                shares_handle=kind == "open file",
            )
        )


def _children(
    value: Any, path: str, owner: Any, attribute: str
) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield what pickle would visit inside a value, with its path and who holds it."""
    dot = f"{path}." if path else ""
    if isinstance(value, type | types.FunctionType | types.ModuleType | torch.Tensor):
        return
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", item, owner, attribute) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{i}]", item, owner, attribute) for i, item in enumerate(value))
    elif isinstance(value, types.MethodType):
        yield path, value.__self__, owner, attribute
    elif isinstance(value, functools.partial):
        yield f"{dot}func", value.func, owner, attribute
        yield from (
            (f"{path}.args[{i}]", item, owner, attribute) for i, item in enumerate(value.args)
        )
        yield from ((f"{dot}{key}", item, owner, attribute) for key, item in value.keywords.items())
    else:
        if "<locals>" in type(value).__qualname__:
            yield path or type(value).__name__, type(value), value, ""
        for name, item in _state(value):
            yield (f"{dot}{name}" if name else path), item, value, name


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that an instance's own way of pickling would send."""
    try:
        if all(
            getattr(type(value), name) is getattr(object, name)
            for name in ("__reduce_ex__", "__reduce__")
        ):
            state = value.__getstate__()
        elif type(value) in copyreg.dispatch_table:
            return
        else:
            reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            state = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
            if isinstance(reduced, tuple):
                yield from (("", item) for item in reduced[1])
    except Exception:
        return  # the value refuses to be pickled by itself: it is the culprit
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # slots
        yield from (state[0] or {}).items()
        state = state[1]
    if isinstance(state, dict):
        for name, item in state.items():
            if isinstance(value, torch.nn.Module) and name in (
                "_modules",
                "_parameters",
                "_buffers",
            ):
                yield from item.items()
            else:
                yield str(name), item
    elif state is not None:
        yield "", state


def _kind(value: Any) -> Kind:
    if isinstance(value, types.FunctionType):
        return "lambda" if value.__name__ == "<lambda>" else "local function"
    if isinstance(value, type):
        return "local class"
    if isinstance(value, io.IOBase) or type(value).__module__.split(".")[0] in (
        "h5py",
        "lmdb",
        "sqlite3",
    ):
        return "open file"
    if type(value).__module__ in ("_thread", "threading"):
        return "lock"
    if isinstance(value, types.GeneratorType) or inspect.iscoroutine(value):
        return "generator"
    if isinstance(value, types.ModuleType):
        return "module"
    if isinstance(value, torch.Tensor):
        return "tensor with a graph" if value.grad_fn is not None else "CUDA tensor"
    return "object"


def _location(value: Any, kind: Kind, owner: Any, attribute: str) -> Location | None:
    if kind in ("lambda", "local function", "local class"):
        return sources.of_object(value)
    if owner is not None and attribute and (found := locate(owner, attribute)) is not None:
        return found
    return sources.of_object(value)

"""Which entries of a file of torch.save are objects of some class; nothing of the file is run or rebuilt."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from typing import Any, Self

_DEPTH = 6
_MOST_BYTES = 64 * 2**20


class _Stand:
    """Takes the place of an object of the file: it knows the name of what would have made it."""

    made_by = ""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def append(self, _: Any) -> None:
        """Take an item of a list."""

    def extend(self, _: Any) -> None:
        """Take items of a list."""


class _Reader(pickle.Unpickler):
    """Reads the containers of a file, with a stand-in for everything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for every class and function but that of ordered dicts."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        return type("Stand", (_Stand,), {"made_by": f"{module}.{name}"})

    def persistent_load(self, _: Any) -> None:
        """Leave out the storages."""


def paths_of(file: object, kind: str) -> list[str]:
    """Return the keys of the entries of a file that are, or hold, objects made by a class or function.

    Args:
        file: A path or an open file in torch's zip format; empty for all else.
        kind: Full name, such as ``numpy._core.multiarray.scalar``.
    """
    position = file.tell() if isinstance(file, io.IOBase) and file.seekable() else None
    try:
        content = _pickle_of(file)
        held = _Reader(io.BytesIO(content)).load() if content is not None else None
    except (
        Exception
    ):  # the file is of another format or broken: then nothing can be said of its entries
        return []
    finally:
        if position is not None and isinstance(file, io.IOBase):
            file.seek(position)
    return (
        [str(key) for key, value in held.items() if _holds(value, kind)]
        if isinstance(held, dict)
        else []
    )


def _pickle_of(file: object) -> bytes | None:
    if isinstance(file, io.IOBase):
        file.seek(0)
    elif not isinstance(file, str | os.PathLike):
        return None
    with zipfile.ZipFile(file) as archive:
        name = next((n for n in archive.namelist() if n.endswith("data.pkl")), None)
        if name is None or archive.getinfo(name).file_size > _MOST_BYTES:
            return None
        return archive.read(name)


def _holds(value: Any, kind: str, depth: int = _DEPTH) -> bool:
    if isinstance(value, _Stand):
        return value.made_by == kind
    if depth and isinstance(value, dict):
        return any(_holds(v, kind, depth - 1) for v in value.values())
    return (
        bool(depth)
        and isinstance(value, list | tuple)
        and any(_holds(v, kind, depth - 1) for v in value)
    )

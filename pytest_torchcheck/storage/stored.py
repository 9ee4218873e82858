"""Files that others wrote: checkpoints, inputs and outputs of released versions."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..text.printable import message_of


class StoredError(ValueError):
    """A file cannot be read, or holds something else; the message says what to give."""


def read_tree(given: Any, folder: Path) -> Any:
    """Return what a file holds that ``torch.save`` wrote, or the value itself where it is no path.

    Args:
        given: A path, as text or ``Path``, relative to ``folder``; or any tree of tensors.
        folder: Where relative paths begin.

    Raises:
        StoredError: It cannot be read with ``weights_only=True``.
    """
    if not isinstance(given, str | Path):
        return given
    path = folder / Path(given).expanduser()
    try:
        if path.suffix == ".safetensors":
            return import_module("safetensors.torch").load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise StoredError(f"there is no file {path}") from None
    except ImportError:
        raise StoredError(f"{path} needs the package safetensors; install it") from None
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        first = message_of(error).strip().splitlines()[0]
        raise StoredError(
            f"{path} cannot be read by torch.load(weights_only=True): {first}"
        ) from None


def read_state(
    given: str | Path | Callable[[], Any], key: str | None, folder: Path
) -> dict[str, Any]:
    """Return the state dict of a checkpoint.

    Args:
        given: A path, or a function that returns the state dict.
        key: The entry of the file that holds it; None where the file is the state dict.
        folder: Where relative paths begin.

    Raises:
        StoredError: It cannot be read, or holds no state dict there.
    """
    found = given() if callable(given) else read_tree(given, folder)
    shown = getattr(given, "__name__", given)
    if key is not None:
        if not isinstance(found, Mapping) or key not in found:
            held = (
                ", ".join(map(repr, list(found)[:5]))
                if isinstance(found, Mapping)
                else "no mapping"
            )
            raise StoredError(f"{shown} has no entry {key!r}; it holds {held}")
        found = found[key]
    if not isinstance(found, Mapping):
        raise StoredError(f"{shown} holds no state dict but {found!r:.40}")
    if not any(isinstance(value, torch.Tensor) for value in found.values()):
        inner = [name for name, value in found.items() if isinstance(value, Mapping)]
        hint = f"; give key={inner[0]!r}" if inner else ""
        raise StoredError(f"{shown} holds no tensors, so that it is no state dict{hint}")
    return dict(found)

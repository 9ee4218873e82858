"""Files that are written whole or not at all: a full disk must not cost what was there before."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(path: Path, data: str | bytes | memoryview) -> None:
    """Write a file, making its folder; where that fails, an older file stays as it was.

    Args:
        path: Where it goes. What is no plain file, such as a device, is written to directly.
        data: Its contents; text is written as UTF-8.

    Raises:
        OSError: The folder or the file cannot be written.
    """
    contents = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_bytes(contents)
        return
    path = path.resolve()  # a link stays a link
    fresh = path.with_name(f".{path.name[:50]}.{os.getpid()}")
    try:
        fresh.write_bytes(contents)
        fresh.replace(path)
    except PermissionError:  # a folder that takes no new file may hold one that can be written
        path.write_bytes(contents)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise

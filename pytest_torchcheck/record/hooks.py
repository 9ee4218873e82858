"""Hooks for the length of a block."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.utils.hooks import RemovableHandle


@contextlib.contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end of the block; of those that a list gets within it, all.

    Args:
        handles: What registering them returned. One handle alone is a context manager itself.
    """
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

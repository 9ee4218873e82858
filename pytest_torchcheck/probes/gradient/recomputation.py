"""See activation checkpointing at work, and run without it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch.utils.checkpoint as home

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


@dataclass(slots=True)
class Checkpointing:
    """How often checkpointed regions were entered."""

    regions: int = 0


@contextlib.contextmanager
def watch_checkpointing(*, disable: bool = False) -> Iterator[Checkpointing]:
    """Count the regions that run under ``torch.utils.checkpoint``; run them plainly if ``disable``.

    Both variants are seen, however the function was imported: what they call is looked up in torch's
    own module at each call.

    Args:
        disable: Keep the activations instead of recomputing them.
    """
    seen = Checkpointing()
    generator: Any = home._checkpoint_without_reentrant_generator
    apply: Any = home.CheckpointFunction.apply

    def non_reentrant(*args: Any, **kwargs: Any) -> Generator[None, None, None]:
        seen.regions += 1
        if disable:
            yield
        else:
            yield from generator(*args, **kwargs)

    def reentrant(function: Any, preserve: Any, *args: Any) -> Any:
        seen.regions += 1
        return function(*args) if disable else apply(function, preserve, *args)

    with (
        mock.patch.object(home, "_checkpoint_without_reentrant_generator", non_reentrant),
        mock.patch.object(home.CheckpointFunction, "apply", reentrant),
    ):
        yield seen

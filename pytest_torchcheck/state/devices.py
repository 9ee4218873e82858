"""Errors after which a device cannot be used, and those of an index out of range."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import torch

from ..text.printable import message_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOSSES = (
    "device-side assert triggered",
    "CUDA error: an illegal memory access",
    "CUDA error: unspecified launch failure",
    "CUDA error: misaligned address",
)
_RANGE = re.compile(
    r"(?:index|indices|target|label|class|element)\w{0,30}\b.{0,60}out of (?:range|bounds|data bounds)|out of range: tried to"
    r"|Class values must be|probability tensor contains|multinomial distribution|should be between 0 and 1"
    r"|Expected p_in|repeats can not be negative",
    re.I | re.S,
)
_HOST_RANGE = re.compile(
    r"^(?:list|tuple|string|range|deque|array|bytearray|pop) |for axis \d|Dimension out of range"
)


def is_device_error(error: BaseException) -> bool:
    """Say whether an error is one of an accelerator's context, after which that device is lost to the process."""
    text = message_of(error)
    return isinstance(error, RuntimeError) and any(word in text for word in _LOSSES)


def is_range_error(error: BaseException) -> bool:
    """Say whether an error of the CPU is one that a kernel of a GPU can only assert: an index or a value out of range.

    Others (shapes, dtypes, devices, what Python itself raises) are raised on a GPU too, before
    anything is queued, and lose no context.
    """
    text = message_of(error)
    return (
        isinstance(error, IndexError | RuntimeError | ValueError)
        and _RANGE.search(text) is not None
        and _HOST_RANGE.search(text) is None
    )


def settle(kind: str) -> None:
    """Let what is queued on a GPU fail here, where its author is known, and not in whatever runs next.

    A capture must not be waited for, and work on a side stream is to show what does not wait for it.

    Args:
        kind: Of the device, such as ``"cuda"``.
    """
    if kind != "cuda" or torch.cuda.is_current_stream_capturing():
        return
    if torch.cuda.current_stream() == torch.cuda.default_stream():
        torch.cuda.synchronize()


@contextlib.contextmanager
def device_loss_told() -> Iterator[None]:
    """Let putting back fail on a lost device: the error that lost it is the one to tell, not this echo of it."""
    try:
        yield
    except RuntimeError as error:
        if not is_device_error(error):
            raise

"""What the values of settings may be.

Each parser returns the value, or raises ValueError with what is allowed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ..change import CHANGES
from ..infer import target
from ..text.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


class Require(NamedTuple):
    """Devices without which the run is an error.

    Attributes:
        device: Type of the accelerator, such as ``cuda``.
        number: How many of them.
    """

    device: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.device}:{self.number}"


def parse_number(low: int) -> Callable[[str], int]:
    """Return a parser of whole numbers of at least ``low``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise ValueError(f"choose a whole number of at least {low}")
        return value

    return parse


def parse_seconds(text: str) -> float:
    """Return a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("choose a number of seconds above 0")
    return value


def parse_steps(text: str) -> float:
    """Return a number of training steps."""
    try:
        return parse_seconds(text)
    except ValueError:
        raise ValueError("choose a number of plain training steps above 0") from None


def parse_size(text: str) -> int:
    """Return a number of bytes."""
    return parse_bytes(text, what="the size")


def parse_share(text: str) -> str:
    """Return how xdist workers share the GPUs."""
    if text not in ("auto", "on", "off"):
        raise ValueError("choose from auto, on and off")
    return text


def parse_device(text: str) -> str:
    """Return a device's name, or raise ValueError with what is allowed."""
    if re.fullmatch(r"(cpu|meta|cuda|xpu|mps)(:\d+)?", text) is None:
        raise ValueError(
            f"{text!r} is not a device; choose from cpu, cuda, cuda:0, xpu, mps and meta"
        )
    return text


def parse_check(text: str) -> str:
    """Return the name of a check, with or without a leading ``!``."""
    if re.fullmatch(r"!?[a-z0-9]+(-[a-z0-9]+)*", text) is None:
        raise ValueError(
            f"{text!r} is not the name of a check; write names such as overfit and !overfit"
        )
    return text


def parse_reference(text: str) -> str:
    """Return the name of a git reference; git says later whether there is one."""
    if not text.strip() or text.startswith("-"):
        raise ValueError("give a branch, a tag or a hash, such as origin/main")
    return text.strip()


def parse_change(text: str) -> str:
    """Return what may change."""
    if text not in CHANGES:
        raise ValueError(f"choose from {', '.join(CHANGES)}")
    return text


def parse_package(text: str) -> str:
    """Return the name of a top-level package."""
    if not text.isidentifier():
        raise ValueError(
            f"{text!r} is not an importable package; write top-level names such as mylib"
        )
    return text


def parse_target(text: str) -> str:
    """Return what names a model; it is not imported yet."""
    target.parse_target(text)
    return text


def parse_loss(text: str) -> str:
    """Return the name of a loss; it is not imported yet."""
    target.see_loss(text)
    return text


def parse_require(text: str) -> Require | None:
    """Return what ``cuda[:n]`` requires, or None for an empty text.

    Raises:
        ValueError: Anything else.
    """
    if not text:
        return None
    match = re.fullmatch(r"(cuda|xpu|mps)(?::([1-9]\d*))?", text)
    if match is None:
        raise ValueError("choose from cuda, cuda:2, xpu and mps, with at least 1 device")
    return Require(device=match[1], number=int(match[2] or 1))

"""What the user's code calls an object, where it calls it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch import nn

from pytest_torchcheck import sources

if TYPE_CHECKING:
    from types import CodeType, FrameType


def user_frame(*, within: CodeType | None = None) -> FrameType | None:
    """Return the user's innermost frame of the running stack.

    Args:
        within: Only frames that this function's code called: whoever called it is not meant.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and sources.rank(frame.f_code.co_filename) < 2:
        if frame.f_code is within:
            return None
        frame = frame.f_back
    return frame


def name_in(frame: FrameType | None, thing: Any) -> str:
    """Return the name by which the user's code knows an object where it is called."""
    if frame is None or thing is None:
        return ""
    for namespace in (frame.f_locals, frame.f_globals):
        for name, value in namespace.items():
            if value is thing and name.isidentifier() and not name.startswith("__"):
                return str(name)
    for name, value in frame.f_locals.items():  # an attribute: self.optimizer, state["optimizer"]
        if isinstance(value, dict):
            if (key := next((k for k, v in value.items() if v is thing), None)) is not None:
                return f"{name}[{key!r}]"
        else:
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict):
                if (
                    key := next((k for k, v in attributes.items() if v is thing), None)
                ) is not None:
                    return f"{name}.{key}"
                if isinstance(value, nn.Module):
                    child = next((n for n, m in value.named_modules() if m is thing and n), None)
                    if child is not None:
                        return f"{name}.{child}"
    return ""

"""What a test needs of a device, and what became of it."""

from __future__ import annotations

import contextlib
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

from .. import hardware
from ..lean import dataclass
from ..text.units import format_bytes

if TYPE_CHECKING:
    from .markers import DeviceNeed


Lack = Literal["", "none", "few", "busy", "small", "old"]
"""Why a test cannot run here: no device, too few, memory taken by others, too little of it, too old."""


NOTE: Final = "torchcheck_device"
"""Attribute of a report under which a :class:`Note` travels, as plain types."""


@dataclass(slots=True, kw_only=True)
class Note:
    """What is known of one test on an accelerator.

    Attributes:
        kind: Type of the accelerator.
        min_gpus: How many devices the test asked for.
        ran: Whether it allocated memory there: a test that did not has not used the device.
        lack: Why it was skipped.
        lost: What was raised when its context was lost; empty while it works.
        fatal: Whether this process can compute nothing more on its devices.
        done: Whether its body ended well.
        baseline: Allocations, and bytes held, when the test began.
    """

    kind: str = ""
    min_gpus: int = 0
    ran: bool = False
    lack: Lack = ""
    lost: str = ""
    fatal: bool = False
    done: bool = False
    baseline: tuple[int, int] = (0, 0)
    resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def plain(self) -> dict[str, Any]:
        """Return what crosses to the controller."""
        told = ("kind", "min_gpus", "ran", "lack", "lost", "fatal")
        return {name: getattr(self, name) for name in told}


NOTE_KEY: Final = pytest.StashKey[Note]()


def note_of(item: pytest.Item) -> Note:
    """Return the item's note; a new one for a new attempt at the item."""
    return item.stash.setdefault(NOTE_KEY, Note())


def lack_of(need: DeviceNeed, *, share: float = 1.0) -> tuple[Lack, str]:
    """Return why a machine cannot run a test, as a kind and a sentence; two empty texts where it can.

    Args:
        need: What the test asks.
        share: The part of a device's memory that this process may use.
    """
    layer = hardware.layer()
    count = layer.count(need.kind)
    if count == 0:
        return "none", f"needs {need}; there is no {need.kind} device"
    if count < need.min_gpus:
        return "few", f"needs {need}; this process sees {count}"
    for index in range(need.min_gpus):
        found = layer.capability(need.kind, index)
        if need.capability is not None and (found is None or found < need.capability):
            shown = "none" if found is None else "{}.{}".format(*found)
            return "old", f"needs {need}; {need.kind}:{index} has capability {shown}"
    if need.memory:
        layer.collect()  # what nobody uses any more counts as free
    for index in range(need.min_gpus if need.memory else 0):
        memory = layer.memory(need.kind, index)
        if need.memory > memory.total * share:
            return (
                "small",
                f"needs {need}; {need.kind}:{index} has {format_bytes(memory.total * share)} in all",
            )
        if need.memory > memory.free:
            return "busy", (
                f"needs {need}; {need.kind}:{index} has {format_bytes(memory.free)} free of "
                f"{format_bytes(memory.total)}: this process holds {format_bytes(memory.own)}, "
                f"others {format_bytes(memory.others)}"
            )
    return "", ""

"""Where the time of a step goes: kernels by phase, module and line, as torch's profiler times them."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ..lean import dataclass
from ..probes.recorded.watch import Op, Watch, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..findings import Location

_MARK: Final = "torchcheck:"
_OPTIMIZER: Final = "Optimizer."
_BACKWARD_SCOPE: Final = 1  # of torch's RecordFunction: a node of the autograd graph
_LEVEL: Final = "KINETO_LOG_LEVEL"
"""Variable of torch's tracing library; it is read once, when the first profile begins."""
REPEATS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Time of the kernels that one line runs in one phase.

    Attributes:
        phase: ``forward``, ``backward`` or ``optimizer``.
        module: Qualified name of the module, ``""`` outside of all; its class is ``cls``.
        location: The user's line, None where no line of the run is the user's. Kernels of the backward
            belong to the line of the forward that they differentiate.
        seconds: Per repeat.
        kernels: Seconds by name of the kernel, the most first.
    """

    phase: str
    module: str
    cls: str
    location: Location | None
    seconds: float
    kernels: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the time of one repeat goes.

    Attributes:
        spent: The most first.
        device: Whose kernels were timed: ``cpu``, or the type of the accelerator.
    """

    spent: tuple[Spent, ...]
    device: str

    @property
    def seconds(self) -> float:
        """Time of all kernels of one repeat."""
        return sum(one.seconds for one in self.spent)

    def rows(self, most: int = 12) -> list[dict[str, Any]]:
        """Return the lines that take most as plain data, and what they leave over."""
        whole = self.seconds or 1.0
        rows: list[dict[str, Any]] = [
            {
                "share": f"{100 * one.seconds / whole:.1f} %",
                "microseconds": round(one.seconds * 1e6, 1),
                "phase": one.phase,
                "module": f"{one.module} ({one.cls})"
                if one.module
                else one.cls or "outside of the model",
                "line": _line(one.location),
                "text": one.location.text if one.location else "",
                "kernels": ", ".join(list(one.kernels)[:3]),
            }
            for one in self.spent[:most]
        ]
        left = sum(one.seconds for one in self.spent[most:])
        if left:
            rows.append({"share": f"{100 * left / whole:.1f} %", "microseconds": round(left * 1e6, 1),
                         "phase": "", "module": f"{len(self.spent) - most} more", "line": "", "text": "",
                         "kernels": ""})  # fmt: skip
        return rows

    def flame(self) -> list[dict[str, Any]]:
        """Return stacks with their microseconds, the outermost frame first: phase, modules, line, kernel."""
        stacks = []
        for one in self.spent:
            parts = one.module.split(".") if one.module else []
            line = _line(one.location)
            frames = [
                one.phase,
                *parts,
                *([f"{line}: {one.location.text}"] if one.location else []),
            ]
            stacks += [
                {"frames": [*frames, name], "value": round(seconds * 1e6, 2)}
                for name, seconds in one.kernels.items()
            ]
        return stacks


def _line(place: Location | None) -> str:
    if place is None:
        return ""
    return f"{place.file.replace(chr(92), '/').rpartition('/')[2]}:{place.line}"


class _Marks(Watch):
    """Opens a range of the profiler around every torch function, and keeps what each range stands for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.ops: list[Op] = []

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Open the range of a call."""
        self.ops.append(self.op(name_of(func)))
        opened = torch.autograd.profiler.record_function(f"{_MARK}{len(self.ops) - 1}")
        opened.__enter__()
        return opened

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Close it."""
        token.__exit__(None, None, None)

    def raised(self, func: Callable[..., Any], token: Any) -> None:
        """Close it."""
        token.__exit__(None, None, None)


@contextlib.contextmanager
def _unreported() -> Iterator[None]:
    """Keep off standard error that the tracing library starts and stops; a level that the user set stays."""
    ours = _LEVEL not in os.environ
    os.environ.setdefault(_LEVEL, "99")
    try:
        yield
    finally:
        if ours:
            os.environ.pop(_LEVEL, None)


def where(
    once: Callable[[], Any], model: nn.Module, device: torch.device, *, repeats: int = REPEATS
) -> Where:
    """Run something a few times under torch's profiler and sum up its kernels.

    Args:
        once: What is repeated; warmed up once before.
        model: The model, whose modules are named.
        device: Where it runs; on an accelerator its own time counts.
        repeats: How often it runs while it is timed.
    """
    activities = [ProfilerActivity.CPU]
    own = getattr(ProfilerActivity, device.type.upper(), None)
    if own is not None and own is not ProfilerActivity.CPU:
        activities.append(own)
    once()
    with _Marks(model) as marks:
        once()  # the first call under the profiler's ranges is slower
        marks.ops.clear()
        with _unreported(), profile(activities=activities) as profiler:
            for _ in range(repeats):
                once()
    totals: defaultdict[tuple[Any, ...], defaultdict[str, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    events = list(profiler.events() or ())
    on_device = any(event.self_device_time_total for event in events)
    forwards = _forwards(events)
    for event in events:
        took = event.self_device_time_total if on_device else event.self_cpu_time_total
        if took <= 0 or (not on_device and not event.name.startswith("aten::")):
            continue
        phase, mark = _owner(event, forwards)
        op = None if mark is None else marks.ops[mark]
        key = (phase, op.module, op.module_class, op.location) if op else (phase, "", "", None)
        totals[key][event.name.removeprefix("aten::")] += took / 1e6 / repeats
    spent = [
        Spent(
            phase=phase, module=module, cls=cls, location=place, seconds=sum(kernels.values()),
            kernels=dict(sorted(kernels.items(), key=lambda pair: -pair[1])),
        )
        for (phase, module, cls, place), kernels in totals.items()
    ]  # fmt: skip
    spent.sort(key=lambda one: -one.seconds)
    return Where(spent=tuple(spent), device=device.type if on_device else "cpu")


def _forwards(events: list[Any]) -> dict[int, int]:
    """Return the mark of the forward call by the number that its node of the graph carries."""
    found: dict[int, int] = {}
    for event in events:
        if event.sequence_nr >= 0 and event.scope != _BACKWARD_SCOPE:
            mark = _mark(event)
            if mark is not None:
                found.setdefault(event.sequence_nr, mark)
    return found


def _mark(event: Any) -> int | None:
    while event is not None:
        if event.name.startswith(_MARK):
            return int(event.name.removeprefix(_MARK))
        event = event.cpu_parent
    return None


def _owner(event: Any, forwards: dict[int, int]) -> tuple[str, int | None]:
    """Return the phase of a kernel, and the mark of the call that it belongs to."""
    phase, mark = "forward", None
    above = event
    while above is not None:
        if above.name.startswith(_MARK) and mark is None:
            mark = int(above.name.removeprefix(_MARK))
        if above.name.startswith(_OPTIMIZER):
            phase = "optimizer"
        if above.scope == _BACKWARD_SCOPE or above.name.startswith("autograd::"):
            phase = "backward"
            if mark is None:
                mark = forwards.get(above.sequence_nr)
        above = above.cpu_parent
    return phase, mark

"""Markers: real signatures check their arguments; a mistake is a usage error that names the test."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

import pytest

from ..lean import dataclass
from ..text.units import format_bytes, parse_bytes
from . import options
from .options import ACCELERATORS, Options
from .parts import activate, part
from .settings import parse_device


class MarkerError(ValueError):
    """A marker was given arguments that make no sense; the message says what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNeed:
    """What a test asks of the machine.

    Attributes:
        kind: ``cuda``, ``xpu`` or ``mps``.
        min_gpus: How many devices it uses.
        memory: Bytes that must be free on each of them; 0 asks for none.
        capability: Least compute capability, or None.
        isolated: Whether it runs in a process of its own.
    """

    kind: str
    min_gpus: int = 1
    memory: int = 0
    capability: tuple[int, int] | None = None
    isolated: bool = False

    @property
    def exclusive(self) -> bool:
        """Whether it must have its devices to itself: by their number, or for the memory."""
        return self.min_gpus > 1 or self.memory > 0

    def __str__(self) -> str:
        parts = [f"{self.min_gpus} {self.kind} device{'s' * (self.min_gpus > 1)}"]
        if self.memory:
            parts.append(f"{format_bytes(self.memory)} free")
        if self.capability:
            parts.append("capability {}.{}".format(*self.capability))
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpecs:
    """What a test marked ``batches`` wants to be given.

    Attributes:
        specs: Specs by name.
        sizes: Ranges of the symbols.
    """

    specs: Mapping[str, Any]
    sizes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSettings:
    """What the marker ``torchcheck`` sets for one test; None and () leave the run's settings.

    Attributes:
        devices: One instance of the test per device.
        dtypes: One instance of the test per dtype.
        seed: Seed instead of the run's.
        examples: Batches instead of the run's number.
    """

    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    seed: int | None = None
    examples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakFree:
    """What the marker ``leak_free`` says.

    Attributes:
        repeats: Repetitions of the test's body that are compared.
        warmup: Repetitions before them.
        allow: Bytes that each may leave behind, where no graph is kept.
    """

    repeats: int
    warmup: int
    allow: int


# Python checks the markers' arguments against these; marker_help.MARKERS shows them to --markers.


def cuda(
    min_gpus: int = 1,
    memory: int | str | None = None,
    capability: tuple[int, int] | float | str | None = None,
    isolated: bool = False,
) -> DeviceNeed:
    """Bind ``@pytest.mark.cuda``; ``xpu`` and ``mps`` have the same arguments."""
    if isinstance(min_gpus, bool) or not isinstance(min_gpus, int) or min_gpus < 1:
        raise MarkerError(f"min_gpus must be a whole number of at least 1; got {min_gpus!r}")
    if not isinstance(isolated, bool):
        raise MarkerError(f"isolated must be True or False; got {isolated!r}")
    try:
        size = 0 if memory is None else parse_bytes(memory, what="memory")
    except (TypeError, ValueError) as error:
        raise MarkerError(str(error)) from None
    return DeviceNeed(
        kind="cuda",
        min_gpus=min_gpus,
        memory=size,
        capability=_capability(capability),
        isolated=isolated,
    )


def _capability(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, str | float) and not isinstance(value, bool):
        parts = str(value).split(".")
    elif isinstance(value, Sequence) and len(value) == 2:
        parts = [str(part) for part in value]
    else:
        parts = []
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise MarkerError(f'capability must be (8, 0), "8.0" or 8.0; got {value!r}')
    return int(parts[0]), int(parts[1])


def batches(*, sizes: Mapping[str, Any] | None = None, **specs: Any) -> BatchSpecs:
    """Bind ``@pytest.mark.batches``."""
    if not specs:
        raise MarkerError(
            'names no spec; write for instance batches(x="B T", y=Labels("B", classes=3))'
        )
    if sizes is not None and not isinstance(sizes, Mapping):
        raise MarkerError(
            f'sizes must map symbols to ranges, such as {{"T": (1, 128)}}; got {sizes!r}'
        )
    return BatchSpecs(specs=specs, sizes=dict(sizes or {}))


def leak_free(repeats: int = 5, warmup: int = 2, allow: int | str = 0) -> LeakFree:
    """Bind ``@pytest.mark.leak_free``."""
    for name, number, low in (("repeats", repeats, 2), ("warmup", warmup, 1)):
        if isinstance(number, bool) or not isinstance(number, int) or number < low:
            raise MarkerError(f"{name} must be a whole number of at least {low}; got {number!r}")
    try:
        size = parse_bytes(allow, what="allow") if allow else 0
    except (TypeError, ValueError) as error:
        raise MarkerError(str(error)) from None
    return LeakFree(repeats=repeats, warmup=warmup, allow=size)


def torchcheck(
    *,
    devices: Sequence[str] | str = (),
    dtypes: Sequence[Any] | Any = (),
    seed: int | None = None,
    examples: int | None = None,
) -> ItemSettings:
    """Bind ``@pytest.mark.torchcheck``."""
    for name, number, low in (("seed", seed, 0), ("examples", examples, 1)):
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or number < low
        ):
            raise MarkerError(f"{name} must be a whole number of at least {low}; got {number!r}")
    places = (devices,) if isinstance(devices, str) else tuple(devices)
    for place in places:
        try:
            parse_device(place)
        except (TypeError, ValueError) as error:
            raise MarkerError(f"devices: {error}") from None
    kinds = dtypes if isinstance(dtypes, list | tuple) else (dtypes,)
    texts = tuple(str(dtype).removeprefix("torch.") for dtype in kinds)
    for text in texts:
        if text not in DTYPES:
            raise MarkerError(
                f"dtypes: {text!r} is not a valid dtype; choose from {', '.join(DTYPES)}"
            )
    return ItemSettings(devices=places, dtypes=texts, seed=seed, examples=examples)


DTYPES: Final = ("float64", "float32", "bfloat16", "float16", "complex64", "complex128")


def register(config: pytest.Config) -> None:
    """Look at the markers' arguments once the tests are collected."""
    config.pluginmanager.register(_Markers(config.stash[options.KEY]), "torchcheck-markers")


def _signature(name: str) -> Callable[..., Any]:
    known: dict[str, Callable[..., Any]] = {
        "batches": batches,
        "leak_free": leak_free,
        "torchcheck": torchcheck,
    }
    return known.get(name, cuda)


def _shown(name: str) -> str:
    """Return a marker's signature without its types."""
    signature = inspect.signature(_signature(name))
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def bind(mark: pytest.Mark) -> Any:
    """Return what a marker of this plugin says.

    Raises:
        MarkerError: Its arguments do not fit; the message shows the signature.
    """
    shown = f"{mark.name}{_shown(mark.name)}"
    try:
        made = _signature(mark.name)(*mark.args, **mark.kwargs)
    except TypeError as error:
        reason = str(error).partition("() ")[2] or str(error)
        raise MarkerError(f"@pytest.mark.{mark.name}: {reason}; the signature is {shown}") from None
    except MarkerError as error:
        raise MarkerError(f"@pytest.mark.{mark.name}: {error}") from None
    if isinstance(made, DeviceNeed) and mark.name != "cuda":
        return replace(made, kind=mark.name)
    return made


NEED: Final = pytest.StashKey[DeviceNeed]()


def device_need(item: pytest.Item) -> DeviceNeed | None:
    """Return what a test asks of the machine, or None for a test that any machine can run."""
    return item.stash.get(NEED, None)


def item_settings(node: pytest.Item | pytest.Collector) -> ItemSettings:
    """Return what the closest marker ``torchcheck`` sets."""
    mark = node.get_closest_marker("torchcheck")
    if mark is None:
        return ItemSettings()
    made: ItemSettings = bind(mark)
    return made


def where(item: pytest.Item) -> str:
    """Return ``file:line`` of a test."""
    path, line, _ = item.reportinfo()
    return f"{os.path.relpath(path)}:{(line or 0) + 1}"


class _Markers:
    """Binds every marker of this plugin before anything runs."""

    def __init__(self, settings: Options) -> None:
        self.settings = settings
        self.repeated = False  # some test is marked leak_free
        self.names = frozenset(
            ("batches", "leak_free", "torchcheck", *(ACCELERATORS if settings.cuda_marker else ()))
        )

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Bind markers, also those that other plugins have added to items."""
        mistakes = []
        inherited: dict[Any, DeviceNeed | None] = {}
        needed = False
        for item in items:
            try:
                if item.parent not in inherited:
                    inherited[item.parent] = self._inherited(item.parent)
                need = self._own(item) or inherited[item.parent]
            except MarkerError as error:
                mistakes.append(f"{where(item)}: {item.nodeid}: {error}")
                continue
            if need is not None:
                item.stash[NEED] = need
            needed = needed or NEED in item.stash
        if self.repeated:
            mistakes += part("leaks").prepare(config, items)
        if mistakes:
            usage_error(config, "\n".join(mistakes))
        if needed or self.repeated or "torch" in sys.modules:
            activate(config)

    def _own(self, node: pytest.Item | pytest.Collector) -> DeviceNeed | None:
        need: DeviceNeed | None = None
        for mark in node.own_markers:
            if mark.name in self.names:
                made = bind(mark)
                self.repeated = self.repeated or isinstance(made, LeakFree)
                if isinstance(made, DeviceNeed):
                    need = made  # the last one counts: that of a parameter, or the outermost one
        return need

    def _inherited(self, node: Any) -> DeviceNeed | None:
        found = [self._own(parent) for parent in node.iter_parents()]
        return next((need for need in found if need is not None), None)


USAGE_ERROR: Final = "torchcheck_usage_error"
"""Key under which a worker of xdist tells its controller what was declared wrongly."""


def usage_error(config: pytest.Config, message: str) -> NoReturn:
    """Stop the run with exit status 4, also from a worker of xdist."""
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output[USAGE_ERROR] = message
    raise pytest.UsageError(message)


def relative_nodeid(config: pytest.Config, nodeid: str) -> str:
    """Return a node id as it is written where the command was given."""
    here, root = config.invocation_params.dir, config.rootpath
    if here == root:
        return nodeid
    path, colons, rest = nodeid.partition("::")
    return f"{os.path.relpath(root / path, here)}{colons}{rest}"


def own_marks(function: Any) -> Iterator[pytest.Mark]:
    """Yield the marks that stand on a function itself."""
    for mark in getattr(function, "pytestmark", ()):
        found = getattr(mark, "mark", mark)
        if isinstance(found, pytest.Mark):
            yield found

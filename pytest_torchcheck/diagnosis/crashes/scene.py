"""Everything known of one error: its words, the user's line, the modules that ran, a replay on demand."""

from __future__ import annotations

import ast
import re
import traceback
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ... import sources
from ...explanation import PHASE_WORDS, Explanation, Phase, clipped, describe, on_line, times
from ...findings import Culprit, Location
from ...lean import dataclass
from ...objects import trees
from ...text.printable import message_of
from ..lines.layer_sizes import building_line
from .replay import bind, calls_of, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType

    from ...findings import CulpritKind
    from .history import Fact, Op, Replay


@dataclass(eq=False)
class Scene:
    """One error and what is known of it.

    Attributes:
        error: What was raised; its traceback is read.
        phase: Where in a training step.
        model: The model, for names.
        batch: What the model was called with: an object with ``args``, ``kwargs`` and ``targets``.
        rerun: Does again what failed. With an argument named ``device`` it can be asked for another
            device.
        device: Where it ran.
    """

    error: BaseException
    phase: Phase
    model: nn.Module | None = None
    batch: Any = None
    rerun: Callable[..., object] | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        self.message = message_of(self.error)
        self._replays: dict[bool, Replay | None] = {}

    def of(self, error: BaseException) -> Scene:
        """Return the scene of another error of the same run: the one that this one was raised from."""
        return replace(self, error=error)

    # -- words ----------------------------------------------------------------------------------

    @cached_property
    def first_line(self) -> str:
        """The message's first line, cut at 160 characters."""
        line = next((text.strip() for text in self.message.splitlines() if text.strip()), "")
        return line if len(line) <= 160 else line[:157] + "..."

    @property
    def said(self) -> str:
        """What torch said, to be quoted."""
        return (
            f'torch said "{self.first_line}"'
            if self.first_line
            else f"it raised {type(self.error).__name__}"
        )

    def quote(self, most: int = 110) -> str:
        """Quote what torch said, cut behind a whole word."""
        if len(self.first_line) <= most:
            return self.said
        return f'torch said "{clipped(self.first_line, most)}"'

    def values(self, most: int = 4) -> str:
        """Describe the values that the failing line names, as they were; the message where it names none."""
        place, frame = self.location, self.frame
        if place is None or frame is None:
            return self.first_line
        found: dict[str, str] = {}
        for chain in re.findall(r"(?<![\w.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", place.text):
            name, value = _resolved(frame.f_locals, chain)
            if name and name not in found and _is_plain(value):
                found[name] = _measured(value)
        return ", ".join(f"{k} {v}" for k, v in list(found.items())[:most]) or self.first_line

    # -- the traceback --------------------------------------------------------------------------

    @cached_property
    def frames(self) -> tuple[tuple[FrameType, int], ...]:
        """The frames of the traceback with their lines, the outermost first."""
        return tuple(traceback.walk_tb(self.error.__traceback__))

    @cached_property
    def location(self) -> Location | None:
        """The user's innermost line of the error."""
        return sources.of_error(self.error)

    @property
    def frame(self) -> FrameType | None:
        """The frame of the user's innermost line."""
        place = self.location
        return next(
            (
                frame
                for frame, line in reversed(self.frames)
                if place is not None
                and (frame.f_code.co_filename, line) == (place.file, place.line)
            ),
            None,
        )

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The user's own files of which code was running, the outermost first."""
        every = dict.fromkeys(frame.f_code.co_filename for frame, _ in self.frames)
        return tuple(file for file in every if sources.rank(file) == 2)

    def dead(self, file: str) -> frozenset[int]:
        """Return the lines of a file that the running functions are known not to have reached."""
        frames = [frame for frame, _ in self.frames if frame.f_code.co_filename == file]
        return frozenset().union(*map(sources.untaken_in, frames))

    def calls(self, name: str) -> list[Location]:
        """Return the lines of the files that ran which call a function of this name."""
        return [
            sources.of_line(file, node.lineno)
            for file in self.files
            for node in sources.nodes(file)
            if isinstance(node, ast.Call) and sources.called(node) == name
            if node.lineno not in self.dead(file)
        ]

    @cached_property
    def running(self) -> tuple[nn.Module, ...]:
        """The modules whose methods were running when it was raised, the outermost first."""
        found: list[nn.Module] = []
        for frame, _ in self.frames:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and not any(owner is known for known in found):
                found.append(owner)
        return tuple(found)

    @cached_property
    def module(self) -> nn.Module | None:
        """The innermost module that was running."""
        return self.running[-1] if self.running else None

    @cached_property
    def _names(self) -> dict[int, str]:
        return {} if self.model is None else {id(m): name for name, m in self.model.named_modules()}

    def name_of(self, module: nn.Module | None) -> str:
        """Return a module's qualified name, or its class where it is the model itself or unregistered."""
        if module is None:
            return ""
        return self._names.get(id(module)) or type(module).__name__

    def path_of(self, module: nn.Module | None) -> str:
        """Return a module's qualified name, empty for the model itself and for unregistered ones."""
        return "" if module is None else self._names.get(id(module), "")

    @property
    def module_name(self) -> str:
        """Name of the innermost module that was running, or empty."""
        return self.name_of(self.module)

    def arguments(self, module: nn.Module | None = None) -> dict[str, Any]:
        """Return what the ``forward`` of a running module was called with, live."""
        module = module or self.module
        for frame, _ in reversed(self.frames):
            if frame.f_locals.get("self") is module and frame.f_code.co_name == "forward":
                names = frame.f_code.co_varnames[
                    1 : frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
                ]
                return {name: frame.f_locals[name] for name in names if name in frame.f_locals}
        return {}

    def argument(self, *names: str) -> Any:
        """Return the innermost local variable of one of these names, from torch's own frames first."""
        for frame, _ in reversed(self.frames):
            for name in names:
                if name in frame.f_locals and name != "self":
                    return frame.f_locals[name]
        return None

    def called(self, function: str) -> Mapping[str, Any] | None:
        """Return the locals of the innermost frame of a function, such as ``cross_entropy``."""
        frames = (frame for frame, _ in reversed(self.frames))
        return next((f.f_locals for f in frames if f.f_code.co_name == function), None)

    # -- the replay -----------------------------------------------------------------------------

    def replay(self, *, anomaly: bool = False) -> Replay | None:
        """Run what failed once more, under instruments; None where it cannot be or fails differently."""
        if anomaly not in self._replays:
            self._replays[anomaly] = (
                None
                if self.rerun is None
                else replay(
                    self.rerun,
                    model=self.model,
                    like=self.error,
                    anomaly=anomaly,
                    graphs="second time" in self.message,
                )
            )
        return self._replays[anomaly]

    @cached_property
    def forward_ops(self) -> tuple[Op, ...]:
        """The calls of one more forward, which did not fail: what led to an error in the loss."""
        model = self.model
        if model is None or self.batch is None or self.device != "cpu":
            return ()
        args, kwargs = self._given
        return calls_of(lambda: model(*args, **kwargs), model=model)

    @property
    def _given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(self.batch.args), dict(self.batch.kwargs)

    @property
    def failing_op(self) -> Op | None:
        """The torch function that raised, where a replay could name it."""
        again = self.replay()
        return None if again is None or again.failing is None else again.failing.op

    # -- the explanation ------------------------------------------------------------------------

    def explain(
        self,
        *,
        because: str = "",
        culprits: tuple[Culprit, ...] | None = None,
        location: Location | None = None,
        **fields: Any,
    ) -> Explanation:
        """Return the error explained; ``fields`` are those of :class:`Explanation`.

        What is not given follows from the error: what torch said, the innermost module at fault, and the
        user's line.
        """
        return Explanation(
            because=because or self.said,
            culprits=self.blame() if culprits is None else culprits,
            location=location or self.location,
            **fields,
        )

    @property
    def on_line(self) -> str:
        """`` on line 7``, of the user's innermost line; empty where there is none."""
        return on_line(self.location)

    # -- names for people -----------------------------------------------------------------------

    def culprit(
        self, module: nn.Module | None = None, *, detail: str = "", location: Location | None = None
    ) -> tuple[Culprit, ...]:
        """Return the innermost running module as a culprit, with the line that builds it."""
        module = module or self.module
        if module is None:
            return ()
        place = location or building_line(self.model, self.path_of(module))
        return (Culprit("module", self.name_of(module), detail, place),)

    def call_culprit(self, kind: CulpritKind = "call", detail: str = "") -> tuple[Culprit, ...]:
        """Return the user's function that holds the failing line as a culprit."""
        place = self.location
        if place is None:
            return ()
        name = place.function.rpartition("<locals>.")[2] or place.text
        return (Culprit(kind, name, detail, place),)

    def meeting(self, made_at: Location | None) -> tuple[Culprit, ...]:
        """Return the failing line as a culprit, where what it was given was made on another one."""
        place = self.location
        if made_at is None or place is None or (made_at.file, made_at.line) == (place.file, place.line):  # fmt: skip
            return ()
        return self.call_culprit(detail="they are combined here")

    def made_elsewhere(self, facts: Iterable[Fact], most: int = 2) -> tuple[Culprit, ...]:
        """Return the lines, other than the failing one, on which operands of these shapes were made."""
        found: dict[tuple[str, int], Culprit] = {}
        for fact in facts:
            maker = None if fact.name else fact.made_by
            place = maker.location if maker is not None else None
            if maker is not None and place is not None and self.meeting(place):
                made = f"gives {list(fact.shape)}"
                culprit = Culprit("call", maker.name, made, place)
                found.setdefault((place.file, place.line), culprit)
        return tuple(found.values())[:most]

    def blame(self, detail: str = "") -> tuple[Culprit, ...]:
        """Return the innermost module, else the user's function, else the model, as the culprit."""
        if found := self.culprit(detail=detail) or self.call_culprit(detail=detail):
            return found
        name = type(self.model).__name__ if self.model is not None else self.phase
        kind: CulpritKind = "module" if self.model is not None else "call"
        return (Culprit(kind, name, detail),)

    @property
    def at(self) -> str:
        """The innermost module, or the user's line, as the subject of a sentence."""
        if self.module is not None:
            name = self.module_name
            # the number of a child says little without its class
            return (
                f"{name} ({type(self.module).__name__})"
                if name.rpartition(".")[2].isdigit()
                else name
            )
        place = self.location
        if place is None:
            return type(self.model).__name__ if self.model is not None else PHASE_WORDS[self.phase]
        return place.function.rpartition("<locals>.")[2] or f"line {place.line}"

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The tensors that the model is called with, by the names of its ``forward``."""
        named = {} if self.model is None or self.batch is None else bind(self.model, *self._given)
        return {
            path: leaf
            for name, value in named.items()
            for path, leaf in trees.tensors(value, name).items()
        }

    def input_words(self) -> str:
        """Return the inputs without their first dimension, such as ``x 3x32x32``."""
        parts = [
            f"{name} {times(tuple(value.shape)[1:])}"
            for name, value in self.inputs.items()
            if isinstance(value, torch.Tensor) and value.dim() > 1
        ]
        return ", ".join(parts[:3])

    def input_with_size(self, size: int) -> str:
        """Return the input dimension that has this size, such as ``src has length 24 in dimension 1``."""
        for name, value in self.inputs.items():
            if value.is_nested:
                continue
            for dimension in range(value.dim() - 1, -1, -1):
                if value.shape[dimension] == size:
                    return f"{name} has length {size} in dimension {dimension}"
        return ""

    def batch_size(self) -> int | None:
        """Return the first size that all inputs share, or None."""
        sizes = {
            value.shape[0] for value in self.inputs.values() if value.dim() and not value.is_nested
        }
        return sizes.pop() if len(sizes) == 1 else None


def _resolved(variables: Mapping[str, Any], chain: str) -> tuple[str, Any]:
    """Follow a dotted name as far as it leads without running any code of the user's."""
    first, *rest = chain.split(".")
    if first not in variables:
        return "", None
    name, value = first, variables[first]
    for part in rest:
        held = getattr(value, "__dict__", None) if not isinstance(value, torch.Tensor) else None
        if not isinstance(held, dict):
            break
        tables = (held, *(held.get(key) or {} for key in ("_parameters", "_buffers", "_modules")))
        owner = next((table for table in tables if part in table), None)
        if owner is None:
            break
        name, value = f"{name}.{part}", owner[part]
    return name.removeprefix("self."), value


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return bool(value) and all(_is_plain(item) for item in value[:4])
    return isinstance(value, torch.Tensor | int | float) and not isinstance(value, bool)


def _measured(value: Any) -> str:
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return describe(value)
    made = type(value.grad_fn).__name__ if value.grad_fn is not None else ""
    return f"{describe(value)} with " + (f"grad_fn={made}" if made else "requires_grad=True")

"""Which line drew from which random generator, and which line set one."""

from __future__ import annotations

import functools
import random
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import nn

from .. import sources
from ..lean import dataclass
from ..objects.held import random_state, same_state
from ..record.lines import traced
from .gradient.switched_off import line_at
from .recorded.watch import Watch, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, TracebackType

    from ..findings import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One change of a generator's state.

    Attributes:
        generator: ``torch`` (the CPU's default generator), ``cuda:0``, ``numpy`` and ``random``
            (the global ones), or the qualified attribute of a module that holds one of its own.
        kind: ``draw`` numbers were taken; ``reseed`` it was seeded; ``restore`` it was set back to
            a state that it had before in this run (``fork_rng``, checkpointing).
        op: The torch function that drew, what seeds this generator (``torch.manual_seed``), or
            ``""`` where the line drew by other means.
        location: The user's line.
        module: Qualified name of the module in whose forward it happened.
        module_class: Its class, ``""`` outside of all modules.
        training: Whether that module was in training mode; None outside of all modules.
        backward: Whether it happened inside a backward pass.
        grad: Whether gradients were on.
        caller: The user's line that called the function of that line, where a line is charged.
    """

    generator: str
    kind: Literal["draw", "reseed", "restore"]
    op: str
    location: Location | None
    module: str
    module_class: str
    training: bool | None
    backward: bool = False
    grad: bool = True
    caller: Location | None = None


def find_draws(run: Callable[[], object], module: nn.Module | None = None) -> tuple[Draw, ...]:
    """List what a run draws, in order.

    Generators are only read. Torch's are compared around every torch function; all of them after
    every line of the user's files, by ``sys.settrace``, which a debugger or a coverage tool loses
    meanwhile. A generator that the run itself makes and drops is not seen.

    Args:
        run: Any call; nothing of what it does is undone here.
        module: Names modules; generators that it or its submodules hold are watched too.
    """
    with DrawWatch(module) as watch:
        run()
    return tuple(watch.draws)


def find_reseeding(run: Callable[[], object], module: nn.Module | None = None) -> Draw | None:
    """Return the first line of the user's code that seeds a generator, torch's before others.

    What the caller does before and after the user's code does not count. Arguments and cost as for
    :func:`find_draws`.
    """
    seeds = [draw for draw in find_draws(run, module) if draw.kind == "reseed"]
    return min(seeds, key=lambda draw: draw.generator != "torch", default=None)


class DrawWatch(Watch):
    """Notes every change of a generator while it is entered; see :func:`find_draws`."""

    def __init__(self, module: nn.Module | None) -> None:
        super().__init__(module)
        self.draws: list[Draw] = []
        self._read: dict[str, Callable[[], object]] = dict(generators(module))
        self._last: dict[str, object] = {}
        self._past: dict[str, list[object]] = {}
        self._position: tuple[str, int, str] | None = None
        self._caller: FrameType | None = None
        self._tracing = ExitStack()

    def __enter__(self) -> Self:
        super().__enter__()
        self._until = sys._getframe(1)
        for name, read in self._read.items():
            self._last[name] = read()
        self._tracing.enter_context(traced(self._call))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tracing.close()
        self._settle()
        self._caller = None
        super().__exit__(kind, error, traceback)

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Charge what has changed until now to the line, so that the rest is the function's."""
        self._settle()

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Charge what changed to the function."""
        self._settle(func)

    def raised(self, func: Callable[..., Any], token: Any) -> None:
        """Charge to a function what it drew before it raised."""
        self._settle(func)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        """Trace the lines of the user's functions, and of no others."""
        if sources.rank(frame.f_code.co_filename) != 2:
            return None
        return self._line(frame, event, argument)

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self._settle()
        at: FrameType | None = frame
        if event == "return":  # what follows is the caller's, or nobody's of the user
            at = None if frame is self._until else frame.f_back
            while at is not None and sources.rank(at.f_code.co_filename) != 2:
                at = None if at is self._until else at.f_back
        self._position = at and (at.f_code.co_filename, at.f_lineno, at.f_code.co_qualname)
        self._caller = None if at is None or at is self._until else at.f_back
        return self._line

    def _settle(self, func: Callable[..., Any] | None = None) -> None:
        """Record every generator that is no longer as it was."""
        with torch._C.DisableTorchFunction():
            if "numpy" not in self._read and "numpy" in sys.modules:
                self._read["numpy"] = _numpy_state
                self._last["numpy"] = _numpy_state()
            for name, read in self._read.items():
                state = read()
                if not same_state(state, self._last[name]):
                    self._changed(name, self._last[name], state, func)
                    self._last[name] = state

    def _changed(
        self, name: str, old: object, new: object, func: Callable[..., Any] | None
    ) -> None:
        past = self._past.setdefault(name, [])
        past.append(old)
        kind: Literal["draw", "reseed", "restore"] = "draw"
        if _fresh(name, old, new, func is not None):
            kind = "reseed"
        elif func is None and any(same_state(new, state) for state in past):
            kind = "restore"
        location = self.locate() if func is not None else None
        if func is None:
            if self._position is None:
                return  # the caller of the probe seeds or restores before and after the user's code
            location = line_at(*self._position)
        called = name_of(func) if func is not None else ""
        if kind == "reseed":
            called = _SEEDING.get(name, f"{name}.manual_seed")
        op = self.op(called, location)
        self.draws.append(
            Draw(
                generator=name,
                kind=kind,
                op=op.name,
                location=location,
                module=op.module,
                module_class=op.module_class,
                training=self.scopes[-1].module.training if self.scopes else None,
                backward=op.backward,
                grad=torch.is_grad_enabled(),
                caller=None if func is not None else self._called_from(),
            )
        )

    def _called_from(self) -> Location | None:
        """Return the user's line that called the function whose line ran last."""
        frame = self._caller
        while frame is not None and frame is not self._until:
            if sources.rank(frame.f_code.co_filename) == 2:
                return line_at(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
            frame = frame.f_back
        return None


def generators(module: nn.Module | None = None) -> Mapping[str, Callable[[], object]]:
    """Return how to read the state of every generator that can be watched, by name."""
    found: dict[str, Callable[[], object]] = {
        "torch": torch.default_generator.get_state,
        "random": random.getstate,
    }
    if "numpy" in sys.modules:
        found["numpy"] = _numpy_state
    if torch.cuda.is_initialized():
        for index, generator in enumerate(torch.cuda.default_generators):
            found[f"cuda:{index}"] = generator.get_state
    for owner, child in module.named_modules() if module is not None else ():
        for attribute, value in vars(child).items():
            if random_state(value) is not None:
                name = f"{owner}.{attribute}" if owner else attribute
                found[name] = functools.partial(random_state, value)
    return found


def _numpy_state() -> object:
    # the global functions are methods of one hidden RandomState; its key is an array
    state = sys.modules["numpy"].random.get_state(legacy=False)
    inner = state["state"]
    key = inner["key"].tobytes() if "key" in inner else repr(inner)
    return key, inner.get("pos"), state.get("has_gauss"), state.get("gauss")


_SEEDING = {"torch": "torch.manual_seed", "numpy": "np.random.seed", "random": "random.seed"}

_MERSENNE = 624
"""Words of a Mersenne twister: a seed leaves the place behind the last one, with other words."""


def _fresh(name: str, old: object, new: object, by_function: bool) -> bool:
    """Say whether a state is that of a generator just seeded."""
    if isinstance(new, torch.Tensor):
        if by_function or new.numel() != torch.default_generator.get_state().numel():
            return False
        seeded = torch.Generator()
        seeded.set_state(new)
        return torch.equal(torch.Generator().manual_seed(seeded.initial_seed()).get_state(), new)
    if name == "numpy" and isinstance(old, tuple) and isinstance(new, tuple):
        return bool(new[1] == _MERSENNE and new[0] != old[0])
    if isinstance(old, tuple) and isinstance(new, tuple) and isinstance(new[1], tuple):
        return bool(new[1][-1] == _MERSENNE and new[1][:-1] != old[1][:-1])
    return False

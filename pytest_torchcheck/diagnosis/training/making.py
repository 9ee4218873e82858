"""Which of the user's lines make the optimizer: run its function once more, line by line, after a finding."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, SequentialLR

from ... import sources
from ...lean import dataclass
from ...loop.closures import functions_of
from ...record.tracing import find_line, line_of
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of
from ...subject.remembered import remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, FrameType

    from ...findings import Location
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A variable that held parameters as its function returned: a list, a dict, or an iterator that nobody had read.

    Attributes:
        file, function: Where the function stands, and its name.
        variable: The variable.
        names: Those of the parameters.
    """

    file: str
    function: str
    variable: str
    names: frozenset[str]


@dataclass(slots=True, kw_only=True)
class Making:
    """What the user's optimizer function did.

    Attributes:
        lines: The user's lines that ran, in the order of their first run.
        optimizers: The line that makes each optimizer, the innermost outside its own class.
        schedulers: Class name and line of each scheduler that is made, the outer ones last.
        turns: Of schedulers that follow each other, the step at which each one's turn comes, and it.
        formulas: The user's functions that the schedulers were given.
        callers: The functions that make schedulers, each with the line that calls it.
        replaced: By parameter: the line that puts another one in its place, and the one that calls
            for it.
        zeros: The lines after which a variable of the function is 0, by the variable.
        thawed: By parameter: the line after which it required a gradient, though it did not before.
        kept: What variables of the functions held, those of callees first.
        given: The parameters that the optimizers hold.
    """

    lines: list[Location] = field(default_factory=list)
    optimizers: list[Location] = field(default_factory=list)
    schedulers: list[tuple[str, Location]] = field(default_factory=list)
    callers: list[tuple[str, Location]] = field(default_factory=list)
    turns: list[tuple[int, tuple[str, Location]]] = field(default_factory=list)
    formulas: list[Callable[..., Any]] = field(default_factory=list)
    replaced: dict[str, tuple[Location, ...]] = field(default_factory=dict)
    zeros: dict[str, Location] = field(default_factory=dict)
    thawed: dict[str, Location] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    given: frozenset[str] = frozenset()

    def matches(self, pattern: str) -> list[Location]:
        """Return the lines that ran and match a regular expression."""
        expression = re.compile(pattern)
        return [place for place in self.lines if expression.search(place.text)]

    def zero_rates(self) -> list[Location]:
        """Return the lines that make a variable 0 which stands on a line with a learning rate."""
        return [
            place
            for name, place in self.zeros.items()
            if self.matches(rf"\blr\b.*(?<![\w.]){re.escape(name)}\b")
        ]


@remembered("making")
def making(subject: Subject) -> Making:
    """Run the declared optimizer function on a restored model and return what it did; cached."""
    made = Making()
    if subject.contract.optimizer is None:
        return made
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        off = {n for n, p in model.named_parameters() if not p.requires_grad}
        known: set[tuple[str, int]] = set()
        there = dict(model.named_parameters())
        names = {id(p): n for n, p in there.items()}
        returned: list[tuple[CodeType, dict[str, Any]]] = []

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            place = (frame.f_code.co_filename, line)
            if event == "return":
                returned.append((frame.f_code, dict(frame.f_locals)))
            if event != "call" and place not in known:
                known.add(place)
                made.lines.append(line_of(frame.f_code, line))
            if event != "call":
                for name, value in frame.f_locals.items():
                    if type(value) in (int, float) and not value and name not in made.zeros:
                        made.zeros[name] = line_of(frame.f_code, line)
                for name, parameter in model.named_parameters():
                    if there.get(name) is not parameter:
                        there[name] = parameter
                        made.replaced[name] = _called(frame, line)
                    if name in off and parameter.requires_grad:
                        off.discard(name)
                        made.thawed[name] = line_of(frame.f_code, line)
            return False

        def run() -> None:
            try:
                optimizers = optimizers_of(subject.make_optimizer(model))
            except SubjectError:
                return  # the check that met the error reports it
            made.given = frozenset(_named([o.param_groups for o in optimizers], names))

        with _Constructions(made):
            find_line(run, watcher)
        for code, variables in returned:  # an iterator is read when nobody else reads it any more
            for variable, value in variables.items():
                if held := frozenset(_named(value, names)):
                    file = os.path.abspath(code.co_filename)
                    made.kept.append(
                        Kept(file=file, function=code.co_name, variable=variable, names=held)
                    )
    return made


def _named(value: Any, names: dict[int, str], depth: int = 5) -> Iterator[str]:
    """Yield the names of the parameters in nested lists, dicts and iterators over parameters."""
    if isinstance(value, torch.Tensor):
        if id(value) in names and depth < 5:
            yield names[id(value)]
    elif depth and isinstance(value, list | tuple | set | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _named(one, names, depth - 1)
    elif inspect.isgenerator(value) and value.gi_code.co_filename == nn.modules.module.__file__:
        yield from _named(list(value), names, depth)


def _called(frame: FrameType, line: int) -> tuple[Location, ...]:
    """Return the line of a frame and the user's line that runs it, where both are of the optimizer function."""
    places = [line_of(frame.f_code, line)]
    caller = frame.f_back
    if caller is not None and sources.rank(caller.f_code.co_filename) == 2:
        places.append(line_of(caller.f_code, caller.f_lineno))
    return tuple(places)


@contextmanager
def constructions(without: Any) -> Iterator[Making]:
    """Note the lines that make optimizers and schedulers while a block is open.

    Args:
        without: A function of the user's, whose lines are left out for those that call it.
    """
    made = Making()
    with _Constructions(made, frozenset(f.__code__ for f in functions_of(without))):
        yield made


class _Constructions:
    """Notes, while it is entered, the user's line that makes each optimizer and scheduler."""

    def __init__(self, made: Making, without: frozenset[CodeType] = frozenset()) -> None:
        self._made, self._without = made, without
        self._originals: dict[type, Any] = {}
        self._places: dict[int, tuple[str, Location]] = {}

    def __enter__(self) -> None:
        for cls in (torch.optim.Optimizer, *_with_init(LRScheduler)):
            original = vars(cls)["__init__"]
            self._originals[cls] = original
            type.__setattr__(cls, "__init__", self._noting(original))

    def __exit__(self, *_: object) -> None:
        for cls, original in self._originals.items():
            type.__setattr__(cls, "__init__", original)

    def _noting(self, original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
            if (frame := _outside(this, self._without)) is not None:
                self._note(this, frame)
            original(this, *args, **kwargs)
            if isinstance(this, SequentialLR):
                self._made.turns += [
                    (start, self._places[id(one)])
                    for start, one in zip((0, *this._milestones), this._schedulers, strict=True)
                    if id(one) in self._places
                ]
            for formula in getattr(this, "lr_lambdas", ()):
                if inspect.isfunction(formula) and formula not in self._made.formulas:
                    self._made.formulas.append(formula)

        return wrapper

    def _note(self, this: Any, frame: FrameType) -> None:
        place, outer = sources.of_frame(frame), frame.f_back
        if place is None:
            return
        if isinstance(this, torch.optim.Optimizer):
            self._made.optimizers.append(place)
            return
        named = self._places[id(this)] = (type(this).__name__, place)
        if named not in self._made.schedulers:
            self._made.schedulers.append(named)
        own = outer is not None and sources.rank(outer.f_code.co_filename) == 2
        if outer is not None and own and (called := sources.of_frame(outer)) is not None:
            self._made.callers.append((frame.f_code.co_name, called))


def _with_init(cls: type) -> Iterable[type]:
    stack, found = [cls], []
    while stack:
        current = stack.pop()
        stack += current.__subclasses__()
        if "__init__" in vars(current) and current not in found:
            found.append(current)
    return found


def _outside(this: Any, without: frozenset[CodeType] = frozenset()) -> FrameType | None:
    """Return the user's innermost running frame that is not in the constructor of an object."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        own = frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is this
        own = own or frame.f_code in without
        if not own and sources.rank(frame.f_code.co_filename) == 2:
            return frame
        frame = frame.f_back
    return None

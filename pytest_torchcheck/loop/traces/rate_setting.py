"""Which line of the user's code gave an optimizer the learning rate of a step: run line by line, after a finding."""

from __future__ import annotations

import ast
import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ... import sources
from ...lean import dataclass
from ...record.tracing import find_line, line_giving, line_of, returns
from ...state import seed_everything
from ...subject.gradients import clear_gradients
from ...subject.optimizers import optimizers_of, step_schedulers
from ..patches import subclasses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from torch import nn

    from ...findings import Location
    from ...record.tracing import Return
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A line after which a group's learning rate is another one.

    Attributes:
        location: The line.
        before: The rate until then.
        after: The rate from then on.
        loads: Whether an optimizer's ``load_state_dict`` ran on it.
    """

    location: Location
    before: float
    after: float
    loads: bool


def last_setting(subject: Subject, step: int, group: int = 0) -> Setting | None:
    """Return what gave the optimizer that steps first its rate for one of its steps; None where it was made with it.

    A scheduler's step is no such line. The rate is that of one group, the first by default.
    """
    if subject.contract.loop is not None or subject.contract.optimizer is None:
        return None
    with subject.pristine(steps=True) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.train()
        seed_everything(subject.seed)
        watch = _Rates(step, group)
        handle = register_optimizer_step_pre_hook(watch.stepping)
        originals = _patched(watch)
        try:
            find_line(lambda: _steps(subject, model, step), watch)
        finally:
            handle.remove()
            for cls, name, original in originals:
                setattr(cls, name, original)
    return watch.found


@dataclass(frozen=True, slots=True, kw_only=True)
class Often:
    """A line of the user's step that sets the rates several times in one step, itself or by what it calls."""

    location: Location
    times: int


def sets_in_step(subject: Subject, setting: Setting) -> Often | None:
    """Count how often one step sets the rates by a line; None where it does so once, or not at each time by one line.

    The step is the second one: what the first makes is there by then.
    """
    code_line = (setting.location.file, setting.location.line)
    calls: list[list[tuple[FrameType, int]]] = []
    groups = [1]
    counting = [False]

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        here = counting[0] and event != "call" and line == code_line[1]
        if here and os.path.abspath(frame.f_code.co_filename) == code_line[0]:
            calls.append([(frame, line), *_calls_above(frame)])
        return False

    def run() -> None:
        made = subject.make_optimizer(model)
        clear_gradients(model)
        for step in range(2):
            seed_everything(subject.seed + step)
            counting[0] = step == 1
            subject.train_step(model, made, subject.batch().clone())
        groups[0] = max((len(one.param_groups) for one in optimizers_of(made)), default=1)

    with subject.pristine(steps=True) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.train()
        find_line(run, watcher)
    return _repeated(calls, groups[0])


def _calls_above(frame: FrameType) -> Iterator[tuple[FrameType, int]]:
    above = frame.f_back
    while above is not None:
        if sources.rank(above.f_code.co_filename) == 2:
            yield above, above.f_lineno
        above = above.f_back


def _repeated(calls: list[list[tuple[FrameType, int]]], groups: int) -> Often | None:
    """Return the line of the innermost frame that lives through all calls; one that sets them runs once for a group."""
    for depth, (frame, line) in enumerate(calls[0] if calls else ()):
        if all((frame, line) in call for call in calls):
            inner = {id(call[call.index((frame, line)) - 1][0]) for call in calls}
            times = len(inner) if depth else len(calls) // groups
            return Often(location=line_of(frame.f_code, line), times=times) if times > 1 else None
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """What computed a rate that another line then set.

    Attributes:
        function: Name of the function that first returned it.
        location: The line by which it did.
        counter: The one whole number that this line reads; empty where there is none, or several.
        counted: The line that gave it its value.
        entered: The variable in which the function's argument that counts steps enters, where the
            counter is computed from that alone.
        entry: The line that gave it its value.
    """

    function: str
    location: Location
    counter: str
    counted: Location | None
    entered: str = ""
    entry: Location | None = None


def produced(subject: Subject, step: int, rate: float) -> Produced | None:
    """Return the function that first returned a rate in the steps up to one; None where none returned it."""

    def run() -> None:
        with subject.pristine(steps=True) as model, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.train()
            _steps(subject, model, step)

    def holds(value: Any) -> bool:
        each = value if isinstance(value, list | tuple) else [value]
        return any(isinstance(one, float) and one == rate for one in each)

    every = returns(run)
    found = (one for one in every if holds(one.value))
    # a comprehension's value is that of the function around it
    made = next(
        (one for one in found if not one.frame.f_code.co_name.endswith(("comp>", "expr>"))), None
    )
    if made is None:
        return None
    code, known = made.frame.f_code, made.frame.f_locals
    numbers = [
        name
        for name in sources.names_read(code.co_filename, made.line)
        if isinstance(known.get(name), int) and not isinstance(known[name], bool)
    ]
    counter = numbers[0] if len(numbers) == 1 else ""
    entered, entry = _entry(run, code, counter, _counts(every, code)) if counter else ("", None)
    return Produced(
        function=code.co_name,
        location=line_of(code, made.line),
        counter=counter,
        counted=line_giving(run, code, counter) if counter else None,
        entered=entered,
        entry=entry,
    )


def _counts(every: list[Return], code: CodeType) -> set[str]:
    """Return the arguments of a function that are whole numbers, another one in some of its calls."""
    calls = [one.frame.f_locals for one in every if one.frame.f_code is code]
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = {name: [call.get(name) for call in calls] for name in names}
    return {n for n, v in given.items() if isinstance(v[0], int) and any(x != v[0] for x in v)}


def _entry(
    run: Callable[[], Any], code: CodeType, counter: str, counts: set[str]
) -> tuple[str, Location | None]:
    """Return the one assignment by which the steps enter what a number is computed from, by arithmetic alone.

    Args:
        run: Runs the steps.
        code: The function that computes the number.
        counter: The number's name.
        counts: Its arguments that count.

    Returns:
        The variable and its line; nothing where they enter in several, or something else than
        arithmetic of local variables is between.
    """
    entries: dict[str, Location] = {}
    left, seen = [counter], {counter}
    while left:
        name = left.pop()
        place = line_giving(run, code, name)
        read = None if place is None else _operands(place, name)
        if place is None or read is None or len(seen) > _MOST:
            return "", None
        for one in read & set(code.co_varnames):
            again = one in counts and (one == name or line_giving(run, code, one) is None)
            if again:
                entries[name] = place
            elif one not in seen and line_giving(run, code, one) is not None:
                seen.add(one)
                left.append(one)
    return next(iter(entries.items())) if len(entries) == 1 else ("", None)


_MOST = 4
"""How many variables are followed; each runs the steps once more."""
_ARITHMETIC = (
    ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Name, ast.Attribute,
    ast.expr_context,
)  # fmt: skip


def _operands(place: Location, name: str) -> set[str] | None:
    """Return the variables that an assignment to a name reads; None where it is no plain arithmetic."""
    made = sources.statement(place.file, place.line)
    if not isinstance(made, ast.Assign | ast.AnnAssign):
        return None
    value = next((v for t, v in sources.writes(made) if ast.unparse(t) == name), None)
    if value is None or not all(isinstance(node, _ARITHMETIC) for node in ast.walk(value)):
        return None
    return {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}


def _steps(subject: Subject, model: nn.Module, count: int) -> None:
    made = subject.make_optimizer(model)
    clear_gradients(model)
    for step in range(count + 1):
        seed_everything(subject.seed + step)
        loss = subject.train_step(model, made, subject.batch().clone())
        if subject.contract.train_step is None and optimizers_of(made):
            step_schedulers(made, loss)


class _Rates:
    """Compares the rates of every optimizer that is made, after every line."""

    def __init__(self, step: int, group: int = 0) -> None:
        self.found: Setting | None = None
        self._group = group
        self.scheduling = 0
        self._step = step
        self._rates: dict[int, tuple[torch.optim.Optimizer, float]] = {}
        self._last: dict[int, Setting | None] = {}
        self._counts: dict[int, int] = {}
        self._loaded: set[int] = set()
        self._over = False

    def __call__(self, frame: FrameType, event: str, line: int) -> bool:
        if event == "call":
            return False
        for key, (optimizer, before) in list(self._rates.items()):
            now = _rate(optimizer, self._group)
            if now != before:
                self._rates[key] = (optimizer, now)
                self._last[key] = Setting(
                    location=line_of(frame.f_code, line),
                    before=before,
                    after=now,
                    loads=key in self._loaded,
                )
            self._loaded.discard(key)
        return self._over

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """Know an optimizer from now on."""
        self._rates[id(optimizer)] = (optimizer, _rate(optimizer, self._group))

    def loaded(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer has got a state."""
        self._loaded.add(id(optimizer))

    def scheduled(self, optimizer: Any) -> None:
        """Take the rate that a scheduler has set as nobody else's."""
        key = id(optimizer)
        if key in self._rates:
            self._rates[key] = (optimizer, _rate(optimizer, self._group))
            self._last[key] = None

    def stepping(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Count the steps of the optimizer that steps first."""
        key = id(optimizer)
        if self._counts and key not in self._counts:
            return
        count = self._counts[key] = self._counts.get(key, -1) + 1
        if count == self._step and not self._over:
            self._over = True
            self.found = self._last.get(key)


def _rate(optimizer: torch.optim.Optimizer, group: int) -> float:
    groups = getattr(optimizer, "param_groups", ())
    return float(groups[group].get("lr", 0.0)) if len(groups) > group else 0.0


def _patched(watch: _Rates) -> list[tuple[Any, str, Any]]:
    """Tell the watch of optimizers that are made or loaded, and of schedulers that step; return what to put back."""
    done: list[tuple[Any, str, Any]] = []

    def after(cls: Any, name: str, tell: Any) -> None:
        original = vars(cls)[name]

        def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(this, *args, **kwargs)
            tell(this)
            return result

        done.append((cls, name, original))
        type.__setattr__(cls, name, wrapper)

    after(torch.optim.Optimizer, "__init__", watch.made)
    after(torch.optim.Optimizer, "load_state_dict", watch.loaded)
    for cls in subclasses(LRScheduler):
        for name in ("step", "__init__"):
            if name in vars(cls):
                after(cls, name, lambda s: watch.scheduled(getattr(s, "optimizer", None)))
    return done

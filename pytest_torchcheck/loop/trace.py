"""What happened in a training step, in order, each event with the user's line."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeVar

from ..lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..findings import Location
    from ..subject.errors import SubjectError
    from .traces.rates_ahead import Ahead

Kind = Literal[
    "forward", "backward", "optimizer-step", "zero-grad", "scheduler-step", "scale", "unscale",
    "scaler-step", "scaler-update", "clip", "mode", "load-state", "convert",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One call that matters to a training step.

    Attributes:
        kind: What was called.
        step: In which call of the train step, from 0.
        name: The call as the user writes it: ``optimizer.zero_grad``, ``loss.backward``.
        owner: Key of the optimizer, scheduler, scaler or module; equal for the same object.
        place: The user's line.
    """

    kind: Kind
    step: int
    name: str
    owner: int
    place: Location | None


E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward(Event):
    """An outermost call of a module.

    Attributes:
        module: Qualified name; empty for the model itself.
        grad: Whether gradients were on.
        frozen: Qualified names of the modules that were in eval mode.
        statistics: Buffers that the call changed while gradients were off.
        off: The line that turned gradients off for it, where they were off.
    """

    module: str
    grad: bool
    frozen: frozenset[str]
    statistics: tuple[str, ...] = ()
    off: Location | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward(Event):
    """A backward pass.

    Attributes:
        leaf: Whether the root is a leaf: a loss made anew, without a graph.
        touched: Parameters whose gradient it changed.
        stale: Those of them that still held a gradient which an optimizer had already applied.
        norm: Total norm of the gradients of all parameters afterwards.
        scale: Factor by which a GradScaler multiplied the root, 1 without.
        repeats: Place of an earlier pass of the same call whose root this pass goes through again,
            or None.
        retained: Whether retain_graph=True kept the graph; one that is kept to be differentiated
            itself is not meant.
        again: Whether anything went through a graph that was kept once more, a later call included.
        moved: Parameters whose gradient held an earlier pass, and which something had written to
            since then.
        rewritten: Parameters that an earlier pass of the same call reached too, and that something other than
            their optimizer had written to since then.
        through: Places in :attr:`Trace.events` of the forwards whose graph it went through, and of those whose
            outputs show no graph to follow.
    """

    leaf: bool
    touched: frozenset[str]
    stale: frozenset[str]
    norm: float
    scale: float = 1.0
    repeats: int | None = None
    retained: bool = False
    again: bool = False
    moved: frozenset[str] = frozenset()
    rewritten: frozenset[str] = frozenset()
    through: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStep(Event):
    """A scheduler's step.

    Attributes:
        rates: Learning rate of every group of its optimizer, before it.
        drives: Whether an optimizer that has stepped has one of these groups.
        shares: Whether one that has stepped has one of its parameters.
        epoch: How many steps it had taken; -1 where it counts none.
    """

    rates: tuple[float, ...] = ()
    drives: bool = True
    shares: bool = False
    epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep(Event):
    """An optimizer's step.

    Attributes:
        rates: Learning rate of every group, as the step begins.
        set_rates: The same as it ends, where it sets one itself: which of them it uses is its own affair.
        norm: Total norm of its parameters' gradients.
        empty: Whether every gradient was None or zero.
        fresh: Places in :attr:`Trace.events` of the backward passes that its gradients hold and that no
            earlier step of this optimizer had applied.
        sources: By place of a backward pass: parameters whose gradient holds it.
        stale: Parameters whose gradient holds what an earlier step of it had already applied.
        cleared: Place of the zero_grad that threw away a gradient not applied yet, or None.
        scaled: Whether gradients were still multiplied by a GradScaler's factor.
        closure: Whether the step was given a closure, or was taken within a backward pass.
    """

    rates: tuple[float, ...]
    norm: float
    empty: bool
    fresh: tuple[int, ...]
    sources: dict[int, frozenset[str]]
    stale: frozenset[str]
    cleared: int | None
    scaled: bool
    closure: bool
    set_rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(Event):
    """A clipping of gradients.

    Attributes:
        by: ``norm`` or ``value``.
        limit: Its threshold.
        parameters: Names of what was clipped.
        pending: Whether a gradient was there that no step had applied.
        scaled: Whether gradients were still multiplied by a GradScaler's factor.
        norm: Total norm of all parameters' gradients before.
        own: That of what was clipped.
        given: Where it was given no parameter at all: what it was given, as the user calls it, or
            its class.
        used_up: Whether that was an iterator, which had nothing left.
        made: The line that makes it; also of what holds a part of the parameters.
        reader: The line that reads it first.
    """

    by: Literal["norm", "value"]
    limit: float
    parameters: frozenset[str]
    pending: bool
    scaled: bool
    norm: float
    own: float
    given: str = ""
    used_up: bool = False
    made: Location | None = None
    reader: Location | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode(Event):
    """A call of ``train`` or ``eval``.

    Attributes:
        module: Qualified name; empty for the model itself.
        training: The mode that was set.
    """

    module: str
    training: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState(Event):
    """A ``load_state_dict`` of a module.

    Attributes:
        tensors: How many tensors it was given.
        own: How many of them were the module's own, in its own memory: loading these changes nothing.
    """

    tensors: int
    own: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Convert(Event):
    """A conversion of a module to a narrower dtype.

    Attributes:
        module: Qualified name; empty for the model itself.
        dtype: Of fewer digits, as users write it.
        rounded: The float32 parameters of an optimizer that it rounded: that are float32 again,
            with fewer digits.
    """

    module: str
    dtype: str
    rounded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Some consecutive calls of a training step, recorded.

    Attributes:
        events: In order.
        steps: How many calls returned.
        losses: What they returned, as numbers; NaN for what is none.
        parameters: Names of the parameters by optimizer key.
        names: Of every optimizer, by key, as the user calls it.
        classes: Of every optimizer and scheduler, by key: its class's name.
        error: What a call raised, or None.
        grad_left_off: Step after which gradients were left switched off, or None.
        pairs: By step: largest difference of the pairs that were asked for.
        schedules: Of a trainer's loop: the rates of the rest of the training.
        copied_onto_themselves: The lines that copy parameters onto themselves, and nothing else.
        generators: By step: a digest of the state in which it left every generator of the process.
        callers: By the line of a call: the user's lines that led to it, from the innermost.
        states: What the step has kept of the model's own tensors under their names, without a copy.
    """

    events: tuple[Event, ...]
    steps: int
    losses: tuple[float, ...]
    parameters: dict[int, tuple[str, ...]]
    names: dict[int, str]
    classes: dict[int, str]
    error: SubjectError | None = None
    grad_left_off: int | None = None
    pairs: tuple[dict[tuple[str, str], float], ...] = field(default=())
    schedules: tuple[Ahead, ...] = ()
    generators: tuple[dict[str, int], ...] = ()
    copied_onto_themselves: tuple[Location, ...] = ()
    callers: dict[Location, tuple[Location, ...]] = field(default_factory=dict)
    states: tuple[str, ...] = ()

    def leading_to(self, event: Event, beside: Event | None) -> Location | None:
        """Return the line that leads to a call in the innermost function that leads to another one, too."""
        if event.place is None or beside is None or beside.place is None:
            return event.place
        lines = (beside.place, *self.callers.get(beside.place, ()))
        both = {(line.file, line.function) for line in lines}
        ours = (event.place, *self.callers.get(event.place, ()))
        return next((line for line in ours if (line.file, line.function) in both), event.place)

    def following(self, event: Event) -> Backward | None:
        """Return the next backward pass of the same call of the step."""
        later = self.events[self.events.index(event) :]
        return next((e for e in later if isinstance(e, Backward) and e.step == event.step), None)

    def of(self, *kinds: Kind, step: int | None = None) -> Iterator[tuple[int, Event]]:
        """Iterate over places and events of these kinds."""
        for place, event in enumerate(self.events):
            if event.kind in kinds and (step is None or event.step == step):
                yield place, event

    def each(self, kind: type[E], step: int | None = None) -> list[tuple[int, E]]:
        """Return places and events of one class, of one step or of all."""
        return [
            (place, event)
            for place, event in enumerate(self.events)
            if isinstance(event, kind) and step in (None, event.step)
        ]

    def latest(self, kind: type[E], before: int) -> E | None:
        """Return the last event of a class before a place, or None."""
        return next((e for e in reversed(self.events[:before]) if isinstance(e, kind)), None)

    def optimizer_steps(self, step: int | None = None) -> list[OptimizerStep]:
        """Return the steps of optimizers."""
        return [event for _, event in self.each(OptimizerStep, step)]

    def backwards(self, step: int | None = None) -> list[Backward]:
        """Return the backward passes."""
        return [event for _, event in self.each(Backward, step)]

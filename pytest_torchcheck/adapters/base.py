"""What an adapter sees of a contract, and what it gives back."""

from __future__ import annotations

import sys
import types
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from torch import nn

from ..declared.factories import class_of
from ..lean import dataclass
from ..objects.peek import closed_over
from ..state import isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..batches import Batch

SUPPLIED: Final = frozenset(
    (
        "model", "inputs", "targets", "sizes", "batch", "output", "loss", "optimizer", "train_step", "batch_dim",
        "dataset", "loader", "promises",
    )
)  # fmt: skip
"""The fields of a contract that an adapter may fill in."""


class AdapterError(ValueError):
    """A model is recognised, but what is declared does not suffice; the message says what to add."""


class Declared:
    """What a contract declares, as an adapter sees it.

    Args:
        model: A module, a class, a factory, or an object that holds a model, such as a trainer; the
            contract's ``trainer`` where no model is declared.
        fields: The contract's other arguments; None where nothing was declared.
    """

    def __init__(self, model: Any, fields: Mapping[str, Any]) -> None:
        self.model: Any = fields.get("trainer") if model is None else model
        self.fields = dict(fields)

    def __getattr__(self, name: str) -> Any:
        try:
            return vars(self)["fields"][name]
        except KeyError:
            raise AttributeError(f"a contract has no field {name!r}") from None

    def declares(self, *names: str) -> bool:
        """Say whether the user has declared any of these fields."""
        return any(self.fields.get(name) is not None for name in names)

    @cached_property
    def known(self) -> type | None:
        """The class of the model, where it can be told without building it."""
        if isinstance(self.model, nn.Module) or not callable(self.model):
            return type(self.model)
        return class_of(self.model)

    @cached_property
    def cls(self) -> type | None:
        """The class of the model; a factory without a return annotation is built once to see it.

        None where the factory raises: the checks will tell.
        """
        if self.known is not None:
            return self.known
        return None if self.built is None else type(self.built)

    def is_a(self, *places: str) -> bool:
        """Say whether the model's class is, or is derived from, one of ``package.module:Class``; imports nothing.

        A factory that does not say its class is built to see it only where such a class is
        imported, where its code mentions one, and where the contract does not say by what the model
        is trained.

        Args:
            places: Where the class can be looked up; a module that is not imported has made no model.
        """
        bases = [
            base
            for module, _, name in (place.partition(":") for place in places)
            if isinstance(base := getattr(sys.modules.get(module), name, None), type)
        ]
        if not bases:
            return False
        cls = self.known
        if cls is None and not self.declares("loss", "train_step"):
            packages = {place.partition(":")[0].partition(".")[0] for place in places}
            cls = self.cls if _mentions(self.model, tuple(bases), packages) else None
        return cls is not None and issubclass(cls, tuple(bases))

    @cached_property
    def built(self) -> Any:
        """An instance: the model itself, or one built by its factory; None where that raises."""
        if isinstance(self.model, nn.Module) or not callable(self.model):
            return self.model
        try:
            with isolated():
                return self.model()
        except Exception:  # a factory may raise anything, and a check explains it
            return None


def _mentions(factory: Any, bases: tuple[type, ...], packages: set[str], depth: int = 3) -> bool:
    """Say whether a factory's code names such a class, or something of its package; functions that it calls count.

    True for callables of which no code can be read.
    """
    if isinstance(factory, types.MethodType):
        factory = factory.__func__
    if not isinstance(factory, types.FunctionType):
        return True
    names = set(factory.__code__.co_names)
    held = [factory.__globals__[name] for name in names if name in factory.__globals__]
    held += closed_over(factory).values()
    held += [
        vars(module)[name]
        for module in held
        if isinstance(module, types.ModuleType)
        for name in names
        if name in vars(module)
    ]
    for value in held:
        if isinstance(value, type) and issubclass(value, bases):
            return True
        if isinstance(value, nn.Module) and isinstance(value, bases):
            return True
        if isinstance(value, types.FunctionType) and depth and value is not factory:
            own = value.__module__ == factory.__module__
            if own and _mentions(value, bases, packages, depth - 1):
                return True
    modules = {v.__name__.partition(".")[0] for v in held if isinstance(v, types.ModuleType)}
    return bool(packages & (modules | names))


class LoopUnavailableError(Exception):
    """A trainer's loop cannot be run here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A learning-rate scheduler as a trainer's loop steps it.

    Attributes:
        scheduler: The scheduler.
        interval: ``step`` or ``epoch``: after what it is stepped.
        calls: How often it will have been stepped when training ends.
        otherwise: How often, were it stepped at the other interval.
    """

    scheduler: Any
    interval: str
    calls: int
    otherwise: int


class Watch(Protocol):
    """What a trainer's loop tells of itself while it runs."""

    def before(self, place: int) -> None:
        """A batch, counted from 0, is about to be trained on."""
        ...

    def after(self, place: int, loss: Any) -> None:
        """The loop is done with a batch; ``loss`` is a scalar, or None where it is not known."""
        ...

    def scheduled(self, found: Sequence[Scheduled]) -> None:
        """Called at the end of the run, with what the rest of the training would do to the learning rates."""
        ...


class Run(Protocol):
    """A trainer's own loop, run for some batches."""

    def __call__(
        self,
        model: nn.Module,
        batches: Callable[[int], Batch],
        count: int,
        watch: Watch,
        *,
        window: int,
    ) -> None:
        """Train on ``batches(0)`` to ``batches(count - 1)`` as the trainer does, and leave no trace but in the model.

        Args:
            model: The contract's model.
            batches: Makes each batch, anew.
            count: How many are trained on.
            watch: Told of every batch.
            window: How many batches make one optimizer step.

        Raises:
            LoopUnavailableError: It cannot be run here.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """How a trainer trains.

    Attributes:
        run: Runs its loop.
        window: How many batches it accumulates before an optimizer's step.
        mixed: Whether it runs parts in a lower precision.
        name: Class of the trainer.
        defined: The user's function that a finding without a line of its own points to, or None.
        clips: The user's function that takes the place of the trainer's clipping, or None.
        graded: ``(model, batch) -> (loss, logits)`` of one batch in train mode, where the trainer
            can tell both.
        causal: Whether the logits of a position are to tell the next token of ``input_ids``.
    """

    run: Run
    window: int = 1
    mixed: bool = False
    name: str = "Trainer"
    defined: Callable[..., Any] | None = None
    clips: Callable[..., Any] | None = None
    graded: Callable[[nn.Module, Batch], tuple[Any, Any]] | None = None
    causal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """What an adapter supplies.

    Attributes:
        fields: Values for fields of the contract; those that the user has declared are left alone.
        call: ``(model, batch) -> output``: how the model is called, where calling it with the
            batch's arguments is not it. The mode of the model, ``model.training``, says what is
            asked for: what is trained by, such as ``{"loss": ...}``, or a prediction.
        without: Checks that mean nothing for such a model, each with the reason.
        loop: The trainer's own loop, where there is a trainer; the checks of the training step then
            watch it.
        name: Of the adapter.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    call: Callable[[nn.Module, Batch], Any] | None = None
    without: Mapping[str, str] = field(default_factory=dict)
    loop: Loop | None = None
    name: str = ""

    def named(self, name: str) -> Adapted:
        """Return the same, under the name of its adapter.

        Raises:
            AdapterError: It supplies what is no field that an adapter may fill in.
        """
        unknown = sorted(set(self.fields) - SUPPLIED)
        if unknown:
            raise AdapterError(
                f"the adapter {name!r} supplies {unknown[0]!r}; allowed are: {', '.join(sorted(SUPPLIED))}"
            )
        return replace(self, name=name)


@runtime_checkable
class Adapter(Protocol):
    """Recognises models of a framework and says what their contracts need not."""

    def recognises(self, declared: Declared) -> bool:
        """Say whether the model is one of this framework; cheap, and without importing it."""
        ...

    def adapt(self, declared: Declared) -> Adapted:
        """Return what the contract need not declare.

        Raises:
            AdapterError: What is declared does not suffice.
        """
        ...

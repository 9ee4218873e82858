"""What is known of a training step while it runs: its optimizers, its gradients and the calls so far."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import torch

from .. import sources
from ..lean import dataclass
from ..probes.recorded.watch import version_of
from ..subject.gradients import is_gone
from ..subject.optimizers import optimizers_of
from .naming import frames_within, name_in, user_frame
from .steps import StepWatch
from .trace import Backward, Convert, Event, Forward, Kind, Trace
from .traces.copied_onto_itself import Copies
from .traces.rounded_weights import Rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import CodeType, FrameType

    from torch import nn

    from ..findings import Location
    from ..subject.errors import SubjectError
    from .traces.rates_ahead import Ahead


class _Deeper:
    def __init__(self, depth: dict[str, int], kind: str) -> None:
        self.depth, self.kind = depth, kind

    def __enter__(self) -> None:
        self.depth[self.kind] += 1

    def __exit__(self, *exc: object) -> None:
        self.depth[self.kind] -= 1


class Notes(StepWatch):
    """What the calls of a training step have shown so far; the trace is made of it.

    Attributes:
        within: The function below whose frames the user's own are looked for.
    """

    def __init__(self, model: nn.Module, made: Any, amplify: float, within: CodeType) -> None:
        self.model = model
        self.within = within
        self.amplify = amplify
        self.names = {id(module): name for name, module in model.named_modules()}
        self.ledger = Ledger((name, p) for name, p in model.named_parameters())
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self.owner_names: dict[int, str] = {}
        self.classes: dict[int, str] = {}
        self.scaled: dict[int, float] = {}
        self.keep: list[Any] = [made]
        self.iterators: dict[int, Any] = {}  # that gave parameters to a clipping
        self.events: list[Event] = []
        self.step = 0
        self.error: SubjectError | None = None
        self.grad_left_off: int | None = None
        self.losses: list[float] = []
        self.roots: list[tuple[int, Any]] = []
        self.gone_through: dict[int, list[Any]] = {}  # by place of a pass that kept its graph
        self.reached: set[int] = set()  # places of forwards that the pass under way goes through
        self.unfollowed: set[int] = set()  # those of forwards whose outputs show no graph
        self.pairs: list[dict[tuple[str, str], float]] = []
        self.pairs_of: Sequence[tuple[str, str]] = ()
        self.after_step: Callable[[int, nn.Module], None] | None = None
        self.after_backward: Callable[[nn.Module], None] | None = None
        self.steps_schedulers = False
        self.schedules: tuple[Ahead, ...] = ()
        self.generators: list[dict[str, int]] = []
        self.callers: dict[Location, tuple[Location, ...]] = {}
        self.copies = Copies(model)
        self.rounding = Rounded(model)
        self.stepping: dict[int, list[int]] = {}  # places of the events as the steps began
        self.depth = {
            "forward": 0,
            "scheduler-step": 0,
            "mode": 0,
            "scaler-step": 0,
            "scale": 0,
            "convert": 0,
        }
        self._forward: tuple[Forward, dict[str, Any]] | None = None
        for optimizer in optimizers_of(made):
            self.known(optimizer)

    def known(self, optimizer: torch.optim.Optimizer) -> int:
        """Remember an optimizer, and return what it is kept under."""
        key = id(optimizer)
        if key not in self.optimizers:
            self.optimizers[key] = optimizer
            self.classes[key] = type(optimizer).__name__
        return key

    def parameters(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """Return all parameters of an optimizer's groups."""
        return [p for group in optimizer.param_groups for p in group["params"]]

    def call(self, thing: Any, method: str, kind: str) -> tuple[str, Location | None]:
        """Return the call as the user writes it, and the line."""
        frame: FrameType | None = user_frame(within=self.within)
        name = name_in(frame, thing)
        known = self.owner_names.get(id(thing))
        if name and (known is None or known == kind):
            self.owner_names[id(thing)] = name
        shown = name or known or kind
        place = None if frame is None else sources.of_frame(frame)
        if place is not None and place not in self.callers:
            above = frames_within(self.within)
            lines = (sources.of_frame(f) for f in above if sources.rank(f.f_code.co_filename) == 2)
            self.callers[place] = tuple(line for line in lines if line not in (None, place))
        return f"{shown}.{method}" if method else shown, place

    def trace(self) -> Trace:
        """Return what was recorded, without any tensor."""
        for place in [place for place, ran in self.gone_through.items() if ran]:
            event = self.events[place]
            assert isinstance(event, Backward)
            self.events[place] = replace(event, again=True)
        for place, names in self.rounding.by_place.items():
            conversion = self.events[place]
            assert isinstance(conversion, Convert)
            self.events[place] = replace(conversion, rounded=tuple(names))
        return Trace(
            events=tuple(self.events),
            steps=len(self.losses),
            losses=tuple(self.losses),
            parameters={
                key: tuple(account.name for account in self.ledger.of(self.parameters(optimizer)))
                for key, optimizer in self.optimizers.items()
            },
            names={key: self.owner_names.get(key, "optimizer") for key in self.optimizers},
            classes=dict(self.classes),
            error=self.error,
            grad_left_off=self.grad_left_off,
            pairs=tuple(self.pairs),
            callers=self.callers,
            schedules=self.schedules,
            generators=tuple(self.generators),
            copied_onto_themselves=self.copies.onto_themselves(),
        )

    def common(self, kind: Kind, thing: Any, method: str, fallback: str) -> dict[str, Any]:
        """Return the fields that every event has."""
        name, place = self.call(thing, method, fallback)
        return {"kind": kind, "step": self.step, "name": name, "owner": id(thing), "place": place}

    def plain(self, kind: Kind, method: str) -> Any:
        """Return a handler that notes a call and nothing about it."""

        def around(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self.keep.append(args[0])
            self.events.append(Event(**self.common(kind, args[0], method, "scaler")))
            return original(*args, **kwargs)

        return around

    def settle_rounding(self) -> None:
        """Compare what was rounded with what the optimizers hold."""
        self.rounding.settle(
            {id(p) for one in self.optimizers.values() for p in self.parameters(one)}
        )

    def deeper(self, kind: str) -> Any:
        """Return a context in which calls of this kind are not noted: they belong to the one around them."""
        return _Deeper(self.depth, kind)


@dataclass(slots=True)
class Account:
    """What one parameter's gradient holds.

    Attributes:
        name: Of the parameter.
        tensor: The parameter.
        sources: Places of the backward passes in it.
        applied: Those that an optimizer has applied, by the optimizer's key.
        cleared: Place of the last zero_grad that threw away something not applied.
        scale: Factor of a GradScaler that it is still multiplied by.
        version: Of the parameter at the latest backward pass; another one since then where
            something has written to it.
        passed: At the latest backward pass: the step, the version and the first number; None where an
            optimizer has stepped since.
    """

    name: str
    tensor: torch.Tensor
    sources: list[int] = field(default_factory=list)
    applied: dict[int, set[int]] = field(default_factory=dict)
    cleared: int | None = None
    scale: float = 1.0
    version: int | None = None
    passed: tuple[int, int | None, float] | None = None

    @property
    def is_empty(self) -> bool:
        """Say whether the gradient is None or all zeros."""
        return is_gone(self.tensor.grad)

    def written_since(self, step: int) -> bool:
        """Note a backward pass of a step; say whether something was written since an earlier pass of this step.

        What is written to ``.data`` counts no version: on the CPU, a number is looked at too.
        """
        tensor = self.tensor.detach()
        plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.numel()
        number = float(tensor[(0,) * tensor.dim()].abs()) if plain else 0.0
        last, now = self.passed, (step, version_of(self.tensor), number)
        self.passed = now
        return last is not None and last[0] == step and last != now

    def signature(self) -> tuple[int, int] | None:
        """Return what changes whenever the gradient is written to."""
        grad = self.tensor.grad
        return None if grad is None else (id(grad), grad._version)

    def pending(self) -> set[int]:
        """Return the backward passes that no optimizer has applied."""
        done = set().union(*self.applied.values()) if self.applied else set()
        return set(self.sources) - done

    def forget(self) -> None:
        """Note that the gradient was cleared."""
        self.sources = []
        self.applied = {}
        self.scale = 1.0


class Ledger:
    """The accounts of all parameters of a model and its optimizers."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.accounts: dict[int, Account] = {}
        for name, parameter in named:
            self.add(name, parameter)

    def add(self, name: str, parameter: torch.Tensor) -> None:
        """Open an account for a parameter, if it has none."""
        self.accounts.setdefault(id(parameter), Account(name=name, tensor=parameter))

    def of(self, parameters: Iterable[torch.Tensor]) -> list[Account]:
        """Return the accounts of some parameters; those without one get one by their shape."""
        found = []
        for parameter in parameters:
            if id(parameter) not in self.accounts:
                self.add(f"parameter{list(parameter.shape)}", parameter)
            found.append(self.accounts[id(parameter)])
        return found

    def settle(self) -> None:
        """Forget what was cleared by hand since the last event (``p.grad = None``)."""
        for account in self.accounts.values():
            if account.sources and account.is_empty:
                account.forget()

    def clear(self, place: int, before: dict[int, set[int]]) -> None:
        """Note which accounts a zero_grad has emptied, and what it threw away.

        Args:
            place: Of the event.
            before: What was pending, by parameter.
        """
        for key, account in self.accounts.items():
            if account.sources and account.is_empty:
                account.cleared = place if before.get(key) else account.cleared
                account.forget()

    def norm(self, parameters: Iterable[torch.Tensor] | None = None) -> float:
        """Return the total norm of gradients, of all parameters by default."""
        chosen = [a.tensor for a in self.accounts.values()] if parameters is None else parameters
        total = 0.0
        for parameter in chosen:
            if parameter.grad is not None and parameter.grad.device.type != "meta":
                grad = parameter.grad
                values = grad.coalesce().values() if grad.layout == torch.sparse_coo else grad
                total += (
                    float(torch.linalg.vector_norm(values.detach().flatten(), dtype=torch.float64))
                    ** 2
                )
        return math.sqrt(total)

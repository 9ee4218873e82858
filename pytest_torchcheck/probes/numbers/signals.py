"""One training step watched: how large the signal is behind each module, in both directions, and what took part."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...lean import dataclass
from ..recorded.overwriting import Overwrites
from ..recorded.unread import Reads
from ..recorded.watch import (
    Watch,
    in_backward,
    name_of,
    operands,
    readable,
    tensors_in,
    unseen,
    version_of,
)
from . import grouped, signal_facts
from .signal_facts import DRAWS, WATCHED, Averaging, Rectified, Signals, Squashed, Tap, Weights
from .views import CHOICES, SEEN, Choices, Views
from .wrapping import Conversions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from ...findings import Location

RECTIFIERS = frozenset(
    {"relu", "relu_", "relu6", "hardtanh", "threshold", "threshold_", "hardtanh_"}
)
LINEAR = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_SAME_VALUES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Flatten)
SQUASHING = frozenset({"tanh", "sigmoid"})
_BOUND = 0.995  # tanh has 1 % of its slope left there
_UNDERFLOW = 1e-15  # float32 squares of what is smaller lose their digits, then vanish
_APART = 0.01
_MOST = 4000
_FEW = 16
_PARAMETRIZATIONS = "parametrizations"  # where torch.nn.utils.parametrize keeps them


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    tensor: weakref.ref[Tensor]
    version: int | None
    module: str
    linear: bool
    reads: Counter[str]  # of this call's output, by whoever

    @classmethod
    def of(
        cls, tensor: Tensor, module: str, reads: Counter[str] | None = None, *, linear: bool
    ) -> _Output:
        return cls(
            tensor=weakref.ref(tensor),
            version=version_of(tensor),
            module=module,
            linear=linear,
            reads=Counter() if reads is None else reads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A module with trainable weights that ran, and that the model registers neither itself nor by its weights.

    A container that the forward makes of registered layers has no weight of its own, and is none.

    Attributes:
        kind: Its class.
        location: The line that called it.
        made: The line that made it, where the function that called it did so during the run.
        module: The module.
        parameters: Its own that train.
    """

    kind: str
    location: Location | None
    made: Location | None
    module: weakref.ref[nn.Module]
    parameters: tuple[weakref.ref[nn.Parameter], ...]


class SignalWatch(Watch):
    """Collects :class:`Signals` of the block it watches.

    Args:
        model: The model.
        batch_size: Size of dimension ``batch_dim`` where samples are told apart; None where they
            are not.
        batch_dim: Where the samples stand.
    """

    def __init__(self, model: nn.Module, batch_size: int | None, batch_dim: int | None = 0) -> None:
        super().__init__(model)
        self._model = model
        self.seen = Signals()
        self._size, self._dim = batch_size, batch_dim or 0
        self._outputs: dict[int, _Output] = {}
        self._flow: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._chains: list[tuple[str, str, Counter[str]]] = []
        self.strangers: list[Seen] = []
        self._fed: dict[int, str | None] = {}  # by how many modules run
        self._scaled = False
        self._filled: dict[int, tuple[weakref.ref[Tensor] | None, Location | None]] = {}
        self._reads, self._weights = Reads(), Weights()
        self._views, self._choices, self._groups = Views(), Choices(), grouped.Groups()
        self._overwrites, self._conversions = Overwrites(), Conversions()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self.seen.unread = self._reads.unread()
        self.seen.views, self.seen.moved = self._views.seen, self._views.found
        self.seen.repeated = self._views.slices.found()
        self.seen.idle_choices, self.seen.regrouped = self._choices.found, self._groups.found
        self.seen.overwriting, self.seen.of_inputs = self._overwrites.found()
        self.seen.wrapped, self.seen.merged = self._conversions.wrapped, self._conversions.merged
        self.seen.chains = [
            (first, second) for first, second, reads in self._chains if sum(reads.values()) == 1
        ]

    def module_entered(self, module: nn.Module, args: Any) -> None:
        """Count the call, and notice what it is given."""
        if in_backward():
            return
        name = self.scopes[-1].name
        if id(module) not in self._names and len(self.strangers) < _FEW:
            self._meet(module)
        self.seen.calls[name] += 1
        given = next(tensors_in(args), None)
        self._overwrites.entered(module, given)
        source = None if given is None else self._source(given)
        self._fed[len(self.scopes)] = source
        if source == name:
            self.seen.chained.add(name)
        if source is not None and _has_own(module):
            self.seen.feeding.add(source)
        known = self._known(given)
        if known is None:
            return
        if known.linear and isinstance(module, LINEAR) and len(self._chains) < _MOST:
            self._chains.append((known.module, name, known.reads))

    def _meet(self, module: nn.Module) -> None:
        """Note a module that the model does not register."""
        if len(self.scopes) > 1 and id(self.scopes[-2].module) not in self._names:
            return
        registered = {id(p) for p in self._model.parameters()}
        own = [p for p in module.parameters() if p.requires_grad and id(p) not in registered]
        if own:
            called = self.locate()
            lines = (self._filled.get(id(p), (None, None)) for p in own)
            made = [
                line
                for (tensor, line), p in zip(lines, own, strict=True)
                if tensor is not None and tensor() is p
            ]
            self.strangers.append(
                Seen(
                    kind=type(module).__name__,
                    location=called,
                    made=next((line for line in made if grouped.same_function(line, called)), None),
                    module=weakref.ref(module),
                    parameters=tuple(map(weakref.ref, own)),
                )
            )

    def module_left(self, module: nn.Module, args: Any, result: Any) -> None:
        """Measure the output."""
        if in_backward():
            return
        output = next((t for t in tensors_in(result) if t.is_floating_point()), None)
        if output is None or output.layout != torch.strided:
            return
        if output.is_nested or not output.numel():
            return
        name = self.scopes[-1].name
        if _has_own(module) or next(iter(module.parameters()), None) is not None:
            self._flow[id(output)] = (weakref.ref(output), name)
        if isinstance(module, _SAME_VALUES):
            if (before := self._known(next(tensors_in(args), None))) is not None:
                before.reads.clear()
                self._outputs[id(output)] = _Output.of(
                    output, before.module, before.reads, linear=before.linear
                )
            return
        self._outputs[id(output)] = _Output.of(output, name, linear=isinstance(module, LINEAR))
        full = len(self.seen.taps) >= _MOST
        if full or not self._is_tapped(module) or not readable(output):
            return
        with unseen(output):
            values = output.detach()
            low, high = values.aminmax()
            values = values.float()
            tap = Tap(
                name=name,
                kind=type(module).__name__,
                shape=tuple(output.shape),
                low=float(low),
                high=float(high),
                rms=(rms := _rms(values)),
                spread=self._spread(values, rms),
                weighted=any(p.dim() > 1 for p in _own(module)),
                source="" if self._scaled else self._fed.get(len(self.scopes)) or "",
            )
        self.seen.taps.append(tap)
        self._scaled = False
        if output.requires_grad:
            output.register_hook(_measure(tap))

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Follow which layer's output a value was computed from, and count what rectifiers set to zero."""
        name = getattr(func, "__name__", "")
        outside = not in_backward()
        self._scaled |= "norm" in name or name in signal_facts.SPREADS
        if outside and name in WATCHED:
            self._average(name, args, kwargs, result)
        if outside and name in SEEN:
            self._views.called(name, args, result, self.module_name, self.locate)
        if outside and name in grouped.SEEN:
            self._groups.called(name, args, result, self.module_name, self.user_lines)
        if outside and name in CHOICES:
            self._choices.called(name, args, kwargs, self.locate)
        if outside:
            source = None
            given = operands(args, kwargs)
            if (short := name.rstrip("_")) in DRAWS:
                trained = "dropout" in short and any(t.requires_grad for t in given)
                self.seen.drawn |= set() if trained else {short}
            self._reads.given(given)
            if name != "__get__":
                self._overwrites.called(name, args, given, self.module_name, self.locate)
                self._reads.returned(name, given, result)
            for tensor in given:
                if name != "__get__" and (known := self._known(tensor)) is not None:
                    known.reads["read"] += known.linear
                source = source or self._source(tensor)
            if source is not None:
                for tensor in tensors_in(result):
                    self._flow[id(tensor)] = (weakref.ref(tensor), source)
            if (
                type(result) is not Tensor
                and isinstance(result, nn.Parameter)
                and len(self._filled) < _MOST
            ):
                # an initialisation writes to a parameter that is made during the run
                self._filled.setdefault(id(result), (weakref.ref(result), self.locate()))
        if outside:
            self._conversions.called(func, args, kwargs, result, self.locate)
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return
        if not result.numel() or not readable(result):
            return
        if outside and name in SQUASHING:
            self._squashed(name_of(func), args, result)
        if token is None:
            return
        self.seen.rectified.append(
            Rectified(
                module=self.module_name,
                op=name_of(func),
                location=self.locate(),
                zeros=1 - int(result.detach().count_nonzero()) / result.numel(),
                silent_input=token,
                size=result.numel(),
            )
        )

    def before(self, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Look at a rectifier's input before it may be overwritten; None for every other call."""
        if getattr(func, "__name__", "") not in RECTIFIERS or in_backward():
            return None
        if len(self.seen.rectified) >= _MOST:
            return None
        given = next(tensors_in((args, kwargs)), None)
        if given is None or not readable(given):
            return None
        given = given.detach()
        if given.numel() and bool(given[(0,) * given.dim()]):
            return False  # the first element tells of most
        return not bool((given != 0).any())

    def _average(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Note a product of softmax weights with values."""
        if (found := self._weights.called(name, args, kwargs, result, self.locate)) is None:
            return
        weights, normalised, summed, line = found
        if len(self.seen.averaging) < _MOST:
            self.seen.averaging.append(
                Averaging(
                    module=self.module_name,
                    shape=tuple(weights.shape),
                    normalised=normalised,
                    summed=summed,
                    softmax=line,
                    location=self.locate(),
                )
            )

    def _squashed(self, name: str, args: Any, result: Tensor) -> None:
        given = next(tensors_in(args), None)
        known = self._known(given)
        if given is None or known is None or not known.linear or len(self.seen.squashed) >= _MOST:
            return
        with unseen(result):
            values = result.detach().float()
            values = values if "tanh" in name else 2 * values - 1
            near = values.abs() > _BOUND
            share = float(near.float().mean())
            upper = float((near & (values > 0)).float().mean()) / share if share else 0.0
            scale = _rms(given.detach().float())
        self.seen.squashed.append(
            Squashed(
                module=self.module_name,
                op=name,
                location=self.locate(),
                source=known.module,
                share=share,
                upper=upper,
                scale=scale,
                size=result.numel(),
            )
        )

    def _source(self, tensor: Tensor) -> str | None:
        """Return the last layer that a value was computed from."""
        known = self._flow.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _known(self, tensor: Tensor | None) -> _Output | None:
        """Return which module's output a tensor is, if it is untouched since."""
        if tensor is None or (known := self._outputs.get(id(tensor))) is None:
            return None
        fresh = known.tensor() is tensor and known.version == version_of(tensor)
        return known if fresh else None

    def _is_tapped(self, module: nn.Module) -> bool:
        """Say whether a module's output is a place to measure: weights, or an entry of a list of blocks."""
        words = self.scopes[-1].name.split(".")
        if _PARAMETRIZATIONS in words:
            return False  # what it gives is a weight
        return _has_own(module) or (
            words[-1].isdigit() and next(iter(module.parameters()), None) is not None
        )

    def _spread(self, values: Tensor, rms: float) -> float | None:
        size, dim = self._size, self._dim
        if size is None or size < 2 or values.dim() <= dim or values.shape[dim] != size:
            return None
        mean = values.mean(dim, keepdim=True)
        kept = rms**2 - _rms(mean) ** 2  # as squares add up, where rounding leaves enough of it
        return math.sqrt(kept) if kept > _APART * rms**2 else _rms(values - mean)


def _has_own(module: nn.Module) -> bool:
    """Say whether a module registers a parameter itself; read from its dict, since each module that runs is asked."""
    return next(_own(module), None) is not None


def _own(module: nn.Module) -> Iterator[nn.Parameter]:
    """Iterate over a module's own parameters; those behind a parametrization are of the module that it is for."""
    holders = [module]
    if _PARAMETRIZATIONS in module._modules:
        holders += module._modules[_PARAMETRIZATIONS].children()  # type: ignore[union-attr]
    for holder in holders:
        yield from (p for p in holder._parameters.values() if p is not None)


def _rms(values: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(values))
    if norm < _UNDERFLOW and (largest := float(values.abs().amax())):
        norm = largest * float(torch.linalg.vector_norm(values / largest))
    return norm / math.sqrt(values.numel())


def _measure(tap: Tap) -> Callable[[Tensor | None], None]:
    def measure(gradient: Tensor | None) -> None:
        if gradient is not None and gradient.numel():
            with unseen(gradient):
                tap.gradient = _rms(gradient.detach().float())

    return measure

"""What some training steps leave behind, apart from new weights: in the model, in the user's numbers, in memory."""

from __future__ import annotations

import contextlib
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ... import sources
from ...functions.discovery import is_compiled
from ...lean import dataclass
from ...loop.checkpoints import STEPS, is_torchs
from ...loop.closures import functions_of, holds_any
from ...objects import trees
from ...objects.peek import closed_over
from ...probes.holding.live_bytes import LiveBytes
from ...probes.memory.allocations import storages
from ...probes.recorded.watch import version_of
from ...state import seed_everything
from ...stepping import take_step
from ...subject.errors import SubjectError
from ..copying import lost_in_copies
from ..facts import copied
from ..outputs import gap
from ..pieces import marks
from ..remembering import kept_values, put_value
from .strides import Strides, move, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn

    from ...batches import Batch
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What steps left behind; plain data.

    Attributes:
        fading: Parameters that the first step moves and later ones by next to nothing.
        decaying: Parameters that steps only multiply by a number, though others of no larger gradient
            follow theirs.
        follows: By parameter that does not just decay: its largest change in the first step; only where some do.
        resolutions: By parameter that just decays: the smallest change that its numbers show.
        put_back: Parameters that a training forward after the steps puts back to where they began.
        overwritten: Parameters to which a training forward gives values that do not depend on theirs.
        stale: Entries of ``state_dict()`` that are what they were before the steps, unlike their parameters.
        kept: Attributes that the steps bind, write to or lengthen.
        numbers: Those of ``kept`` that are numbers, buffers that count, and numbers that the user's functions keep.
        rests: Whether some step after the first moves nothing.
        undone: The step, from 1, after which the weights are those of an earlier one again; 0 for none.
        remembered: Outputs in evaluation mode that depend on ``kept``.
        by: Those of ``kept`` on which they depend.
        uncopied: The code of a copy of the trained model that computes something else; empty where none does.
        holds_inputs: Whether the functions of the user's step hold inputs of a batch between calls.
        rewritten: Whether the user's step writes to every parameter again that its optimizers have updated.
    """

    fading: tuple[str, ...] = ()
    decaying: tuple[str, ...] = ()
    follows: dict[str, float] = field(default_factory=dict)
    resolutions: dict[str, float] = field(default_factory=dict)
    put_back: tuple[str, ...] = ()
    overwritten: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    rests: bool = False
    undone: int = 0
    remembered: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    uncopied: str = ""
    holds_inputs: bool = False
    rewritten: bool = False


class Leaving:
    """Looks at a model before, between and after training steps.

    Args:
        subject: Whose model.
        model: The model, before the steps.
        optimizers: Those that step.
    """

    def __init__(
        self, subject: Subject, model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        self._subject, self._model = subject, model
        self.strides = Strides(model)
        buffers = {name for name, _ in model.named_buffers()}
        # a scripted module shows no attributes that could be put back
        scripted = any(isinstance(m, torch.jit.ScriptModule) for m in model.modules())
        kept = {} if scripted else marks(model)
        self._before = {n: m for n, m in kept.items() if n not in buffers}
        self._values = kept_values(model, self._before)
        self._optimizers = list(optimizers)
        self._numbers = numbers_of(subject) | _numbers_on(self._optimizers)
        self._scalars = _scalars(model)
        self._returned: tuple[str, ...] | None = None  # not seen
        self._written: tuple[str, ...] = ()
        self._updated: dict[str, int | None] = {}  # how often each had been written to by then
        for optimizer in self._optimizers if subject.contract.train_step is not None else ():
            optimizer.register_step_post_hook(self._after_update)
        if _saves_itself(model):
            _saved(model)  # as a first checkpoint does

    def _after_update(self, *_: Any) -> None:
        named = self._model.named_parameters()
        self._updated = {n: version_of(p) for n, p in named if p.requires_grad}

    def within_step(self) -> None:
        """See what a forward of a step after the first has put back, between backward and the optimizer's step."""
        now = sampled(self._model)
        self._returned, self._written = self.strides.returned(now), self.strides.written(now)

    def after(self, batch: Batch) -> Left:
        """Ask the trained model; its flags, and what its forwards write, are no longer those of the steps."""
        model = self._model
        now_written = {n: version_of(p) for n, p in model.named_parameters()}
        rewritten = all(now_written.get(n) != times for n, times in self._updated.items())
        decaying = tuple(n for n in self.strides.decaying() if self._only_scaled(n))
        now = marks(model)
        kept = tuple(n for n, mark in self._before.items() if now.get(n) != mark)
        numbers = tuple(
            n
            for n, value in kept_values(model, kept).items()
            if isinstance(value, int | float) and n in self._values
        )
        scalars = _scalars(model).items()
        numbers += tuple(
            n for n, t in scalars if n in self._scalars and has_counted(self._scalars[n], t)
        )
        counted = numbers_of(self._subject) | _numbers_on(self._optimizers)
        numbers += tuple(n for n, value in counted.items() if self._numbers.get(n) != value)
        stale = self._stale() if _saves_itself(model) else ()
        put_back: tuple[str, ...] = ()
        overwritten: tuple[str, ...] = ()
        remembered: tuple[str, ...] = ()
        by: tuple[str, ...] = ()
        uncopied = ""
        if not is_compiled(model):
            try:
                uncopied = lost_in_copies(self._subject, model, batch)
                put_back = self._returned if self._returned is not None else self._put_back(batch)
                remembered, by = self._remembered(batch, kept)
                overwritten = self._overwritten(batch)
            except SubjectError:
                pass  # forwards that raise are explained by other checks
        return Left(
            fading=self.strides.fading(), decaying=decaying, put_back=put_back, overwritten=overwritten,
            stale=stale, kept=kept, numbers=numbers, remembered=remembered, by=by,
            rests=self.strides.rests(), undone=self.strides.undone(), uncopied=uncopied,
            holds_inputs=self._holds_inputs(batch), rewritten=rewritten and bool(self._updated),
            follows=self.strides.moved_freely(decaying) if decaying else {},
            resolutions={n: self.strides.resolution(n) for n in decaying},
        )  # fmt: skip

    def _only_scaled(self, name: str) -> bool:
        """Say whether a whole parameter is its first value times one number: inputs may be zero at a few columns."""
        parameter = dict(self._model.named_parameters())[name]
        then = self._subject.state.original(parameter)
        if then is None or not parameter.is_floating_point():
            return False
        first, now = then.detach().double(), parameter.detach().double().to(then.device)
        factor = (first * now).sum() / (first * first).sum()
        return bool((now - factor * first).abs().max() <= 1e-5 * first.abs().max())

    def _holds_inputs(self, batch: Batch) -> bool:
        given = [t for _, t in batch.input_leaves() if isinstance(t, torch.Tensor) and t.dim()]
        return holds_any(
            self._subject.contract.train_step,
            lambda held: any(held.shape == t.shape and trees.same(held, t) for t in given),
        )

    def _put_back(self, batch: Batch) -> tuple[str, ...]:
        model = self._model
        model.train()
        seed_everything(self._subject.seed)
        with torch.no_grad():
            self._subject.call(model, batch.clone())
        now = sampled(model)
        self._written = self.strides.written(now)
        return self.strides.returned(now)

    def _overwritten(self, batch: Batch) -> tuple[str, ...]:
        """Move what forwards write to both sides, and return what a training forward makes the same of either."""
        if not (names := self._written):
            return ()
        model, ends = self._model, []
        for side in (1.0, -2.0):
            move(model, names, side)
            model.train()
            seed_everything(self._subject.seed)
            with torch.no_grad():
                self._subject.call(model, batch.clone())
            ends.append(sampled(model))
        first, second = ends
        return tuple(n for n in names if n in first and torch.equal(first[n], second[n]))

    def _remembered(
        self, batch: Batch, kept: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Evaluate with what the steps kept and without it; nothing where an evaluation keeps it too."""
        if not kept:
            return (), ()
        model = self._model
        model.eval()
        before = marks(model)
        first = self._evaluated(batch)
        if any(marks(model).get(name) != before.get(name) for name in kept):
            return (), ()
        if gap(self._evaluated(batch), first) is not None:
            return (), ()  # random
        trained = kept_values(model, kept)
        for name in kept:
            put_value(model, name, self._values[name])
        wrong = gap(self._evaluated(batch), first)
        if wrong is None:
            return (), ()
        by = []
        for name in kept:
            for other in kept:
                put_value(model, other, self._values[other] if other == name else trained[other])
            if gap(self._evaluated(batch), first) is not None:
                by.append(name)
        return (wrong[0],), tuple(by or kept)

    def _evaluated(self, batch: Batch) -> dict[str, torch.Tensor]:
        seed_everything(self._subject.seed)
        with torch.no_grad():
            return copied(self._subject.call(self._model, batch.clone()))

    def _stale(self) -> tuple[str, ...]:
        saved, state = _saved(self._model), self._subject.state
        found = []
        for name, parameter in self._model.named_parameters():
            value = saved.get(name)
            then = state.original(parameter)
            if not isinstance(value, torch.Tensor) or then is None or parameter.is_meta:
                continue
            if value.shape != parameter.shape or trees.same(value, parameter):
                continue
            if trees.same(value.to(then.device, then.dtype), then):
                found.append(name)
        return tuple(found)


def _scalars(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the buffers of one number, those of torch's own modules aside: they count batches."""
    return {
        f"{prefix}.{name}".lstrip("."): buffer.detach().clone()
        for prefix, module in model.named_modules()
        if sources.is_own_class(type(module))
        for name, buffer in module.named_buffers(recurse=False)
        if buffer.numel() == 1 and not buffer.is_complex() and not buffer.is_meta
    }


def has_counted(before: torch.Tensor, now: torch.Tensor) -> bool:
    """Say whether a single number has gone from one whole number to another, by more than a flag does."""
    if before.numel() != 1 or now.numel() != 1 or before.is_complex():
        return False
    first, last = float(before), float(now)
    return first.is_integer() and last.is_integer() and abs(last - first) > 1


def _saves_itself(model: nn.Module) -> bool:
    """Say whether a module saves its state in a way of its own, by a method or a hook."""
    return any(
        not getattr(type(module), name).__module__.startswith("torch.")
        for module in model.modules()
        for name in ("state_dict", "_save_to_state_dict")
    ) or any(module._state_dict_hooks for module in model.modules())


def _saved(model: nn.Module) -> dict[str, Any]:
    try:
        return dict(model.state_dict())
    except Exception:  # the user's own method: state-dict-roundtrip tells what it raises
        return {}


_MOST: Final = 8
"""Entries of a list or dict that may hold counts."""


def numbers_of(subject: Subject) -> dict[str, float]:
    """Return the numbers that the user's functions keep between calls: closures, attributes, globals."""
    contract = subject.contract
    forwards = [
        type(module).forward
        for module in subject.model.modules()
        if sources.is_own_class(type(module))
    ]
    found: dict[str, float] = {}
    loss = contract.loss if callable(contract.loss) else None
    for function in functions_of(contract.train_step, contract.optimizer, loss, *forwards):
        held = vars(function) | closed_over(function)
        names = function.__code__.co_names
        held |= {n: function.__globals__[n] for n in names if n in function.__globals__}
        for name, value in _entries(held):
            found[f"{function.__qualname__}.{name}"] = value
    return found


def _numbers_on(optimizers: list[torch.optim.Optimizer]) -> dict[str, float]:
    """Return the numbers that a user's step has put on optimizers, or a class of theirs keeps."""
    return {
        f"optimizer.{name}": value
        for optimizer in optimizers
        for name, value in vars(optimizer).items()
        if isinstance(value, int | float) and not name.startswith("_")
    }


def _entries(held: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in held.items():
        if isinstance(value, int | float):
            yield name, value
        elif type(value) in (list, dict) and len(value) <= _MOST:
            inside = value.items() if isinstance(value, dict) else enumerate(value)
            for key, one in inside:
                if isinstance(one, int | float):
                    yield f"{name}[{key!r}]", one


class KeptBytes:
    """Counts what the steps after the first leave behind.

    To count costs as much as a small kernel for each kernel. Where the first step was seen to leave
    the model as it was, the last one is counted alone: if nothing of it is left but the gradients, and
    those of the step before are gone, no step adds to what lives.

    Attributes:
        live: Live bytes after each of these steps; empty where they have to be measured.
    """

    def __init__(self) -> None:
        self.live: list[int] = []
        self._counter = LiveBytes()
        self._every = True
        self._gradients: list[StorageWeakRef] = []

    def only_last(self) -> None:
        """Count the last step alone: the first one changed nothing that the model holds."""
        self._every = False

    def _counts(self, step: int) -> bool:
        return step > 0 and (self._every or step == STEPS - 1)

    def counting(self, step: int) -> contextlib.AbstractContextManager[Any]:
        """Return a block in which a step is counted, if it is to be."""
        return self._counter if self._counts(step) else contextlib.nullcontext()

    def apply(self, step: int) -> Callable[[Any, Callable[[], torch.Tensor]], None]:
        """Return what takes the optimizer's step within that block."""
        return self._uncounted if self._counts(step) else take_step

    def look(self, step: int, trained: Iterable[torch.Tensor]) -> None:
        """Look at what a step has left.

        Args:
            step: Which one, from 0.
            trained: The tensors that may have a gradient now.
        """
        if not step:
            return
        if self._every:
            self.live.append(self._counter.live)
            return
        found = [s for t in trained if t.grad is not None for s in storages(t.grad)]
        if step == STEPS - 1:
            gone = all(one.expired() for one in self._gradients)
            self.live = [] if self._counter.beyond(found) or not gone else [0] * step
        else:
            self._gradients = [StorageWeakRef(storage) for storage in found]

    def _uncounted(self, optimizer: Any, closure: Callable[[], torch.Tensor]) -> None:
        """Take an optimizer's step, and do not count those of torch's own: they add nothing after the first.

        They call many small kernels for each parameter, and the count costs more than these.
        """
        known = is_torchs(optimizer) and not isinstance(optimizer, torch.optim.LBFGS)
        with self._counter.paused() if known else contextlib.nullcontext():
            take_step(optimizer, closure)

"""One model on one device and dtype: builds, steps, caches evidence, puts everything back."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import deadline
from .contracts import DTYPES, Contract
from .declared.callables import loss_of
from .declared.factories import not_built
from .declared.names import unknown_inputs, unknown_names
from .heard import Ear
from .interrupts import UserCodeError, interrupts, kept_in
from .loop.closures import keeps_something, kept
from .objects import trees
from .objects.modes import give_modes, has_modes, own_trains
from .objects.peek import attribute, entries
from .state import ModuleState, device_loss_told, is_lazy, isolated, seed_everything
from .stepping import take_step
from .text.printable import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .batches import Batch, BatchSource
    from .declared.names import UnknownNameError

Phase = Literal["build", "batch", "forward", "loss", "backward", "step", "data"]
LossKind = Literal["user", "probe"]
_COPY_BYTES = 64 * 2**20
_KEPT_BATCHES = 8


class SubjectError(UserCodeError):
    """The user's code raised.

    Attributes:
        phase: Where in the step.
        error: What was raised.
        batch: What the model was called with, or None.
        rerun: Does the same again, for probes; an :class:`Again` can do it on another device.
    """

    def __init__(
        self,
        phase: Phase,
        error: BaseException,
        batch: Batch | None = None,
        rerun: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(f"{phase}: {type(error).__name__}: {message_of(error)}")
        self.phase, self.error, self.batch, self.rerun = phase, error, batch, rerun


class NothingToDifferentiate(RuntimeError):
    """The contract declares no loss, and no output is floating-point: there is nothing to train on."""


class UnmeasurableError(SubjectError):
    """What a check needs cannot be had of this model, through no fault of it; the check is inconclusive.

    Args:
        reason: What cannot be had, and why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("build", TypeError(reason))
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class GradStat:
    """What one parameter's gradient is like.

    Attributes:
        name: Qualified name, the first one of tied parameters.
        kind: ``none``; ``zero`` when every element is exactly 0; ``live`` otherwise.
        norm: Euclidean norm; NaN or infinite where the gradient is.
        finite: Whether every element is finite.
    """

    name: str
    kind: Literal["none", "zero", "live"]
    norm: float = 0.0
    finite: bool = True
    sparse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Evidence of one forward, loss and backward in training mode.

    Attributes:
        loss: Value of the scalar loss.
        loss_shape: Its shape before any reduction.
        connected: Whether the loss requires a gradient.
        stats: Of every parameter that requires a gradient, by name.
        outputs: Path, shape, dtype and ``requires_grad`` of every output tensor.
    """

    loss: float
    loss_shape: tuple[int, ...]
    connected: bool
    stats: dict[str, GradStat]
    outputs: tuple[tuple[str, tuple[int, ...], str, bool], ...]

    def names(self, *kinds: str) -> list[str]:
        """Names of the parameters whose gradient is of these kinds."""
        return [stat.name for stat in self.stats.values() if stat.kind in kinds]

    @property
    def norm(self) -> float:
        """Norm over all parameters."""
        return math.sqrt(sum(stat.norm**2 for stat in self.stats.values()))


class Again:
    """Does once more what raised: here, or on another device with a model and a batch made for it.

    Args:
        here: Does it on the same model and device.
        prepare: Makes a model and a batch for a device, and what does it with them.

    Attributes:
        model, batch: Those of the other device, once it was asked for.
    """

    def __init__(
        self,
        here: Callable[[], Any],
        prepare: Callable[[str], tuple[nn.Module, Batch, Callable[[], None]]],
    ) -> None:
        self._here, self._prepare = here, prepare
        self._there: Callable[[], None] | None = None
        self.model: nn.Module | None = None
        self.batch: Batch | None = None

    def __call__(self, device: str | None = None) -> Any:
        """Do it here, or on ``device``."""
        deadline.keep()
        if device is None:
            return self._here()
        if self._there is None:
            self.model, self.batch, self._there = self._prepare(device)
        return self._there()


@dataclass(slots=True)
class Pass:
    """One forward (and loss, and backward) still in memory; valid inside :meth:`Subject.pristine`."""

    batch: Batch
    output: Any
    loss: torch.Tensor | None = None


class Subject:
    """One model on one device and dtype.

    Every method that runs the model starts from the same pristine state and the given seed, works on a
    copy of the batch, and leaves nothing behind: parameters, buffers, attributes, gradients, flags and
    random states are put back, also after an error or an interruption.

    Args:
        contract: What was declared.
        device: Where to run, such as ``"cpu"``.
        dtype: Name of a floating dtype to convert to, or None to leave the model as it is.
        seed: Decides every random choice.
        examples: How many drawn batches the shape-sensitive checks use.
    """

    def __init__(
        self,
        contract: Contract,
        *,
        device: str = "cpu",
        dtype: str | None = None,
        seed: int = 0,
        examples: int = 8,
    ) -> None:
        self.contract = contract
        self.device = torch.device(device)
        self.dtype = None if dtype is None else DTYPES[dtype]
        self.seed = seed
        self.examples = examples
        self.cache: dict[Any, Any] = {}
        self.reported: dict[Any, Any] = {}
        self._model: nn.Module | None = None
        self._original: ModuleState | None = None
        self._state: ModuleState | None = None
        self._misnamed: tuple[UnknownNameError, ...] | None = None  # None: not looked at yet
        self.ear = Ear()
        self._depth = 0
        self._materialising = False  # a batch is asked for to give lazy parameters their shapes
        self._touched = False  # parameters may have been changed since the state was taken
        self._forward_writes = False  # a forward alone changes parameters
        self._looks = 0
        self._not_put_back: set[str] = set()
        self._placed: dict[
            Any, Batch
        ] = {}  # the last batches that went to another device, as they were

    @property
    def source(self) -> BatchSource:
        """Where batches come from."""
        if self.contract.source is None:
            raise TypeError("the contract declares no inputs")
        return self.contract.source

    # -- the model ------------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The model in its pristine state, on the subject's device and dtype.

        Raises:
            SubjectError: The factory raised, or returned no module.
        """
        if self._model is None:
            self._prepare()
        assert self._model is not None
        if self._misnamed is None:
            self._misnamed = ()
            self._misnamed = tuple(self._unknown_names(self._model))
        for error in self._misnamed:
            raise SubjectError("build", error)
        return self._model

    def _unknown_names(self, model: nn.Module) -> Iterator[UnknownNameError]:
        """Find what promises name and the model does not have, nor makes in its first forward."""
        found = list(unknown_names(self.contract.promises, model))
        if any("MayChange" in error.given for error in found):
            with contextlib.suppress(SubjectError), self.pristine(), torch.no_grad():
                self.call(model.eval(), self.batch().clone())
                found = list(unknown_names(self.contract.promises, model))
        yield from found

    @property
    def state(self) -> ModuleState:
        """The pristine state of the model."""
        if self._state is None:
            self._prepare()
        assert self._state is not None
        return self._state

    @property
    def has_modes(self) -> bool:
        """Say whether ``train`` and ``eval`` do something: not in a program that ``torch.export`` made."""
        return has_modes(self.model)

    def build(self, seed: int | None = None) -> nn.Module:
        """Build the model anew from its factory, on the subject's device and dtype.

        Args:
            seed: Seed in force while building; the subject's own by default.

        Raises:
            SubjectError: The factory raised, or returned no module.
        """
        if not self.contract.is_factory:
            raise TypeError("only a factory can build the model anew")
        deadline.keep()
        seed_everything(self.seed if seed is None else seed)
        with self.phase("build"):
            model = self.contract.model()
            if not isinstance(model, nn.Module):
                raise TypeError(not_built(model))
            _hashed(model)
        give_modes(model)
        return self._materialise(self.convert(model))

    def convert(self, model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
        """Move a module to the subject's device, and to ``dtype`` or the subject's dtype, in place.

        Raises:
            UnmeasurableError: Its parameters are of a class that wraps other tensors, such as
                ``DTensor``,
                and cannot be cast in place and back.
        """
        wanted = dtype or self.dtype
        if wanted is not None:
            if (wrapping := _wrapping(model)) is not None:
                raise UnmeasurableError(f"{wrapping} cannot be cast to {wanted} in place and back")
            complex_dtype = {
                torch.float64: torch.complex128,
                torch.float32: torch.complex64,
                torch.float16: torch.complex32,
            }.get(wanted)

            def cast(tensor: torch.Tensor) -> torch.Tensor:
                if is_lazy(tensor):
                    return tensor
                if tensor.is_complex():
                    return tensor if complex_dtype is None else tensor.to(complex_dtype)
                return tensor.to(wanted) if tensor.is_floating_point() else tensor

            model._apply(cast)
        home = next(
            (t.device for t in (*model.parameters(), *model.buffers()) if not is_lazy(t)),
            self.device,
        )
        if home.type != self.device.type and home.type != "meta":
            model.to(self.device)
        return model

    def copy_model(self) -> nn.Module | None:
        """Return an independent copy of the model, or None where it cannot be copied."""
        try:
            return copy.deepcopy(self.model)
        except Exception:  # any object may refuse to be copied, in its own words
            return None

    def _prepare(self) -> None:
        if self.contract.model is None:
            raise TypeError("the contract holds no model")
        if self.contract.is_factory:
            with isolated(), self.ear.listening():
                self._model = _materialised(self.build())
                self.cache["anomaly-after-build"] = torch.is_anomaly_enabled()
            size = sum(
                p.numel() * p.element_size() for p in self._model.parameters() if not is_lazy(p)
            )
            # a large model is copied only once a step is to be undone
            self._state = ModuleState(self._model, copy_parameters=size <= _COPY_BYTES)
            return
        model = self.contract.model
        with self.phase("build"):
            _hashed(model)
        _materialised(model)
        original = ModuleState(model)
        self._original, self._model = original, model
        lazy = any(is_lazy(t) for t in (*model.parameters(), *model.buffers()))
        home = {t.device.type for t in (*model.parameters(), *model.buffers())}
        moves = self.dtype is not None or (home and home != {self.device.type})
        if moves or lazy or own_trains(model):
            give_modes(model)
            with isolated():
                self.convert(model)
                self._materialise(model)
            self._state = ModuleState(model)
        else:
            self._state = original
        self._state.copy_parameters()

    def _materialise(self, model: nn.Module) -> nn.Module:
        """Give lazy parameters their shapes by one forward of the base batch."""
        if any(is_lazy(t) for t in (*model.parameters(), *model.buffers())):
            self._materialising = True
            batch = self.batch().clone()
            self._materialising = False
            mode = model.training
            with self.phase("forward", batch), torch.no_grad():
                self.contract.invoke(model, batch)
            model.train(mode)
        return model

    def close(self) -> None:
        """Put the user's module back as it was; the subject is not usable afterwards."""
        with device_loss_told():
            if self._state is not None:
                self._state.restore(parameters=True, last=True)
        if self._original is not None:
            self._original.restore(parameters=True, last=True)
        self._model = self._state = self._original = self._misnamed = None
        self.cache.clear()

    # -- isolation ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def pristine(self, *, steps: bool = False) -> Iterator[nn.Module]:
        """Give the model in its pristine state and put it back afterwards.

        Args:
            steps: Parameters may change inside, so their values are kept and put back. Without it
                their values are put back only where a copy exists.
        """
        deadline.keep()
        model = self.model
        if steps:
            self.state.copy_parameters()
        if self._depth == 0:
            self.state.put_gradients_aside()
        self._depth += 1
        try:
            with isolated(seeds=True), self._closures_kept() if steps else contextlib.nullcontext():
                yield model
        finally:
            self._depth -= 1
            self._touched = self._touched or steps
            if self._depth == 0:
                self.restore()

    def _closures_kept(self) -> contextlib.AbstractContextManager[None]:
        """Put back what the user's own step keeps between calls: a carried state, a scheduler, a counter."""
        if self.contract.train_step is None and self.contract.optimizer is None:
            return contextlib.nullcontext()
        return kept(self.contract.train_step, self.contract.optimizer, without=(self.model,))

    def restore(self) -> None:
        """Put the model back into its pristine state now."""
        if not self._touched and not self._forward_writes:
            self._looks += 1
            # the first runs are compared in full; a forward that writes parameters is then known
            self._forward_writes = self._looks <= 3 and self.parameters_moved()
        with device_loss_told():
            # gradients were put aside, out of the reach of what ran; close() trusts nobody
            self.state.restore(parameters=self._touched or self._forward_writes, gradients=False)
        self._touched = False

    def not_put_back(self) -> tuple[str, ...]:
        """Name what the model has read and nothing can put back, each once."""
        states = [state for state in (self._original, self._state) if state is not None]
        names = {name for state in states for name in state.advanced()}
        new = tuple(sorted(names - self._not_put_back))
        self._not_put_back |= names
        return new

    def parameters_moved(self) -> bool:
        """Say whether a parameter's values differ from the pristine ones (only known where copied)."""
        if not self.state.has_parameter_copies:
            return False
        return any(
            (then := self.state.original(p)) is not None and not _same_data(p, then)
            for p in self.model.parameters()
        )

    @contextlib.contextmanager
    def phase(
        self, phase: Phase, batch: Batch | None = None, rerun: Callable[..., Any] | None = None
    ) -> Iterator[None]:
        """Turn what the user's code raises inside into a :class:`SubjectError` of this phase."""
        try:
            # the first batch was made where the contract was declared: its warnings came out there
            with self.ear.users() if phase != "batch" else contextlib.nullcontext():
                yield
        except SubjectError:
            raise
        except BaseException as error:  # the user's code may raise anything
            if not isinstance(error, Exception):
                # while the model or the data are made, a skip says that they are not there
                if phase in ("build", "batch", "data") or interrupts(error):
                    raise
                raise SubjectError(phase, kept_in(error), batch) from error
            if rerun is None and phase == "backward" and batch is not None:
                rerun = functools.partial(self._once, self.model, batch)
            if rerun is not None and batch is not None and not isinstance(rerun, Again):
                where = functools.partial(self._elsewhere, phase, batch, self.model.training)
                rerun = Again(rerun, where)
            raise SubjectError(phase, error, batch, rerun) from error

    @contextlib.contextmanager
    def in_double(self) -> Iterator[nn.Module]:
        """Give the model in float64 (complex128), as the oracle of algebraic properties.

        The pristine state comes back afterwards. Batches must be moved by
        ``batch.to(dtype=torch.float64)``.

        Raises:
            UnmeasurableError: See :meth:`convert`.
        """
        with self.pristine() as model:
            saved = ModuleState(model)
            try:
                yield self.convert(model, torch.float64)
            finally:
                saved.restore(parameters=False, last=True)

    # -- data -----------------------------------------------------------------------------------

    def batch(self, index: int = 0) -> Batch:
        """Return the base batch (0: the user's own where there is one), or another of the same sizes.

        Batches are cached and never handed to the model itself: ``forward`` clones them.
        """
        key = ("batch", index)
        if key not in self.cache:
            if self._model is None and self.contract.model is not None and not self._materialising:
                self._prepare()
            with self.phase("batch"):
                base = self.source.base(self.seed)
                chosen = base if index == 0 else self.source.distinct(base, self.seed + index)
                for error in unknown_inputs(self.contract.promises, chosen):
                    raise error
            self.cache[key] = self.place(chosen)
        found: Batch = self.cache[key]
        return found

    def at(self, seed: int = 0, **sizes: int) -> Batch | None:
        """Return a batch of these sizes on the subject's device, or None where it cannot be derived."""
        batch = self.source.at(self.seed + seed, **sizes)
        return None if batch is None else self.place(batch)

    def few(self, batch: Batch, most: int = 2) -> Batch | None:
        """Return the first samples of a batch, which show much of what all of them show, or None where none are left out."""
        symbol = self.source.batch_symbol
        if symbol is None or batch.sizes.get(symbol, 0) <= most:
            return None
        return self.source.rows(batch, torch.arange(most))

    def place(self, batch: Batch) -> Batch:
        """Return the batch on the subject's device and dtype; drawn tensors of no declared dtype have the model's."""
        placed = self._in_dtype_of_model(batch).to(device=self.device, dtype=self.dtype)
        if placed is not batch and self.device.type != "cpu":
            self._placed[_identity(placed)] = batch
            while len(self._placed) > _KEPT_BATCHES:
                self._placed.pop(next(iter(self._placed)))
        return placed

    def _in_dtype_of_model(self, batch: Batch) -> Batch:
        """Let drawn floating tensors whose spec names no dtype follow a model that is all float64."""
        model = self._model
        if self.dtype is not None or batch.origin != "drawn" or model is None:
            return batch
        floating = {t.dtype for t in model.parameters() if t.is_floating_point()}
        if floating != {torch.float64}:
            return batch
        specs = self.source.specs

        def cast(path: str, leaf: Any) -> Any:
            spec = specs.get(path)
            free = spec is not None and not spec.explicit_dtype
            single = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32
            return leaf.double() if free and single else leaf

        return batch.map(cast)

    # -- runs -----------------------------------------------------------------------------------

    def call(self, model: nn.Module, batch: Batch) -> Any:
        """Call the model with a batch as it is."""
        deadline.keep()
        with self.phase("forward", batch, lambda: self.contract.invoke(model, batch)):
            return self.contract.invoke(model, batch)

    def forward(
        self, batch: Batch | None = None, *, train: bool = False, grad: bool = False, seed: int = 0
    ) -> Any:
        """Run the model on a copy of a batch, from the pristine state, and return its output.

        Args:
            batch: The base batch by default.
            train: Mode of the model.
            grad: Whether to build a graph.
            seed: Added to the subject's seed.

        Raises:
            SubjectError: The model raised.
        """
        batch = (self.batch() if batch is None else batch).clone()
        with self.pristine() as model:
            model.train(train)
            seed_everything(self.seed + seed)
            with torch.set_grad_enabled(grad):
                return self.call(model, batch)

    def compute_loss(self, output: Any, batch: Batch, kind: LossKind | None = None) -> torch.Tensor:
        """Return the loss of an output: the user's, or the probe loss where none is declared.

        Raises:
            SubjectError: The loss raised, or is no tensor.
        """
        kind = kind or ("probe" if self.contract.loss is None else "user")
        if kind == "probe":
            return probe_loss(output, self.seed)
        if isinstance(output, trees.Kept):
            output.rewind()
        with self.phase("loss", batch, lambda: loss_of(self.contract.loss, output, batch.targets)):
            if self.contract.loss == "output":
                return own_loss(output)
            value = loss_of(self.contract.loss, output, batch.targets)
            if not isinstance(value, torch.Tensor):
                raise TypeError(
                    f"the loss must be a tensor; it is a {type(value).__name__}: {value!r:.80}"
                )
            return value

    @contextlib.contextmanager
    def backward(
        self,
        batch: Batch | None = None,
        *,
        train: bool = True,
        seed: int = 0,
        loss: LossKind | None = None,
        inputs_require_grad: bool = False,
    ) -> Iterator[Pass]:
        """Run forward, loss and backward; gradients stand in ``.grad`` inside the block.

        Args:
            batch: The base batch by default; a copy of it is used.
            train: Mode of the model.
            seed: Added to the subject's seed.
            loss: The user's loss or the probe loss; the user's where there is one.
            inputs_require_grad: Make floating inputs leaves that get a gradient too.

        Raises:
            SubjectError: Forward, loss or backward raised.
        """
        batch = (self.batch() if batch is None else batch).clone()
        if inputs_require_grad:
            for _, tensor in batch.input_leaves():
                if isinstance(tensor, torch.Tensor) and (
                    tensor.is_floating_point() or tensor.is_complex()
                ):
                    tensor.requires_grad_(True)
        with self.pristine() as model:
            clear_gradients(model)
            model.train(train)
            seed_everything(self.seed + seed)
            with torch.enable_grad():
                output = self.call(model, batch)
                value = self.compute_loss(output, batch, loss)
                with self.phase("backward", batch, lambda: self._once(model, batch, loss)):
                    scalar = (
                        value if value.dim() == 0 else value.sum() if loss == "probe" else value
                    )
                    scalar.backward()
            yield Pass(batch, output, value)

    def _once(self, model: nn.Module, batch: Batch, loss: LossKind | None = None) -> None:
        """Run forward, loss and backward again, for the explanation of an error."""
        with torch.enable_grad():
            self.compute_loss(self.call(model, batch), batch, loss).sum().backward()

    def _elsewhere(
        self, phase: Phase, batch: Batch, train: bool, device: str
    ) -> tuple[nn.Module, Batch, Callable[[], None]]:
        """Prepare what raised for another device: a model from the factory, or the user's own as it was."""
        try:
            moved = batch.to(device=device)
        except RuntimeError:  # the batch's device can no longer be read
            if (kept := self._placed.get(_identity(batch))) is None:
                raise
            moved = kept
        if self._original is not None:
            self._original.restore(parameters=True)
        dtype = None if self.dtype is None else str(self.dtype).removeprefix("torch.")
        twin = Subject(
            self.contract, device=device, dtype=dtype, seed=self.seed, examples=self.examples
        )
        batch = twin.place(moved)

        def run() -> None:
            try:
                if phase == "step":
                    with twin.pristine(steps=True) as model:
                        model.train()
                        twin.train_step(model, twin.make_optimizer(model), batch.clone())
                elif phase == "forward":
                    twin.forward(batch, train=train)
                else:
                    with twin.backward(batch, train=train):
                        pass
            except SubjectError as error:
                raise error.error from None

        return twin.model, batch, run

    def gradients(
        self, index: int = 0, *, seed: int = 0, loss: LossKind | None = None, train: bool = True
    ) -> Gradients:
        """Return the evidence of one backward, cached.

        Args:
            index: Which batch, as in :meth:`batch`.
            seed: Added to the subject's seed.
            loss: Which loss; the user's where there is one.
            train: Mode of the model.
        """
        key = ("gradients", index, seed, loss, train)
        if key not in self.cache:
            plain = (index, seed, loss) == (0, 0, None)
            with (
                self.ear.listening(plain),
                self.backward(self.batch(index), seed=seed, loss=loss, train=train) as done,
            ):
                assert done.loss is not None
                self.cache[key] = self._describe(done.output, done.loss)
        found: Gradients = self.cache[key]
        return found

    def keep_gradients(self, output: Any, loss: torch.Tensor) -> None:
        """Keep what :meth:`gradients` returns of the base batch, after a backward that was just what it does."""
        self.cache.setdefault(("gradients", 0, 0, None, True), self._describe(output, loss))

    def _describe(self, output: Any, loss: torch.Tensor) -> Gradients:
        return Gradients(
            loss=float(loss.detach().sum()),
            loss_shape=tuple(loss.shape),
            connected=loss.requires_grad,
            stats=gradient_stats(self.model),
            outputs=tuple(
                (path, tuple(t.shape), str(t.dtype).removeprefix("torch."), t.requires_grad)
                for path, t in trees.tensors(output).items()
            ),
        )

    def make_optimizer(self, model: nn.Module) -> Any:
        """Return the user's optimizer for a model, or the default one: SGD for sparse gradients, else Adam.

        Raises:
            SubjectError: The user's function raised.
        """
        if self.contract.optimizer is not None:
            with self.phase("step"):
                made = self.contract.optimizer(model)
                if made is None and self.contract.train_step is None:
                    raise TypeError("the optimizer function must return an optimizer; got None")
                return made
        return default_optimizer(model)

    def train_step(
        self,
        model: nn.Module,
        optimizer: Any,
        batch: Batch,
        *,
        look: Callable[[Any, torch.Tensor], None] | None = None,
        passes: Callable[[nn.Module, Batch], tuple[Any, torch.Tensor]] | None = None,
        apply: Callable[[Any, Callable[[], torch.Tensor]], None] = take_step,
    ) -> torch.Tensor | float | None:
        """Do one training step as the user does: the declared ``train_step``, else the plain one.

        Args:
            model: The model.
            optimizer: What :meth:`make_optimizer` returned for it.
            batch: The batch as it is; its inputs may be written to.
            look: Called with output and loss between backward and the optimizer's step, in the
                plain step only.
            passes: Does what :meth:`passes` does and sees more, in the plain step only.
            apply: Takes the optimizer's step, given it and a closure, in the plain step only.

        Returns:
            The loss: a detached scalar, or whatever the user's step returns.

        Raises:
            SubjectError: Any phase raised; its phase is ``step`` for the user's own step.
        """
        deadline.keep()
        if self.contract.train_step is not None:
            step = self.contract.train_step
            inputs: Any = batch.kwargs if batch.kwargs and not batch.args else batch.args
            makes: list[
                Any
            ] = []  # anew, once, where what it kept of it is put back when this run ends

            def again() -> Any:
                if not makes:
                    makes.append(self._made_again(model, optimizer))
                return step(model, makes[0], inputs, batch.targets)

            with self.phase("step", batch, again):
                returned: torch.Tensor | float | None = step(
                    model, optimizer, inputs, batch.targets
                )
            return returned
        for each in optimizers_of(optimizer):
            each.zero_grad(set_to_none=True)
        output, loss = (passes or self.passes)(model, batch)
        if look is not None:
            look(output, loss)
        with self.phase("step", batch):
            for each in optimizers_of(optimizer):
                apply(each, self._closure(model, optimizer, batch))
        return loss.detach()

    def _closure(
        self, model: nn.Module, optimizer: Any, batch: Batch
    ) -> Callable[[], torch.Tensor]:
        """Return what an optimizer calls that evaluates the loss itself."""

        def closure() -> torch.Tensor:
            for each in optimizers_of(optimizer):
                each.zero_grad(set_to_none=True)
            with torch.enable_grad():
                return self.passes(model, batch.clone())[1]

        return closure

    def _made_again(self, model: nn.Module, optimizer: Any) -> Any:
        """Call an optimizer function again that keeps something for the step, such as a second optimizer."""
        if self.contract.optimizer is None or not keeps_something(self.contract.optimizer):
            return optimizer
        return self.make_optimizer(model)

    def passes(self, model: nn.Module, batch: Batch) -> tuple[Any, torch.Tensor]:
        """Run forward, loss and backward as the plain step does; return output and loss."""
        output = self.call(model, batch)
        loss = self.compute_loss(output, batch)
        with self.phase("backward", batch, lambda: self._once(model, batch)):
            loss.backward()
        return output, loss

    @property
    def kernel_exact(self) -> bool:
        """Say whether equal work gives equal bits here: true on the CPU."""
        return self.device.type == "cpu"

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter by its first qualified name."""
        return dict(self.model.named_parameters())

    def aliases(self) -> dict[int, list[str]]:
        """All qualified names of every parameter, by id."""
        names: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        return names

    def is_promised(self, kind: str, name: str) -> bool:
        """Say whether a promise that names parameters covers this one."""
        return any(promise.matches(name) for promise in self.contract.promised_names(kind))


def _identity(batch: Batch) -> tuple[Any, ...]:
    return batch.seed, tuple(sorted(batch.sizes.items())), batch.layout, batch.origin


def _same_data(tensor: torch.Tensor, copy_: torch.Tensor) -> bool:
    return (
        tensor.shape == copy_.shape
        and tensor.dtype == copy_.dtype
        and tensor.device == copy_.device
        and (tensor.device.type == "meta" or trees.same(tensor, copy_))
    )


def _hashed(model: nn.Module) -> None:
    """Check what ``parameters()``, ``modules()`` and every optimizer need: that modules can be in a set.

    Raises:
        TypeError: The class of a module has no usable ``__hash__``.
    """
    stack, seen = [model], set()
    while stack:
        module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        try:
            hash(module)
        except Exception as error:
            kind = type(module).__name__
            raise TypeError(
                f"a {kind} cannot be hashed, so that parameters(), to() and train() raise: a class that defines "
                f"__eq__ has no __hash__ any more; add __hash__ = nn.Module.__hash__ to {kind}"
            ) from error
        stack.extend(part for part in module._modules.values() if part is not None)


def _materialised(model: nn.Module) -> nn.Module:
    """Return a model that holds values.

    Raises:
        UnmeasurableError: All its parameters are on the meta device, where there are shapes alone.
    """
    first = next((p for p in model.parameters() if not is_lazy(p)), None)
    if first is not None and all(p.is_meta for p in model.parameters()):
        raise UnmeasurableError(
            "every parameter is on the meta device, which holds shapes and no values; declare a factory that "
            'gives them values, such as model.to_empty(device="cpu") and an initialisation'
        )
    return model


def _wrapping(model: nn.Module) -> str | None:
    """Return the class of the first parameter or buffer that wraps other tensors, and its name; None without one."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_traceable_wrapper_subclass(tensor):
            return f"{name}, a {type(tensor).__name__},"
    return None


def clear_gradients(model: nn.Module) -> None:
    """Set every gradient to None, so that a stale one cannot pass for a new one."""
    for parameter in model.parameters():
        parameter.grad = None


def gradient_stats(model: nn.Module) -> dict[str, GradStat]:
    """Describe the gradient of every parameter that requires one."""
    named = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    plain = {name: grad for name, grad in named.items() if grad is not None and _is_plain(grad)}
    norms = dict(zip(plain, _norms(list(plain.values())), strict=True))
    return {name: _stat(name, grad, norms.get(name)) for name, grad in named.items()}


def _is_plain(grad: torch.Tensor) -> bool:
    """Say whether the norm of a gradient may be computed together with those of others, with the same bits."""
    return (
        type(grad) is torch.Tensor
        and grad.layout == torch.strided
        and grad.device.type == "cpu"
        and grad.dtype in (torch.float32, torch.float64)
        and grad.is_contiguous()
        and not grad.is_neg()
    )


def _norms(grads: list[torch.Tensor]) -> list[float]:
    """Return the Euclidean norms of many gradients, by one call for each dtype."""
    found: dict[int, float] = {}
    for dtype in {grad.dtype for grad in grads}:
        same = [grad for grad in grads if grad.dtype == dtype]
        norms = torch.stack(torch._foreach_norm(same)).tolist()
        found |= {id(grad): norm for grad, norm in zip(same, norms, strict=True)}
    return [found[id(grad)] for grad in grads]


def _stat(name: str, grad: torch.Tensor | None, norm: float | None) -> GradStat:
    """Describe one gradient.

    Args:
        name: Of its parameter.
        grad: The gradient.
        norm: Its norm, where that is known.
    """
    if grad is None:
        return GradStat(name=name, kind="none")
    sparse = grad.layout != torch.strided
    if grad.device.type == "meta":
        return GradStat(name=name, kind="live", norm=float("nan"), sparse=sparse)
    if norm is not None and 0.0 < norm < math.inf:
        return GradStat(name=name, kind="live", norm=norm)
    values = grad.coalesce().values() if grad.layout == torch.sparse_coo else grad
    if norm is None:
        norm = float(torch.linalg.vector_norm(trees.dense(values).flatten(), dtype=_wide(values)))
    if norm == 0.0 and bool((values != 0).any()):
        norm = float(values.abs().max())  # the squares underflowed
    return GradStat(
        name=name,
        kind="zero" if norm == 0.0 else "live",
        norm=norm,
        finite=math.isfinite(norm) or bool(torch.isfinite(values).all()),
        sparse=sparse,
    )


def _wide(values: torch.Tensor) -> torch.dtype | None:
    return torch.float32 if values.dtype in (torch.float16, torch.bfloat16) else None


def probe_loss(output: Any, seed: int = 0) -> torch.Tensor:
    """Return a random projection of every differentiable output, a scalar.

    Sums and means of an output can have a gradient of exactly zero in a correct model (after a
    normalisation, or a softmax), so that they must not be used to look for dead parameters.

    Raises:
        SubjectError: No output is differentiable.
    """
    generator = torch.Generator().manual_seed(seed)
    total: torch.Tensor | None = None
    for tensor in trees.floats(output).values():
        if not tensor.requires_grad and tensor.device.type != "meta" and torch.is_grad_enabled():
            continue
        values = _dense_with_graph(tensor)
        direction = torch.randn(values.shape, generator=generator, dtype=torch.float32)
        direction = direction.to(
            device=values.device, dtype=torch.float32 if values.is_complex() else values.dtype
        )
        parts = torch.view_as_real(values).sum(-1) if values.is_complex() else values
        term = (parts * direction).sum() / math.sqrt(max(values.numel(), 1))
        total = term if total is None else total + term.to(total.dtype)
    if total is None:
        raise no_gradient(output)
    return total


def no_gradient(output: Any, batch: Batch | None = None) -> SubjectError:
    """Return the error of an output without a gradient: a mistake only where any of it is floating-point."""
    if trees.floats(output):
        error: Exception = RuntimeError("no output of the model requires a gradient")
    else:
        error = NothingToDifferentiate(
            "the contract declares no loss, and no output is a floating-point tensor: "
            "there is nothing to train on"
        )
    return SubjectError("loss", error, batch)


def _dense_with_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a sparse, nested or distributed tensor as a strided one, differentiably."""
    if (local := attribute(tensor, "to_local")) is not None:
        return local()  # type: ignore[no-any-return]
    if tensor.is_nested:
        return torch.cat([part.reshape(-1) for part in tensor.unbind()])
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def own_loss(output: Any) -> torch.Tensor:
    """Return the loss that a model returns with, or as, its output.

    A scalar tensor; ``output["loss"]`` or ``output.loss``; a tuple's first scalar; a dict of losses
    is summed.

    Raises:
        TypeError: None of them is there.
    """
    if isinstance(output, torch.Tensor):
        return output
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    if isinstance(output, dict):
        losses = [v for k, v in output.items() if "loss" in str(k) and isinstance(v, torch.Tensor)]
        if losses:
            return torch.stack([value.sum() for value in losses]).sum()
    if isinstance(output, tuple | list):
        for item in output:
            if isinstance(item, torch.Tensor) and item.dim() == 0 and item.is_floating_point():
                return item
    raise TypeError(
        'loss="output" needs a model that returns a scalar tensor, a dict with "loss", an object with .loss, '
        f"or a tuple with a scalar; it returned {type(output).__name__}"
    )


def default_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the checks' own optimizer: Adam at 1e-3, or SGD where gradients are sparse."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if any(attribute(m, "sparse", False) is True for m in model.modules()):
        return torch.optim.SGD(trainable, lr=1e-2)
    return torch.optim.Adam(trainable, lr=1e-3)


def optimizers_of(made: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers in what a user's ``optimizer`` function returned.

    One optimizer, a sequence, a dict, or pairs of optimizer and scheduler.
    """
    return _instances_of(torch.optim.Optimizer, made)


def schedulers_of(made: Any) -> list[torch.optim.lr_scheduler.LRScheduler]:
    """Return the learning-rate schedulers in what a user's ``optimizer`` function returned."""
    return _instances_of(torch.optim.lr_scheduler.LRScheduler, made)


_T = TypeVar("_T")


def _instances_of(kind: type[_T], made: Any) -> list[_T]:
    found: list[_T] = []
    stack = [made]
    while stack:
        value = stack.pop(0)
        if isinstance(value, kind):
            found.append(value)
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(entries(value))
    return found

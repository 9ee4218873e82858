"""A model on one device and dtype, its batches, and its state, which comes back after every run."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import deadline
from ..batches.batch import identity_of
from ..declared.factories import not_built
from ..declared.limits import DTYPES
from ..declared.names import unknown_names, with_inputs
from ..heard import Ear
from ..interrupts import interrupts, kept_in, readable
from ..loop.closures import kept
from ..loop.loads import watched_loads
from ..objects import trees
from ..objects.modes import give_modes, has_modes, needs_modes
from ..state import ModuleState, device_loss_told, is_lazy, isolated, settle
from ..state.seeds import own_generators, seed_everything
from .building import cast_floats, materialised, refused_mode, require_hashable, wrapped_tensor
from .errors import Phase, SubjectError, UnmeasurableError
from .rehearsal import Graphs, Rehearsal, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..batches import Batch, BatchSource
    from ..contracts import Contract
    from ..declared.names import UnknownNameError

_COPY_BYTES = 64 * 2**20
_KEPT_BATCHES = 8


class PristineModel:
    """A contract's model on one device and dtype, with its batches; whatever runs, its state comes back.

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
        self.graphs, self.rehearsal = Graphs(), Rehearsal(self.device)
        self._depth = 0
        self._materialising = False  # a batch is asked for to give lazy parameters their shapes
        self._touched = False  # parameters may have been changed since the state was taken
        self._forward_writes = False  # a forward alone changes parameters
        self._modeless = ""  # why train() or eval() cannot be called
        self._looks = 0
        self._not_put_back: set[str] = set()
        self._placed: dict[Any, Batch] = {}  # the last that went to another device, as they were

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
            self._modeless = refused_mode(self._model, self.phase, self.pristine)
            self._misnamed = tuple(self._unknown_names(self._model))
        if self._modeless:
            raise UnmeasurableError(self._modeless)
        for error in self._misnamed:
            raise SubjectError("build", error)
        return self._model

    def _unknown_names(self, model: nn.Module) -> Iterator[UnknownNameError]:
        """Find what promises name and the model does not have, nor makes in its first forward."""
        found = list(unknown_names(self.contract.promises, model))
        if found and self.contract.source is not None:
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
        with self.phase("build"), watched_loads(self.cache.setdefault("loads", [])):
            model = self.contract.model()
            if not isinstance(model, nn.Module):
                raise TypeError(not_built(model))
        with self.phase("listing"):
            require_hashable(model)
        give_modes(model)
        return self._materialise(self.convert(model))

    def convert(self, model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
        """Move a module to the subject's device, and to ``dtype`` or the subject's dtype, in place.

        Raises:
            UnmeasurableError: Its parameters are of a class that wraps other tensors, such as
                ``DTensor``, and cannot be cast in place and back.
        """
        wanted = dtype or self.dtype
        if wanted is not None:
            if (wrapping := wrapped_tensor(model)) is not None:
                raise UnmeasurableError(f"{wrapping} cannot be cast to {wanted} in place and back")
            cast_floats(model, wanted)
        held = (*model.parameters(), *model.buffers())
        home = next((t.device for t in sorted(held, key=is_lazy)), self.device)
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
                self._model = materialised(self.build())
                self.cache["anomaly-after-build"] = torch.is_anomaly_enabled()
            known = (p for p in self._model.parameters() if not is_lazy(p))
            size = sum(p.numel() * p.element_size() for p in known)
            # a large model is copied only once a step is to be undone
            self._state = ModuleState(self._model, copy_parameters=size <= _COPY_BYTES)
            return
        model = self.contract.model
        with self.phase("listing"):
            require_hashable(model)
        materialised(model)
        original = ModuleState(model)
        self._original, self._model = original, model
        lazy = any(is_lazy(t) for t in (*model.parameters(), *model.buffers()))
        home = {t.device.type for t in (*model.parameters(), *model.buffers())}
        moves = self.dtype is not None or (home and home != {self.device.type})
        if moves or lazy or needs_modes(model):
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

    @contextlib.contextmanager
    def pristine(
        self, *, steps: bool = False, train: bool | None = None, seeded: bool = False
    ) -> Iterator[nn.Module]:
        """Give the model in its pristine state and put it back afterwards.

        Args:
            steps: Parameters may change inside, so their values are kept and put back. Without it
                their values are put back only where a copy exists.
            train: Put the model into training mode, or into evaluation mode; by default it keeps its modes.
            seeded: Set all random generators to the subject's seed.
        """
        deadline.keep()
        model = self.model
        if steps:
            self.state.copy_parameters()
        if self._depth == 0:
            self.state.put_gradients_aside()
        self._depth += 1
        try:
            with isolated(seeds=True), self._own_kept(steps):
                if train is not None:
                    (model.train if train else model.eval)()
                if seeded:
                    seed_everything(self.seed)
                yield model
        finally:
            self._depth -= 1
            self._touched = self._touched or steps
            if self._depth == 0:
                self.restore()

    @contextlib.contextmanager
    def _own_kept(self, steps: bool) -> Iterator[None]:
        """Seed the model's own generators with all others; put back what the user's step keeps between calls."""
        step, optimizer = self.contract.train_step, self.contract.optimizer
        none = not steps or (step is optimizer is None)
        between = contextlib.nullcontext() if none else kept(step, optimizer, without=(self.model,))
        with own_generators(self.seed, self.state.random), between:
            yield

    def restore(self) -> None:
        """Put the model back into its pristine state now."""
        with device_loss_told():
            if not self._touched and not self._forward_writes:
                self._looks += 1
                # the first runs are compared in full; a forward that writes parameters is then known
                self._forward_writes = self._looks <= 3 and self.parameters_moved()
            # gradients were put aside, out of reach; close() trusts nobody
            self.state.restore(parameters=self._touched or self._forward_writes, gradients=False)
        self._touched = False

    def not_put_back(self) -> dict[str, str]:
        """Return what the model has changed and nothing can put back, each once: its kind, by its name."""
        states = [state for state in (self._original, self._state) if state is not None]
        found = {name: kind for state in states for name, kind in state.advanced().items()}
        new = {name: found[name] for name in sorted(found.keys() - self._not_put_back)}
        self._not_put_back |= found.keys()
        return new

    def parameters_moved(self) -> bool:
        """Say whether a parameter's values differ from the pristine ones (only known where copied)."""
        return self.state.has_parameter_copies and any(
            (then := self.state.original(p)) is not None and not trees.same(p, then)
            for p in self.model.parameters()
        )

    @readable
    def phase(
        self, phase: Phase, batch: Batch | None = None, rerun: Callable[..., Any] | None = None
    ) -> Iterator[None]:
        """Turn what the user's code raises inside into a :class:`SubjectError` of this phase."""
        try:
            # the first batch was made where the contract was declared: its warnings came out there
            with self.ear.users() if phase != "batch" else contextlib.nullcontext():
                yield
                settle(self.device.type)
        except SubjectError:
            raise
        except BaseException as error:  # the user's code may raise anything
            if not isinstance(error, Exception):
                # while the model or the data are made, a skip says that they are not there
                if phase in ("build", "batch", "data") or interrupts(error):
                    raise
                raise SubjectError(phase, kept_in(error), batch) from error
            told = SubjectError(phase, error, batch, self.again(phase, batch, rerun))
            self.rehearsal.notice(told, rerun)
            raise told from error

    def again(
        self, phase: Phase, batch: Batch | None, rerun: Callable[..., Any] | None
    ) -> Callable[..., Any] | None:
        """Return what does again what raised in this phase; who knows the runs can do it elsewhere too."""
        return rerun

    @contextlib.contextmanager
    def in_double(self) -> Iterator[nn.Module]:
        """Give the model in float64 (complex128), as the oracle of algebraic properties.

        The pristine state comes back afterwards. Batches must be moved by
        ``batch.to(dtype=torch.float64)``.

        Raises:
            UnmeasurableError: See :meth:`convert`.
        """
        with self.pristine() as model:
            # the outermost block puts everything back by itself
            saved = ModuleState(model) if self._depth > 1 else None
            try:
                yield self.convert(model, torch.float64)
            finally:
                if saved is not None:
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
                contract = self.contract
                contract.promises = with_inputs(contract.promises, self._model, chosen)
            self.cache[key] = self.place(chosen)
        found: Batch = self.cache[key]
        return found

    def place(self, batch: Batch) -> Batch:
        """Return the batch on the subject's device and dtype; drawn tensors of no declared dtype have the model's."""
        placed = self._in_dtype_of_model(batch).to(device=self.device, dtype=self.dtype)
        if placed is not batch and self.device.type != "cpu":
            self._placed[identity_of(placed)] = batch
            while len(self._placed) > _KEPT_BATCHES:
                self._placed.pop(next(iter(self._placed)))
        return placed

    def _in_dtype_of_model(self, batch: Batch) -> Batch:
        """Let drawn floating tensors whose spec names no dtype follow a model that is all of one other dtype."""
        model = self._model
        if self.dtype is not None or batch.origin != "drawn" or model is None:
            return batch
        floating = {t.dtype for t in model.parameters() if t.is_floating_point()}
        floating = self.cache.setdefault("own-dtypes", floating)  # not those of in_double()
        if floating not in ({torch.float64}, {torch.bfloat16}, {torch.float16}):
            return batch
        specs, own = self.source.specs, next(iter(floating))

        def cast(path: str, leaf: Any) -> Any:
            spec = specs.get(path)
            free = spec is not None and not spec.explicit_dtype
            single = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32
            return leaf.to(own) if free and single else leaf

        return batch.map(cast)

    def call(self, model: nn.Module, batch: Batch) -> Any:
        """Call the model with a batch as it is."""
        deadline.keep()
        with self.phase("forward", batch, lambda: opened(self.contract.invoke(model, batch))):
            self.rehearsal.forward(model, batch, self.contract.invoke)
            return opened(self.graphs.call(model, lambda: self.contract.invoke(model, batch)))

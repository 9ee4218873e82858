"""One model on one device and dtype: runs, losses, gradients and steps, after which everything is put back."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import deadline
from ..batches.batch import identity_of
from ..codes.undecided import NO_VALUES
from ..declared.callables import loss_of
from ..lean import dataclass
from ..loop.closures import keeps_something
from ..objects import trees
from ..objects.kinds import shape_of
from ..state import seed_everything
from ..stepping import take_step
from .errors import Again, LossKind, NothingToDifferentiate, Phase, SubjectError, UnmeasurableError
from .gradients import Gradients, clear_gradients, gradient_stats, loss_of_leaves
from .losses import as_number, loss_on, own_loss, probe_loss, step_loss
from .optimizers import clear_by, default_optimizer, stepping_in
from .pristine import PristineModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..batches import Batch
    from ..promises import Promise


@dataclass(slots=True)
class Pass:
    """One forward (and loss, and backward) still in memory; valid inside :meth:`Subject.pristine`."""

    batch: Batch
    output: Any
    loss: torch.Tensor | None = None


class Subject(PristineModel):
    """One model on one device and dtype.

    Every method that runs the model starts from the same pristine state and the given seed, works on a
    copy of the batch, and leaves nothing behind: parameters, buffers, attributes, gradients, flags and
    random states are put back, also after an error or an interruption.
    """

    def at(self, seed: int = 0, **sizes: int) -> Batch | None:
        """Return a batch of these sizes on the subject's device, or None where it cannot be derived."""
        batch = self.source.at(self.seed + seed, **sizes)
        return None if batch is None else self.place(batch)

    def few(self, batch: Batch, most: int = 2, *, aligned: bool = False) -> Batch | None:
        """Return the first samples of a batch, which show much of what all of them show, or None where none are left out.

        Args:
            batch: Any batch of the subject's source.
            most: How many samples to keep.
            aligned: Only where every tensor, targets too, has the batch dimension: a loss compares them.
        """
        symbol = self.source.batch_symbol
        if symbol is None or batch.sizes.get(symbol, 0) <= most:
            return None
        if aligned and not batch.tensors().keys() <= self.source.axes(symbol).keys():
            return None
        known: dict[tuple[int, int], tuple[Batch, Batch]] = self.cache.setdefault("few", {})
        whole, fewer = known.get((id(batch), most), (None, None))
        if whole is not batch or fewer is None:
            fewer = self.source.rows(batch, torch.arange(most))
            if any(batch is self.cache.get(("batch", index)) for index in (0, 1)):
                known[id(batch), most] = batch, fewer  # one object: what it gives is kept
        return fewer

    # -- runs -----------------------------------------------------------------------------------

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
        loss = loss_on(self.device, self.contract.loss, self.cache)
        with self.phase("loss", batch, lambda: loss_of(loss, output, batch.targets)):
            if isinstance(loss, str):  # "output"
                return as_number(own_loss(output, self.cache.setdefault("own losses", {})))
            self.rehearsal.loss(self.contract.loss, output, batch)
            value = loss_of_leaves(loss, output, batch.targets, self.cache)
            if not isinstance(value, torch.Tensor):
                raise TypeError(
                    f"the loss must be a tensor; it is a {type(value).__name__}: {value!r:.80}"
                )
            return as_number(value)

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

    def again(
        self, phase: Phase, batch: Batch | None, rerun: Callable[..., Any] | None
    ) -> Callable[..., Any] | None:
        """Return what does again what raised in this phase, here or on another device."""
        if rerun is None and phase == "backward" and batch is not None:
            rerun = functools.partial(self._once, self.model, batch)
        if rerun is None or batch is None or isinstance(rerun, Again):
            return rerun
        where = functools.partial(self._elsewhere, phase, batch, self.model.training)
        return Again(rerun, where)

    def _elsewhere(
        self, phase: Phase, batch: Batch, train: bool, device: str
    ) -> tuple[nn.Module, Batch, Callable[[], None]]:
        """Prepare what raised for another device: a model from the factory, or the user's own as it was."""
        try:
            moved = batch.to(device=device)
        except RuntimeError:  # the batch's device can no longer be read
            if (kept := self._placed.get(identity_of(batch))) is None:
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
                    with twin.pristine(steps=True, train=True) as model:
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
            connected=loss.requires_grad,
            stats=gradient_stats(self.model),
            outputs=tuple(
                (path, shape_of(t), str(t.dtype).removeprefix("torch."), t.requires_grad)
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
            The loss: a detached scalar, or what :func:`step_loss` reads of what the user's step returns.

        Raises:
            SubjectError: Any phase raised; its phase is ``step`` for the user's own step.
        """
        deadline.keep()
        if self.contract.train_step is not None:
            step = self.contract.train_step
            inputs: Any = batch.kwargs if batch.kwargs and not batch.args else batch.args
            makes: list[Any] = []  # anew, once: what it kept of it is put back when this run ends

            def again() -> Any:
                if not makes:
                    makes.append(self._made_again(model, optimizer))
                return step(model, makes[0], inputs, batch.targets)

            with self.phase("step", batch, again):
                return step_loss(step(model, optimizer, inputs, batch.targets))
        clear_by(stepping_in(optimizer))
        output, loss = (passes or self.passes)(model, batch)
        if look is not None:
            look(output, loss)
        with self.phase("step", batch):
            for each in stepping_in(optimizer):
                apply(each, self._closure(model, optimizer, batch))
        return loss.detach()

    def _closure(
        self, model: nn.Module, optimizer: Any, batch: Batch
    ) -> Callable[[], torch.Tensor]:
        """Return what an optimizer calls that evaluates the loss itself."""

        def closure() -> torch.Tensor:
            clear_by(stepping_in(optimizer))
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

    def require_values(self) -> None:
        """See that parameters and buffers hold values, but for those that no output depends on.

        Raises:
            UnmeasurableError: One of them is on the meta device, and the model does not run without it.
        """
        if "lacks-values" not in self.cache:
            held = (*self.model.named_parameters(), *self.model.named_buffers())
            name = next((name for name, tensor in held if tensor.is_meta), None)
            if name is not None:
                with contextlib.suppress(SubjectError):
                    made = trees.tensors(self.forward()).values()
                    name = name if any(tensor.is_meta for tensor in made) else None
            self.cache["lacks-values"] = name
        if (name := self.cache["lacks-values"]) is not None:
            reason = f"{name} is on the meta device, which holds no values, and the model does not run without it"
            raise UnmeasurableError(reason, NO_VALUES)

    def require_trainable(self) -> None:
        """See that there is something to train.

        Raises:
            SubjectError: No parameter requires a gradient; the check does not apply.
        """
        if not any(p.requires_grad for p in self.model.parameters()):
            nothing = NothingToDifferentiate("no parameter requires a gradient")
            raise SubjectError("build", nothing)

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

    def promised(self, kind: str) -> tuple[Promise, ...]:
        """Return the promises of a class, after the base batch has settled which inputs they name.

        Raises:
            SubjectError: There is no batch, or it has no such input.
        """
        if self.contract.promised(kind):
            self.batch()
        return self.contract.promised(kind)

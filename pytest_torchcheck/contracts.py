"""What a user declares of a model: the contract, validated when it is declared."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Never, Unpack

import torch
from torch import nn

from . import sources
from .batches import Batch, BatchSource
from .batches.read import is_fixed
from .declared import limits, validation
from .declared.kept_count import LOG
from .declared.limits import FULL_PRECISION, DeclarationError, Overfit
from .declared.names import arguments_of
from .declared.validation import UNSET, Unset
from .interrupts import interrupts, kept_in
from .late import resolve
from .objects.trees import keep
from .promises import Promise
from .specs import SpecError, as_spec_tree
from .text.units import parse_flops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from .adapters import Loop
    from .declared.fields import Fields
    from .declared.limits import Kind, Speed
    from .findings import Location, Report
    from .promises.parameters import Names


class Contract:
    """What a model promises, and the data and loss to hold it to that.

    All arguments are keyword-only and validated at once; a wrong one raises
    :class:`DeclarationError` that names the field, the value and what is allowed. Nothing is run
    until :meth:`check`.

    Args:
        model: A factory ``() -> nn.Module``, or a module. A module is never modified: its state is
            put back after every check.
        inputs: Specs of the inputs: a shape string, a spec, a tuple of them (positional) or a dict
            (keyword arguments). Without them and without a batch, they come from the annotations of
            ``forward``, such as ``Float[Tensor, "B 4"]``, and so does ``output``; a factory that
            does not say what it returns is built once for that.
        targets: Specs of what the loss gets after the output.
        sizes: Range of each symbol of the specs, inclusive: ``{"B": (1, 8)}``, or a fixed number.
        batch: Real data instead of, or beside, specs: ``(inputs, targets)``, or a callable ``(seed)
            -> (inputs, targets)``.
        output: Spec of the output; symbols are shared with the inputs.
        output_range: ``(low, high)`` that every element of a float output stays in.
        loss: ``loss(output, targets) -> scalar``, ``loss(output)`` where there are no targets, or
            ``"output"`` where the model returns its own.
        optimizer: ``(model) -> Optimizer``, the user's own.
        train_step: ``(model, optimizer, inputs, targets) -> loss``, the user's own step, or a dict with
            ``"loss"``; one that uses the optimizer needs ``optimizer`` too.
        trainer: A trainer that an adapter knows (of Lightning, of Hugging Face): its own loop is
            watched instead of a ``train_step``, and it may bring model, data, loss and optimizer
            with it.
        promises: What else holds, as objects of :mod:`pytest_torchcheck.promises`.
        functions: ``{name: (function, inputs)}`` to gradcheck beside those found by themselves.
        dataset: A map-style dataset, or ``{"train": ..., "eval": ...}``; by default a loader's own.
        loader: A DataLoader or its arguments.
        memory: Ceiling of one training step's peak: bytes, ``"96 MiB"``, or a mapping from phase or
            category to one.
        growth: Largest allowed power of the peak in each symbol: ``{"B": 1, "T": 2}``.
        flops: Ceiling of one training step: a number or ``"2 GFLOP"``.
        speed: Time beside another model's: ``{"forward": Faster(than=Old, by=1.3)}`` or
            ``{"training-step": SlowerBy(than=Old, at_most=1.05)}``; also ``"inference"``.
        devices: Where it must run; by default the CPU and CUDA where present.
        dtypes: In which floating dtypes it must run; by default the model's own.
        ranks: Also as so many data-parallel ranks.
        budget: How many plain training steps the checks may take together; declared checks always
            run, and what no longer fits is reported as not run.
        overfit: ``Overfit(steps=40, ratio=0.1)``, or None with a reason under ``skip``.
        batch_dim: Dimension of the batch; None where there is none (graphs).
        skip: ``{"check-name": "reason"}``; a skip that is no longer needed fails.
        changes: What changes since the reference of ``--torchcheck-against``, with the reason:
            ``{"outputs": "exact GELU"}``; names are ``state``, ``outputs``, ``init`` and ``cost``.
            For ``state`` also a function from an old state dict to a new one, for checkpoints that
            the model itself cannot load.
        name: Name in reports; by default that of the function, the variable or the model's class.
    """

    def __new__(cls, *given: Any, **fields: Any) -> Self:
        """Refuse what is no field, as any other misuse, before Python refuses it in its own words."""
        if given:
            raise DeclarationError(
                f"a contract takes its fields by name, such as Contract(model=...); got {given[0]!r} without one"
            )
        validation.require_fields(fields)
        return super().__new__(cls)

    def __init__(
        self,
        *,
        model: nn.Module | Callable[[], nn.Module] | None = None,
        inputs: Any = None,
        targets: Any = None,
        sizes: Mapping[str, Any] | None = None,
        batch: Any = None,
        output: Any = None,
        output_range: tuple[float, float] | None = None,
        loss: Callable[..., Any] | str | None = None,
        optimizer: Callable[[nn.Module], Any] | None = None,
        train_step: Callable[..., Any] | None = None,
        trainer: Any = None,
        promises: Sequence[Promise] = (),
        functions: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] | None = None,
        dataset: Any = None,
        loader: Any = None,
        memory: int | str | Mapping[str, int | str] | None = None,
        growth: Mapping[str, float] | None = None,
        flops: float | str | None = None,
        speed: Mapping[Kind, Speed] | None = None,
        devices: Sequence[str] | None = None,
        dtypes: Sequence[str | torch.dtype] | None = None,
        ranks: int | None = None,
        overfit: Overfit | Unset | None = UNSET,
        batch_dim: int | None = 0,
        budget: float | None = None,
        skip: Mapping[str, str] | None = None,
        changes: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        self.location: Location | None = sources.of_frame(skip=1)
        self.adapted, filled = validation.adapted_fields(
            model, inputs=inputs, targets=targets, sizes=sizes, batch=batch, output=output, loss=loss,
            optimizer=optimizer, train_step=train_step, trainer=trainer, dataset=dataset, loader=loader,
            batch_dim=batch_dim if batch_dim != 0 else None,
        )  # fmt: skip
        model = filled.get("model", model)
        inputs, targets = filled.get("inputs", inputs), filled.get("targets", targets)
        sizes, batch = filled.get("sizes", sizes), filled.get("batch", batch)
        output, loss = filled.get("output", output), filled.get("loss", loss)
        optimizer = filled.get("optimizer", optimizer)
        train_step = filled.get("train_step", train_step)
        loader = filled.get("loader", loader)
        dataset = validation.read_by(loader, filled.get("dataset", dataset))
        batch_dim = filled.get("batch_dim", batch_dim)
        self.model = validation.checked_model(model, dataset, functions)
        if self.model is not None and inputs is None and batch is None:
            inputs, annotated = validation.annotated_specs(self.model)
            output = annotated if output is None else output
        self.inputs, self.targets, self.sizes = inputs, targets, sizes
        self.batch = validation.checked_batch(batch)
        self.batch_dim = validation.checked_batch_dim(batch_dim)
        self.budget = limits.checked_budget(budget)
        self.loss = validation.checked_loss(loss)
        self.optimizer = validation.checked_callable("optimizer", optimizer, "(model) -> Optimizer")
        self.train_step = validation.checked_callable(
            "train_step", train_step, "(model, optimizer, inputs, targets) -> loss"
        )
        self.promises = validation.with_own_promises(
            validation.checked_promises(promises), filled.get("promises")
        )
        self.functions = validation.checked_functions(functions)
        self.dataset = validation.checked_dataset(dataset)
        self.loader = validation.checked_loader(loader)
        self.memory = limits.checked_memory(memory)
        self.growth = limits.checked_growth(growth)
        self.flops = None if flops is None else limits.share_or_size("flops", parse_flops, flops)
        self.speed = limits.checked_speed(speed)
        self.devices = limits.checked_devices(devices)
        self.dtypes = limits.checked_dtypes(dtypes)
        self.ranks = limits.checked_ranks(ranks)
        validation.require_own_forward(self.ranks, self.adapted)
        self.output_range = limits.checked_range(output_range)
        self._name = validation.checked_name(name)
        try:
            self.output = None if output is None else as_spec_tree(output, "output")
            self.source = self._batch_source(output, arguments_of(model))
        except (TypeError, ValueError) as error:
            raise DeclarationError(str(error)) from None
        validation.require_symbols(self.growth, self.source)
        self.promises = validation.named_by_forward(self.promises, self.model, self.source)
        validation.require_names(self.promises, self.model, self.source)
        validation.require_calls(
            model=self.model if self.is_factory and self.adapted is None else None,
            optimizer=self.optimizer,
            train_step=self.train_step,
            loss=self.loss,
            has_targets=self.targets is not None,
            may_have=self._may_have_targets(),
        )
        self.skip = validation.checked_skip(skip)
        self.changes = validation.checked_changes(changes)
        self.overfit = validation.checked_overfit(overfit, self.skip)
        LOG.note(self, self.location)

    def _batch_source(self, output: Any, names: tuple[str, ...]) -> BatchSource | None:
        """Return where batches come from; None where the contract has no model, or no data for it."""
        if self.model is None or (self.inputs is None and self.batch is None):
            return None
        return BatchSource(
            inputs=self.inputs,
            targets=self.targets,
            sizes=self.sizes,
            batch=self.batch,
            batch_dim=self.batch_dim,
            output=output,
            names=names,
        )

    @property
    def name(self) -> str:
        """Name in reports."""
        if self._name is not None:
            return self._name
        if isinstance(self.model, nn.Module):
            return type(self.model).__name__
        if self.model is not None:
            return str(getattr(self.model, "__name__", type(self.model).__name__)).replace(
                "<lambda>", "model"
            )
        return "dataset" if self.dataset is not None else "functions"

    @name.setter
    def name(self, name: str) -> None:
        self._name = validation.checked_name(name)

    @property
    def is_named(self) -> bool:
        """Say whether the user or the decorator gave a name."""
        return self._name is not None

    @property
    def is_factory(self) -> bool:
        """Say whether the model can be built anew."""
        return self.model is not None and not isinstance(self.model, nn.Module)

    @cached_property
    def has_targets(self) -> bool:
        """Say whether batches carry targets; one that cannot be made may, and the checks say why it cannot."""
        if self.targets is not None:
            return True
        if self.batch is None or self.source is None:
            return False
        try:
            return self.source.real().targets is not None
        except SpecError:
            raise
        except Exception:  # the user's function or loader may raise anything
            return True

    def _may_have_targets(self) -> bool | None:
        """Say whether real data may bring targets; None where a fixed batch shows that it does not."""
        if self.batch is None or self.source is None or not is_fixed(self.batch):
            return self.batch is not None
        return True if self.has_targets or self.adapted is not None else None

    def declares(self, need: str) -> bool:
        """Say whether the declaration holds what a check needs; ``need`` as in the registry."""
        match need:
            case "model" | "optimizer" | "train_step" | "dataset" | "flops" | "output":
                return getattr(self, need) is not None
            case "step-or-trainer" | "trainer":
                return self.loop is not None or (need != "trainer" and self.train_step is not None)
            case "loss":
                return self.model is not None and self.loss is not None
            case "targets":
                return self.model is not None and self.has_targets
            case "model-or-functions":
                return self.model is not None or bool(self.functions)
            case "step-or-accumulates":
                return self.train_step is not None or bool(self.promised("Accumulates"))
            case "memory" | "growth" | "functions" | "speed":
                return bool(getattr(self, need))
            case "specs":
                return self.source is not None and self.source.declared_sizes
            case "ranks":
                return self.ranks is not None and self.ranks > 1
            case "factory":
                return self.is_factory
            case "set":
                edges = None if self.source is None else self.source.edges
                return edges is not None or bool(self.promised("PermutationInvariant"))
            case "padding":
                return self.batch is not None or bool(self.promised("PaddingInvariant"))
            case "own-promises":
                return bool(self.own_promises)
            case "ignore-index":
                specs = {} if self.source is None else self.source.specs
                return any(getattr(s, "ignore_index", None) is not None for s in specs.values())
            case "overfit":
                return self.model is not None and not (self.loss is self.train_step is None)
            case "low-precision":
                return any(dtype not in FULL_PRECISION for dtype in self.dtypes or ())
        raise ValueError(f"no check can need {need!r}")

    @property
    def loop(self) -> Loop | None:
        """The trainer's own loop, where there is a trainer."""
        return None if self.adapted is None else self.adapted.loop

    def invoke(self, model: nn.Module, batch: Batch) -> Any:
        """Call a model with a batch, as its adapter does or with the batch's arguments."""
        try:
            if self.adapted is not None and self.adapted.call is not None:
                return keep(self.adapted.call(model, batch))
            return keep(model(*batch.args, **batch.kwargs))
        except Exception:
            raise
        except BaseException as error:
            if interrupts(error):
                raise
            raise kept_in(error) from None

    def promised(self, kind: str) -> tuple[Promise, ...]:
        """Return the promises of a class (or of a subclass of it), by class name."""
        return tuple(
            p for p in self.promises if any(cls.__name__ == kind for cls in type(p).__mro__)
        )

    def promised_names(self, kind: str) -> tuple[Names, ...]:
        """Return the promises of a class that name parameters by globs."""
        return self.promised(kind)  # type: ignore[return-value]

    @property
    def own_promises(self) -> tuple[Promise, ...]:
        """The promises that the project wrote itself, with a ``verify`` of their own."""
        return tuple(p for p in self.promises if type(p).verify is not Promise.verify)

    def check(
        self,
        checks: str | Iterable[str] | None = None,
        *,
        seed: int = 0,
        examples: int | None = None,
        devices: str | Sequence[str] | None = None,
        strict: bool = False,
    ) -> Report:
        """Run the checks that apply and return everything that they found.

        Args:
            checks: Name of one check, or names of several; all that apply by default.
            seed: Decides every random choice; the same seed gives the same verdict.
            examples: How many drawn batches the shape-sensitive checks use; the default is small.
            devices: Run on this device or these only, such as ``"cpu"``.
            strict: Count ``suspicious`` and ``inconclusive`` as violated.

        Returns:
            A report; ``report.ok`` is False when anything is violated, when a check itself failed,
            and when no check reached a verdict.

        Raises:
            DeclarationError: ``checks`` or ``devices`` names something that does not exist.
        """
        LOG.use(self)
        report: Report = resolve("runner.contracts:run_contract")(
            self,
            checks=(checks,)
            if isinstance(checks, str)
            else None
            if checks is None
            else tuple(checks),
            seed=seed,
            examples=examples,
            devices=(devices,) if isinstance(devices, str) else devices,
            strict=strict,
        )
        return report

    def __repr__(self) -> str:
        return f"<Contract {self.name}>"


def contract(
    *given: Never, **fields: Unpack[Fields]
) -> Callable[[Callable[[], nn.Module]], Contract]:
    """Declare a contract by decorating the factory of its model.

    Args:
        given: Nothing: all fields go by their names.
        fields: Those of :class:`Contract`, without ``model``.

    Returns:
        A decorator that turns ``() -> nn.Module`` into a :class:`Contract` of the same name.

    Raises:
        DeclarationError: As :class:`Contract`.
    """
    validation.require_decorator(given, fields)

    def declare(factory: Callable[[], nn.Module]) -> Contract:
        if not callable(factory):
            raise DeclarationError(
                f"@contract decorates a function that returns the model; got {factory!r}"
            )
        named: dict[str, Any] = {"name": getattr(factory, "__name__", None), **fields}
        declared = Contract(model=factory, **named)
        declared.location = sources.of_object(factory) or declared.location
        return declared

    return declare

"""What a user declares of a model: the contract, validated when it is declared."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Unpack

import torch
from torch import nn

from . import sources
from .adapters import Adapted, AdapterError, Declared, Loop, adapt
from .batches import Batch, BatchSource
from .batches.read import is_fixed
from .catalogue import catalogue
from .change import CHANGES
from .declared import callables
from .declared.factories import class_built, class_of
from .declared.fields import Fields
from .declared.kept_count import LOG
from .declared.names import unknown_inputs, unknown_names
from .declared.speeds import Kind, Speed, speeds_of
from .interrupts import interrupts, kept_in
from .late import resolve
from .objects.peek import attribute
from .objects.trees import keep
from .promises import MayChange, Promise
from .specs import SpecError, as_spec_tree
from .specs.annotations import specs_of_forward
from .text.nearest import unknown
from .text.units import parse_bytes, parse_flops

if TYPE_CHECKING:
    from typing import Self

    from .declared.names import UnknownNameError
    from .findings import Location, Report
    from .promises.parameters import Names

DEVICE_TYPES: Final = ("cpu", "cuda", "meta", "xpu", "mps")
DTYPES: Final = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""What ``dtypes`` may name; complex models keep their complex parts at the matching width."""
FULL_PRECISION: Final = ("float32", "float64")
PHASES: Final = ("forward", "loss", "backward", "optimizer", "total")
CATEGORIES: Final = (
    "parameters", "buffers", "inputs", "activations", "temporaries", "gradients", "optimizer_state",
)  # fmt: skip


class DeclarationError(ValueError):
    """A contract was declared in a way that makes no sense; the message says what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overfit:
    """How hard to try to overfit one batch.

    Attributes:
        steps: Most plain training steps that the check may spend, everything included.
        ratio: What part of the distance between the first loss and its floor may remain.
    """

    steps: int = 40
    ratio: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise DeclarationError(
                f"Overfit(steps=) must be an int of at least 1; got {self.steps!r}"
            )
        if not isinstance(self.ratio, int | float) or not 0 < self.ratio < 1:
            raise DeclarationError(
                f"Overfit(ratio=) must be between 0 and 1, both excluded; got {self.ratio!r}"
            )


def _arguments_of(model: Any) -> tuple[str, ...]:
    """Return the names of ``forward``'s positional parameters; empty where the class is not known without building."""
    known = class_of(model) if model is not None else None
    forward = attribute(known, "forward")  # a scripted class has one on its instances alone
    try:
        parameters = list(inspect.signature(forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)


class _Unset:
    def __repr__(self) -> str:
        return "<not declared>"


UNSET: Final = _Unset()


class Contract:
    """What a model promises, and the data and loss to hold it to that.

    All arguments are keyword-only and validated at once; a wrong one raises :class:`DeclarationError`
    that names the field, the value and what is allowed. Nothing is run until :meth:`check`.

    Args:
        model: A factory ``() -> nn.Module``, or a module. A module is never modified: its state is put
            back after every check.
        inputs: Specs of the inputs: a shape string, a spec, a tuple of them (positional) or a dict
            (keyword arguments). Without them and without a batch, they come from the annotations of
            ``forward``,
            such as ``Float[Tensor, "B 4"]``, and so does ``output``; a factory that does not say
            what it returns
            is built once for that.
        targets: Specs of what the loss gets after the output.
        sizes: Range of each symbol of the specs, inclusive: ``{"B": (1, 8)}``, or a fixed number.
        batch: Real data instead of, or beside, specs: ``(inputs, targets)``, or a callable
            ``(seed) -> (inputs, targets)``.
        output: Spec of the output; symbols are shared with the inputs.
        output_range: ``(low, high)`` that every element of a float output stays in.
        loss: ``loss(output, targets) -> scalar``, ``loss(output)`` where there are no targets, or
            ``"output"`` where the
            model returns its own.
        optimizer: ``(model) -> Optimizer``, the user's own.
        train_step: ``(model, optimizer, inputs, targets) -> loss``, the user's own step; one that uses
            the optimizer needs ``optimizer`` too.
        trainer: A trainer that an adapter knows (of Lightning, of Hugging Face): its own loop is
            watched instead of a
            ``train_step``, and it may bring model, data, loss and optimizer with it.
        promises: What else holds, as objects of :mod:`pytest_torchcheck.promises`.
        functions: ``{name: (function, inputs)}`` to gradcheck beside those found by themselves.
        dataset: A map-style dataset, or ``{"train": ..., "eval": ...}``.
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
            run, and
            what no longer fits is reported as not run.
        overfit: ``Overfit(steps=40, ratio=0.1)``, or None with a reason under ``skip``.
        batch_dim: Dimension of the batch; None where there is none (graphs).
        skip: ``{"check-name": "reason"}``; a skip that is no longer needed fails.
        changes: What changes since the reference of ``--torchcheck-against``, with the reason:
            ``{"outputs": "exact GELU"}``; names are ``state``, ``outputs``, ``init`` and ``cost``.
            For ``state``
            also a function from an old state dict to a new one, for checkpoints that the model
            itself cannot load.
        name: Name in reports; by default that of the function, the variable or the model's class.
    """

    def __new__(cls, *given: Any, **fields: Any) -> Self:
        """Refuse what is no field, as any other misuse, before Python refuses it in its own words."""
        if given:
            raise DeclarationError(
                f"a contract takes its fields by name, such as Contract(model=...); got {given[0]!r} without one"
            )
        _known(fields)
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
        overfit: Overfit | _Unset | None = UNSET,
        batch_dim: int | None = 0,
        budget: float | None = None,
        skip: Mapping[str, str] | None = None,
        changes: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        self.location: Location | None = sources.of_frame(skip=1)
        self.adapted, filled = _adapted(
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
        dataset, loader = filled.get("dataset", dataset), filled.get("loader", loader)
        batch_dim = filled.get("batch_dim", batch_dim)
        self.model = _model(model, dataset, functions)
        if self.model is not None and inputs is None and batch is None:
            inputs, annotated = _annotated(self.model)
            output = annotated if output is None else output
        self.inputs, self.targets, self.sizes, self.batch = inputs, targets, sizes, batch
        self.batch_dim = _batch_dim(batch_dim)
        self.budget = _budget(budget)
        self.loss = _loss(loss)
        self.optimizer = _callable("optimizer", optimizer, "(model) -> Optimizer")
        self.train_step = _callable(
            "train_step", train_step, "(model, optimizer, inputs, targets) -> loss"
        )
        if (problem := callables.wrong_batch(batch)) is not None:
            raise DeclarationError(problem)
        self.promises = _with_own(_promises(promises), filled.get("promises"))
        self.functions = _functions(functions)
        self.dataset = _dataset(dataset)
        self.loader = _loader(loader)
        self.memory = _memory(memory)
        self.growth = _growth(growth)
        self.flops = None if flops is None else _unit("flops", parse_flops, flops)
        self.speed = _speed(speed)
        self.devices = _devices(devices)
        self.dtypes = _dtypes(dtypes)
        self.ranks = _ranks(ranks)
        if self.ranks is not None and self.adapted is not None and self.adapted.call is not None:
            raise DeclarationError(
                f"ranks: data-parallel ranks call the model's own forward, which the adapter "
                f"{self.adapted.name!r} does not; declare loss= as well, so that the forward counts"
            )
        self.output_range = _range(output_range)
        self._name = _name(name)
        try:
            self.output = None if output is None else as_spec_tree(output, "output")
            has_data = self.model is not None and (inputs is not None or batch is not None)
            self.source: BatchSource | None = (
                BatchSource(
                    inputs=inputs,
                    targets=targets,
                    sizes=sizes,
                    batch=batch,
                    batch_dim=batch_dim,
                    output=output,
                    names=_arguments_of(model),
                )
                if has_data
                else None
            )
        except (TypeError, ValueError) as error:
            raise DeclarationError(str(error)) from None
        if self.growth:
            symbols = {} if self.source is None else self.source.symbols
            unknown = sorted(set(self.growth) - set(symbols))
            if unknown:
                raise DeclarationError(
                    f"growth: no input has the symbol {unknown[0]!r}; symbols are: "
                    f"{', '.join(sorted(symbols)) or 'none'}"
                )
        _names_known(self)
        _calls_fit(self)
        self.skip = _skip(skip)
        self.changes = _changes(changes)
        if overfit is None and "overfit" not in self.skip:
            raise DeclarationError(
                "overfit: None needs a reason; write skip={'overfit': 'why this model cannot overfit a batch'}"
            )
        if overfit is not None and not isinstance(overfit, Overfit | _Unset):
            raise DeclarationError(
                f"overfit: allowed are Overfit(steps=, ratio=) and None; got {overfit!r}"
            )
        self.overfit: Overfit | None = Overfit() if isinstance(overfit, _Unset) else overfit
        LOG.note(self, self.location)

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
        self._name = _name(name)

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

    def declares(self, need: str) -> bool:
        """Say whether the declaration holds what a check needs; ``need`` as in the registry."""
        match need:
            case "model" | "optimizer" | "train_step" | "dataset" | "flops" | "output":
                return getattr(self, need) is not None
            case "step-or-trainer":
                return self.train_step is not None or self.loop is not None
            case "trainer":
                return self.loop is not None
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
            case "own-promises":
                return bool(self.own_promises)
            case "ignore-index":
                specs = {} if self.source is None else self.source.specs
                return any(getattr(s, "ignore_index", None) is not None for s in specs.values())
            case "overfit":
                return self.model is not None and (
                    self.loss is not None or self.train_step is not None
                )
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
            and when
            no check reached a verdict.

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


def contract(**fields: Unpack[Fields]) -> Callable[[Callable[[], nn.Module]], Contract]:
    """Declare a contract by decorating the factory of its model.

    Args:
        fields: Those of :class:`Contract`, without ``model``.

    Returns:
        A decorator that turns ``() -> nn.Module`` into a :class:`Contract` of the same name.

    Raises:
        DeclarationError: As :class:`Contract`.
    """
    if "model" in fields:
        raise DeclarationError(
            "model: @contract takes the decorated factory as the model; leave model= out"
        )
    _known(fields)

    def declare(factory: Callable[[], nn.Module]) -> Contract:
        if not callable(factory):
            raise DeclarationError(
                f"@contract decorates a function that returns the model; got {factory!r}"
            )
        given: dict[str, Any] = {"name": getattr(factory, "__name__", None), **fields}
        declared = Contract(model=factory, **given)
        declared.location = sources.of_object(factory) or declared.location
        return declared

    return declare


_FIELDS: Final = frozenset(Fields.__annotations__)


def _calls_fit(contract: Contract) -> None:
    """Refuse functions that cannot be called as a contract calls them."""
    given, own = contract.targets is not None, contract.adapted is None
    problems = (
        callables.wrong_factory(contract.model) if own and contract.is_factory else None,
        callables.wrong_optimizer(contract.optimizer),
        callables.wrong_train_step(contract.train_step, contract.optimizer),
        callables.wrong_loss(contract.loss, has_targets=given, may_have=_may_have_targets(contract))
        if callable(contract.loss)
        else None,
    )
    for problem in filter(None, problems):
        raise DeclarationError(problem)


def _may_have_targets(contract: Contract) -> bool | None:
    """Say whether real data may bring targets; None where a fixed batch shows that it does not."""
    if contract.batch is None or contract.source is None or not is_fixed(contract.batch):
        return contract.batch is not None
    return True if contract.has_targets or contract.adapted is not None else None


def _known(fields: Iterable[str]) -> None:
    """Refuse a field that a contract does not have."""
    wrong = sorted(set(fields) - _FIELDS - {"model"})
    if wrong:
        raise DeclarationError(unknown("field", wrong[0], ["model", *sorted(_FIELDS)]))


def _model(model: Any, dataset: Any, functions: Any) -> Any:
    if model is None:
        if dataset is None and not functions:
            raise DeclarationError(
                "model: a contract needs a model (a factory or an nn.Module), a dataset or functions; none was given"
            )
        return None
    if isinstance(model, type) and issubclass(model, nn.Module):
        return model
    if not isinstance(model, nn.Module) and not callable(model):
        raise DeclarationError(
            f"model: allowed are an nn.Module and a factory () -> nn.Module; got {model!r}"
        )
    return model


def _adapted(model: Any, **fields: Any) -> tuple[Adapted | None, dict[str, Any]]:
    """Return what an adapter knows of the model, and the fields that it fills in where none are declared."""
    trainer = fields.get("trainer")
    if model is None and trainer is None:
        return None, {}
    if trainer is not None and fields.get("train_step") is not None:
        raise DeclarationError(
            "trainer: its own loop is what is checked; leave train_step= out, or the trainer"
        )
    try:
        adapted = adapt(Declared(model, fields))
    except AdapterError as error:
        raise DeclarationError(str(error)) from None
    if trainer is not None and (adapted is None or adapted.loop is None):
        raise DeclarationError(
            f"trainer: no adapter knows how a {type(trainer).__module__}.{type(trainer).__qualname__} trains"
            f"{'' if model is None else ' this model'}; known are lightning.Trainer with a LightningModule and "
            "transformers.Trainer, and what entry points of pytest_torchcheck.adapters add"
        )
    if adapted is None:
        return None, {}
    # what was declared in another form, a batch say, comes back in the adapter's
    return adapted, {
        name: value
        for name, value in adapted.fields.items()
        if name in ("model", "batch") or fields.get(name) is None
    }


def _annotated(model: Any) -> tuple[Any, Any]:
    """Return specs of inputs and output from the annotations of the model's ``forward``."""
    try:
        cls = class_of(model)
        if cls is None:
            cls = class_built(model)
        return specs_of_forward(cls.forward)
    except Exception as error:  # a factory may raise anything
        raise DeclarationError(
            "inputs: a contract with a model needs specs (inputs='B 3 H W'), real data (batch=(inputs, targets)), "
            "or a forward that is annotated with shapes; neither was given, and of the annotations: "
            f"{error}"
        ) from (None if isinstance(error, SpecError) else error)


def _callable(field: str, value: Any, signature: str) -> Any:
    if isinstance(value, torch.optim.Optimizer):
        raise DeclarationError(callables.wrong_optimizer(value) or field)
    if value is not None and not callable(value):
        raise DeclarationError(f"{field}: must be callable as {signature}; got {value!r}")
    return value


def _loss(loss: Any) -> Any:
    if loss is None or loss == "output":
        return loss
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        raise DeclarationError(
            f"loss: got the class {loss.__name__}; give an instance, {loss.__name__}()"
        )
    if not callable(loss):
        raise DeclarationError(
            "loss: allowed are a callable loss(output, targets) -> scalar, one without "
            f"targets, loss(output), and the str 'output'; got {loss!r}"
        )
    return loss


def _promises(promises: Any) -> tuple[Promise, ...]:
    if isinstance(promises, Promise):
        promises = (promises,)
    if not isinstance(promises, Iterable) or isinstance(promises, str):
        raise DeclarationError(f"promises: must be a sequence of promise objects; got {promises!r}")
    made = tuple(promises)
    for promise in made:
        if not isinstance(promise, Promise):
            hint = (
                " (write it with its arguments, as an object)" if isinstance(promise, type) else ""
            )
            raise DeclarationError(
                f"promises: each must be an object of pytest_torchcheck.promises{hint}; got {promise!r}"
            )
    return made


def _names_known(contract: Contract) -> None:
    """Refuse promises that name what a model or an input that is known already does not have."""
    wrong: Iterable[UnknownNameError] = ()
    if isinstance(contract.model, nn.Module):
        told = [p for p in contract.promises if not isinstance(p, MayChange)]  # a forward may add
        wrong = unknown_names(told, contract.model)
    form = None if contract.source is None else contract.source.form
    for error in (*wrong, *(() if form is None else unknown_inputs(contract.promises, form))):
        raise DeclarationError(str(error))


def _with_own(declared: tuple[Promise, ...], own: Any) -> tuple[Promise, ...]:
    """Add the promises that an adapter's trainer makes, where the user makes none of that kind."""
    kinds = {type(promise) for promise in declared}
    return (*declared, *(p for p in own or () if type(p) not in kinds))


def _functions(functions: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    if functions is None:
        return {}
    if not isinstance(functions, Mapping):
        raise DeclarationError(
            f"functions: must map names to (function, inputs); got {functions!r}"
        )
    made = {}
    for name, pair in functions.items():
        if (
            not isinstance(pair, Sequence)
            or isinstance(pair, str)
            or len(pair) != 2
            or not callable(pair[0])
        ):
            raise DeclarationError(
                f"functions[{name!r}]: must be a pair (function, inputs), such as (Square.apply, (x,)); got {pair!r}"
            )
        function, inputs = pair
        if isinstance(function, type) and issubclass(function, torch.autograd.Function):
            function = function.apply  # the class stands for what it does
        made[str(name)] = (function, inputs if isinstance(inputs, tuple | dict) else (inputs,))
    return made  # type: ignore[return-value]


def _dataset(dataset: Any) -> Any:
    if dataset is None:
        return None
    parts = dataset.values() if isinstance(dataset, Mapping) else (dataset,)
    for part in parts:
        if not (hasattr(part, "__getitem__") or hasattr(part, "__iter__")):
            raise DeclarationError(
                "dataset: must have __getitem__ and __len__ (map style) or __iter__, or be a dict of such; "
                f"got {type(part).__name__}"
            )
    return dataset


def _loader(loader: Any) -> Any:
    if loader is None or isinstance(loader, torch.utils.data.DataLoader):
        return loader
    if not isinstance(loader, Mapping):
        raise DeclarationError(
            f"loader: must be a DataLoader or a dict of its arguments; got {loader!r}"
        )
    import inspect

    allowed = sorted(
        set(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
        - {"self", "dataset"}
    )
    for name in loader:
        if name not in allowed and name not in ("train", "eval"):
            raise DeclarationError(unknown("loader", name, allowed))
    return dict(loader)


def _unit(field: str, parse: Callable[[Any], int], value: Any) -> int:
    try:
        return parse(value)
    except (TypeError, ValueError) as error:
        said = str(error)
        raise DeclarationError(said if said.startswith(field) else f"{field}: {said}") from None


def _speed(speed: Any) -> dict[Kind, Speed]:
    try:
        return speeds_of(speed)
    except ValueError as error:
        raise DeclarationError(str(error)) from None


def _memory(memory: Any) -> dict[str, int]:
    if memory is None:
        return {}
    if not isinstance(memory, Mapping):
        return {"total": _unit("memory", parse_bytes, memory)}
    allowed = (*PHASES, *CATEGORIES)
    for name in memory:
        if name not in allowed:
            raise DeclarationError(unknown("memory", name, allowed))
    if not memory:
        raise DeclarationError(
            f"memory: the mapping is empty; allowed keys are: {', '.join(allowed)}"
        )
    return {name: _unit(f"memory[{name!r}]", parse_bytes, value) for name, value in memory.items()}


def _growth(growth: Any) -> dict[str, float]:
    if growth is None:
        return {}
    if not isinstance(growth, Mapping):
        raise DeclarationError(
            f'growth: must map symbols to powers, such as {{"B": 1, "T": 2}}; got {growth!r}'
        )
    for symbol, power in growth.items():
        if isinstance(power, bool) or not isinstance(power, int | float) or power < 0:
            raise DeclarationError(
                f"growth[{symbol!r}]: must be a power of at least 0; got {power!r}"
            )
    return dict(growth)


def _devices(devices: Any) -> tuple[str, ...] | None:
    if devices is None:
        return None
    if isinstance(devices, str | torch.device):
        devices = (devices,)
    made = []
    for device in devices:
        text = str(device)
        kind, _, index = text.partition(":")
        if kind not in DEVICE_TYPES or (index and not index.isdigit()):
            raise DeclarationError(
                f"devices: {text!r} is not a valid device; choose from {', '.join(DEVICE_TYPES)}, and an index as in 'cuda:1'"
            )
        made.append(text)
    if not made:
        raise DeclarationError(f"devices: is empty; allowed are {', '.join(DEVICE_TYPES)}")
    return tuple(dict.fromkeys(made))


def _dtypes(dtypes: Any) -> tuple[str, ...] | None:
    if dtypes is None:
        return None
    if isinstance(dtypes, str | torch.dtype):
        dtypes = (dtypes,)
    made = []
    for dtype in dtypes:
        text = str(dtype).removeprefix("torch.")
        if text not in DTYPES:
            raise DeclarationError(unknown("dtypes", text, tuple(DTYPES)))
        made.append(text)
    if not made:
        raise DeclarationError(f"dtypes: is empty; allowed are {', '.join(DTYPES)}")
    return tuple(dict.fromkeys(made))


def _ranks(ranks: Any) -> int | None:
    if ranks is not None and (
        isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= 16
    ):
        raise DeclarationError(f"ranks: must be an int from 1 to 16; got {ranks!r}")
    return ranks


def _budget(budget: Any) -> float | None:
    if budget is None:
        return None
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise DeclarationError(
            f"budget: must be a number of plain training steps above 0, such as 30; got {budget!r}"
        )
    return float(budget)


def _batch_dim(batch_dim: Any) -> int | None:
    if batch_dim is not None and (isinstance(batch_dim, bool) or not isinstance(batch_dim, int)):
        raise DeclarationError(
            f"batch_dim: must be an int, or None where there is no batch; got {batch_dim!r}"
        )
    return batch_dim


def _range(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    if (
        not isinstance(value, Sequence)
        or len(value) != 2
        or not all(isinstance(v, int | float) for v in value)
        or not value[0] < value[1]
    ):
        raise DeclarationError(f"output_range: must be (low, high) with low < high; got {value!r}")
    return float(value[0]), float(value[1])


def _skip(skip: Any) -> dict[str, str]:
    if skip is None:
        return {}
    if not isinstance(skip, Mapping):
        raise DeclarationError(f"skip: must map check names to reasons; got {skip!r}")
    known = tuple(catalogue())
    for name, reason in skip.items():
        if name not in known:
            raise DeclarationError(unknown("skip", name, known))
        if not isinstance(reason, str) or not reason.strip():
            raise DeclarationError(
                f"skip[{name!r}]: needs a reason, a non-empty str; got {reason!r}"
            )
    return dict(skip)


def _changes(changes: Any) -> dict[str, Any]:
    if changes is None:
        return {}
    if not isinstance(changes, Mapping):
        raise DeclarationError(
            f"changes: must map what changes ({', '.join(CHANGES)}) to reasons; got {changes!r}"
        )
    for name, reason in changes.items():
        if name not in CHANGES:
            raise DeclarationError(unknown("changes", name, CHANGES))
        mapping = name == "state" and callable(reason)
        if not mapping and (not isinstance(reason, str) or not reason.strip()):
            or_mapping = ", or a function from an old state dict to a new one" * (name == "state")
            raise DeclarationError(
                f"changes[{name!r}]: needs a reason, a non-empty str{or_mapping}; got {reason!r}"
            )
    return dict(changes)


def _name(name: Any) -> str | None:
    if name is not None and (not isinstance(name, str) or not name or "::" in name or "[" in name):
        raise DeclarationError(f"name: must be a str without '::' and '['; got {name!r}")
    return name

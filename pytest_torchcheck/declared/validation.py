"""Values that a contract declares, checked field by field."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from .. import promises as declared
from ..adapters import Adapted, AdapterError, Declared, adapt
from ..catalogue import catalogue
from ..change import CHANGES
from ..promises import MayChange, Promise
from ..specs import SpecError
from ..specs.annotations import specs_of_forward
from ..text.printable import shown
from ..text.wording import unknown
from . import callables
from .factories import class_built, class_of
from .fields import Fields
from .limits import UNDECLARED, DeclarationError, Overfit
from .names import UnknownNameError, arguments_of, as_called, unknown_inputs, unknown_names

if TYPE_CHECKING:
    from ..batches import BatchSource


class Unset:
    """The type of a value that was not declared, where None means something."""

    def __repr__(self) -> str:
        return "<not declared>"


UNSET: Final = Unset()


def checked_model(model: Any, dataset: Any, functions: Any) -> Any:
    """Return a module or a factory; None only where there is a dataset or functions to check."""
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


def adapted_fields(model: Any, **fields: Any) -> tuple[Adapted | None, dict[str, Any]]:
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


def annotated_specs(model: Any) -> tuple[Any, Any]:
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


def checked_callable(field: str, value: Any, signature: str) -> Any:
    """Return a function, or None; an optimizer that is built already is neither."""
    if isinstance(value, torch.optim.Optimizer):
        raise DeclarationError(callables.wrong_optimizer(value) or field)
    if value is not None and not callable(value):
        raise DeclarationError(f"{field}: must be callable as {signature}; got {value!r}")
    return value


def checked_batch(batch: Any) -> Any:
    """Return real data, or a function that returns some."""
    if (problem := callables.wrong_batch(batch)) is not None:
        raise DeclarationError(problem)
    return batch


def checked_loss(loss: Any) -> Any:
    """Return a loss function, ``"output"`` or None."""
    if loss is None or (isinstance(loss, str) and loss == "output"):
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


def checked_promises(promises: Any) -> tuple[Promise, ...]:
    """Return the promises as a tuple."""
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


def checked_functions(functions: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return functions with their inputs, by name."""
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


def read_by(loader: Any, dataset: Any) -> Any:
    """Return the dataset that is declared, else those of the loaders; their arguments alone name none."""
    if dataset is not None or loader is None:
        return dataset
    checked = checked_loader(loader)
    loaders = checked if isinstance(checked, Mapping) and checked else {"": checked}
    datasets = {role: getattr(one, "dataset", None) for role, one in loaders.items()}
    if None in datasets.values():
        raise DeclarationError(
            "loader: its arguments need a dataset to read; write dataset=..., or give a DataLoader"
        )
    return datasets.get("", datasets)


def checked_dataset(dataset: Any) -> Any:
    """Return a dataset, or datasets by role."""
    if dataset is None:
        return None
    parts = dataset.values() if isinstance(dataset, Mapping) else (dataset,)
    if not parts:
        raise DeclarationError("dataset: got an empty dict; write {'train': ..., 'eval': ...}")
    for part in parts:
        if isinstance(part, type):
            name = part.__name__
            raise DeclarationError(f"dataset: {name} is a class; write {name}(...)")
        if not (hasattr(part, "__getitem__") or hasattr(part, "__iter__")):
            raise DeclarationError(
                "dataset: must have __getitem__ and __len__ (map style) or __iter__, or be a dict of such; "
                f"got {type(part).__name__}"
            )
    return dataset


def checked_loader(loader: Any) -> Any:
    """Return a loader or its arguments."""
    if loader is None or isinstance(loader, torch.utils.data.DataLoader):
        return loader
    if not isinstance(loader, Mapping):
        raise DeclarationError(
            f"loader: must be a DataLoader or a dict of its arguments; got {loader!r}"
        )

    allowed = sorted(
        set(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
        - {"self", "dataset"}
    )
    for name in loader:
        if name not in allowed and name not in ("train", "eval"):
            raise DeclarationError(unknown("loader", name, allowed))
    return dict(loader)


def checked_batch_dim(batch_dim: Any) -> int | None:
    """Return the dimension of samples, or None where there is none."""
    if batch_dim is not None and (isinstance(batch_dim, bool) or not isinstance(batch_dim, int)):
        raise DeclarationError(
            f"batch_dim: must be an int, or None where there is no batch; got {batch_dim!r}"
        )
    return batch_dim


def checked_skip(skip: Any) -> dict[str, str]:
    """Return the reason for each check that is skipped."""
    if skip is None:
        return {}
    if not isinstance(skip, Mapping):
        raise DeclarationError(
            f"skip: must map check names to reasons, as in skip={{'overfit': 'why'}}; got {skip!r}"
        )
    known = tuple(catalogue())
    for name, reason in skip.items():
        if name not in known:
            raise DeclarationError(unknown("skip", name, known))
        if not isinstance(reason, str) or not reason.strip():
            raise DeclarationError(
                f"skip[{name!r}]: needs a reason, a non-empty str; got {reason!r}"
            )
    return dict(skip)


def checked_changes(changes: Any) -> dict[str, Any]:
    """Return which differences between two versions of the model are allowed."""
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


def checked_name(name: Any) -> str | None:
    """Return a name, or None."""
    if name is not None and (not isinstance(name, str) or not name or "::" in name or "[" in name):
        raise DeclarationError(f"name: must be a str without '::' and '['; got {name!r}")
    return name


def checked_overfit(overfit: Any, skip: Mapping[str, str]) -> Overfit | None:
    """Return how hard to try to overfit a batch; None only where ``skip`` gives a reason."""
    if overfit is None and "overfit" not in skip:
        raise DeclarationError(
            "overfit: None needs a reason; write skip={'overfit': 'why this model cannot overfit a batch'}"
        )
    if overfit is not None and not isinstance(overfit, Overfit | Unset):
        raise DeclarationError(
            f"overfit: allowed are Overfit(steps=, ratio=) and None; got {overfit!r}"
        )
    return UNDECLARED if isinstance(overfit, Unset) else overfit


def require_symbols(growth: Mapping[str, float], source: BatchSource | None) -> None:
    """Raise where ``growth`` names a symbol that no input has; a batch is made only to answer that."""
    if not growth:
        return
    symbols = {} if source is None else source.symbols
    for name in sorted(set(growth) - set(symbols)):
        raise DeclarationError(
            f"growth: no input has the symbol {name!r}; symbols are: "
            f"{', '.join(sorted(symbols)) or 'none'}"
        )


def with_own_promises(declared: tuple[Promise, ...], own: Any) -> tuple[Promise, ...]:
    """Add the promises that an adapter's trainer makes, where the user makes none of that kind."""
    kinds = {type(promise) for promise in declared}
    return (*declared, *(p for p in own or () if type(p) not in kinds))


def require_calls(
    *,
    model: Any,
    optimizer: Any,
    train_step: Any,
    loss: Any,
    has_targets: bool,
    may_have: bool | None,
) -> None:
    """Raise where a function cannot be called as a contract calls it; None stands for one that is not declared."""
    problems = (
        None if model is None else callables.wrong_factory(model),
        callables.wrong_optimizer(optimizer),
        callables.wrong_train_step(train_step, optimizer),
        callables.wrong_loss(loss, has_targets=has_targets, may_have=may_have)
        if callable(loss)
        else None,
    )
    for problem in filter(None, problems):
        raise DeclarationError(problem)


def named_by_forward(
    promises: tuple[Promise, ...], model: Any, source: BatchSource | None
) -> tuple[Promise, ...]:
    """Return promises with the positions of the inputs that they call as ``forward`` does.

    A factory is built for it only where a promise has a name that the inputs' specs do not have.
    """
    form = None if source is None else source.form
    if form is None or not any(isinstance(e.name, str) for e in unknown_inputs(promises, form)):
        return promises
    if class_of(model) is None:
        try:
            model = class_built(model)
        except Exception:  # a factory may raise anything; the checks tell what
            return promises
    return as_called(promises, form, arguments_of(model))


def require_names(promises: tuple[Promise, ...], model: Any, source: BatchSource | None) -> None:
    """Raise where a promise names what a model or an input that is known already does not have."""
    wrong: Iterable[UnknownNameError] = ()
    if isinstance(model, nn.Module):
        settled = [p for p in promises if not isinstance(p, MayChange)]  # a forward may add
        wrong = unknown_names(settled, model)
    form = None if source is None else source.form
    for error in (*wrong, *(() if form is None else unknown_inputs(promises, form))):
        raise DeclarationError(str(error))


def require_fields(given: Iterable[str]) -> None:
    """Raise where a field is given that a contract does not have."""
    fields = frozenset(Fields.__annotations__)
    wrong = sorted(set(given) - fields - {"model"})
    for name in wrong:
        kinds = {kind.lower(): kind for kind in vars(declared) if kind[0].isupper()}
        if (kind := kinds.get(name.replace("_", "").lower())) is not None:
            raise DeclarationError(
                f"{name}: is no field but a promise; write promises=[promises.{kind}(...)]"
            )
        raise DeclarationError(unknown("field", name, ["model", *sorted(fields)]))


def require_decorator(given: Sequence[Any], fields: Iterable[str]) -> None:
    """Raise where ``@contract`` is given something else than fields of a contract by their names."""
    if given:
        raise DeclarationError(
            f"@contract takes keyword arguments only, and got {shown(given[0])}; "
            'write @contract(inputs="B 3 64 64", ...) above the factory'
        )
    if "model" in fields:
        raise DeclarationError(
            "model: @contract takes the decorated factory as the model; leave model= out"
        )
    require_fields(fields)


def require_own_forward(ranks: int | None, adapted: Adapted | None) -> None:
    """Raise where ranks are declared of a model that its adapter calls in another way than by ``forward``."""
    if ranks is not None and adapted is not None and adapted.call is not None:
        raise DeclarationError(
            f"ranks: data-parallel ranks call the model's own forward, which the adapter "
            f"{adapted.name!r} does not; declare loss= as well, so that the forward counts"
        )

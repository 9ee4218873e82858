"""Names and globs that promises give: whether the model has what they name, and what comes nearest."""

from __future__ import annotations

import inspect
import operator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from .. import promises as declared
from ..lean import dataclass
from ..objects.peek import attribute
from ..text.wording import nearest
from .factories import class_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn

    from ..batches import Batch
    from ..promises import Promise

Kind = Literal["parameter", "parameter or buffer", "module"]
_MOST_LISTED: Final = 12


class UnknownNameError(declared.PromiseError):
    """A promise names something that is not there.

    Attributes:
        given: What the promise names, as it was written, such as ``Trainable("enocder.*")``.
        kind: What it names, such as ``parameter``.
        allowed: The names that there are.
        near: What comes nearest, or None.
    """

    def __init__(self, given: str, kind: str, name: object, allowed: Iterable[str]) -> None:
        self.given, self.kind, self.name = given, kind, name
        self.allowed = tuple(allowed)
        self.near = _near(str(name), self.allowed)
        hint = f"; did you mean {self.near!r}?" if self.near else ";"
        super().__init__(f"promises: {self.problem}{hint} there are: {self.listed}")

    @property
    def problem(self) -> str:
        """What is wrong, without what there is instead."""
        several = {"parameter or buffer": "parameters and buffers"}.get(self.kind, f"{self.kind}s")
        if not self.allowed:
            return f"{self.given} names a {self.kind}, and the model has no {several}"
        if "*" in str(self.name):
            return f"{self.given} matches none of the model's {len(self.allowed)} {several}"
        return f"{self.given} names {self.name!r}, and the model has no such {self.kind}"

    @property
    def listed(self) -> str:
        """The names that there are; of many the first ones."""
        shown = ", ".join(self.allowed[:_MOST_LISTED]) or "none"
        more = len(self.allowed) - _MOST_LISTED
        return f"{shown} and {more} more" if more > 0 else shown

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.given, self.kind, self.name, self.allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """One name of a promise: as written, what it names, and whether parts of a module count."""

    text: str
    name: str
    kind: Kind
    whole: bool = False


def _given(promise: Promise) -> Iterator[_Given]:
    owner = type(promise).__name__
    match promise:
        case declared.Frozen() | declared.MayChange():
            for glob in promise.globs:
                yield _Given(text=f'{owner}("{glob}")', name=glob, kind="parameter or buffer")
        case declared.Trainable() | declared.MayLackGradient():
            for glob in promise.globs:
                yield _Given(text=f'{owner}("{glob}")', name=glob, kind="parameter")
        case declared.Tied() | declared.Replicated():
            text = f'{owner}("{promise.a}", "{promise.b}")'
            for name in (promise.a, promise.b):
                yield _Given(text=text, name=name, kind="parameter or buffer", whole=True)
        case declared.MovingAverage():
            for field, name in (("target", promise.target), ("source", promise.source)):
                yield _Given(text=f'{owner}({field}="{name}")', name=name, kind="module")


def unknown_names(promises: Iterable[Promise], model: nn.Module) -> Iterator[UnknownNameError]:
    """Find what promises name and a model does not have.

    Args:
        promises: The promises of a contract.
        model: Its model, with all its modules, parameters and buffers registered.

    Yields:
        An error per name or glob that matches nothing, in the order of the promises.
    """
    promises = tuple(promises)
    if not promises:
        return
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    buffers = [name for name, _ in model.named_buffers(remove_duplicate=False)]
    modules = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    names: dict[Kind, list[str]] = {
        "parameter": parameters,
        "parameter or buffer": [*parameters, *buffers],
        "module": modules,
    }
    for promise in promises:
        for given in _given(promise):
            known = [*names[given.kind], *(modules if given.whole else ())]
            if any(_means(given, name) for name in known) or (given.whole and _holds(model, given)):
                continue
            if isinstance(promise, declared.Frozen | declared.MayLackGradient) and any(
                fnmatchcase(path, given.name) for path in _hidden(model)
            ):
                continue
            yield UnknownNameError(given.text, given.kind, given.name, known)


def _means(given: _Given, name: str) -> bool:
    if given.kind == "module":
        return name == given.name
    if given.whole:
        return name == given.name or name.startswith(f"{given.name}.")
    return fnmatchcase(name, given.name)


def _holds(model: nn.Module, given: _Given) -> bool:
    """Say whether an attribute that is registered nowhere has the name: a tie may be one."""
    try:
        return isinstance(operator.attrgetter(given.name)(model), torch.Tensor)
    except AttributeError:
        return False


def _hidden(model: nn.Module) -> Iterator[str]:
    """Yield the paths of what attributes hold and nothing registers: it may be hidden on purpose."""
    # spares the reading of what a model holds where every name is registered
    from ..probes.holding.held_by_models import holdings

    for holding in holdings(model):
        yield holding.path
        yield from (path for path, _ in holding.tensors())


def _near(given: str, names: Sequence[str]) -> str | None:
    """Return the name, or the glob of a module's names, that comes nearest."""
    globs = {
        ".".join(parts[:depth]) + ".*"
        for parts in (name.split(".") for name in names)
        for depth in range(1, len(parts))
    }
    wanted = given if given.endswith("*") else f"{given}.*"
    if wanted in globs:
        return wanted
    return nearest(
        given, [*sorted(globs), *names] if given.endswith("*") else [*names, *sorted(globs)]
    )


def unknown_inputs(promises: Iterable[Promise], batch: Batch) -> Iterator[UnknownNameError]:
    """Find the inputs that promises name and a model is not called with.

    Args:
        promises: The promises of a contract.
        batch: What the model is called with; its leaves may be specs.

    Yields:
        An error per name or position that is not there.
    """
    paths = [path for path, _ in batch.input_leaves()]
    names = [*batch.arg_names(), *batch.kwargs]
    allowed = list(dict.fromkeys([*names, *paths]))
    for promise in promises:
        for field, which in _inputs(promise):
            if isinstance(which, int):
                known = -len(paths) <= which < max(len(paths), len(batch.args))
            else:
                known = which in allowed or any(p.rpartition(".")[2] == which for p in paths)
            if not known:
                yield UnknownNameError(
                    f"{type(promise).__name__}({field}={which!r})", "input", which, allowed
                )


def by_position(promise: Promise, names: Sequence[str]) -> Promise:
    """Return a promise with positions in place of the inputs that it names as ``forward`` does.

    Args:
        promise: Any promise.
        names: What ``forward`` calls its positional arguments, in order.
    """

    def place(which: Any) -> Any:
        return names.index(which) if isinstance(which, str) and which in names else which

    match promise:
        case declared.Causal():
            return replace(promise, input=place(promise.input))
        case declared.PaddingInvariant():
            return replace(promise, ids=place(promise.ids), mask=place(promise.mask))
        case declared.PermutationInvariant() | declared.PermutationEquivariant():
            if promise.inputs is None:
                return replace(promise, input=place(promise.input))
            return replace(promise, inputs={place(k): dim for k, dim in promise.inputs.items()})
    return promise


def as_called(
    promises: tuple[Promise, ...], batch: Batch, names: Sequence[str]
) -> tuple[Promise, ...]:
    """Return promises that name what a batch has: by position, where they call its arguments as ``forward`` does.

    Args:
        promises: The promises of a contract.
        batch: What the model is called with; its leaves may be specs.
        names: What ``forward`` calls its positional arguments, in order.
    """
    if batch.names or not any(isinstance(e.name, str) for e in unknown_inputs(promises, batch)):
        return promises
    return tuple(by_position(one, names[: len(batch.args)]) for one in promises)


def _inputs(promise: Promise) -> Iterator[tuple[str, int | str]]:
    match promise:
        case declared.Causal():
            yield "input", promise.input
        case declared.PaddingInvariant():
            yield "ids", promise.ids
            if promise.mask is not None:
                yield "mask", promise.mask
        case declared.PermutationInvariant() | declared.PermutationEquivariant():
            field = "input" if promise.inputs is None else "inputs"
            yield from ((field, which) for which in promise.dims)


def arguments_of(model: Any) -> tuple[str, ...]:
    """Return the names of ``forward``'s positional parameters; empty where the class is not known without building."""
    known = class_of(model) if model is not None else None
    forward = attribute(known, "forward")  # a scripted class has one on its instances alone
    try:
        parameters = list(inspect.signature(forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)


def with_inputs(
    promises: tuple[Promise, ...], model: torch.nn.Module | None, batch: Batch
) -> tuple[Promise, ...]:
    """Return promises of which each names an input that a batch has.

    Args:
        promises: Those of a contract; those that name an input as ``forward`` does get its position.
        model: The model that was built; None where there is none yet.
        batch: What it is called with.

    Raises:
        UnknownNameError: There is no such input.
    """
    if model is not None:
        promises = as_called(promises, batch, arguments_of(model))
    for error in unknown_inputs(promises, batch):
        raise error
    return promises

"""From a model to a declaration.

Inputs, sizes, targets and loss, each with where it was taken from.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .. import sources
from ..contracts import Contract
from ..declared.callables import takes_output_alone
from ..declared.limits import DeclarationError
from ..lean import dataclass
from ..objects import trees
from ..specs import SpecError, as_spec_tree
from ..specs.annotations import specs_of_forward
from ..state import isolated
from ..text.printable import message_of
from .code import code_of
from .facts import facts_of
from .options import Candidate, candidates, required
from .outcome import Loss, Outcome, loss_of, loss_of_data, outcome_of
from .trial import Probe, copier, try_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .trial import Accepted


class Uninferable(ValueError):
    """What a model takes cannot be told; the message holds the shortest line that would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """A declaration, as values and as code.

    Attributes:
        model: The module, or its factory.
        inputs: Specs; None where the contract takes them itself (annotations of ``forward``, an
            adapter).
        sizes: Ranges of symbols.
        targets: Spec of the targets.
        loss: The loss with its code.
        output: Shape of the output.
        batch_dim: Where the batch is.
        because: What the inputs were taken from.
        batch: Real data, where it was given instead of specs.
        note: Why there is no loss.
    """

    model: Any
    inputs: Any = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    targets: Any = None
    loss: Loss | None = None
    output: str | None = None
    batch_dim: int | None = 0
    because: str = ""
    batch: Any = None
    note: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the fields of a :class:`~pytest_torchcheck.Contract`, without the model."""
        values = {
            "inputs": self.inputs,
            "sizes": dict(self.sizes) or None,
            "batch": self.batch,
            "targets": self.targets,
            "loss": None if self.loss is None else self.loss.function,
        }
        found = {name: value for name, value in values.items() if value is not None}
        return found if self.batch_dim == 0 else {**found, "batch_dim": self.batch_dim}

    def contract(self, *, name: str | None = None) -> Contract:
        """Return the contract.

        Raises:
            DeclarationError: It does not hold together.
        """
        made = Contract(model=self.model, name=name, **self.fields())
        made.location = sources.of_object(_maker(self.model)) or made.location
        return made

    def lines(self) -> list[str]:
        """Return the declaration as code, one field a line.

        What the contract takes itself is not repeated.
        """
        found = []
        if self.inputs is not None:
            found.append(f"inputs={code_of(self.inputs)},")
        if self.sizes:
            found.append(f"sizes={code_of(dict(self.sizes))},")
        if self.targets is not None:
            found.append(f"targets={code_of(self.targets)},")
        if self.loss is not None:
            found.append(f"loss={self.loss.code},")
        if self.batch_dim != 0:
            found.append(f"batch_dim={self.batch_dim},")
        return [*found, f"# {self.note}"] if self.note else found


def _maker(model: Any) -> Any:
    """Return what a user would call the model: its class or function."""
    while isinstance(model, functools.partial):
        model = model.args[0] if model.args and isinstance(model.args[0], type) else model.func
    return type(model) if isinstance(model, nn.Module) else model


def infer(
    model: nn.Module | Callable[[], nn.Module],
    *,
    arguments: Mapping[str, Any] | None = None,
    inputs: Any = None,
    loss: str | Loss | None = None,
) -> Inferred:
    """Work out what to declare for a model.

    Args:
        model: A module (it is copied, never run itself), or a factory.
        arguments: What the model was built with, by name, where that is known.
        inputs: Specs of the inputs, where they are given: then targets and loss alone are inferred.
        loss: Name of a loss, one of :data:`.target.LOSSES`, or one of the user's own; chosen from
            the output by default.

    Returns:
        The declaration. Its inputs ran, in eval and in train mode, at several sizes.

    Raises:
        Uninferable: Nothing that was tried ran; the message says what to declare.
        DeclarationError: The factory raises, or returns no module.
    """
    built = _built(model)
    make = copier(model) if isinstance(model, nn.Module) else model
    if inputs is None and loss in (None, "output"):
        own = _of_contract(model)
        if own is not None:
            return own
    found = _given(inputs) if inputs is not None else [*_annotated(built), *_example(built)]
    accepted, error = try_all(make, found) if found else (None, "")
    if accepted is None and inputs is None:
        accepted, error = try_all(make, candidates(built, facts_of(built, arguments)))
    if accepted is None:
        raise Uninferable(_advice(built, error, given=inputs))
    return _declared(model, accepted, loss, given=inputs is not None)


def with_batch(model: Any, batch: Any, *, loss: str | Loss | None = None) -> Inferred:
    """Return the declaration of a model with real data.

    Args:
        model: A module or its factory.
        batch: The data.
        loss: A loss or the name of one; without one, cross entropy for targets of whole numbers, squared
            error for floating ones, and none where there are no targets.

    Raises:
        DeclarationError: The data are of no form that a contract takes.
    """
    if isinstance(loss, Loss):
        return Inferred(model=model, batch=batch, loss=loss, because="the batch that was given")
    made = Contract(model=model, batch=batch)
    targets = None if made.source is None else made.source.base(0).targets
    name = loss
    if name is None and isinstance(targets, Tensor):
        name = "mse_loss" if targets.is_floating_point() else "cross_entropy"
    if made.loss is not None or name is None:  # an adapter has supplied it, or nothing asks for one
        return Inferred(model=model, batch=batch, because="the batch that was given")
    chosen = loss_of(name)
    if isinstance(targets, Tensor) and name != "output":
        chosen = loss_of_data(_trained(model, made), targets, name)
    return Inferred(model=model, batch=batch, loss=chosen, because="the batch that was given")


def _trained(model: Any, declared: Contract) -> Mapping[str, Tensor]:
    """Return what a model gives in train mode for the data of a contract; nothing where it raises."""
    assert declared.source is not None
    make = copier(model) if isinstance(model, nn.Module) else lambda: _built(model)
    with isolated():
        return trees.tensors(Probe(make).run(declared.source.base(0).clone(), train=True))


def _built(model: Any) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    try:
        with isolated():
            made = model()
    except Exception as error:  # a factory may raise anything
        told = f"{type(error).__name__}: {error}"
        raise DeclarationError(f"model: building it failed: {told}") from error
    if not isinstance(made, nn.Module):
        raise DeclarationError(
            f"model: the function must return an nn.Module; it returned {type(made).__name__}"
        )
    return made


def _of_contract(model: Any) -> Inferred | None:
    """Return what a contract takes from an adapter that knows data and loss, or None."""
    try:
        made = Contract(model=model)
    except DeclarationError:
        return None
    if made.adapted is None or made.loss is None:
        return None
    if made.batch is not None or made.source is None:
        return Inferred(model=model, because=f"the adapter {made.adapted.name!r}")
    try:
        batch, maker = made.source.base(0), _built(model)
        with isolated():
            made.invoke(maker.train(), batch)
    except Exception:  # the adapter's guess does not run: the search may find better
        return None
    return Inferred(
        model=model,
        inputs=made.inputs,
        sizes=dict(made.sizes or {}),
        targets=made.targets,
        loss=loss_of("output") if isinstance(made.loss, str) else None,
        because=f"the adapter {made.adapted.name!r}, from the model's configuration",
    )


def _given(inputs: Any) -> list[Candidate]:
    tree = as_spec_tree(inputs, "inputs")
    return [
        Candidate(inputs=tree, sizes={}, batch_dim=dim, why="the given inputs")
        for dim in (0, None, 1)
    ]


def _annotated(model: nn.Module) -> list[Candidate]:
    """Return what the annotations of ``forward`` say, or nothing."""
    try:
        inputs, _ = specs_of_forward(type(model).forward)
    except SpecError:
        return []
    return [Candidate(inputs=inputs, sizes={}, batch_dim=0, why="the annotations of forward")]


def _example(model: nn.Module) -> list[Candidate]:
    """Return specs of an example that the model carries, as a LightningModule does."""
    example = getattr(model, "example_input_array", None)
    if isinstance(example, Tensor):
        example = (example,)
    if not isinstance(example, tuple) or not all(isinstance(e, Tensor) for e in example):
        return []
    specs = tuple(
        " ".join(["B", *map(str, leaf.shape[1:])]) for leaf in example if leaf.is_floating_point()
    )
    if len(specs) != len(example):
        return []
    inputs = as_spec_tree(specs[0] if len(specs) == 1 else specs, "inputs")
    return [Candidate(inputs=inputs, sizes={}, batch_dim=0, why="its example_input_array")]


def _of_own(model: Any, found: Accepted, loss: Loss) -> Outcome:
    """Return the first targets that a loss of the user's own takes with the model's output.

    Raises:
        Uninferable: It takes none of those that were tried.
    """
    known: dict[str, Any] = {
        "model": model, "inputs": found.candidate.inputs, "sizes": dict(found.sizes) or None,
        "batch_dim": found.source.batch_dim,
    }  # fmt: skip
    make = copier(model) if isinstance(model, nn.Module) else model
    with isolated():
        output, error = Probe(make).run(found.source.base(0).clone(), train=True), ""
        if takes_output_alone(loss.function):
            return Outcome(loss=loss)
        for name in (None, "cross_entropy", "mse_loss"):
            outcome = outcome_of(found, loss=name)
            if outcome is None or outcome.targets is None:
                continue
            source = Contract(**known, targets=outcome.targets).source
            assert source is not None
            try:
                value = loss.function(output, source.base(0).targets)
            except Exception as raised:  # it may raise anything for targets of another kind
                error = error or f"; it raised {type(raised).__name__}: {message_of(raised)}"
                continue
            if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
                return Outcome(loss=loss, targets=outcome.targets, output=outcome.output)
    raise Uninferable(
        f"loss {loss.module}:{loss.code}: none of the targets that were tried gives a number with "
        f"a gradient{error}. Write a contract with targets of yours, or give "
        "python -m pytest_torchcheck init real data with --batch"
    )


def _declared(model: Any, found: Accepted, loss: str | Loss | None, *, given: bool) -> Inferred:
    outcome: Outcome | None
    if isinstance(loss, Loss):
        outcome = _of_own(model, found, loss)
    else:
        outcome = outcome_of(found, loss=loss)
    if outcome is None and loss is not None:
        shapes = {path: list(leaf.shape) for path, leaf in found.runs[0].outputs.items()}
        raise Uninferable(
            f"loss {loss}: no output has a shape that it takes; the model returns {shapes}. "
            "Leave the loss out to let it be chosen, or write a contract with your own loss"
        )
    why = found.candidate.why or "the model's first layers"
    return Inferred(
        model=model,
        inputs=found.candidate.inputs,
        sizes=found.sizes,
        targets=None if outcome is None else outcome.targets,
        loss=None if outcome is None else outcome.loss,
        output=None if outcome is None else outcome.output,
        batch_dim=found.source.batch_dim,
        because=why if given else f"{why}, tried at several sizes",
        note="" if outcome is not None else _no_loss(found),
    )


def _no_loss(found: Accepted) -> str:
    number = len(found.trains)
    if number > 1:
        return f"no loss: the model returns {number} tensors, and the checks look at all of them"
    return "no loss: no output has a gradient and a shape that follows from the inputs"


def _advice(model: nn.Module, error: str, *, given: Any) -> str:
    """Return what to declare for a model of which nothing ran."""
    kind = type(model).__name__
    names = required(model)
    seen = f"; the first guess raised {error.rstrip('.')}" if error else ""
    if given is not None:
        return (
            f"inputs: {kind}.forward does not run on {code_of(as_spec_tree(given, 'inputs'))}{seen}"
        )
    if error.startswith(("ImportError", "ModuleNotFoundError")):
        return f"{kind}.forward does not run here: {error}. Install what it needs"
    if names == ("images",):
        return (
            f"inputs: {kind}.forward takes a list of images with their boxes{seen}. Write a contract "
            "with a real batch: batch=([image], [{'boxes': boxes, 'labels': labels}])"
        )
    keys = {name: _keys_read(model, name) for name in names}
    if len(names) == 1 and not keys[names[0]]:
        example = '"B 3 64 64"'
    else:
        example = (
            "'"
            + _mapping({name: _mapping(dict.fromkeys(keys[name], '"B ..."')) for name in names})
            + "'"
        )
    return (
        f"inputs: what {kind}.forward({', '.join(names)}) takes could not be inferred from its "
        f"layers{seen}. "
        f"Say it: --torchcheck-inputs {example}, with the shapes of your data; "
        'Tokens("B T", vocab=100) stands for ids'
    )


def _keys_read(model: nn.Module, name: str) -> list[str]:
    """Return the keys that a forward reads from one of its arguments, where that is a mapping."""
    found = sources.parsed(type(model).forward)
    read = [
        (node.lineno, node.col_offset, node.slice.value)
        for node in (ast.walk(found[0]) if found is not None else ())
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    ]
    return list(dict.fromkeys(key for _, _, key in sorted(read)))


def _mapping(parts: Mapping[str, str]) -> str:
    """Return the code of a mapping of specs; a shape where nothing is known of its keys."""
    return (
        "{" + ", ".join(f'"{key}": {code}' for key, code in parts.items()) + "}"
        if parts
        else '"B ..."'
    )

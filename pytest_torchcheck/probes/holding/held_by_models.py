"""What a model holds beside its registered state: tensors and modules in plain attributes, lists, closures, classes."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ... import sources
from ...lean import dataclass
from ...objects.peek import PLAIN, attributes, entries, opaque, pairs, slots
from ...objects.trees import is_tensor
from ...state.modules import ATOMS, FOREIGN
from ...state.tensors import is_lazy, refuses
from ...text.printable import shown

if TYPE_CHECKING:
    from ...findings import Location


Kind = Literal["tensor", "parameter", "module"]
_SHORT = 16
_DEPTH = 6
_MOST = 20_000  # things looked at per attribute: a vocabulary is no place for tensors

# what nn.Module itself keeps in __dict__
_OWN = frozenset(nn.Module().__dict__) | {
    "_parameters",
    "_buffers",
    "_modules",
    "_is_full_backward_hook",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holding:
    """One tensor or module that the registered state does not contain.

    Attributes:
        path: Qualified name as the user would write it, such as ``head.grid`` or ``blocks[0]``.
        attribute: Qualified name of the attribute that holds it, such as ``blocks``.
        kind: ``parameter`` is an ``nn.Parameter``.
        via: How it is held: by the attribute itself, or the container's, object's or function's type.
        value: The live tensor or module.
        owner: The module whose attribute it is.
    """

    path: str
    attribute: str
    kind: Kind
    via: str
    value: Any
    owner: nn.Module

    @property
    def name(self) -> str:
        """Name of the attribute without the modules that lead to it."""
        return self.attribute.rpartition(".")[2]

    @property
    def word(self) -> str:
        """The last name in the path: of the closure's variable, the object's field, else of the attribute."""
        names = re.findall(r"[A-Za-z_]\w*", self.path)
        return names[-1] if self.via == "closure" and names else self.name

    @property
    def location(self) -> Location | None:
        """The line that assigns the attribute."""
        return sources.of_assignment(self.owner, self.name, plain=True)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Iterate over the tensors that it brings: itself, or a hidden module's parameters and buffers."""
        if isinstance(self.value, nn.Module):
            for name, tensor in (*self.value.named_parameters(), *self.value.named_buffers()):
                yield f"{self.path}.{name}", tensor
        else:
            yield self.path, self.value


def holdings(model: nn.Module) -> list[Holding]:
    """Find the tensors and modules that attributes hold and no registration knows, each once.

    Looks into lists, tuples, dicts, sets, plain objects, closures, partial arguments and class
    attributes. A module that itself contains the model (a reference to the parent) is left out.
    Nothing is run.

    Args:
        model: Any module; only read.
    """
    modules = list(model.named_modules())
    registered: set[int] = {id(module) for _, module in modules}
    for _, module in modules:
        registered.update(map(id, (*module._parameters.values(), *module._buffers.values())))
    found: dict[int, Holding] = {}
    of_classes: dict[type, list[tuple[str, Any]]] = {}
    empty: set[int] = set()  # what many modules hold, such as a configuration, with nothing in it
    for prefix, owner in modules:
        if isinstance(owner, torch.jit.ScriptModule):
            continue
        if type(owner) not in of_classes:
            of_classes[type(owner)] = _of_classes(type(owner))
        for name, value in (*_attributes(owner), *of_classes[type(owner)]):
            if type(value) in PLAIN or opaque(value):
                continue
            if _is_short_row(value) or isinstance(value, ATOMS):
                continue
            if id(value) in registered or id(value) in empty:
                continue
            attribute = f"{prefix}.{name}" if prefix else name
            held = list(_inside(value, attribute, registered))
            if not held:
                empty.add(id(value))
            for path, via, thing in held:
                if id(thing) in found:
                    continue
                if isinstance(thing, nn.Module) and any(part is model for part in thing.modules()):
                    continue
                found[id(thing)] = Holding(
                    path=path,
                    attribute=attribute,
                    kind=_kind(thing),
                    via=via,
                    value=thing,
                    owner=owner,
                )
    inner = {  # what a hidden module registers is found with that module
        id(part)
        for holding in found.values()
        if isinstance(holding.value, nn.Module)
        for part in (
            *holding.value.modules(),
            *holding.value.parameters(),
            *holding.value.buffers(),
        )
        if part is not holding.value
    }
    return [holding for key, holding in found.items() if key not in inner]


def _is_short_row(value: Any) -> bool:
    """Say whether a value is a few numbers or words in a row, as the sizes of a kernel are."""
    return (
        type(value) in (tuple, list)
        and len(value) <= _SHORT
        and all(type(one) in PLAIN for one in value)
    )


def _attributes(owner: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in owner.__dict__.items():
        if name not in _OWN and not name.endswith("_hooks"):
            yield name, value


def _of_classes(kind: type) -> list[tuple[str, Any]]:
    """Return what a module's class and those that it inherits from hold."""
    return [
        (name, value)
        for cls in itertools.takewhile(lambda cls: cls is not nn.Module, kind.__mro__)
        for name, value in vars(cls).items()
        if isinstance(value, torch.Tensor | nn.Module | list | tuple | dict)
        and not name.startswith("__")
    ]


def _inside(value: Any, path: str, registered: set[int]) -> Iterator[tuple[str, str, Any]]:
    """Iterate over ``(path, via, thing)`` of the tensors and modules in a value."""
    stack: deque[tuple[str, str, Any, int]] = deque([(path, "attribute", value, 0)])
    seen: set[int] = set()
    while stack and len(seen) < _MOST:
        path, via, thing, depth = stack.popleft()
        if type(thing) in PLAIN or opaque(thing) or isinstance(thing, ATOMS):
            continue
        if id(thing) in seen or id(thing) in registered:
            continue
        seen.add(id(thing))
        if is_tensor(thing):
            if not (is_lazy(thing) or refuses(thing)):
                yield path, via, thing
        elif isinstance(thing, nn.Module):
            yield path, via, thing
        elif depth < _DEPTH:
            stack.extend((*each, depth + 1) for each in _parts(thing, path))


def _parts(thing: Any, path: str) -> list[tuple[str, str, Any]]:
    if isinstance(thing, Mapping):
        return [(f"{path}[{shown(key, 40)}]", "dict", item) for key, item in pairs(thing)]
    if isinstance(thing, list | tuple | deque):
        kind = type(thing).__name__
        return [(f"{path}[{place}]", kind, item) for place, item in enumerate(entries(thing))]
    if isinstance(thing, set | frozenset):
        return [(f"{path}{{{place}}}", "set", item) for place, item in enumerate(entries(thing))]
    if isinstance(thing, functools.partial):
        given = {**{str(place): arg for place, arg in enumerate(thing.args)}, **thing.keywords}
        return [(f"{path}({key})", "partial", item) for key, item in given.items()] + [
            (path, "partial", thing.func)
        ]
    if isinstance(thing, types.MethodType):
        return [] if isinstance(thing.__self__, nn.Module) else [(path, "method", thing.__self__)]
    if isinstance(thing, types.FunctionType):
        return [
            (f"{path}.<{name}>", "closure", cell)
            for name, cell in zip(thing.__code__.co_freevars, closure_of(thing), strict=False)
            if isinstance(cell, torch.Tensor | nn.Module | list | tuple | dict)
        ]
    if type(thing).__module__.split(".")[0] in FOREIGN:
        return []
    return [
        (f"{path}.{name}", type(thing).__name__, item)
        for name, item in {**attributes(thing), **slots(thing)}.items()
    ]


def closure_of(function: types.FunctionType) -> list[Any]:
    """Return what a function's free variables hold; None for those that are not set yet."""
    values = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # the variable is not assigned yet
            values.append(None)
    return values


def _kind(thing: Any) -> Kind:
    if isinstance(thing, nn.Module):
        return "module"
    return "parameter" if isinstance(thing, nn.Parameter) else "tensor"


def graph_leaves(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the leaves that a tensor's gradient flows to: itself for a leaf that requires one."""
    if not tensor.requires_grad:
        return []
    if tensor.grad_fn is None:
        return [tensor]
    leaves: dict[int, torch.Tensor] = {}
    seen = {tensor.grad_fn}
    stack = [tensor.grad_fn]
    while stack:
        node = stack.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            leaves[id(leaf)] = leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return list(leaves.values())


def owned(model: nn.Module) -> set[int]:
    """Return the identities of a model's parameters, of tensors that attributes hold, and of what those come from."""
    held = [tensor for holding in holdings(model) for _, tensor in holding.tensors()]
    every = [
        *model.parameters(),
        *held,
        *(leaf for tensor in held for leaf in graph_leaves(tensor)),
    ]
    return {id(tensor) for tensor in every}


CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def given_to_init(model: nn.Module, name: str) -> bool:
    """Say whether an attribute is an argument of its module's ``__init__``, as it is or converted.

    Such a tensor belongs to whoever builds the model (the training data of a Gaussian process): a
    new instance is given it again. A value that ``__init__`` computes or draws is the model's own.

    Args:
        model: The model.
        name: Qualified name of the attribute, such as ``kernel.train_inputs``; an index behind it
            is ignored.
    """
    path = name.split("[", 1)[0].split(".")
    owner: object = model
    for depth, word in enumerate(path):
        inside = owner._modules.get(word) if isinstance(owner, nn.Module) else None
        if inside is None:
            return any(word in _given(cls) for cls in type(owner).__mro__) and depth < len(path)
        owner = inside
    return False


@functools.cache
def _given(cls: type) -> frozenset[str]:
    """Return the attributes that a class's own ``__init__`` assigns from its arguments."""
    init = vars(cls).get("__init__")
    tree, _ = (sources.parsed(init) if init is not None else None) or (None, "")
    function = tree.body[0] if tree is not None else None
    if not isinstance(function, ast.FunctionDef):
        return frozenset()
    names = set(sources.parameters(function)) - {a.arg for a in function.args.args[:1]}
    return frozenset(
        target.attr
        for node in ast.walk(function)
        for target, value in sources.writes(node)
        if isinstance(target, ast.Attribute) and _is_argument(value, names)
    )


def _is_argument(value: ast.expr, names: set[str]) -> bool:
    """Say whether an expression is an argument, or a chain of methods of one: ``x.clone().float()``."""
    while isinstance(value, (ast.Call, ast.Attribute, ast.Subscript)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return isinstance(value, ast.Name) and value.id in names

"""What a module holds, kept and put back: tensors, plain attributes, scripted and sharded parts."""

from __future__ import annotations

import collections
import functools
import sys
import types
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.deterministic
from torch import nn

from ..lean import dataclass
from ..objects.held import (
    CONTAINERS,
    Slots,
    Unkept,
    copied,
    is_iterator,
    items_of,
    keeper,
    put_slots,
    random_state,
    restore_container,
    same_items,
    shallow,
    slots_of,
    within,
)
from ..objects.peek import NONE, attributes, cells, entries, opaque
from ..objects.trees import is_tensor, storage_of
from .outer import OuterState
from .tensors import TensorState, is_lazy, refuses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ATOMS = (
    type(None), bool, int, float, complex, str, bytes, type, types.BuiltinFunctionType, types.ModuleType, torch.dtype, torch.device, torch.Size,
)  # fmt: skip
_CALLED = (types.FunctionType, types.MethodType, functools.partial)
_PLAIN_ATOMS = frozenset((type(None), bool, int, float, str))
_PLAIN = (*CONTAINERS, collections.OrderedDict, collections.defaultdict, collections.Counter)
FOREIGN = (
    "builtins",
    "torch",
    "threading",
    "_thread",
    "logging",
    "weakref",
    "_weakref",
    "functools",
    "numpy",
)


def _is_foreign(thing: Any) -> bool:
    """Say whether an object keeps its own state; distributions hold tensors, which priors move."""
    package = type(thing).__module__
    return package.split(".")[0] in FOREIGN and not package.startswith("torch.distributions.")


class ModuleState:
    """The whole state of a module, taken so that it can be put back in place.

    No deepcopy is made, so that models that hold locks or non-leaf tensors work too. Buffers and plain
    tensor attributes are copied; parameters are copied when ``copy_parameters`` is called.

    Args:
        module: Any module; lazy ones are put back to their uninitialised state.
        copy_parameters: Copy the parameters' values now (one more copy of them in memory).
    """

    def __init__(self, module: nn.Module, *, copy_parameters: bool = False) -> None:
        self.module = module
        self._objects: list[tuple[Any, type, dict[str, Any]]] = []
        self._slotted: list[tuple[Any, Slots]] = []
        self._empty: list[Any] = []  # plain containers without an item
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []  # plain ones
        self._containers: list[tuple[Any, Any]] = []
        self._kept: list[Callable[[], None]] = []
        self._iterators: dict[int, Any] = {}  # by id of the iterator: a copy of what it was
        self._unkept: list[Unkept] = []
        self._looked = 0
        self._cells: list[tuple[types.CellType, Any]] = []
        self.random: list[tuple[Any, Any]] = []  # generators that it holds, and their states
        self._scripts: list[_ScriptState] = []
        self._tensors: dict[int, TensorState] = {}
        self._parameters: list[TensorState] = []
        self._seen: set[int] = set()
        self._keep: list[Any] = []
        self._parameter_ids = {id(p) for p in module.parameters()}
        for root in _sharded(module)[:1]:
            root._get_fsdp_state()._lazy_init()  # the hooks that the first forward adds are part of it
        self._walk(module)
        self._outer = OuterState(module)
        if self._iterators:
            self._hand_out_copies()
        if copy_parameters:
            self.copy_parameters()

    @property
    def has_parameter_copies(self) -> bool:
        """Say whether the parameters' values can be put back."""
        return all(state.copy is not None or is_lazy(state.tensor) for state in self._parameters)

    def copy_parameters(self) -> None:
        """Copy the parameters' values, so that a step can be undone."""
        for state in self._parameters:
            state.ensure_copy()

    def original(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the value that a parameter or buffer had, or None if it is unknown."""
        state = self._tensors.get(id(tensor))
        return None if state is None or state.tensor is not tensor else state.copy

    def put_gradients_aside(self) -> None:
        """Take off the gradients that there were, so that no run sees or writes them, until :meth:`restore`."""
        for state in self._tensors.values():
            if state.grad is not None:
                state.tensor.grad = None

    def restore(
        self, *, parameters: bool = True, gradients: bool = True, last: bool = False
    ) -> None:
        """Put everything back.

        Args:
            parameters: Their values too, where they were copied.
            gradients: The values of all gradients, not only of those that are seen to have been written.
            last: No run follows: the iterators are the very ones that there were, and so are the
                counts of writes to tensors, so that a graph that was pending can run backward.
        """
        _reshard(self.module)
        for thing, cls, then in self._objects:
            if type(thing) is not cls:
                thing.__class__ = cls
            current = attributes(thing)
            if not same_items(current, then):
                current.clear()
                current.update(then)
        for thing, slots in self._slotted:
            put_slots(thing, slots)
        for script in self._scripts:
            script.restore()
        for container in filter(None, self._empty):
            restore_container(container, [])
        for held, items in self._dicts:
            if not same_items(held, items):
                held.clear()
                held.update(items)
        for container, copy in self._containers:
            restore_container(container, copy)
        self._outer.restore(last=last)
        for put_back in self._kept:
            put_back()
        for cell, content in self._cells:
            if cell.cell_contents is not content:
                cell.cell_contents = content
        if self._iterators and not last:
            self._hand_out_copies()
        with torch.no_grad():
            for state in self._tensors.values():
                values = parameters or id(state) not in self._with_parameters
                state.restore(values=values, gradients=gradients)
                if last:
                    state.restore_version()

    @functools.cached_property
    def _with_parameters(self) -> frozenset[int]:
        """The ids of the parameters, and of what lies in their memory, such as a flat buffer that they are views of."""
        memory = {storage_of(state.alias) for state in self._parameters} - {None}
        shared = (s for s in self._tensors.values() if storage_of(s.alias) in memory)
        return frozenset(map(id, (*self._parameters, *shared)))

    def advanced(self) -> dict[str, str]:
        """Return what was changed since and nothing can put back: its kind, by its name."""
        self._looked += 1  # to read a large array takes time: three looks at it are enough
        moved = [
            one for one in self._unkept if (self._looked <= 3 or not one.large) and one.moved()
        ]
        return {self.name_of(one.value, type(one.value).__name__): one.kind for one in moved}

    def name_of(self, value: Any, otherwise: str) -> str:
        """Return the qualified attribute that holds a value, within what is no module its last word alone."""
        paths = {id(module): path for path, module in self.module.named_modules()}
        named = (
            f"{paths[id(thing)]}.{key}".lstrip(".") if id(thing) in paths else key
            for thing, _, attributes in self._objects
            for key, held in attributes.items()
            if held is value
        )
        return next(named, otherwise)

    def _hand_out_copies(self) -> None:
        """Let every holder of an iterator hold a copy of it as it was, the same one for all of its holders."""
        fresh = {key: copied(then) for key, then in self._iterators.items()}
        for thing, _, then in self._objects:
            for name, value in then.items():
                if id(value) in fresh:
                    attributes(thing)[name] = fresh[id(value)]
        for thing, slots in self._slotted:
            for member, value in slots.items():
                if id(value) in fresh:
                    member.__set__(thing, fresh[id(value)])
        for held, items in self._dicts:
            held.update({k: fresh[id(v)] for k, v in items.items() if id(v) in fresh})
        for container, copy in self._containers:
            if isinstance(container, dict):
                for key, value in copy:
                    if id(value) in fresh:
                        container[key] = fresh[id(value)]
            elif isinstance(container, list | collections.deque):
                for place, value in enumerate(copy):
                    if id(value) in fresh:
                        container[place] = fresh[id(value)]

    def _walk(self, value: Any) -> None:
        stack = [value]
        while stack:
            thing = stack.pop()
            if id(thing) in self._seen or opaque(thing) or isinstance(thing, ATOMS):
                continue
            self._seen.add(id(thing))
            self._keep.append(thing)
            if is_tensor(thing):
                if not refuses(thing):
                    self._take_tensor(thing)
            elif isinstance(thing, nn.Module):
                stack.extend(self._take_module(thing))
            elif type(thing) is dict and thing:
                self._dicts.append((thing, dict(thing)))
                stack.extend(thing.values())
            elif isinstance(thing, CONTAINERS):
                items = shallow(thing)
                self._containers.append((thing, items))
                stack.extend([v for _, v in items] if isinstance(thing, dict) else items)
                if type(thing) not in _PLAIN:
                    stack.extend(self._take_object(thing))
            elif isinstance(thing, tuple | frozenset):
                stack.extend(entries(thing))
            else:
                stack.extend(self._take_other(thing))

    def _take_tensor(self, tensor: torch.Tensor) -> None:
        is_parameter = id(tensor) in self._parameter_ids or isinstance(tensor, nn.Parameter)
        state = TensorState.of(tensor, copy=not is_parameter)
        self._tensors[id(tensor)] = state
        if is_parameter:
            self._parameters.append(state)

    def _take_module(self, module: nn.Module) -> Iterable[Any]:
        """Keep what a module holds; return it."""
        if isinstance(module, torch.jit.ScriptModule):
            self._scripts.append(_ScriptState.of(module))
            return [*module.parameters(), *module.buffers()]
        own = dict(module.__dict__)
        self._objects.append((module, type(module), own))
        return [value for value in own.values() if not self._is_empty(value)]

    def _take_other(self, thing: Any) -> Iterable[Any]:
        """Keep what is neither tensor, module nor container; return what it holds."""
        if isinstance(thing, _CALLED):
            if isinstance(thing, types.FunctionType):
                self._cells += [(cell, cell.cell_contents) for cell in cells(thing).values()]
            return within(thing)
        if (put_back := keeper(thing)) is not None:
            self._kept.append(put_back)
            if (drawn := random_state(thing)) is not None:
                self.random.append((thing, drawn))
            return items_of(thing)
        if is_iterator(thing) and (then := copied(thing)) is not None:
            self._iterators[id(thing)] = then
        elif (unkept := Unkept.of(thing)) is not None:
            self._unkept.append(unkept)
        elif is_iterator(thing):
            return within(thing)
        elif not _is_foreign(thing):
            return self._take_object(thing)
        return ()

    def _is_empty(self, value: Any) -> bool:
        """Say whether nothing is in a value, and keep that it is so: the quick way for most of a module's dicts."""
        kind = type(value)
        try:
            if kind in _PLAIN_ATOMS:
                return True
            if kind not in _PLAIN or value:
                return False
        except Exception:  # the hash of a metaclass of the user's
            return False
        if id(value) not in self._seen:
            self._seen.add(id(value))
            self._empty.append(value)
        return True

    def _take_object(self, thing: Any) -> Iterable[Any]:
        """Keep the attributes and slots of an object of the user's; return what they hold."""
        found: list[Any] = []
        if slots := slots_of(thing):
            self._slotted.append((thing, slots))
            found += slots.values()
        if (own := attributes(thing)) is not NONE:
            self._objects.append((thing, type(thing), dict(own)))
            found += own.values()
        return found


@dataclass(frozen=True, slots=True)
class _ScriptState:
    """Mode and buffers of a scripted module and of those in it, which no ``__dict__`` holds."""

    parts: list[tuple[Any, bool, dict[str, torch.Tensor | None]]]

    @classmethod
    def of(cls, module: torch.jit.ScriptModule) -> _ScriptState:
        return cls([(m, bool(m.training), dict(m._buffers.items())) for m in module.modules()])

    def restore(self) -> None:
        for module, training, buffers in self.parts:
            if module.training != training:
                module.training = training
            for name, then in buffers.items():
                if module._buffers[name] is not then:
                    module._buffers[name] = then


def _sharded(module: nn.Module) -> list[Any]:
    """Return the parts of a module that ``fully_shard`` has sharded, the root first."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not fsdp.FSDPModule.__subclasses__():  # sharding makes a class of its own
        return []
    return [part for part in module.modules() if isinstance(part, fsdp.FSDPModule)]


def _reshard(module: nn.Module) -> None:
    """Let every part of a ``fully_shard``ed module hold its shards again.

    A forward leaves the last ones gathered, and one that raised all that ran, and takes itself for running.
    """
    for part in _sharded(module):
        state = part._get_fsdp_state()
        if state._is_root and hasattr(state, "_reset_iter_state"):  # since torch 2.13
            state._reset_iter_state()
        part.reshard()

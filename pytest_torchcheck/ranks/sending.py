"""Sending a model to another process: by pickle, and what stands in an importable contract by its name.

A decorated factory is no longer found under its own name (the contract is), and the loss of a
contract is often a lambda; pickle refuses both. A contract that stands at the top level of a file
is imported again instead.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import sys
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import sources
from ..lean import dataclass
from ..text.printable import message_of

if TYPE_CHECKING:
    from types import ModuleType

    from ..batches import Batch
    from ..contracts import Contract

FIELDS = ("model", "loss", "optimizer", "train_step", "epochs", "save", "load", "wrap", "meta")
PROMISED = {
    "epochs": ("SharesData", "run"),
    "save": ("Checkpoints", "save"),
    "load": ("Checkpoints", "load"),
    "wrap": ("FullyShards", "wrap"),
    "meta": ("FullyShards", "meta"),
}
"""What a program takes from promises: by its own name, class and attribute of the promise."""


def part_of(contract: Contract, part: str) -> Any:
    """Return a part of a contract that ranks are given, or None."""
    if part not in PROMISED:
        return getattr(contract, part)
    kind, attribute = PROMISED[part]
    return next((getattr(p, attribute) for p in contract.promised(kind)), None)


class NotSendable(Exception):
    """A part of the contract cannot be sent to another process.

    Attributes:
        part: Which field of the contract, or ``batch``.
        error: What pickle said.
    """

    def __init__(self, part: str, error: BaseException) -> None:
        first = (message_of(error).splitlines() or [type(error).__name__])[0]
        super().__init__(f"{part}: {first}")
        self.part, self.error = part, error


@dataclass(slots=True, kw_only=True)
class Program:
    """What every rank runs.

    Attributes:
        model: The factory, or the module.
        loss: As in the contract.
        optimizer: As in the contract.
        train_step: As in the contract.
        full: The batch of all ranks.
        shards: One part of it for each rank, of equal sizes.
        micro: Each shard in two halves, or nothing where it cannot be halved.
        seed: Decides every random choice.
        device: ``cpu`` or ``cuda``.
        uneven: Shards of unequal sizes, where the user's loop may deliver such.
        uneven_full: Their samples in one batch.
        epochs: The user's loop over epochs.
        save: Saves a checkpoint.
        load: Loads it.
        sharded: Whether to run under FSDP2 too.
        wrap: The user's way to shard the model.
        meta: Whether, or how, a model built on meta is given memory.
    """

    model: Any
    full: Batch
    shards: list[Batch]
    micro: list[list[Batch]] = field(default_factory=list)
    loss: Any = None
    optimizer: Any = None
    train_step: Any = None
    seed: int = 0
    device: str = "cpu"
    uneven: list[Batch] = field(default_factory=list)
    uneven_full: Batch | None = None
    epochs: Any = None
    save: Any = None
    load: Any = None
    sharded: bool = False
    wrap: Any = None
    meta: Any = None

    @property
    def is_factory(self) -> bool:
        """Say whether the model can be built anew."""
        return not isinstance(self.model, nn.Module)


def _home(contract: Contract) -> tuple[str, str, str] | None:
    """Return the module, its file and the name under which a contract can be imported."""
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or sources.rank(path) < 1:
            continue
        for attribute, value in list(vars(module).items()):
            if value is contract:
                return name, os.path.abspath(path), attribute
    return None


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, contract: Contract) -> None:
        super().__init__(file, protocol=5)
        self.modules: dict[str, str] = {}
        self._home = _home(contract)
        self._parts = {
            id(value): name
            for name in FIELDS
            if (value := part_of(contract, name)) is not None
            and not isinstance(value, nn.Module | str | bool)
        }

    def reducer_override(self, obj: Any) -> Any:
        """Send tensors of a GPU from the CPU: each rank has a device of its own, or none."""
        if (
            isinstance(obj, torch.Tensor)
            and not isinstance(obj, nn.Parameter)  # whose data comes next
            and obj.device.type not in ("cpu", "meta")
        ):
            made = obj.detach().cpu().requires_grad_(obj.requires_grad and obj.is_leaf)
            return made.__reduce_ex__(5)
        return NotImplemented

    def persistent_id(self, obj: Any) -> Any:
        part = self._parts.get(id(obj))
        if part is not None and self._home is not None:
            module, file, attribute = self._home
            self.modules[module] = file
            return module, attribute, part
        name = getattr(obj, "__module__", None) if callable(obj) else type(obj).__module__
        held = sys.modules.get(name) if isinstance(name, str) else None
        path = getattr(held, "__file__", None)
        if isinstance(name, str) and isinstance(path, str) and sources.rank(path) == 2:
            self.modules[name] = os.path.abspath(path)
        return None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        module, attribute, part = pid
        return part_of(getattr(sys.modules[module], attribute), part)


def dump(contract: Contract, program: Program) -> bytes:
    """Pickle a program.

    Raises:
        NotSendable: A part cannot be pickled; it is named.
    """

    def pickled(value: Any) -> tuple[bytes, dict[str, str]]:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, contract)
        pickler.dump(value)
        return buffer.getvalue(), pickler.modules

    try:
        content, modules = pickled(program)
    except Exception as error:  # any object may refuse, in its own words
        for part in FIELDS:
            try:
                pickled(getattr(program, part))
            except Exception as refused:  # as above
                raise NotSendable(part, refused) from None
        raise NotSendable("batch", error) from None
    return pickle.dumps((modules, content))


def load(data: bytes) -> Program:
    """Unpickle a program in a rank, importing the user's files first."""
    modules, content = pickle.loads(data)
    for name, path in modules.items():
        _import(name, path)
    program: Program = _Unpickler(io.BytesIO(content)).load()
    return program


def _import(name: str, path: str) -> ModuleType:
    """Import a module by name where that gives this file, else from the file itself."""
    if name != "__main__":
        try:
            module = importlib.import_module(name)
            if os.path.abspath(getattr(module, "__file__", None) or "") == path:
                return module
        except ImportError:
            pass  # not importable by name (pytest's importlib mode): it is loaded from its file
    # as multiprocessing does, so that ``if __name__ == "__main__"`` does not run again
    own = "__mp_main__" if name == "__main__" else name
    spec = importlib.util.spec_from_file_location(own, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported", name=name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

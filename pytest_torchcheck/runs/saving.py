"""What a model saves: the state dict through a file, what it does not hold, and tensors changed on purpose."""

from __future__ import annotations

import copy
import io
import math
import pickle
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import sources
from ..lean import dataclass
from ..objects import trees
from ..objects.kinds import here
from ..probes.holding.held_by_models import Holding, holdings
from ..state import is_lazy, isolated, seed_everything
from ..text.printable import message_of
from .facts import forward_facts
from .pieces import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..findings import Location
    from ..subject import Subject

SAVE_BYTES = 64 * 2**20
"""State dicts up to this size are written and read whole; of larger ones only the structure is."""
_DICTS = (dict, OrderedDict)
_STAND_IN = torch.zeros(())
_DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


def grown_keys(subject: Subject) -> list[str]:
    """Return the keys of ``state_dict()`` that one forward adds or reshapes."""
    return list(forward_facts(subject).grown)


def refused_after_forward(subject: Subject) -> str:
    """Load the state after one evaluation strictly into a model as built, a new one where there is a factory.

    Returns:
        What the load says of the keys or shapes that do not fit, on one line; empty where it is
        taken, or where the state before the evaluation is refused too.
    """
    with subject.pristine() as model:
        before = _each(model.state_dict(), cloned)
        model.eval()
        seed_everything(subject.seed)
        with torch.no_grad():
            subject.call(model, subject.batch().clone())
        after = _each(model.state_dict(), cloned)
    with subject.pristine(steps=True) as model:
        if subject.contract.is_factory:
            with isolated():
                model = subject.build()
        said = []
        for state in (before, after):
            try:
                model.load_state_dict(state, strict=True)
            except RuntimeError as error:
                said.append(" ".join(message_of(error).split()).partition(": ")[2])
            else:
                said.append("")
    return "" if said[0] else said[1]


def perturb(tensors: Iterable[torch.Tensor]) -> int:
    """Change floating tensors in place, every other element more than its neighbours; positive values stay positive.

    Returns:
        How many were changed. Cost: three passes over their memory.
    """
    changed = 0
    with torch.no_grad():
        for tensor in map(here, tensors):
            if is_lazy(tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            if not trees.computable(tensor) or not tensor.numel():
                continue
            data = tensor.data
            if any(step == 0 < n - 1 for step, n in zip(data.stride(), data.shape, strict=True)):
                continue  # expanded: its elements are one in memory
            size = float(torch.linalg.vector_norm(data.flatten()).float()) / math.sqrt(data.numel())
            size = size if math.isfinite(size) else 1.0
            data.mul_(1.1)
            if data.is_contiguous():
                data.view(-1)[::2].mul_(1.1).add_(0.1 * size + 1e-3)
            else:
                data.add_(0.1 * size + 1e-3)
            changed += 1
    return changed


def registered(model: nn.Module) -> list[torch.Tensor]:
    """Return the parameters and buffers."""
    return [*model.parameters(), *model.buffers()]


def saved_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Return the parameters and buffers that ``state_dict()`` holds under their own names."""
    saved = set(model.state_dict())
    return [
        tensor
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if name in saved
    ]


def trainable_holdings(model: nn.Module) -> list[tuple[str, torch.Tensor, Holding]]:
    """Return what attributes hold that carries learned values: hidden modules' tensors and parameters."""
    return [
        (path, tensor, holding)
        for holding in holdings(model)
        if holding.kind != "tensor" or (holding.value.requires_grad and holding.value.is_leaf)
        for path, tensor in holding.tensors()
    ]


class CheckpointError(Exception):
    """A state dict cannot be written or read.

    Attributes:
        error: What torch raised.
        phase: ``make`` (``state_dict()`` itself), ``save`` or ``load``.
    """

    def __init__(self, phase: str, error: Exception) -> None:
        super().__init__(f"{phase}: {type(error).__name__}: {message_of(error)}")
        self.phase, self.error = phase, error


def through_file(state: Mapping[str, Any], *, alias: bool = False) -> tuple[dict[str, Any], str]:
    """Write a state dict as a checkpoint and read it back as ``torch.load`` does by default.

    Plain tensors are trusted to torch: to read hundreds of small ones costs more than a model's step.

    Args:
        state: What ``state_dict()`` returned.
        alias: A large state, of which only the structure is written, need not be copied.

    Returns:
        The state read back, in new memory, and why ``weights_only=True`` refused it (empty where it
        did not).

    Raises:
        CheckpointError: It can be neither written nor read.
    """
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
    whole = sum(t.numel() * t.element_size() for t in tensors if not is_lazy(t)) <= SAVE_BYTES
    trusted = {k: v for k, v in state.items() if _is_plain(v)} if type(state) in _DICTS else {}
    written: Any
    if whole:
        written = copy.copy(state)
        written.update(dict.fromkeys(trusted, _STAND_IN))
    else:
        written = _each(state, _light)
    buffer = io.BytesIO()
    try:
        torch.save(written, buffer)
    except Exception as error:  # extra state may hold anything
        raise CheckpointError("save", error) from error
    refused = ""
    buffer.seek(0)
    try:
        read = torch.load(buffer, weights_only=True)
    except pickle.UnpicklingError as error:
        refused = _refusal(error)
        buffer.seek(0)
        try:
            read = torch.load(buffer, weights_only=False)
        except Exception as again:
            raise CheckpointError("load", again) from again
    if whole:
        read.update(_copies(trusted))
        return read, refused
    return _each(state, _same if alias else cloned), refused


def _is_plain(value: Any) -> bool:
    """Say whether a value is an ordinary tensor, which fills its memory."""
    if type(value) is not torch.Tensor or value.dtype not in _DTYPES or vars(value):
        return False
    if value.layout is not torch.strided or value.device.type != "cpu" or value.requires_grad:
        return False
    if value.is_conj() or value.is_neg() or not value.is_contiguous():
        return False
    return value.untyped_storage().nbytes() == value.numel() * value.element_size()


def _copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies that share memory where the tensors do."""
    made: dict[int, torch.Tensor] = {}
    found = {}
    for key, tensor in tensors.items():
        own = made.setdefault(trees.address(tensor) or id(tensor), tensor.detach().clone())
        found[key] = own.detach().view(-1).view(tensor.dtype).view(tensor.shape)
    return found


def _refusal(error: Exception) -> str:
    """Say what ``weights_only=True`` refuses: the class where torch names it, else its first line."""
    text = message_of(error)
    named = re.search(r"(?:Unsupported global: GLOBAL|Unsupported class|GLOBAL) ([\w.]+)", text)
    if named is not None:
        return f"an object of class {named[1]}"
    return (text.splitlines() or [type(error).__name__])[0]


def _each(state: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Change every value; the versions of the modules stay with the state dict."""
    made = OrderedDict((key, change(value)) for key, value in state.items())
    if hasattr(state, "_metadata"):
        made._metadata = state._metadata  # type: ignore[attr-defined]
    return made


def _same(value: Any) -> Any:
    return value


def cloned(value: Any) -> Any:
    """Return a copy of a tensor that has values, without a graph; anything else as it is."""
    return (
        value.detach().clone() if isinstance(value, torch.Tensor) and not is_lazy(value) else value
    )


def _light(value: Any) -> Any:
    return value.new_empty(0) if isinstance(value, torch.Tensor) and not is_lazy(value) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A piece of state that a checkpoint does not restore.

    Attributes:
        name: Qualified name.
        kind: ``buffer`` (not persistent), ``tensor``, ``parameter`` or ``attribute`` (a plain
            number or text); ``unsaved`` and ``unloaded`` of what is registered, and what the model's own
            ``state_dict`` leaves out or its loading does not put back.
        location: The line that makes it.
        detail: What was measured of it.
    """

    name: str
    kind: str
    location: Location | None
    detail: str

    @classmethod
    def of(cls, path: str, holding: Holding) -> Lost:
        """Describe a held tensor; of a hidden module, the module."""
        name = holding.path if holding.kind == "module" else path
        kind = (
            "tensor"
            if holding.kind == "tensor" and not holding.value.requires_grad
            else "parameter"
        )
        return cls(
            name=name, kind=kind, location=holding.location, detail=f"held through a {holding.via}"
        )


def lost_state(
    model: nn.Module, fresh: nn.Module
) -> list[tuple[Lost, torch.Tensor | None, torch.Tensor | None]]:
    """Compare what the state dict does not hold in two instances; return what differs, with both tensors."""
    found: list[tuple[Lost, torch.Tensor | None, torch.Tensor | None]] = []
    found += unrestored(model, _named(fresh))
    others = dict(fresh.named_buffers())
    lasting = _named(model)
    for name, buffer in model.named_buffers():
        other = others.get(name)
        if name not in lasting and (other is None or not trees.same(buffer, other)):
            place = _volatile(model, name) or sources.of_parameter(model, name)
            lost = Lost(name=name, kind="buffer", location=place, detail="not persistent")
            found.append((lost, buffer, other))
    theirs = {path: tensor for holding in holdings(fresh) for path, tensor in holding.tensors()}
    for holding in holdings(model):
        for path, tensor in holding.tensors():
            other = theirs.get(path)
            if other is None or not trees.same(tensor, other):
                found.append((Lost.of(path, holding), tensor, other))
    for name, module in model.named_modules():
        found += [(lost, None, None) for lost in _scalars(name, module, fresh)]
    return found


def unrestored(
    model: nn.Module, loaded: Mapping[str, torch.Tensor]
) -> list[tuple[Lost, torch.Tensor | None, torch.Tensor | None]]:
    """Return the parameters and persistent buffers that differ from those that a load left behind.

    Args:
        model: The saved instance.
        loaded: Those after loading, by name.
    """
    saved = set(model.state_dict())
    found: list[tuple[Lost, torch.Tensor | None, torch.Tensor | None]] = []
    for name, tensor in _named(model).items():
        other = loaded.get(name)
        if other is None or trees.same(tensor, other):
            continue
        kind, own, detail = (
            ("unloaded", LOADING, "saved and not put back")
            if name in saved
            else ("unsaved", _SAVING, "not among the entries")
        )
        place = _overridden(model, name, own)
        lost = Lost(name=name, kind=kind, location=place, detail=detail)
        found.append((lost, tensor, other))
    return found


def _named(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return what ``nn.Module.state_dict`` holds of a model by its definition: parameters and persistent buffers."""
    found: dict[str, torch.Tensor] = dict(model.named_parameters())
    for path, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                found[f"{path}.{key}" if path else key] = buffer
    return found


_SAVING = ("state_dict", "_save_to_state_dict")
LOADING = ("load_state_dict", "_load_from_state_dict")


def _overridden(model: nn.Module, name: str, methods: Iterable[str]) -> Location | None:
    """Return the line of the innermost module around an entry whose class has its own way to save or load."""
    place = None
    module = model
    for part in [*name.split(".")[:-1], ""]:
        for method in methods:
            if getattr(type(module), method) is not getattr(nn.Module, method):
                place = sources.of_object(getattr(type(module), method))
        module = getattr(module, part, module) if part else module
    return place


def _volatile(model: nn.Module, name: str) -> Location | None:
    """Return the line that registers a buffer as not persistent, where one line says both."""
    path, _, word = name.rpartition(".")
    owner = model.get_submodule(path)
    pattern = rf"register_buffer\(\s*[\"']{re.escape(word)}[\"'].*persistent\s*=\s*(?!True)"
    found = (sources.search(cls, pattern) for cls in type(owner).__mro__ if cls is not nn.Module)
    return next(filter(None, found), None)


def _scalars(name: str, module: nn.Module, fresh: nn.Module) -> list[Lost]:
    try:
        twin = fresh.get_submodule(name)
    except AttributeError:
        return []
    lost = []
    for key, value in vars(module).items():
        if key == "training" or (key.startswith("_") and key in vars(nn.Module())):
            continue
        ours, theirs = plain(value), plain(vars(twin).get(key))
        if ours is not None and theirs is not None and ours != theirs:
            path = f"{name}.{key}" if name else key
            place = sources.of_assignment(module, key)
            lost.append(
                Lost(
                    name=path,
                    kind="attribute",
                    location=place,
                    detail=f"{ours:.40} against {theirs:.40}",
                )
            )
    return lost


def copy_over(pairs: Iterable[tuple[Lost, torch.Tensor | None, torch.Tensor | None]]) -> list[Lost]:
    """Give the fresh instance the values that it lacks; return those that could be given."""
    given = []
    with torch.no_grad():
        for lost, ours, theirs in pairs:
            if (
                ours is not None
                and theirs is not None
                and ours.shape == theirs.shape
                and ours.dtype == theirs.dtype
            ):
                theirs.data.copy_(ours.data)
                given.append(lost)
    return given

"""Tensors on different devices, meta tensors without data, GPU code on a machine without one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import Explanation, on_line
from ...findings import Culprit
from ...sources import edits
from ...state.tensors import named_tensors
from ..crashes.layers import named_source
from ..crashes.table import entry

if TYPE_CHECKING:
    from ...findings import Location
    from ..crashes.history import Fact, Op
    from ..crashes.scene import Scene


def _kind(device: str) -> str:
    return device.partition(":")[0]


def stray_tensors(model: torch.nn.Module | None, device: str = "") -> dict[str, torch.Tensor]:
    """Return tensors that are plain attributes of modules (also in lists, tuples and dicts), by name.

    Args:
        model: The root module.
        device: Only those on this type of device; all by default.
    """
    found: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules() if model is not None else ():
        for key, value in vars(module).items():
            if key.startswith("_") and key in ("_parameters", "_buffers", "_modules"):
                continue
            items = {key: value}
            if isinstance(value, list | tuple):
                items = {f"{key}[{place}]": item for place, item in enumerate(value)}
            elif isinstance(value, dict):
                items = {f"{key}[{name!r}]": item for name, item in value.items()}
            for name, item in items.items():
                if isinstance(item, torch.Tensor) and (not device or item.device.type == device):
                    found[f"{path}.{name}" if path else name] = item
    return found


def attribute_line(model: torch.nn.Module | None, name: str) -> Location | None:
    """Return the line that assigns a module's attribute, by qualified name."""
    if model is None:
        return None
    path, _, attribute = name.split("[", 1)[0].rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:
        return None
    return sources.of_assignment(owner, attribute)


def _origin(fact: Fact | None, device: str) -> Op | None:
    """Return the op that first made a tensor on this device, along its history."""
    for _ in range(60):
        if fact is None or fact.made_by is None:
            return None
        source = next((f for f in fact.made_by.inputs if _kind(f.device) == device), None)
        if source is None:
            return fact.made_by
        fact = source
    return None


@entry(
    r"Expected all tensors to be on the same device, but found at least two devices, (?P<a>[\w:]+) and (?P<b>[\w:]+)",
    r"Expected all tensors to be on the same device, but got \w+ is on (?P<a>[\w:]+), different from other tensors on (?P<b>[\w:]+)",
    r"expected \w+ and \w+ to be on the same device, but got \w+ on (?P<a>[\w:]+) and \w+ on (?P<b>[\w:]+)",
    r"Tensor on device (?P<a>[\w:]+) is not on the expected device (?P<b>[\w:]+)!",
    r"Input type \(torch\.(?P<a>cuda\.)?\w+Tensor\) and (?:bias|weight) type \(torch\.(?P<b>cuda\.)?\w+Tensor\) should be the same",
    r"indices should be either on cpu or on the same device as the indexed tensor \((?P<b>\w+)\)",
    r"Expected (?:condition, x and y|a '?\w+'? device type) .*(?:same device|but found|got)",
    r"Unhandled FakeTensor Device Propagation for [\w.]+, found two different devices (?P<a>[\w:]+), (?P<b>[\w:]+)",
)
def pair(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Tensors of two devices in one op."""
    named = {key: (value or "cpu").rstrip(".") for key, value in match.groupdict().items()}
    first, second = named.get("a", "cpu"), named.get("b", "cpu")
    if first == second and "Input type" in match[0]:
        return None  # a pair of dtypes on one device
    home = _home(scene) or _kind(scene.device)
    op = scene.failing_op
    facts = op.inputs if op is not None else ()
    odd, stray_device = _stray_operand(facts, home, first, second)
    call = scene.location
    observed = (
        ", ".join(f"{f.name or 'tensor'} {list(f.shape)} on {f.device}" for f in facts[:4])
        or f"{first} and {second}"
    )
    strays = stray_tensors(scene.model, stray_device)
    name = named_source(odd)
    if not name and odd is not None:
        name = _attribute_name(strays, odd)
    if not name and odd is None and len(strays) == 1:
        name = next(iter(strays))
    where = f"{scene.at} combines tensors on {home} and {stray_device}"
    if name in strays:
        return _stray_attribute(scene, name, stray_device, home, observed, strays, call)
    if name in scene.inputs:
        return _input_elsewhere(name, stray_device, home, observed, scene, call)
    part = _part_elsewhere(scene, name, home)
    if part is not None:
        return _two_places(scene, *part, home, observed)
    maker = _origin(odd, stray_device)
    made_at = maker.location if maker is not None else None
    if maker is not None and made_at is not None:
        return _made_elsewhere(made_at, maker, stray_device, home, observed, scene)
    hint = f" (likely one of {', '.join(list(strays)[:3])})" if strays else ""
    return scene.explain(
        code="device-pair",
        summary=where,
        observed=observed,
        cause=(
            f"one operand is on {stray_device}{hint}: an input that was not moved, a tensor "
            "created without device=, or an attribute that is not a buffer"
        ),
        fix=f"move that operand to the device of the other one{scene.on_line}",
        culprits=scene.blame()
        + tuple(
            Culprit("tensor", n, location=attribute_line(scene.model, n)) for n in list(strays)[:3]
        ),
    )


def _stray_operand(
    facts: tuple[Fact, ...], home: str, first: str | Any, second: str | Any
) -> tuple[Fact | None, str]:
    """Return the operand on another device, and that device's kind."""
    # 0-dimensional CPU tensors may be combined with tensors of any device
    odd = next(
        (f for f in facts if _kind(f.device) != home and (f.shape or _kind(f.device) != "cpu")),
        None,
    )
    stray_device = (
        _kind(odd.device) if odd is not None else _kind(first if _kind(first) != home else second)
    )
    return odd, stray_device


def _input_elsewhere(
    name: str, stray_device: str, home: str, observed: str, scene: Scene, call: Location | None
) -> Explanation | None:
    """Explain an input that was not moved."""
    return scene.explain(
        code="device-pair",
        summary=f"input {name} is on {stray_device}, the model on {home}",
        observed=observed,
        cause=f"{name} was not moved to the device of the model",
        because=f"{name} is on {stray_device} when the model is called; {scene.said}",
        fix=f"call {name}.to(device) before the model",
        culprits=(
            Culprit("input", name, f"on {stray_device}"),
            *scene.call_culprit(),
        ),
        location=call,
    )


def _stray_attribute(
    scene: Scene,
    name: str,
    stray_device: str,
    home: str,
    observed: str,
    strays: dict[str, torch.Tensor],
    call: Location | None,
) -> Explanation | None:
    """Explain a plain attribute that does not move with the model."""
    made = attribute_line(scene.model, name)
    attribute = name.rpartition(".")[2]
    return scene.explain(
        code="device-pair",
        summary=f"{name} stays on {stray_device} when the model is moved to {home}",
        observed=observed,
        cause=(
            f"{name} is a plain attribute, neither parameter nor buffer, so that .to() does "
            "not move it"
        ),
        because=(
            f"the attribute is on {strays[name].device}, the parameters are on {home}; {scene.said}"
        ),
        fix=(
            f'write self.register_buffer("{attribute}", ..., persistent=False) for '
            f"self.{attribute} = ...{on_line(made)}"
        ),
        culprits=(
            Culprit("tensor", name, f"on {strays[name].device}", made),
            *scene.call_culprit(),
        ),
        location=made or call,
    )


def _made_elsewhere(
    made_at: Location, maker: Op, stray_device: str, home: str, observed: str, scene: Scene
) -> Explanation | None:
    """Explain a tensor that a factory makes on another device."""
    holder = made_at.function.rpartition("<locals>.")[2] or maker.name
    return scene.explain(
        code="device-pair",
        summary=(
            f"{holder} creates a tensor on {stray_device} while the model is on {home} "
            f"({maker.name})"
        ),
        observed=observed,
        cause=(
            f"{maker.name} on line {made_at.line} creates its tensor on {stray_device}, "
            "regardless of the model's device"
        ),
        because=f"the history of the {stray_device} operand begins with {maker.name}; {scene.said}",
        fix=f"give {maker.name} {edits.device_at(made_at)} on line {made_at.line}",
        culprits=(
            Culprit("call", holder, f"{maker.name} on {stray_device}", made_at),
            *scene.blame(),
            *scene.meeting(made_at),
        ),
        location=made_at,
    )


def _part_elsewhere(scene: Scene, name: str, home: str) -> tuple[str, str] | None:
    """Return the part of the model that a registered tensor belongs to, and where it is, if that is elsewhere."""
    if scene.model is None or not name:
        return None
    held = named_tensors(scene.model)
    if name not in held or held[name].device.type == home:
        return None
    return name.rpartition(".")[0] or name, str(held[name].device)


def _two_places(scene: Scene, part: str, device: str, home: str, observed: str) -> Explanation:
    """Explain a model of which a part stands on another device than the rest."""
    _call, model = scene.location, scene.model
    own = re.escape(part.rpartition(".")[2])
    moved = (
        sources.search(type(model), rf"\b{own}\b.*\.(?:to|cuda|cpu)\(")
        if model is not None
        else None
    )
    return scene.explain(
        code="device-pair",
        summary=f"{part} is on {device}, the rest of the model on {home}",
        observed=observed,
        cause=(
            f"only a part of the model was moved{on_line(moved)}, or the tensors passed between "
            "parts were not"
        ),
        because=f"{part} is registered, and is on {device}; {scene.said}",
        fix="move the model as a whole with .to(device)"
        + (
            f", or its input {part}{scene.on_line}: x.to({part}.weight.device)"
            if part in dict(model.named_modules() if model is not None else ())
            else ""
        ),
        culprits=(
            Culprit("module", part, f"on {device}", moved),
            *scene.call_culprit(),
        ),
        location=moved,
    )


def _attribute_name(strays: dict[str, torch.Tensor], odd: Fact) -> str:
    """Return the attribute that shares the stray operand's memory, or the only one of its shape."""
    for name, tensor in strays.items():
        plain = tensor.device.type != "meta" and tensor.layout == torch.strided
        if odd.storage and plain and tensor.untyped_storage().data_ptr() == odd.storage:
            return name
    alike = [name for name, tensor in strays.items() if tuple(tensor.shape) == odd.shape]
    return alike[0] if len(alike) == 1 and odd.made_by is None else ""


def _home(scene: Scene) -> str:
    """Return the type of device that most of the model's parameters are on, or empty."""
    counts: dict[str, int] = {}
    for parameter in scene.model.parameters() if scene.model is not None else ():
        counts[parameter.device.type] = counts.get(parameter.device.type, 0) + 1
    return max(counts, key=lambda kind: counts[kind]) if counts else ""


@entry(r"Tensor\.item\(\) cannot be called on meta tensors",
       r"can't convert (?P<device>\w+?)(?:: ?\d+)?(?: device)?(?: type)? tensor to numpy",
       r"Cannot copy out of meta tensor; no data!",
       r"aten::_local_scalar_dense.*(?:meta|FakeTensor)")  # fmt: skip
def no_data(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A value is read from a tensor that is on another device, or has no data."""
    numpy = "numpy" in match[0]
    meta = "meta" in match[0] or scene.device == "meta"
    if "copy out" in match[0]:
        return scene.explain(
            code="meta-no-data",
            summary=f"{scene.at}: a tensor on meta has no data to copy",
            observed=scene.first_line,
            cause="parameters or buffers were created on the meta device and never initialised",
            fix=(
                "use to_empty(device=...) and initialise, or build without the meta "
                f"device{scene.on_line}"
            ),
        )
    word = ".numpy()" if numpy else ".item(), bool(), int() or a branch on a tensor"
    return scene.explain(
        code="numpy-on-device" if numpy else "host-sync",
        summary=f"{scene.at} reads a tensor's value on the host{' with .numpy()' if numpy else ''}",
        observed=scene.first_line,
        cause=f"{word} needs the value on the CPU"
        + (
            ": on a GPU this waits for the device"
            if meta and not numpy
            else ", and the tensor is elsewhere"
        ),
        fix=f"call .cpu() first{scene.on_line}"
        if numpy
        else f"compute with tensor ops (torch.where) instead{scene.on_line}",
    )


@entry(r"Torch not compiled with CUDA enabled", r"Found no NVIDIA driver on your system", r"No CUDA GPUs are available",
       r"invalid device ordinal",
       r"Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False")  # fmt: skip
def no_gpu(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A device that this machine does not have, written into the code."""
    load, few = "deserialize" in match[0], "ordinal" in match[0]
    return scene.explain(
        code="device-hard-coded",
        summary=f"{scene.at} needs {'a GPU' if few else 'CUDA'}, which is not available here",
        observed=(
            f"torch.cuda.is_available() is {torch.cuda.is_available()}, "
            f"{torch.cuda.device_count()} GPUs; the model runs on {scene.device}"
        ),
        cause="a checkpoint was saved on a GPU and is loaded without map_location"
        if load
        else f"the device cuda{', with its number,' if few else ''} is hard-coded",
        fix=f'write map_location="cpu"{scene.on_line}'
        if load
        else f"take the device from the data (x.device) or the parameters{scene.on_line}",
    )

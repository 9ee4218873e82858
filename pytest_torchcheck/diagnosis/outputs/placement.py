"""Tensors that stay on the CPU, are made there or handed to NumPy, explained."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding, Location
from ...probes.holding.held_by_models import given_to_init
from ...runs.hidden import hidden
from ...runs.portability import Portability, numpy_line
from ...sources import edits
from ...verdicts import explained, suspicious, violated

if TYPE_CHECKING:
    from ...probes.holding.held_by_models import Holding
    from ...probes.placement import Mixture, Stray
    from ...subject import Subject


_DEVICES = re.compile(
    r"\bdevice\b|\.cuda\(|\.to\((?!\s*(dtype|torch\.(float|double|half|bfloat|int|long|bool)))"
)


def placed_by_hand(holding: Holding) -> Location | None:
    """Return the line of the method that assigns an attribute which speaks of devices, or None.

    Such code may well put the tensor where it belongs on a machine with a GPU.
    """
    place = holding.location
    if place is None:
        return None
    for cls in type(holding.owner).__mro__:
        for function in vars(cls).values():
            if not inspect.isfunction(function) or inspect.getsourcefile(function) != place.file:
                continue
            try:
                lines, start = inspect.getsourcelines(function)
            except (OSError, TypeError):
                continue
            if start <= place.line < start + len(lines):
                return _spoken(lines, start, place)
    return None


def _spoken(lines: list[str], start: int, place: Location) -> Location | None:
    """Return the first statement of a method that speaks of devices; comments and the docstring do not count."""
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    if any(argument.arg == "device" for argument in (*tree.args.args, *tree.args.kwonlyargs)):
        return sources.of_line(place.file, start, place.function)
    for node in tree.body[1:] if ast.get_docstring(tree) else tree.body:
        if _DEVICES.search(ast.unparse(node)):
            return sources.of_line(place.file, start - 1 + node.lineno, place.function)
    return None


def explain(subject: Subject, mixture: Mixture, evidence: Portability) -> Finding:
    """Turn one mixture of devices into a finding, ``violated`` only where the facts leave no other reading."""
    if mixture.stray is None:
        return _numpy(mixture)
    match mixture.stray.kind:
        case "attribute":
            return _attribute(subject, mixture, mixture.stray, evidence)
        case "factory" | "literal":
            return _factory(mixture, mixture.stray)
        case "fixed" | "generator":
            return _fixed(subject, mixture, mixture.stray)
    return _foreign(mixture, mixture.stray, evidence)


def _where(mixture: Mixture) -> str:
    inside = f" in {mixture.module}" if mixture.module else ""
    return f"{mixture.op}{inside}"


def _call(mixture: Mixture) -> Culprit:
    return Culprit("call", mixture.op, "receives both devices", mixture.location)


def _says(stray: Stray) -> str:
    return f"{stray.dtype} {list(stray.shape)}"


def _attribute(subject: Subject, mixture: Mixture, stray: Stray, evidence: Portability) -> Finding:
    holding = evidence.held[stray.name]
    hand = placed_by_hand(holding)
    line = on_line(stray.location)
    what = "a plain attribute" if holding.via == "attribute" else f"held through a {holding.via}"
    fields: dict[str, Any] = {
        "culprits": [
            Culprit("tensor", stray.name, f"{_says(stray)} on cpu", stray.location),
            _call(mixture),
        ],
        "observed": f"{stray.name} is {_says(stray)} on cpu after model.to(...); {_where(mixture)} "
        "uses it with tensors "
        "of the model's device",
        "evidence": {"op": mixture.op, "via": holding.via, "meta": evidence.meta.kind},
    }
    if hand is not None and holding.kind == "tensor":
        return suspicious(
            "tensor-placed-by-hand",
            f"{stray.name} does not move with the model; it is placed by hand",
            cause=f"{stray.name} is {what}, neither parameter nor buffer",
            because=f"line {hand.line} handles devices ({hand.text}), so it may be on the right "
            "device on a GPU",
            fix=f'write self.register_buffer("{holding.word}", ..., persistent=False){line}',
            **fields,
        )
    trained = holding.path in hidden(subject).trained
    cause, fix = _left_behind(holding, trained, stray, what, line)
    if holding.kind == "module" and not trained:
        return suspicious(
            "module-placed-by-hand",
            f"{holding.path} does not move with the model: it is not registered",
            cause=cause,
            because="it receives no gradient, like a helper network that is hidden on purpose "
            "and moved by hand",
            fix=fix,
            **fields,
        )
    code = "module-hidden" if holding.kind == "module" else "parameter-hidden"
    # whoever builds the model chooses the device of what it is given
    given = not trained and given_to_init(subject.model, stray.name)
    return (suspicious if given else violated)(
        "cpu-tensor",
        f"{stray.name} stays on the CPU when the model is moved to a GPU",
        cause=cause,
        because=(
            f'after model.to("meta") it is still on cpu, and {_where(mixture)} needs all its '
            "tensors on one device"
        ),
        fix=fix,
        root=f"registration/{code}" if trained else None,
        **fields,
    )


def _left_behind(
    holding: Holding, trained: bool, stray: Stray, what: str, line: str
) -> tuple[str, str]:
    """Return why a holding stays where it is, and what to write instead."""
    if holding.kind == "tensor" and not trained:
        cause = (
            f"{stray.name} is {what}, neither parameter nor buffer, so .to() and .cuda() leave "
            "it behind"
        )
        fix = f'write self.register_buffer("{holding.word}", ..., persistent=False){line}'
    elif holding.kind == "tensor":
        cause = (
            f"{stray.name} is a tensor, not an nn.Parameter, so .to() and .cuda() leave it behind"
        )
        fix = f"write self.{holding.word} = nn.Parameter(...){line}"
    else:
        cause = f"{holding.path} is {what}, not registered, so .to() and .cuda() leave it behind"
        fix = (
            f"hold {holding.attribute} in an nn.ModuleList, ModuleDict, ParameterList or an "
            f"attribute of its own{line}"
        )
    return cause, fix


def _moved_at(place: Location | None) -> str:
    code = edits.like_tensor(place, "device")
    move = edits.written(f".to({code})" if code else "", place, "")
    return f"add {move}" if move else "move it to the device of the other operand"


def _factory(mixture: Mixture, stray: Stray) -> Finding:
    place = stray.location
    holder = place.function.rpartition("<locals>.")[2] if place and place.function else stray.name
    line = on_line(place)
    literal = stray.kind == "literal"
    return violated(
        "cpu-literal" if literal else "cpu-factory",
        f"{holder} creates a tensor on the CPU ({stray.name}) and uses it with the model's tensors",
        culprits=[
            Culprit("call", holder, f"{stray.name} gives {_says(stray)} on cpu", place),
            _call(mixture),
        ],
        observed=(
            f"{stray.name} gives {_says(stray)} on cpu; {_where(mixture)} combines it with "
            "tensors of the model's device"
        ),
        cause=f"{stray.name}{line} "
        + ("names the CPU" if literal else "has no device=, so it uses the CPU"),
        because=f"in a run that treats model and inputs as tensors on {torch.device('cuda', 0)}, "
        f"only this operand is on the CPU, and {mixture.op} needs all its tensors on one "
        "device",
        fix=f"give {stray.name} {edits.device_at(place)}{line}"
        if not literal
        else f"use the device of the input{line}",
        evidence={"op": mixture.op},
    )


def _fixed(subject: Subject, mixture: Mixture, stray: Stray) -> Finding:
    place = stray.location
    line = on_line(place)
    if stray.kind == "generator":
        return suspicious(
            "device-fixed",
            f"{stray.name}{line} draws from a generator on the CPU, not on the input's device",
            culprits=[Culprit("call", stray.name, location=place), _call(mixture)],
            observed="what is drawn is on the CPU while the model's tensors are treated as GPU tensors; "
            f"{_where(mixture)} combines them",
            cause="a torch.Generator stays on the device that it was created for, and draws there only",
            because="the call has generator= and no device=; model.to(...) does not move a generator",
            fix=f"{_moved_at(place)} to what is drawn{line}; for a model that never leaves the CPU, "
            'declare devices=("cpu",)',
        )
    stale = _stale(subject, mixture, stray)
    made = suspicious if stale is None else violated
    return made(
        "device-fixed",
        f"{stray.name}{line} puts a tensor on a fixed device, not on the input's device",
        culprits=[
            Culprit("call", stray.name, location=place),
            *([Culprit("device", f"self.{stale[0]}", location=stale[1])] if stale else []),
            _call(mixture),
        ],
        observed="it uses the CPU while the model's tensors are treated as GPU tensors; "
        f"{_where(mixture)} combines them",
        cause=f"self.{stale[0]} is set when the model is built, and model.to(...) does not change it"
        if stale
        else "the device comes from a global or an attribute that does not follow model.to(...)",
        because=f"line {stale[1].line} sets it once: {stale[1].text}"
        if stale
        else "the call has a device argument that is not the device of the inputs",
        fix=f"use {edits.device_at(stray.location)}{line}",
    )


def _stale(subject: Subject, mixture: Mixture, stray: Stray) -> tuple[str, Location] | None:
    """Return the attribute that a call takes its device from, and the line that fixes it to where the model is built."""
    if stray.location is None:
        return None
    named = re.search(r"(?:device=|\.to\()\s*self\.(\w+)", stray.location.text)
    owner = dict(subject.model.named_modules()).get(mixture.module)
    if named is None or owner is None:
        return None
    place = sources.of_assignment(owner, named[1])
    if place is None or "is_available" in place.text:
        return None
    return (named[1], place) if re.search(r"\.device\b|[\"']cpu[\"']", place.text) else None


def _foreign(mixture: Mixture, stray: Stray, evidence: Portability) -> Finding:
    maker = numpy_line(mixture.location)
    agrees = evidence.meta.kind == "mixed"
    made = violated if maker is not None or agrees else suspicious
    line = on_line(maker)
    return made(
        "cpu-tensor",
        f"{_where(mixture)} uses a CPU tensor with the model's tensors",
        culprits=[_call(mixture)],
        location=maker or mixture.location,
        observed=f"{_says(stray)} on cpu, created outside torch",
        cause=f"the tensor{line} is created from NumPy or Python data and not moved",
        because=f"line {maker.line} creates it: {maker.text}"
        if maker
        else (
            "no torch operation created it; "
            f"{evidence.meta.message or 'the run on meta did not raise'}"
        ),
        fix=f"{_moved_at(maker or mixture.location)}{line or ' where it is created'}",
    )


def _numpy(mixture: Mixture) -> Finding:
    return violated(
        "numpy-on-device",
        f"{_where(mixture)} passes a tensor on the model's device to NumPy",
        culprits=[Culprit("call", mixture.op, location=mixture.location)],
        observed=f"{mixture.op} is called on a tensor that would be on a GPU",
        cause=(
            "NumPy cannot read a GPU's memory; torch raises \"can't convert cuda:0 device type "
            'tensor to numpy"'
        ),
        because="in a run that treats model and inputs as GPU tensors, this is one of these tensors",
        fix="use torch operations, or call .cpu() first",
    )


def meta_finding(evidence: Portability) -> Finding:
    """Report a mixture that only the meta device saw: its kernels are stricter here than the pretence."""
    known = evidence.meta.explanation
    if known is None:
        return suspicious(
            "meta-mixed",
            f"on meta, the model mixes devices: {evidence.meta.message}",
            location=evidence.meta.location,
            observed=evidence.meta.message,
            cause="a tensor on this line is not on the device of the model",
            because="the run on meta raised this; the simulated GPU run could not identify the "
            "tensor",
            fix="create every tensor of this line on the device of the input",
        )
    return explained(known, "suspicious")

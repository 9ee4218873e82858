"""Calls that Python or nn.Module refuses: wrong arguments, missing forward, missing super().__init__."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ... import sources
from ...explanation import Explanation, describe, listed, on_line
from ...findings import Culprit, Location
from ...objects import trees
from ...text.wording import nearest
from ..crashes.table import entry
from ..lines.layer_sizes import building_line

if TYPE_CHECKING:
    from ..crashes.scene import Scene


def _called_module(scene: Scene, class_name: str) -> nn.Module | None:
    return next(
        (m for m in reversed(scene.running) if type(m).__name__ == class_name.rpartition(".")[2]),
        None,
    )


def _signature(cls: type[Any]) -> str:
    try:
        names = [str(p) for p in list(inspect.signature(cls.forward).parameters.values())[1:]]
    except (TypeError, ValueError):
        return "?"
    return ", ".join(names)


@entry(r"(?<![\w.<>])([\w.<>]+)\.forward\(\) (missing \d+ required .*|got an unexpected keyword argument .*|takes .* positional arguments? but .*|got multiple values for argument .*|got some positional-only .*)",
       types=("TypeError",))  # fmt: skip
def signature(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A forward that is called with other arguments than it takes."""
    module = _called_module(scene, match[1])
    cls = type(module) if module is not None else None
    defined = sources.of_object(cls.forward) if cls is not None else None
    if defined is not None and not sources.rank(defined.file):
        defined = None
    takes = _signature(cls) if cls is not None else "?"
    root = module is scene.model or module is None or not scene.path_of(module)
    given = listed(list(scene.inputs), 6) if root else ""
    call = scene.location
    problem = match[2]
    name = scene.name_of(module) or match[1]
    observed = f"{match[1]}.forward takes ({takes})" + (
        f"; the contract gives {given}" if given else ""
    )
    names = re.findall(r"'(\w+)'", problem)
    if problem.startswith("missing"):
        cause, fix = _not_given(names, root, defined, call)
    elif "unexpected" in problem:
        close = _closest(names[0], takes) if names else ""
        cause = f"forward has no argument {listed(names)}" + (
            f"; {close} is close" if close else ""
        )
        fix = (
            f"rename it in the contract's inputs{' to ' + close if close else ''}"
            if root
            else f"rename it{scene.on_line}"
        )
    elif "multiple values" in problem:
        cause = f"{listed(names)} is given by position and by name"
        fix = f"give {listed(names)} once{scene.on_line}"
    else:
        numbers = re.findall(r"\d+", problem)
        # Python counts self
        counted = [str(int(n) - 1) for n in numbers]
        cause = (
            f"forward takes {' to '.join(counted[:-1]) or '?'} inputs, "
            f"{counted[-1] if counted else '?'} are given"
        )
        fix = _fewer(scene, cls) if root else f"drop an argument{scene.on_line}"
        if not root and "Sequential" in [type(m).__name__ for m in scene.running]:
            fix += " (Sequential passes on one value)"
    return scene.explain(
        code="forward-arguments",
        summary=f"{name} cannot be called: forward() {problem}"[:170],
        observed=observed,
        cause=cause,
        because=scene.said.replace("torch said", "Python said"),
        fix=fix,
        culprits=(Culprit("module", name, f"forward({takes})", defined),),
        location=defined if root else call or defined,
    )


def _not_given(
    names: list[Any], root: bool, defined: Location | None, call: Location | None
) -> tuple[str, str]:
    """Say what is not given, and where to give it."""
    cause = f"{listed(names)} {'is' if len(names) == 1 else 'are'} not given"
    fix = (
        (
            f"declare inputs={{... {names[0]!r}: ...}} in the contract, or give {names[0]} "
            f"a default{on_line(defined)}"
        )
        if root and names
        else f"give {listed(names)} in the call{on_line(call)}"
    )
    return cause, fix


def _fewer(scene: Scene, cls: type[Any] | None) -> str:
    """Return the fix of a model that is given more positional inputs than its forward takes."""
    try:
        parameters = list(inspect.signature(getattr(cls, "forward", None)).parameters.values())[1:]  # type: ignore[arg-type]
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if named:
        return f"give {listed(named)} by name: inputs={{{named[0]!r}: ...}} in the contract"
    fix = (
        "declare as many inputs in the contract as forward takes; what the loss or the train_step "
        "reads besides belongs to the targets"
    )
    batch = scene.batch
    if getattr(batch, "origin", "") == "real" and getattr(batch, "targets", None) is None:
        inside = positional[0].name if len(positional) == 1 else "inputs"
        fix += f": batch=({inside}, targets), a pair"
    return fix


def _closest(name: str, takes: str) -> str:
    return nearest(name, re.findall(r"(?:^|, )\**(\w+)", takes)) or ""


@entry(r"the factory must return an nn.Module; it returned (?:the (class) (\w+)|a value of type (\w+))",
       r"the optimizer function must return an optimizer; got None()()()", types=("TypeError",))  # fmt: skip
def not_built(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A factory that returns a class, or nothing; an optimizer function that returns nothing."""
    what = "optimizer" if scene.phase == "step" else "model"
    if match[1]:
        cause, fix = f"the class {match[2]} is returned, no instance", f"return {match[2]}(...)"
    elif match[3] in ("NoneType", ""):
        cause, fix = f"the function ends without a return of the {what}", f"return the {what}"
    else:
        cause, fix = f"a value of type {match[3]} is returned, not a model", "return the model"
    return scene.explain(
        code="crash",
        summary=match[0],
        observed=f"phase: {scene.phase}",
        cause=cause,
        because=f"the message is {scene.first_line!r}",
        fix=f"{fix} in the function",
        culprits=(),
    )


@entry(r"Module \[(\w+)\] is missing the required \"forward\" function")
def forward_missing(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A module without forward: often a misspelt or badly indented one, or a ModuleList that is called."""
    module = _called_module(scene, match[1]) or scene.module
    cls = type(module) if module is not None else None
    name = scene.name_of(module) or match[1]
    container = match[1] in ("ModuleList", "ModuleDict")
    place = sources.of_object(cls) if cls is not None else None
    if place is not None and not sources.rank(place.file):
        place = None
    near = ""
    if cls is not None and not container:
        near = nearest("forward", [n for n in vars(cls) if callable(vars(cls)[n])]) or ""
    call = scene.location
    if container:
        cause = f"a {match[1]} only stores modules"
        fix = (
            "loop over it, or build an "
            f"nn.Sequential{on_line(building_line(scene.model, scene.path_of(module)))}"
        )
    elif near:
        cause, fix = f"the class defines {near}, not forward", f"rename {near} to forward"
        place = sources.of_object(vars(cls)[near]) or place
    else:
        cause = "the class defines no forward (a wrong indentation may have put it inside __init__)"
        fix = "define forward in the class"
    return scene.explain(
        code="forward-missing",
        summary=f"{name} has no forward" + (f", it has {near}" if near else ""),
        observed=f"{match[1]} defines {_methods(cls)}" if cls is not None else f"class {match[1]}",
        cause=cause,
        fix=fix + (on_line(place) if near else ""),
        culprits=(Culprit("module", name, "no forward", place),),
        location=place if not container else call,
    )


def _methods(cls: type[nn.Module]) -> str:
    own = [name for name, value in vars(cls).items() if inspect.isfunction(value)]
    return listed(own, 6) or "no methods"


@entry(
    r"cannot assign (?:module|parameters?|buffer)s? before Module\.__init__\(\) call",
    r"'(\w+)' object has no attribute '_(?:modules|parameters|buffers)'",
)
def no_super(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A module whose __init__ does not call super().__init__() first."""
    place = scene.location
    owner = next(
        (
            frame.f_locals.get("self")
            for frame, _ in reversed(scene.frames)
            if frame.f_code.co_name == "__init__"
        ),
        None,
    )
    cls = (
        type(owner).__name__
        if owner is not None
        else (match[1] if match.groups() else "the module")
    )
    init = sources.of_object(type(owner).__init__) if owner is not None else None
    return scene.explain(
        code="super-init-missing",
        summary=f"{cls}.__init__ assigns a layer before super().__init__()",
        observed=(
            f"{place.text if place else cls} ran before nn.Module had created its registries of "
            "modules and parameters"
        ),
        cause="nn.Module's __init__ was not called, so nothing can be registered",
        fix="write super().__init__() as the first line of __init__"
        + (f" (line {init.line + 1})" if init else ""),
        culprits=(Culprit("module", cls, location=init),),
        location=place or init,
    )


@entry(
    r"(?<!\w)(\w+)\(\)?:? ?argument '(\w+)' (?:\(position \d+\) )?must be (?:a )?Tensor,? not (\w[\w.]*)",
    types=("TypeError",),
)
def not_tensor(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Something else than a tensor given to a torch function."""
    function, argument, kind = match[1], match[2], match[3]
    cause = {
        "tuple": "it received a tuple, such as the output and the state of an LSTM",
        "NoneType": "a function without return, or a missing input, gives None",
        "ndarray": "the model received a NumPy array",
        "numpy.ndarray": "the model received a NumPy array",
        "list": "it received a list of tensors",
        "dict": "it received a dict of tensors instead of one entry",
    }.get(kind, f"it received a {kind}")
    fix = {
        "tuple": f"take the first element ([0]) before {scene.at}",
        "NoneType": f"return a value, or skip {scene.at} when the input is None",
        "ndarray": "convert it with torch.from_numpy",
        "numpy.ndarray": "convert it with torch.from_numpy",
        "list": "stack the list first (torch.stack)",
    }.get(kind, f"give {scene.at} a tensor")
    before, on_line = _before(scene), scene.on_line
    because = scene.said
    if (parts := _parts_of_output(scene, kind)) is not None:
        cause, fix = parts
    if kind == "list" and any(isinstance(v, list) for v in getattr(scene.batch, "args", ())):
        fix = (
            "give the inputs as a tuple: a list is one argument, which the model gets as a "
            "list; stack it there"
        )
    value, given = scene.argument(argument), getattr(scene.batch, "args", ())
    value = _of_kind(scene, kind) if value is None else value
    if kind == "tuple" and scene.phase == "step" and given and len(value or ()) == len(given):
        own = [(f, n) for f, n in scene.frames if sources.rank(f.f_code.co_filename) == 2]
        cause = "the step gives the model its inputs as one tuple, not as its arguments"
        names = [(k, n) for f, n in own for k, v in f.f_locals.items() if v is value]
        name, line = names[0] if names else ("inputs", None)
        fix = f"unpack it in the call of the model: *{name}"
        on_line = "" if line is None else f" on line {line}"
    elif kind == "tuple" and before:
        cause = f"{before[0]} before it returns a tuple"
        because = f"{before[0]} is a {before[1]}, which returns a tuple; {scene.said}"
    return scene.explain(
        code="not-a-tensor",
        summary=f"{scene.at if parts is None else 'the loss'} received a {kind}, not a tensor",
        observed=f"{function}({argument}=...) got {describe(value)}"
        if value is not None
        else f"{argument} is a {kind}",
        cause=cause,
        because=because,
        fix=f"{fix}{on_line}",
        culprits=scene.blame(kind),
    )


def _of_kind(scene: Scene, kind: str) -> Any:
    """Return the innermost local variable whose type has this name; None where there is none.

    torch's own functions give an argument another name than their callers in Python.
    """
    values = (value for frame, _ in reversed(scene.frames) for value in frame.f_locals.values())
    return next((value for value in values if type(value).__name__ == kind), None)


def _parts_of_output(scene: Scene, kind: str) -> tuple[str, str] | None:
    """Return cause and fix where the loss is given the model's output object instead of a tensor of it."""
    if scene.phase != "loss":
        return None
    found = next(
        (
            value
            for frame, _ in reversed(scene.frames)
            for value in frame.f_locals.values()
            if type(value).__name__ == kind.rpartition(".")[2] and trees.tensors(value)
        ),
        None,
    )
    names = list(trees.tensors(found, "output"))
    if not names:
        return None
    return (
        f"the model returns a {kind} with {listed(names, 4)}, and the loss takes one tensor",
        (
            f"give the loss one tensor: loss=lambda output, targets: ..., with {names[0]} for "
            "the output"
        ),
    )


def _before(scene: Scene) -> tuple[str, str] | None:
    """Return name and class of the child before the failing one in a running Sequential."""
    for outer, inner in zip(scene.running, scene.running[1:], strict=False):
        if isinstance(outer, nn.Sequential):
            children = list(outer)
            place = next((i for i, child in enumerate(children) if child is inner), 0)
            if place:
                return scene.name_of(children[place - 1]), type(children[place - 1]).__name__
    return None


@entry(r"'([\w.]+)' object has no attribute '(\w+)'", types=("AttributeError",))
def attribute(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """An attribute that a module, a tensor or an output does not have."""
    kind, name = match[1], match[2]
    owner = next((m for m in reversed(scene.running) if type(m).__name__ == kind), None)
    known: list[str] = []
    if owner is not None:
        known = [
            *owner._modules,
            *owner._parameters,
            *owner._buffers,
            *(k for k in vars(owner) if not k.startswith("_") and k != "training"),
        ]
    elif kind == "Tensor":
        known = [k for k in dir(torch.Tensor) if not k.startswith("_")]
    near = nearest(name, known) or ""
    who = scene.name_of(owner) if owner is not None else f"a {kind}"
    output = kind in ("tuple", "list", "dict", "NoneType")
    cause = f"{who} has no attribute {name}" + (f"; {near} is close" if near else "")
    if (parts := _parts_of_output(scene, kind)) is not None:
        return scene.explain(
            code="not-a-tensor",
            summary=f"the loss received a {kind}, not a tensor",
            observed=f"the loss asks it for {name!r}",
            cause=parts[0],
            because=scene.said.replace("torch said", "Python said"),
            fix=f"{parts[1]}{scene.on_line}",
            culprits=scene.blame(kind),
        )
    if output:
        cause = (
            f"the value is a {kind}: the return value of the model (or a layer) is used as a tensor"
        )
    return scene.explain(
        code="attribute-missing",
        summary=(f"{who}" if who == scene.at else f"{scene.at}: {who}")
        + f" has no attribute {name!r}"
        + (f" (did you mean {near!r}?)" if near else ""),
        observed=f"{who} has {listed(known[:6], 6)}"
        if owner is not None and known
        else scene.values(),
        cause=cause,
        because=scene.said.replace("torch said", "Python said"),
        fix=f"write {near}{scene.on_line}"
        if near
        else f"take the tensor out of the {kind} first{scene.on_line}"
        if output
        else f"assign it in __init__, or correct the name{scene.on_line}",
        culprits=scene.blame(name),
    )

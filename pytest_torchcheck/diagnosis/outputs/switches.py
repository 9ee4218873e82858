"""Forwards that depend on whether a graph is recorded or set their own mode, and modes that do not arrive."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ... import sources
from ...explanation import counted, on_line
from ...findings import Culprit
from ...objects import trees
from ...probes.stand_ins import read_with
from ...record.tracing import find_line, line_of
from ...runs.variants.settling import Quiet
from ...text.wording import have, names_text
from ...verdicts import suspicious, violated
from ..lines.conditions import deciding

if TYPE_CHECKING:
    from types import FrameType

    from ...findings import Finding, Location
    from ...runs.variants.linear import Folded
    from ...subject import Subject

_LARGE = 0.01
"""Relative difference above which no iteration to a tolerance explains two results."""


def needs_graph(subject: Subject) -> Finding:
    """Explain a forward that raises under ``torch.no_grad()``."""
    needed = subject.graphs.needed
    place = next(iter(needed.values()))
    both = (
        "train and eval mode"
        if len(needed) > 1
        else "train mode"
        if True in needed
        else "eval mode"
    )
    return suspicious(
        "needs-gradients",
        f"the forward raises under torch.no_grad() in {both}",
        culprits=[Culprit("call", place.text[:80], "needs a graph", place)] if place else [],
        location=place,
        observed="the same forward runs where gradients are recorded; the other checks ran it so",
        cause=f"the operation{on_line(place)} needs a graph, which torch.no_grad() does not record",
        because="torch raised an error about gradients, and raised none with torch.enable_grad()",
        fix=f"run what needs a graph{on_line(place)} under torch.enable_grad(), or skip it where "
        "torch.is_grad_enabled() is False",
    )


def differs_by_graph(subject: Subject, distance: float) -> Finding:
    """Explain outputs that differ between a forward that records a graph and one that does not."""
    place = next(
        (
            found
            for module in subject.model.modules()
            if (found := sources.search(type(module), r"is_grad_enabled|is_inference")) is not None
            and sources.rank(found.file)
        ),
        None,
    )
    return (violated if distance > _LARGE else suspicious)(
        "graph-decides",
        "the forward gives another output under torch.no_grad()",
        culprits=[Culprit("call", place.text[:80], "depends on the gradient mode", place)]
        if place
        else [],
        location=place,
        observed=f"in train mode, with one seed, the outputs differ by {distance:.3g} (relative)",
        cause="the forward asks whether gradients are recorded, and computes something else",
        because="batch, weights, seed and mode were the same; only torch.no_grad() differed, and each "
        "of the two repeats",
        fix="compute the same with and without gradients: an evaluation under torch.no_grad() does "
        "not measure what was trained",
    )


def flips_mode(subject: Subject, flipped: tuple[str, ...], *, train: bool) -> Finding:
    """Explain a forward that leaves modules in another mode than it found them in."""
    mode = "eval" if train else "train"
    owner = subject.model.get_submodule(flipped[0].rpartition(".")[0])
    pattern = rf"\.{'eval' if train else 'train'}\("
    place = sources.search(type(owner), pattern) or sources.search(type(subject.model), pattern)
    root = "" in flipped
    named = "the model" if root else names_text(list(flipped))
    return (violated if root else suspicious)(
        "mode-flipped",
        f"a forward in {'train' if train else 'eval'} mode puts {named} into {mode} mode",
        culprits=[
            Culprit("module", n or "the model itself", f"{mode} mode", place) for n in flipped[:6]
        ],
        location=place,
        observed=f"{len(flipped)} of {sum(1 for _ in subject.model.modules())} modules change their mode",
        cause=f"the forward calls {mode}(){on_line(place)}",
        because="module.training differs before and after one forward",
        fix="leave the mode to whoever calls the model; freeze a part in an overridden train()",
    )


def stuck_mode(subject: Subject, names: list[str]) -> Finding:
    """Explain modules that eval() does not reach although they depend on the mode."""
    owner = _overrider(subject, names[0])
    place, sibling = sources.of_parameter(subject.model, names[0]), ""
    listing: list[Location] = []
    if owner is not None:
        place, sibling, listing = _mode_setter(subject, owner, names[0])
    return violated(
        "mode-stuck",
        f"eval() leaves {names_text(names)} in training mode",
        culprits=[
            Culprit("module", n or "the model itself", "training=True after eval()", place)
            for n in names
        ]
        + [Culprit("call", "train", "decides which modules it reaches", at) for at in listing],
        location=place,
        observed=f"{counted(len(names), 'module')} with dropout or running statistics "
        f"{have(names, 'keeps')} training=True",
        cause="an overridden train() skips them",
        because="module.training is True after model.eval()"
        + (
            f"; line {place.line} reaches {sibling}, and not {names[0]}{_as_listed(listing)}"
            if sibling and place
            else ""
        ),
        fix="call super().train(mode) in train() and return self"
        + ("; what stays frozen gets eval() after that" if sibling else ""),
    )


def turned(subject: Subject, names: list[str]) -> Finding:
    """Explain parameters that have other values once eval() and train() have been called."""
    places = []
    for mode in (False, True):
        with subject.pristine(steps=True) as model, torch.no_grad():
            if mode:
                model.eval()
            parameter = model.get_parameter(names[0])
            then = parameter.detach().clone()
            call = model.train if mode else model.eval

            def written(
                _frame: FrameType, _event: str, _line: int, p: Any = parameter, old: Any = then
            ) -> bool:
                return not trees.same(p, old)

            places.append(find_line(call, written))
    place = places[0] or places[1]
    method = (
        "eval()" if places[0] else "train() after eval()" if places[1] else "eval(), then train(),"
    )
    return violated(
        "eval-writes",
        f"{method} changes {names_text(names)} for good",
        culprits=[Culprit("parameter", name, "has other values after it", place) for name in names],
        location=place,
        observed=f"{counted(len(names), 'trained parameter')} {have(names, 'differs')} after eval() and train(), "
        "before any step",
        cause=f"an overridden method writes to the weights themselves{on_line(place)}",
        because="train() alone leaves them as they are; training goes on with the others after each evaluation",
        fix="compute the values for evaluation in the forward (if not self.training), and leave the parameters alone"
        if places[0]
        else "write to no parameter in train(): it is called after each evaluation",
    )


def _as_listed(listing: list[Location]) -> str:
    return f" (line {listing[0].line} decides which)" if listing else ""


def _overrider(subject: Subject, name: str) -> nn.Module | None:
    parts = name.split(".") if name else []
    for depth in range(len(parts), -1, -1):
        owner = subject.model.get_submodule(".".join(parts[:depth]))
        if type(owner).train is not nn.Module.train:
            return owner
    return None


def _mode_setter(
    subject: Subject, owner: nn.Module, name: str
) -> tuple[Location | None, str, list[Location]]:
    """Return the line of a train() that reaches a sibling of a module, its name, and what decided so.

    Else the line that sets a mode, with an empty name.
    """
    code = getattr(type(owner).train, "__code__", None)
    lines: list[Location] = []
    reached: list[tuple[Location, str]] = []
    modules = dict(subject.model.named_modules())
    parts = name.split(".")
    beside = [
        f"{parent}.{child}" if parent else child
        for depth in range(len(parts))
        if (parent := ".".join(parts[:depth])) in modules
        for child, _ in modules[parent].named_children()
    ]

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event != "call" and frame.f_code is code:
            place = line_of(frame.f_code, line)
            lines.append(place)
            reached.extend((place, n) for n in beside if n in on and not modules[n].training)
        return False

    with subject.pristine(train=True):
        on = {n for n in beside if modules[n].training}
        find_line(owner.eval, watcher)
    if reached:
        place, sibling = reached[0]
        around = sources.around(place.file, place.line, ast.stmt)
        choosing = [n.lineno for n in around if isinstance(n, ast.For | ast.If)] or [place.line]
        chosen = sources.of_line(place.file, choosing[-1], place.function)
        ran = {each.line for each in lines}
        return chosen, sibling, [at for at in deciding(chosen) if at.line in ran]
    setting = [place for place in lines if re.search(r"training|\b(train|eval)\(", place.text)]
    return next(iter(setting or lines), sources.of_object(type(owner).train)), "", []


def folded(subject: Subject, part: Folded) -> Finding:
    """Explain a part that is linear in both modes, and is another map in evaluation."""
    asked, culprits = set(part.parameters), []
    for train in (True, False):
        batch, mode = subject.batch().clone(), "training" if train else "evaluation"
        with subject.pristine(train=train, seeded=True) as model, torch.no_grad(), Quiet():
            run = functools.partial(subject.call, model, batch)
            lines = read_with(run, model, [], {}, asked)
        culprits += [
            Culprit("parameter", name, f"is read in {mode}", line)
            for name, line in lines.items()
            if line is not None
        ]
    cls = type(subject.model.get_submodule(part.name))
    place = culprits[-1].location if culprits else sources.of_object(cls.forward)
    read = dict.fromkeys(each.location for each in culprits if each.location is not None)
    culprits += [
        Culprit("call", "condition", "decides whether it is read", at)
        for at in dict.fromkeys(at for line in read for at in deciding(line, whether=True))
    ]
    return violated(
        "modes-differ",
        f"{part.name} is one linear map in train mode and another in eval mode",
        culprits=[*culprits, Culprit("module", part.name, "differs between the modes", place)],
        location=place,
        observed=f"for one input its outputs differ by {part.distance:.3g} (relative)",
        cause=f"{names_text(list(part.parameters))} {have(list(part.parameters), 'contributes')} differently to the "
        "result in the two modes",
        because="both modes are linear in the input, draw nothing, and read the same trainable parameters",
        fix="let the branch for eval mode compute the product that training computes",
        evidence={"parameters": list(part.parameters)},
    )

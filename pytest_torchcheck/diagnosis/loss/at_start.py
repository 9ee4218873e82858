"""Why the loss of an untrained model is higher than chance."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...findings import Culprit, Finding, Location
from ...sources.edits import submodule
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from ...runs.losses.consumption import Consumed
    from ...subject import Subject


def hot_start(subject: Subject, used: Consumed, uniform: float, gain: float) -> Finding:
    """Explain a first loss far above that of a uniform guess by the scale of a weight."""
    assert used.weight is not None
    place = initialisation_line(subject, used.weight)
    weight = subject.named_parameters()[used.weight]
    # a lookup table that also makes the logits keeps the default of nn.Embedding, which nobody
    # chose for a head
    tied = _is_table(subject, used.weight)
    return (violated if tied else suspicious)(
        "loss-at-start",
        f"the first cross entropy is {used.entropy:.2f}, far above the {uniform:.2f} of a uniform guess: "
        f"{used.weight} is initialised too large",
        culprits=[Culprit("parameter", used.weight, f"gain {gain:.2f}", place)],
        location=place,
        observed=f"logits have a standard deviation of {used.spread:.2f} over {used.classes} classes",
        cause=f"the weight that computes the logits scales a unit input by {gain:.2f}; usual is "
        "below 1",
        because=f"{used.weight} {list(weight.shape)} has an RMS of "
        f"{float(weight.detach().float().square().mean().sqrt()):.3g} "
        f"at fan-in {weight[0].numel()}"
        + (", and it is the weight of an nn.Embedding too" if tied else ""),
        fix=f"initialise it smaller, e.g. nn.init.normal_({submodule(subject.model, used.weight)}, std=0.02)"
        + ("" if tied else ", unless this is intended"),
    )


def _is_table(subject: Subject, name: str) -> bool:
    """Say whether a parameter is the weight of an embedding, under any name."""
    weight = subject.named_parameters()[name]
    return any(
        isinstance(module, torch.nn.Embedding) and module.weight is weight
        for module in subject.model.modules()
    )


def initialisation_line(subject: Subject, qualified: str) -> Location | None:
    """Return the line that decides how a parameter is initialised, or that builds it."""
    place = _writing_line(subject, qualified)
    if place is None:
        return None
    values = subject.model.get_parameter(qualified).detach().float()
    measured = [float(values.mean()), float(values.std())] if values.numel() > 1 else []
    return sources.giving_call(place, [v for v in measured if v]) or place


def _writing_line(subject: Subject, qualified: str) -> Location | None:
    """Return the line that initialises a parameter, or that builds it.

    Where the line gets its numbers from a parameter of the function around it, the call that gives
    them counts. A line that names the parameter counts first, then one of a loop or of an ``apply``
    function that writes to every module's parameter of that name; of several the one under its
    module's type.
    """
    parts = qualified.split(".")
    writes = r"(\.data)?\.(normal_|uniform_|fill_|mul_|zero_|copy_)\("
    own: list[type] = []
    for depth in range(len(parts)):
        owner = subject.model.get_submodule(".".join(parts[:depth]))
        tail = r"\.".join(re.escape(part) for part in parts[depth:])
        for cls in type(owner).__mro__:
            if not sources.is_no_tools_class(cls):
                continue
            own.append(cls)
            found = sources.search(cls, rf"init\.\w+\(\s*self\.{tail}\b|self\.{tail}{writes}")
            if found is not None:
                return found
    holder = type(subject.model.get_submodule(".".join(parts[:-1]))).__name__
    leaf = re.escape(parts[-1])
    general = rf"init\.\w+_\(\s*(?!self\b)\w+\.{leaf}\b|\b(?!self\b)\w+\.{leaf}{writes}"
    lines = [place for cls in own for place in sources.matches(cls, general)]
    lines = lines or [place for cls in own[:1] for place in _around(cls, general)]
    if not lines:
        return sources.of_parameter(subject.model, qualified)
    near = [place for place in lines if sources.line_above(place, rf"\b{holder}\b", most=5)]
    return (near or lines)[0]


def _around(cls: type, pattern: str) -> list[Location]:
    """Return the matching lines of the functions that stand beside a class, such as an ``init_weights``."""
    home = inspect.getmodule(cls)
    functions = [f for f in vars(home).values() if inspect.isfunction(f)] if home else []
    return [place for function in functions for place in sources.matches(function, pattern)]

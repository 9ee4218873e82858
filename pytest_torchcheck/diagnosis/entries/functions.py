"""Custom autograd Functions whose backward returns the wrong things."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import Explanation, clipped, on_line
from ...findings import Culprit
from ..crashes.table import entry

if TYPE_CHECKING:
    import re

    from ..crashes.scene import Scene


@entry(r"[Ff]unction (\w+)Backward returned an (?:incorrect number of gradients \(expected (\d+), got (\d+)\))",
       r"[Ff]unction (\w+)Backward returned an invalid gradient at index (\d+) - (got .*)",
       r"(?<!\w)(\w+)\.forward: expected Tensor or tuple of Tensor .*()()",
       r"()Legacy autograd function with non-static forward method()")  # fmt: skip
def function_returns(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A custom autograd Function whose backward returns the wrong things."""
    name = match[1] or "the autograd Function"
    cls = _function_class(match[1]) if match[1] else None
    place = None
    if cls is not None:
        place = sources.search(cls.backward, r"^\s*return") or sources.of_object(cls.backward)
    place = place or scene.location
    if "incorrect number" in match[0]:
        summary = (
            f"{name}.backward returns {match[3]} "
            f"{'gradient' if match[3] == '1' else 'gradients'} for {match[2]} inputs of forward"
        )
        cause = f"backward must return one value per argument of forward: {match[2]}"
        fix = f"return {match[2]} values, None for arguments that need no gradient{on_line(place)}"
        observed = (
            f"{match[3]} {'value' if match[3] == '1' else 'values'} returned, {match[2]} "
            "arguments of forward besides ctx"
        )
        code = "function-gradients"
    elif "invalid gradient" in match[0]:
        summary = f"{name}.backward returns a gradient of the wrong shape for input {match[2]}"
        cause = (
            "the gradient of an input must have its shape, dtype and device; a broadcast input "
            "needs a sum over the broadcast dimensions"
        )
        fix = f"reduce or reshape gradient {match[2]}{on_line(place)}"
        observed = f"input {match[2]}: {match[3]}"
        code = "function-gradient-shape"
    else:
        summary = f"{name}: {clipped(scene.first_line, 110)}"
        cause = (
            "an autograd Function has static forward(ctx, ...) and backward(ctx, ...) and is "
            "called with .apply"
        )
        fix = f"make both @staticmethod and call .apply{on_line(place)}"
        observed = scene.values()
        code = "function-form"
    return scene.explain(
        code=code,
        summary=summary,
        observed=observed,
        cause=cause,
        fix=fix,
        culprits=(Culprit("function", name, location=place),),
        location=place,
    )


def _function_class(name: str) -> type[torch.autograd.Function] | None:
    stack: list[type] = [torch.autograd.Function]
    while stack:
        cls = stack.pop()
        if cls.__name__ == name:
            return cls
        stack.extend(cls.__subclasses__())
    return None

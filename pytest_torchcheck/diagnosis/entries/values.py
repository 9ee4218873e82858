"""Values that cannot be what they are used for: scalars, distribution parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...explanation import Explanation, describe
from ..crashes.table import entry

if TYPE_CHECKING:
    import re

    from ..crashes.scene import Scene


@entry(r"Boolean value of Tensor with more than one value is ambiguous", r"a Tensor with (\d+) elements cannot be converted to Scalar",
       r"only one element tensors can be converted to Python scalars")  # fmt: skip
def one_value(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A tensor of several elements where one value is needed."""
    boolean = match[0].startswith("Boolean")
    return scene.explain(
        code="tensor-as-scalar",
        summary=f"{scene.at} uses a tensor of several elements as one {'truth value' if boolean else 'number'}",
        observed=scene.values(),
        cause="`if`, `and`, `or`, `not` and `in` need one truth value"
        if boolean
        else ".item(), float() and int() need one element",
        fix=f"use .any(), .all(), &, | or torch.where{scene.on_line}"
        if boolean
        else f"reduce it first (.mean(), .sum()), or use .tolist(){scene.on_line}",
    )


@entry(r"Expected (?:parameter|value argument) (\w*) ?\(?.{0,1000}? to (?:satisfy the constraint|be within the support) ?\(?(.*?)\)?(?:,|$)",
       r"probability tensor contains either `inf`, `nan` or element < 0()()")  # fmt: skip
def distribution(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A distribution whose parameters are outside its domain, often NaN."""
    name = match[1] or "probs"
    value = scene.argument(name, "logits", "probs", "scale", "input")
    broken = (
        int((~torch.isfinite(value)).sum())
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else 0
    )
    nan = broken > 0 or "nan" in scene.message.lower().split("found invalid values")[-1]
    return scene.explain(
        code="distribution-parameters",
        summary=f"{scene.at}: {name} of a distribution is {'not finite' if nan else 'outside its domain'}",
        observed=(
            f"{name} {describe(value)}{_range(value, broken)}"
            if isinstance(value, torch.Tensor)
            else scene.values()
        ),
        cause="NaN or inf come from an earlier operation"
        if nan
        else f"{name} must be {_constraint(scene, match[2])}",
        fix="find where the first NaN arises (finiteness check)"
        if nan
        else f"map it into its domain, as with softplus or exp{scene.on_line}",
        culprits=scene.blame(name),
    )


_DOMAINS = {
    "GreaterThan(lower_bound=0": "greater than 0",
    "GreaterThanEq(lower_bound=0": "at least 0",
    "Interval(lower_bound=0.0, upper_bound=1": "between 0 and 1",
    "Interval(lower_bound=0, upper_bound=1": "between 0 and 1",
    "Simplex": "probabilities that sum to one",
    "PositiveDefinite": "positive definite",
    "LowerCholesky": "lower triangular with a positive diagonal",
    "Real": "finite",
}


def _constraint(scene: Scene, said: str | None) -> str:
    """Return a distribution's constraint in words."""
    if not said:
        return "a probability"
    return next((words for key, words in _DOMAINS.items() if key in scene.message), said)


def _range(value: torch.Tensor, broken: int) -> str:
    """Return what is wrong with the values: how many are not finite, else their range."""
    if broken:
        return f", {broken} not finite"
    if not value.numel() or value.is_complex():
        return ""
    return f", from {float(value.min()):.4g} to {float(value.max()):.4g}"

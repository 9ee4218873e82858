"""What a relation is, and the arithmetic that the searches for one share."""

from __future__ import annotations

import math
from dataclasses import field
from fractions import Fraction
from typing import TYPE_CHECKING

from ...lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ...findings import Plain
    from .jacobians import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """What was measured between the analytical and the numerical Jacobian.

    Attributes:
        code: Symptom, such as ``gradcheck-scale``.
        symptom: Ends the sentence "Name.backward returns ...".
        cause: One clause.
        because: The measured fact.
        fix: One edit.
        evidence: Plain numbers.
        where: What line to show: ``gradient`` (the line of backward that computes it), ``return``,
            ``save`` (the line that saves tensors) or ``needs`` (the line that reads
            needs_input_grad).
    """

    code: str
    symptom: str
    cause: str
    because: str
    fix: str
    evidence: Mapping[str, Plain] = field(default_factory=dict)
    where: str = "gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What the relations need to know of a call.

    Attributes:
        name: Name of the input in question.
        input: Its value.
        outputs: The differentiable outputs by index, detached.
        others: Every floating argument and output by a readable name, detached.
        indices: Every integer argument by name.
        upstream: What backward calls the upstream gradient of each output, by index.
    """

    name: str
    input: Tensor
    outputs: Mapping[int, Tensor]
    others: Mapping[str, Tensor]
    indices: Mapping[str, Tensor] = field(default_factory=dict)
    upstream: Mapping[int, str] = field(default_factory=dict)


def factor_of(block: Block, matrix: Tensor) -> float | None:
    """Return c if ``matrix = c * numerical`` everywhere, else None."""
    target = block.numerical
    place = int(target.abs().argmax())
    base = float(target.flatten()[place])
    if abs(base) <= block.noise:
        return None
    factor = float((matrix.flatten() @ target.flatten()) / (target.flatten() @ target.flatten()))
    if abs(factor) < 1e-9 or abs(factor - 1) < 1e-3:
        return None
    limit = (block.rtol * target.abs() + 1e-5 * abs(base)) * abs(factor) + block.noise * (
        1 + abs(factor)
    )
    return factor if bool(((matrix - factor * target).abs() <= limit).all()) else None


def axis_of(value: float, shapes: Shapes) -> str | None:
    """Say which size a factor equals, if it equals one."""
    count = round(value)
    if count < 2 or abs(value - count) > 1e-3:
        return None
    for out in shapes.outputs.values():
        for axis, size in enumerate(out.shape):
            if size == count:
                return f"the size of axis {axis} of the output"
        if out.numel() == count:
            return "the number of entries of the output"
    for axis, size in enumerate(shapes.input.shape):
        if size == count:
            return f"the size of axis {axis} of {shapes.name}"
    return None


def as_ratio(value: float) -> str:
    """Write a factor as a fraction or a known constant where it is one."""
    simple = Fraction(value).limit_denominator(64)
    if simple and abs(float(simple) / value - 1) < 1e-5:
        return str(simple)
    for name, number in (("pi", math.pi), ("sqrt(2)", math.sqrt(2)), ("ln 2", math.log(2))):
        for text, other in (
            (name, number),
            (f"1/{name}", 1 / number),
            (f"sqrt({name})", math.sqrt(number)),
        ):
            if abs(value / other - 1) < 1e-5:
                return text
    return f"{value:.6g}"

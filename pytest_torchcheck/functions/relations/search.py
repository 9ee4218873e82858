"""How a wrong Jacobian relates to the right one: a factor, a sign, a conjugate, an exchange, or none of these."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from .partial import elementwise, few, identity, masked, one_output, unread_slice, upstream_ignored
from .rearranged import adjoint, broadcast, centred, transposed
from .relation import Relation, Shapes, as_ratio, axis_of, factor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...findings import Plain
    from .jacobians import Block


def find_relation(
    block: Block,
    shapes: Shapes,
    peers: Sequence[tuple[str, Block]],
    experiments: Sequence[Callable[[Block, Shapes], Relation | None]] = (),
) -> Relation:
    """Name the relation between the two Jacobians of one input.

    Args:
        block: The Jacobians, of which some entries differ.
        shapes: The call.
        peers: The other inputs' Jacobians, with their names.
        experiments: Searches that run the Function again in some other way.
    """
    for search in _SEARCHES:
        if (found := search(block, shapes)) is not None:
            return found
    if (found := _swapped(block, shapes, peers)) is not None:
        return found
    for late in (*experiments, *_LATE):
        if (found := late(block, shapes)) is not None:
            return found
    return _unknown(block, shapes)


def _zero(block: Block, shapes: Shapes) -> Relation | None:
    if bool((block.analytical != 0).any()):
        return None
    size = float(block.numerical.abs().max())
    if block.missing:
        return Relation(
            code="gradcheck-none",
            symptom=f"None for {shapes.name}, where a gradient is due",
            cause=f"backward computes no gradient of {shapes.name}",
            because=f"every upstream gradient gave None; the output moves by up to {size:.3g} per "
            f"unit of {shapes.name}",
            fix=f"compute and return the gradient of {shapes.name}, or forbid it: raise if "
            "ctx.needs_input_grad asks for it",
        )
    return Relation(
        code="gradcheck-zero",
        symptom=f"zeros for {shapes.name}",
        cause=f"backward does not differentiate with respect to {shapes.name}",
        because=f"all {block.analytical.numel()} analytical entries are 0; numerical ones reach {size:.3g}",
        fix=f"return the gradient of {shapes.name} instead of zeros",
    )


def _surrogate(block: Block, shapes: Shapes) -> Relation | None:
    if float(block.numerical.abs().max()) > block.noise:
        return None
    out, size = block.analytical.shape
    through = out == size and block.close(block.analytical, torch.eye(out, dtype=torch.float64))
    kind = "passes the upstream gradient straight through" if through else "is not zero"
    return Relation(
        code="gradcheck-surrogate",
        symptom=f"a surrogate gradient for {shapes.name}: forward is locally constant",
        cause=f"forward is constant around {shapes.name} and backward {kind}: an estimator, not a derivative",
        because=f"all {block.numerical.numel()} numerical entries are 0; analytical ones reach "
        f"{float(block.analytical.abs().max()):.3g}",
        fix="if it is meant, declare it: promises.StraightThrough(functions=(...), of=<the "
        "function whose gradient it is>, reason=...)",
        evidence={"straight_through": through},
    )


def _not_finite(block: Block, shapes: Shapes) -> Relation | None:
    bad = int((~block.analytical.isfinite()).sum())
    if not bad:
        return None
    return Relation(
        code="gradcheck-not-finite",
        symptom=f"NaN or infinity for {shapes.name}",
        cause=f"the formula for {shapes.name} divides by zero or overflows where forward does not",
        because=f"{bad} of {block.analytical.numel()} analytical entries are not finite; all numerical ones are",
        fix="guard the division (torch.where before it, not after) or rewrite the formula",
    )


def _scale(block: Block, shapes: Shapes) -> Relation | None:
    factor = factor_of(block, block.analytical)
    if factor is None:
        return None
    count = int((block.numerical.abs() > block.noise).sum())
    return scaled(factor, f"all {count} entries that are not 0", shapes)


def scaled(factor: float, places: str, shapes: Shapes) -> Relation:
    """Word a constant factor that was measured at so many places."""
    because = (
        f"analytical / numerical = {factor:.6g} at {places}; a wrong formula would not scale evenly"
    )
    evidence: dict[str, Plain] = {"factor": factor}
    if abs(factor + 1) < 1e-4:
        return Relation(
            code="gradcheck-sign",
            symptom=f"the gradient of {shapes.name} with the wrong sign",
            cause="the sign is reversed",
            because=because,
            fix=f"negate the gradient of {shapes.name}; if the reversal is meant, declare promises.StraightThrough",
            evidence=evidence,
        )
    repair = as_ratio(1 / factor)
    cause = (
        f"a constant factor {repair} is missing"
        if abs(factor) < 1
        else f"a factor {as_ratio(factor)} too many"
    )
    if factor < 0:
        cause += ", and the sign is reversed"
    fix = (
        f"multiply the gradient of {shapes.name} by {repair}; if the scaling is meant, declare "
        "promises.StraightThrough"
    )
    words = {0.5: "half", 2.0: "twice", 0.25: "a quarter of"}
    amount = next((w for f, w in words.items() if abs(factor - f) < 1e-4), f"{factor:.4g} times")
    return Relation(
        code="gradcheck-scale",
        symptom=f"{amount} the gradient of {shapes.name}",
        cause=cause,
        because=because,
        fix=fix,
        evidence=evidence,
    )


def follows_size(
    relation: Relation, shapes: Shapes, size: int, other: int, there: float
) -> Relation | None:
    """Say that a factor is a size (or its reciprocal), where it follows when that size changes.

    Args:
        relation: A constant factor.
        shapes: The call.
        size: A size of the call that the factor, or its reciprocal, equals.
        other: What the size was changed to.
        there: The factor then.
    """
    factor = relation.evidence.get("factor")
    if not isinstance(factor, float) or (what := axis_of(size, shapes)) is None:
        return None
    because = f"{relation.because}; with size {other} in place of {size} it is {there:.6g}"
    if abs(factor * size - 1) < 1e-3 and abs(there * other - 1) < 1e-3:
        cause = f"a constant factor {size} is missing: it is {what}, so a mean stands where a sum is due"
        fix = f"sum instead of averaging in the gradient of {shapes.name}"
    elif abs(factor - size) < 1e-3 and abs(there - other) < 1e-3:
        cause = f"a factor {size} too many: it is {what}, so a sum stands where a mean is due"
        fix = f"divide the gradient of {shapes.name} by that size, as forward's mean does"
    else:
        return None
    return replace(relation, cause=cause, because=because, fix=fix)


def _conjugate(block: Block, shapes: Shapes) -> Relation | None:
    if not shapes.input.is_complex() or not all(o.is_complex() for o in shapes.outputs.values()):
        return None
    out, size = block.analytical.shape
    turned = block.analytical.view(out // 2, 2, size // 2, 2).clone()
    turned[:, 0, :, 1] *= -1
    turned[:, 1, :, 0] *= -1
    if not block.close(turned.view(out, size)):
        return None
    return Relation(
        code="gradcheck-conjugate",
        symptom=f"the gradient of {shapes.name} without its conjugate",
        cause="the factor that multiplies the upstream gradient is not conjugated",
        because=f"with the imaginary parts negated all {block.analytical.numel()} entries agree",
        fix="multiply by .conj() of the saved tensor: torch's gradients are conjugate Wirtinger derivatives",
    )


def _swapped(block: Block, shapes: Shapes, peers: Sequence[tuple[str, Block]]) -> Relation | None:
    for name, peer in peers:
        if peer.numerical.shape != block.analytical.shape:
            continue
        if block.close(block.analytical, peer.numerical):
            mutual = peer.close(peer.analytical, block.numerical)
            return Relation(
                code="gradcheck-swapped",
                symptom=f"the gradient of {name} for {shapes.name}"
                + (", and the reverse" if mutual else ""),
                cause="the returned gradients are swapped"
                if mutual
                else f"the gradient of {name} is returned in its place",
                because=f"all {block.analytical.numel()} entries for {shapes.name} equal the numerical ones of {name}"
                + (", and the reverse" if mutual else ""),
                fix="return the gradients in the order of forward's arguments",
                evidence={"with": name, "mutual": mutual},
                where="return",
            )
    return None


def _unknown(block: Block, shapes: Shapes) -> Relation:
    a, n = block.analytical.flatten(), block.numerical.flatten()
    norms = float(a.norm() * n.norm())
    cosine = float(a @ n) / norms if norms else 0.0
    alike = n.abs() > 1e-3 * n.abs().max()
    ratio = (a / n)[alike]
    low, high = (float(ratio.min()), float(ratio.max())) if ratio.numel() else (math.nan, math.nan)
    relation = Relation(
        code="gradcheck-mismatch",
        symptom=f"a wrong gradient of {shapes.name}",
        cause="the formula is wrong (no factor, sign, transpose, sum or exchange of tensors explains it)",
        because=f"analytical / numerical lies between {low:.4g} and {high:.4g}; cosine {cosine:.4g}",
        fix=f"derive the gradient of {shapes.name} again, or let autograd compute it inside torch.enable_grad()",
        evidence={"ratio_min": low, "ratio_max": high, "cosine": cosine},
    )
    part = unread_slice(block, shapes)
    if part is None:
        return relation
    return replace(
        relation,
        cause=f"backward does not use {part} for the gradient of {shapes.name}",
        because=f"an upstream gradient in {part} alone gives 0 for {shapes.name}, though forward's output "
        f"there depends on it; {relation.because}",
        fix=f"add what {part} contributes to the gradient of {shapes.name}; check that no other part is used instead",
        evidence={**relation.evidence, "unread": part},
    )


_SEARCHES: tuple[Callable[[Block, Shapes], Relation | None], ...] = (
    _not_finite,
    _zero,
    _surrogate,
    _scale,
    _conjugate,
    one_output,
)
_LATE: tuple[Callable[[Block, Shapes], Relation | None], ...] = (
    broadcast,
    transposed,
    adjoint,
    centred,
    upstream_ignored,
    identity,
    elementwise,
    masked,
    few,
)

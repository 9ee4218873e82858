"""Random directions: what can be said of a gradient too large to be looked at entry by entry."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..explanation import others_of, shapes_of
from ..lines import gradient_line
from ..relations.jacobians import (
    as_real,
    evaluate,
    moved,
    random_like,
    real_size,
    rounding,
    step_of,
)
from ..relations.jumps import stepwise
from ..relations.relation import Relation
from ..relations.search import scaled
from ..target import Outcome, Target, passes_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...findings import Finding
    from ..calls import Call

_VECTORS = 3


def projected(target: Target, call: Call, *, full_size: bool = False) -> Outcome:
    """Screen with random directions: v^T J u by backward and by a central difference."""
    if full_size and not _same_outputs(target, call):
        return Outcome()
    wrong = misses(target, call)
    sizes = sum(real_size(call.values[i]) for i in call.wanted)
    if not wrong:
        return Outcome(held=[f"random directions over {sizes} entries at full size"])
    return Outcome(
        findings=[_misdirected(target, call, i, misses, full_size) for i, misses in wrong.items()]
    )


def misses(target: Target, call: Call) -> dict[int, list[tuple[float, float]]]:
    """Return the inputs that differ along every random direction, with analytical and numerical slopes."""
    forward = reference(target, call)
    wrong: dict[int, list[tuple[float, float]]] = {}
    for index in call.wanted:
        misses = []
        for draw in range(_VECTORS):
            a, n, noise = _direction(target, call, forward, index, draw)
            if abs(a - n) <= target.rtol * max(abs(a), abs(n)) + noise:
                break
            misses.append((a, n))
        if len(misses) == _VECTORS:
            wrong[index] = misses
    return wrong


def _misdirected(
    target: Target, call: Call, index: int, misses: Sequence[tuple[float, float]], full_size: bool
) -> Finding:
    name = target.input_name(index)
    a, n = misses[0]
    ratios = [x / y for x, y in misses if y]
    relation = Relation(
        code="gradcheck-mismatch",
        symptom=f"a wrong gradient of {name}",
        cause="the formula is wrong"
        + (" at this size; it is right on a smaller one" if full_size else ""),
        because=f"the directional derivatives differ by more than {target.rtol:g} at {len(misses)} draws",
        fix=f"derive the gradient of {name} again, on small inputs where every entry can be seen",
    )
    steady = len(ratios) == len(misses) and abs(ratios[0]) > 1e-9
    if steady and all(abs(r / ratios[0] - 1) < 1e-3 for r in ratios):
        shapes = shapes_of(target, call, call.run(), index)
        relation = scaled(ratios[0], f"{len(misses)} random directions", shapes)
    close = all(abs(x - y) <= 0.35 * abs(y) for x, y in misses)
    others = others_of(target, call, index)
    stepped = stepwise(call, index, name, target.chosen, others, alike=close)
    flat = all(slope == 0.0 for _, slope in misses)
    if stepped is not None and not flat:
        relation = stepped
    if flat:
        relation = Relation(
            code="gradcheck-surrogate",
            symptom=f"a surrogate gradient for {name}: forward is locally constant",
            cause=f"forward is constant around {name} and backward is not zero: an estimator, not a derivative",
            because=f"forward does not change along {len(misses)} random directions; backward "
            f"gives {a:.3g} along the first",
            fix="if it is meant, declare it: promises.StraightThrough(functions=(...), of=<the "
            "function whose gradient it is>, reason=...)",
        )
    return target.finding(
        "suspicious"
        if flat or stepped or (steady and passes_values(target, call, index))
        else "violated",
        relation.code,
        f"{target.backward} returns {relation.symptom}",
        location=gradient_line(target.function, target.position(index)),
        inputs={index: f"analytical {a:.6g}, numerical {n:.6g}"},
        observed=f"along random directions, for example analytical {a:.6g}, numerical {n:.6g}",
        cause=relation.cause,
        because=relation.because,
        fix=relation.fix,
        evidence={**relation.evidence, "analytical": a, "numerical": n},
    )


def _direction(
    target: Target, call: Call, forward: Call, index: int, draw: int
) -> tuple[float, float, float]:
    generator = torch.Generator().manual_seed(100 * index + draw)
    run = call.run()
    upstream = {i: random_like(run.outputs[i], generator) for i in target.chosen}
    grad = run.grads(upstream)[index]
    value = call.values[index]
    u = torch.randn(real_size(value), generator=generator, dtype=torch.float64)
    u /= u.norm()
    v = torch.cat([as_real(upstream[i]) for i in target.chosen])
    width = step_of(value, target.step)
    high = evaluate(forward.replaced(index, moved(value, u, width)), target.chosen)
    low = evaluate(forward.replaced(index, moved(value, u, -width)), target.chosen)
    found = float(v @ (high - low)) / (2 * width)
    by_backward = 0.0 if grad is None else float(as_real(grad) @ u)
    if grad is None and index in call.optional:
        by_backward = found
    noise = rounding(run.outputs, target.chosen, width) * float(v.norm()) + 1e-9
    return by_backward, found, noise


def _same_outputs(target: Target, call: Call) -> bool:
    return tuple(call.run().differentiable) == target.chosen


def reference(target: Target, call: Call) -> Call:
    """Return what the numerical derivative is taken of: the forward, or the declared function."""
    if target.surrogate is None or target.surrogate.of is None:
        return call
    return replace(call, fn=target.surrogate.of)

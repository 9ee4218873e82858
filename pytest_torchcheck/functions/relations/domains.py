"""Values that obey a rule: whether a gradient that is wrong elsewhere is right where it was used."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...objects.trees import place_of
from ..aspects.projections import misses, reference
from ..lines import gradient_line
from .jacobians import Block, as_real, numerical, real_size, rounding, step_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...findings import Finding
    from ..target import Target

_ALL = 64
"""Real entries of an input as given up to which each is looked at."""


def holds_as_given(target: Target, block: Block) -> bool:
    """See whether the gradient is right at the values as they were given: then other values are out of domain.

    A backward may rely on what forward is given (probabilities that sum to one, a sorted input),
    and owes no gradient elsewhere. Which entries are wrong may hang on the values (the largest of a
    row) and on the place (the last of an axis), so that all of them are looked at, and those of a
    large input along random directions too.
    """
    call = target.recorded
    if call is None:
        return False
    columns = [int(c) for c in block.wrong.any(0).nonzero().flatten()][:16]
    small, given = target.call.values[block.index], call.values[block.index]
    try:
        run = call.run()
        if tuple(run.differentiable) != target.chosen:
            return False
        upstream = target.upstream(run)
        grad = run.grads(upstream)[block.index]
        v = torch.cat([as_real(upstream[i]) for i in target.chosen])
        forward = reference(target, call)
        if real_size(given) <= _ALL:
            entries = list(range(real_size(given)))
        elif block.index in misses(target, replace(call, wanted=(block.index,))):
            return False
        else:
            entries = [_same_entry(column, small, given) for column in columns]
            entries += [_same_entry(column, small, given, last=True) for column in columns]
        right = v @ numerical(
            forward, block.index, target.chosen, step=target.step, columns=entries
        )
    except Exception:  # then nothing is known of the values as given
        return False
    if grad is None or not bool(right.isfinite().all()):
        return False
    found = as_real(grad)[entries]
    noise = rounding(run.outputs, target.chosen, step_of(given, target.step)) * float(v.norm())
    limit = target.rtol * right.abs() + 1e-5 * float(as_real(grad).abs().max()) + noise
    return bool(((found - right).abs() <= limit).all())


def _same_entry(entry: int, small: Tensor, given: Tensor, *, last: bool = False) -> int:
    """Return where an entry of the cut tensor stands in the whole one, counted from the last one if asked."""
    pair = 2 if small.is_complex() else 1
    flat = 0
    places = place_of(entry // pair, small.shape)
    for index, cut, size in zip(places, small.shape, given.shape, strict=True):
        flat = flat * size + index + (size - cut if last else 0)
    return flat * pair + entry % pair


def outside_domain(target: Target, blocks: Sequence[Block]) -> Finding:
    """Say that the gradient is right as used and wrong at other values."""
    names = ", ".join(target.input_name(b.index) for b in blocks)
    return target.finding(
        "suspicious",
        "gradcheck-domain",
        f"{target.backward} is right at the values that it was given, and wrong at others of the same range",
        location=gradient_line(target.function, target.position(blocks[0].index)),
        inputs={
            b.index: f"{int(b.wrong.sum())} of {b.wrong.numel()} entries differ" for b in blocks
        },
        observed=f"the same entries of {names} agree as given and differ at values drawn between the same bounds",
        cause="backward relies on something that holds of the given values only (rows that sum "
        "to one, an order, a size)",
        because="only the values (or sizes) changed",
        fix="say so in forward (an assertion), or write the formula for all values",
    )

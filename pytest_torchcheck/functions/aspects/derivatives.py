"""First derivatives: every entry by backward against central differences, on small float64 inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...objects.trees import place_of
from ..arguments import redrawn
from ..explanation import explained
from ..lines import gradient_line
from ..relations.jacobians import (
    Block,
    analytical,
    as_real,
    numerical,
    one_sided,
    real_size,
    rounding,
    spans,
    step_of,
)
from ..target import Outcome, Target
from .projections import misses, projected, reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...findings import Finding
    from ..calls import Call, Run

BUDGET_S = 2.0
"""Above this estimate the output side is projected on random vectors instead of walked entry by entry."""

_DRAWS = 5
_PROBED = 24


def check_first(target: Target, *, fresh: bool = False, explain: bool = True) -> Outcome:
    """Compare all Jacobians of a call.

    Args:
        target: What is checked.
        explain: Run experiments to explain what differs.
        fresh: Run a new forward for each row, where backward works only once per forward.
    """
    if target.surrogate is not None and target.surrogate.of is None:
        outcome = _stale_declaration(target)
        return outcome or Outcome(
            held=["values of the gradient: declared a surrogate, not compared"]
        )
    outcome = (
        _full(target, fresh=fresh, explain=explain)
        if _affordable(target)
        else projected(target, target.call)
    )
    if target.original is not None and not outcome.violated:
        known = {finding.code for finding in outcome.findings}
        larger = projected(target, target.original, full_size=True)
        told = {f"gradcheck-{kind}" for kind in ("mismatch", "scale", "surrogate")}
        known |= told if known & {"gradcheck-surrogate", "gradcheck-mask"} else set()
        larger.findings = [f for f in larger.findings if f.code not in known]  # told once
        outcome.add(larger)
    if target.surrogate is not None and not outcome.violated:
        outcome.add(_stale_declaration(target) or Outcome())
    return outcome


def check_screened(target: Target) -> Outcome:
    """Look along random directions first, and at every entry only of the inputs that differ."""
    wrong = misses(target, target.call)
    if not wrong:
        return Outcome(held=["random directions"])
    narrow = replace(target, call=replace(target.call, wanted=tuple(wrong)), original=None)
    return check_first(narrow)


def blocks_of(target: Target, call: Call, run: Run, *, fresh: bool = False) -> list[Block]:
    """Return the analytical and numerical Jacobian of every checked input."""
    again = call.run if fresh else None
    chosen = target.chosen
    by_backward, missing = analytical(run, chosen, again=again)
    forward = reference(target, call)
    rows = spans(run.outputs, chosen)
    found = []
    for index, matrix in by_backward.items():
        width = step_of(call.values[index], target.step)
        found.append(
            Block(
                index=index,
                analytical=matrix,
                numerical=numerical(forward, index, chosen, step=target.step),
                noise=rounding(run.outputs, chosen, width),
                missing=index in missing,
                rows=rows,
                rtol=target.rtol,
            )
        )
    return found


def _full(target: Target, *, fresh: bool, explain: bool) -> Outcome:
    unsettled: list[Block] = []
    for attempt in range(_DRAWS):
        call = target.call if attempt == 0 else redrawn(target.call, attempt)
        try:
            run = call.run()
            blocks = blocks_of(target, call, run, fresh=fresh)
        except Exception:  # the Function of the user may raise anything
            if attempt == 0:
                raise
            continue  # a redrawn value left the domain
        if any(not bool(b.numerical.isfinite().all()) for b in blocks):
            continue
        suspects = [b for b in blocks if _counts(target, b)]
        if not suspects:
            entries = sum(b.analytical.numel() for b in blocks)
            return Outcome(held=[f"all {entries} Jacobian entries of {_names(target, blocks)}"])
        settled = [_settled(target, call, b) for b in suspects]
        certain = [b for b in settled if bool(b.wrong.any())]
        if certain:
            if all(holds_as_given(target, b) for b in certain):
                return Outcome(findings=[outside_domain(target, certain)])
            rest = [next((s for s in settled if s.index == b.index), b) for b in blocks]
            found = explained(target, call, run, certain, rest, explain=explain)
            return Outcome(findings=found)
        unsettled = suspects
    return _coarse(target, unsettled)


def _counts(target: Target, block: Block) -> bool:
    if block.index in target.call.optional and not bool(block.analytical.any()):
        return False  # no caller asked for this gradient
    return bool(block.wrong.any()) and not block.approximate


def _settled(target: Target, call: Call, block: Block) -> Block:
    """Keep only the differences that do not come from a kink or from rounding.

    Entries whose one-sided derivatives disagree, or whose central difference changes with the step,
    are taken as agreeing: they can be neither right nor wrong.
    """
    right = block.numerical.clone()
    forward = reference(target, call)
    columns = [int(c) for c in block.wrong.any(0).nonzero().flatten()]
    for column in columns[:_PROBED]:
        above, below = one_sided(forward, block.index, column, target.chosen, target.step)
        wide = numerical(
            forward, block.index, target.chosen, step=8 * target.step, columns=[column]
        )[:, 0]
        error = block.error[:, column]
        doubtful = (above - below).abs() > 0.1 * error + block.tolerance[:, column]
        doubtful |= (wide - block.numerical[:, column]).abs() > 0.1 * error
        doubtful &= block.wrong[:, column]
        right[doubtful, column] = block.analytical[doubtful, column]
    for column in columns[_PROBED:]:
        if not bool((block.numerical[:, columns[:_PROBED]] == right[:, columns[:_PROBED]]).any()):
            right[:, column] = block.analytical[:, column]
    return replace(block, numerical=right)


def _coarse(target: Target, blocks: Sequence[Block]) -> Outcome:
    """Decide with wide steps, for a forward that computes in a lower precision than its inputs."""
    call = target.call
    forward = reference(target, call)
    run = call.run()
    wrong: list[str] = []
    for block in blocks:
        matrix = analytical(run, target.chosen)[0][block.index]
        steps = (1e-4, 1e-3, 1e-2)
        found = [numerical(forward, block.index, target.chosen, step=s) for s in steps]
        size = float(matrix.abs().max()) or 1.0
        if not any(float((matrix - n).abs().max()) <= 2e-2 * size for n in found):
            wrong.append(target.input_name(block.index))
    if not wrong:
        return Outcome(held=["the Jacobian with wide steps (forward rounds below float64)"])
    reason = (
        f"the derivative of {target.name} with respect to {', '.join(wrong)} could not be measured: one-sided "
        f"differences disagree at {_DRAWS} draws, or change with the step (kinks, rounding or randomness of its own)"
    )
    return Outcome(findings=[target.finding("inconclusive", "not-differentiable", reason)])


def _affordable(target: Target) -> bool:
    inputs, outputs = target.entries
    forward, backward = target.cost
    return 2 * inputs * forward + outputs * backward <= BUDGET_S


def _stale_declaration(target: Target) -> Outcome | None:
    plain = replace(target, surrogate=None)
    run = target.call.run()
    if any(bool(b.wrong.any()) for b in blocks_of(plain, target.call, run)):
        return None
    return target.broken(
        "surrogate-stale",
        f"{target.name} is declared a surrogate gradient, but its gradient is forward's own derivative",
        observed="all Jacobian entries agree with central differences of forward",
        cause="the declaration is no longer needed",
        because="the plain gradient check passes",
        fix="remove the declaration",
    )


def _names(target: Target, blocks: Iterable[Block]) -> str:
    return ", ".join(target.input_name(b.index) for b in blocks)


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

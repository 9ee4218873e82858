"""Which upstream gradients backward must stand: zero, None, larger, of one output only; and leave as they are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...probes.holding.aliasing import find_alias
from ..lines import Trace, first_write, storage_of
from ..relations.jacobians import as_real, distance
from ..target import (
    MEANT,
    Outcome,
    Target,
    first_line,
    line_of,
    only_passes_on,
    passes_values,
    tolerance,
)
from .strides import layouts


def check_upstream(target: Target, *, zero_known: bool = False) -> Outcome:
    """Compare backward under odd upstream gradients with the contiguous result.

    Args:
        target: What is checked.
        zero_known: Its answer to a zero upstream gradient has been reported already.
    """
    outcome = layouts(target)
    if not zero_known:
        outcome.add(_zero(target))
    for aspect in (_linear, _partial, _undefined):
        if not outcome.violated:
            outcome.add(aspect(target))
    return outcome


def check_unwritten(target: Target) -> Outcome:
    """See that backward leaves its upstream gradient as it was."""
    run = target.call.run()
    upstream = target.upstream(run)
    kept = {i: g.clone() for i, g in upstream.items()}
    with Trace(target.function) as trace:
        run.grads(upstream)
    changed = [i for i, g in upstream.items() if not torch.equal(as_real(g), as_real(kept[i]))]
    if not changed:
        return Outcome(held=["the upstream gradient stays as it was"])
    op = next(
        (found for i in changed if (found := first_write(trace.ops, storage_of(upstream[i])))), None
    )
    again = target.upstream(run)
    alias = find_alias(lambda: run.grads(again), again[changed[0]], op.line if op else None)
    return target.broken(
        "upstream-mutated",
        f"{target.backward} modifies the upstream gradient in place",
        location=op.line if op is not None else None,
        others=[alias.culprit("grad_output")] if alias is not None else [],
        observed="grad_output differs after backward from before "
        f"({distance(upstream[changed[0]], kept[changed[0]]):.3g} relative)",
        cause="autograd shares that tensor with other branches of the graph; they now add a wrong gradient",
        because=f"{op.name} wrote into its memory"
        + (f", by the name {alias.name}" if alias is not None else "")
        if op is not None
        else "its values changed during backward",
        fix=alias.fix
        if alias is not None
        else "use the out-of-place operation (grad * mask instead of grad.mul_(mask)), or clone first",
        evidence={"operation": op.name if op is not None else ""},
    )


def _zero(target: Target) -> Outcome:
    run = target.call.run()
    found = run.grads({i: torch.zeros_like(run.outputs[i]) for i in target.chosen})
    wrong = [i for i, g in found.items() if g is not None and (bool((g != 0).any()))]
    if not wrong:
        return Outcome(held=["a zero upstream gradient"])
    index = wrong[0]
    grad = found[index]
    size = float(as_real(grad).abs().max()) if grad is not None else 0.0
    name = target.input_name(index)
    if not math.isfinite(size):
        return _zero_over_zero(target, index)
    drawn = run.grads(target.upstream(run))
    meant = only_passes_on(target, target.call)  # a penalty, the gradient of an auxiliary loss
    if distance(drawn[index], grad) <= tolerance(target):
        return _ignored(target, index, meant)
    return target.broken(
        "upstream-zero",
        f"{target.backward} returns a gradient of {name} that is not zero for a zero upstream gradient",
        doubtful=meant,
        location=line_of(target, index),
        inputs={index: f"up to {size:.3g}"},
        observed=f"upstream 0 gave entries up to {size:.3g}",
        cause="a term of the gradient is not multiplied by grad_output",
        because="backward is linear in the upstream gradient; at 0 it must be 0",
        fix=f"multiply every term of the gradient of {name} by the upstream gradient of its output"
        + (f"; if it is meant, {MEANT}" if meant else ""),
        evidence={"largest": size},
    )


def _ignored(target: Target, index: int, meant: bool) -> Outcome:
    name = target.input_name(index)
    return target.broken(
        "gradcheck-upstream-ignored",
        f"{target.backward} returns a gradient of {name} that ignores the upstream gradient",
        doubtful=meant,
        location=line_of(target, index),
        inputs={index: "the same for every upstream gradient"},
        observed="an upstream of 0 and a random one gave the same gradient",
        cause="backward does not multiply by grad_output",
        because="the gradient did not change with the upstream gradient",
        fix="multiply by the upstream gradient (the chain rule)"
        + (f"; if it is meant, {MEANT}" if meant else ""),
    )


def _zero_over_zero(target: Target, index: int) -> Outcome:
    name = target.input_name(index)
    return target.broken(
        "upstream-zero",
        f"{target.backward} returns NaN for {name} when the upstream gradient is zero",
        location=line_of(target, index),
        inputs={index: "NaN"},
        observed="upstream 0 gave NaN",
        cause="backward divides by something that vanishes with the upstream gradient",
        because="with a random upstream gradient the result is finite; a zero one must give 0",
        fix="divide by nothing that is computed from grad_output",
    )


def _linear(target: Target) -> Outcome:
    """See that a larger upstream gradient scales the result (clipping inside backward does not)."""
    if target.surrogate is not None and target.surrogate.of is None:
        return Outcome()
    run = target.call.run()
    upstream = target.upstream(run)
    once = run.grads({i: g.clone() for i, g in upstream.items()})
    zero = run.grads({i: torch.zeros_like(g) for i, g in upstream.items()})
    for factor in (32.0, 2.0**-12, -1.0):
        scaled = run.grads({i: g * factor for i, g in upstream.items()})
        for index, grad in scaled.items():
            one, none = once[index], zero[index]
            if one is None or grad is None or (none is not None and bool((none != 0).any())):
                continue  # the last is reported by _zero
            if (
                distance(grad, one * factor) > 1e-3
            ):  # an adaptive solver inside is linear to its tolerance
                return _not_linear(target, index, factor, grad, one)
    return Outcome(held=["linearity in the upstream gradient"])


def _not_linear(target: Target, index: int, factor: float, grad: Tensor, once: Tensor) -> Outcome:
    name = target.input_name(index)
    ratio = float(as_real(grad).abs().sum() / as_real(once).abs().sum())
    # a Function that passes values on, bounded at most, is written for what it does to gradients
    return target.broken(
        "upstream-nonlinear",
        f"{target.backward} is not linear in the upstream gradient: {name} grows "
        f"{ratio:.4g} times when it grows {factor:g} times",
        doubtful=passes_values(target, target.call, index),
        location=line_of(target, index),
        inputs={index: f"{ratio:.4g} times instead of {factor:g}"},
        observed=f"upstream times {factor:g} gave {ratio:.4g} times the gradient",
        cause="backward clips, normalises or thresholds the upstream gradient",
        because="a derivative is linear in the upstream gradient",
        fix="clip outside the Function (a tensor hook), or declare promises.StraightThrough with the reason",
        evidence={"factor": factor, "ratio": ratio},
    )


def _partial(target: Target) -> Outcome:
    """With several outputs, use one of them at a time: the others' upstream is zero or None."""
    if len(target.chosen) < 2:
        return Outcome()
    run = target.call.run()
    upstream = target.upstream(run)
    for used in target.chosen:
        filled = {i: g.clone() if i == used else torch.zeros_like(g) for i, g in upstream.items()}
        reference = run.grads(filled)
        try:
            found = target.call.run().grads({used: upstream[used].clone()})
        except Exception as error:  # the backward of the user may raise anything
            return _partial_raised(target, used, error)
        wrong = [i for i in found if distance(found[i], reference[i]) > tolerance(target)]
        if wrong:
            name = target.input_name(wrong[0])
            return target.broken(
                "upstream-none",
                f"{target.backward} returns another gradient of {name} when only output {used} is used",
                location=line_of(target, wrong[0]),
                inputs=dict.fromkeys(wrong, "differs"),
                observed="relative difference "
                f"{distance(found[wrong[0]], reference[wrong[0]]):.3g} from zeros "
                "for the other outputs",
                cause="backward treats the missing gradient of an unused output as something else than zero",
                because="the same call with zeros in its place gives another gradient",
                fix="treat None as zero",
                evidence={"output": used},
            )
    return Outcome(held=[f"each of {len(target.chosen)} outputs used alone"])


def _partial_raised(target: Target, used: int, error: Exception) -> Outcome:
    return target.raised(
        "upstream-none",
        f"{target.backward} raises when only output {used} is used: {first_line(error)}",
        error,
        cause="the gradient of an unused output is None (ctx.set_materialize_grads(False)) and "
        "backward computes with it",
        because="with zeros in its place the same call works",
        fix="test for None before using a grad_output, or leave set_materialize_grads alone",
        evidence={"output": used},
    )


def _undefined(target: Target) -> Outcome:
    """Let every upstream gradient be undefined, as gradcheck's undefined-grad test does."""
    undefined = torch._C._functions.UndefinedGrad()
    run = target.call.run()
    outputs: list[Any] = [undefined(run.outputs[i]) for i in target.chosen]
    leaves = [leaf for leaf in run.leaves.values() if leaf.requires_grad]
    try:
        with torch.enable_grad():
            sums = [(o.real if o.is_complex() else o).sum() for o in outputs]
        found = torch.autograd.grad(torch.stack(sums).sum(), leaves, allow_unused=True)
    except Exception as error:  # the backward of the user may raise anything
        return target.raised(
            "upstream-none",
            f"{target.backward} raises when the upstream gradient is None: {first_line(error)}",
            error,
            cause="ctx.set_materialize_grads(False) lets None through, and backward computes with it",
            because="with a tensor in its place the same call works",
            fix="return None where every grad_output is None, or leave set_materialize_grads alone",
        )
    wrong = [i for i, g in zip(run.leaves, found, strict=False) if g is not None and bool(g.any())]
    if wrong and not _zero(target).findings:
        return target.broken(
            "upstream-none",
            f"{target.backward} returns a gradient that is not zero when the upstream gradient is None",
            location=line_of(target, wrong[0]),
            inputs=dict.fromkeys(wrong, "not zero"),
            observed="an undefined upstream gradient gave entries that are not 0",
            cause="None is not treated as zero",
            because="a zero upstream gradient gives zeros",
            fix="return None where every grad_output is None",
        )
    return Outcome(held=["an undefined upstream gradient"])

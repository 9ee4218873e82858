"""Inputs in other strides, and broadcast further than the call does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..calls import Call, is_float
from ..common import reference_of, tolerance
from ..lines import error_line, head
from ..relations.jacobians import as_real, distance
from ..target import Outcome, Target, first_line
from .derivatives import check_first
from .strides import UPSTREAM_LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor

    from ..target import Target


_MOST = 4


def broadcasts(target: Target) -> Iterator[tuple[str, Target]]:
    """Yield targets in which an input that is broadcast is cut to size 1 along a further axis.

    Only inputs that the call itself broadcasts: a forward may accept sizes by accident that it was never
    meant for (a loss of two tensors, a normalisation), and owes no gradient there.
    """
    call = target.call
    outputs = call.evaluate()
    shapes = [out.shape for out in outputs]
    largest = max((outputs[i] for i in target.chosen), key=lambda out: (out.dim(), out.numel()))
    found = 0
    for index in call.wanted:
        value = call.values[index]
        if not _is_broadcast(value, largest):
            continue
        axes = [d for d in range(value.dim()) if value.shape[d] > 1]
        for axis in dict.fromkeys(axes[:1] + axes[-1:]):
            if found >= _MOST:
                return
            smaller = call.replaced(index, value.narrow(axis, 0, 1).clone())
            if _usable(smaller, shapes, target):
                found += 1
                label = f"{target.input_name(index)} is broadcast along its axis {axis}"
                yield label, replace(target, call=smaller, original=None)


def _is_broadcast(value: Tensor, output: Tensor) -> bool:
    """Say whether an input's shape broadcasts to an output's, and is smaller."""
    if value.dim() > output.dim() or value.numel() >= output.numel():
        return False
    aligned = (1,) * (output.dim() - value.dim()) + tuple(value.shape)
    return all(a in (1, b) for a, b in zip(aligned, output.shape, strict=True))


def _usable(call: Call, shapes: list[torch.Size], target: Target) -> bool:
    try:
        outputs = call.evaluate()
        if [out.shape for out in outputs] != shapes:
            return False
        if any(is_float(out) and not bool(as_real(out).isfinite().all()) for out in outputs):
            return False
        run = call.run()
        if tuple(run.differentiable) != target.chosen:
            return False
        run.grads(target.upstream(run))
    except Exception:  # a refusal, in forward or backward, is loud: nothing silent to find
        return False
    return True


def check_inputs(target: Target) -> Outcome:
    """Give the inputs in other strides and broadcast: values and gradients must follow."""
    outcome = Outcome() if target.stochastic else _input_layouts(target)
    outcome.add(_broadcast_inputs(target))
    return outcome


def _input_layouts(target: Target) -> Outcome:

    run, upstream, reference = reference_of(target)
    call = target.call
    done = []
    for label, change in UPSTREAM_LAYOUTS.items():
        chosen = [i for i in call.wanted if label != "transposed" or call.values[i].dim() > 1]
        if not chosen:
            continue
        try:
            other = call.run(layouts=dict.fromkeys(chosen, change))
        except Exception:  # a forward may demand contiguous inputs: it says so, loudly
            continue
        pairs = zip(other.outputs, run.outputs, strict=False)
        differ = [
            i
            for i, (a, b) in enumerate(pairs)
            if is_float(b) and distance(a, b) > tolerance(target)
        ]
        if differ:
            return _layout_finding(target, label, "forward", chosen, None)
        try:
            found = other.grads({i: g.clone() for i, g in upstream.items()})
        except Exception as error:  # the backward of the user may raise anything
            return _layout_finding(target, label, "backward", chosen, error)
        wrong = [i for i in found if distance(found[i], reference[i]) > tolerance(target)]
        if wrong:
            return _layout_finding(target, label, "backward", wrong, None)
        done.append(label)
    return Outcome(held=[f"inputs {', '.join(done)}"] if done else [])


def _layout_finding(
    target: Target, label: str, part: str, inputs: list[int], error: Exception | None
) -> Outcome:
    name = ", ".join(target.input_name(i) for i in inputs)
    what = f"raises {type(error).__name__}" if error is not None else "gives another result"
    place = error_line(target.function, error) if error is not None else head(target.function, part)
    return target.broken(
        "input-layout",
        f"{target.part(part)} {what} when {name} is {label}",
        location=place,
        inputs=dict.fromkeys(inputs, label),
        observed=first_line(error)
        if error is not None
        else f"the same values, contiguous and {label}, give different results",
        cause=f"{part} reads the buffer of {name} as if it were contiguous",
        because="only the strides changed",
        fix=f"call .contiguous() on {name} first, or refuse other strides with an error",
        evidence={"layout": label},
    )


def _broadcast_inputs(target: Target) -> Outcome:
    """Shrink one input to size 1 along an axis: where forward still broadcasts it, so must backward."""
    done = []
    for label, smaller in broadcasts(target):
        outcome = check_first(smaller)
        bad = [f for f in outcome.findings if f.status == "violated"]
        if bad:
            summary = f"{bad[0].summary}, when {label}"
            return Outcome(findings=[bad[0].replace(summary=summary)])
        if outcome.held:
            done.append(label)
    return Outcome(held=[f"broadcasting ({'; '.join(done)})"] if done else [])

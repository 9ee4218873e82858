"""Inputs and upstream gradients that are transposed, strided, offset or expanded, against contiguous ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..calls import Call, is_float
from ..lines import Trace, error_line, first_divergence, head
from ..relations.jacobians import as_real, distance
from ..target import Grads, Outcome, Target, first_line, reference_of, tolerance
from .derivatives import check_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ...findings import Location


def _strided(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, torch.full_like(tensor, float("nan"))], -1)[..., 0]


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _offset(tensor: Tensor) -> Tensor:
    flat = torch.cat([tensor.new_full((3,), float("nan")), tensor.reshape(-1)])
    return flat[3:].view(tensor.shape)


UPSTREAM_LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "transposed": _transposed,
    "strided": _strided,
    "offset into a larger buffer": _offset,
}


def _variants(upstream: Grads) -> Iterator[tuple[str, dict[int, Tensor], dict[int, Tensor]]]:
    """Yield a label, upstream gradients in an odd layout, and the same values contiguous."""
    plain = {i: g for i, g in upstream.items() if g is not None}
    for label, change in UPSTREAM_LAYOUTS.items():
        if label == "transposed" and all(g.dim() < 2 for g in plain.values()):
            continue
        yield (
            label,
            {i: change(g) if g.dim() > 1 or label != "transposed" else g for i, g in plain.items()},
            plain,
        )
    for label, first in (("expanded (stride 0)", False), ("expanded along the first axis", True)):
        if first and all(g.dim() < 2 for g in plain.values()):
            continue
        small = {i: _first_entry(g, first=first) for i, g in plain.items()}
        expanded = {i: small[i].expand(g.shape) for i, g in plain.items()}
        yield label, expanded, {i: g.contiguous() for i, g in expanded.items()}


def _first_entry(tensor: Tensor, *, first: bool) -> Tensor:
    if tensor.dim() == 0 or tensor.numel() == 0:
        return tensor.clone()
    # in a buffer of the full size: a kernel that reads it as if it were contiguous meets NaN, not
    # the void
    buffer = torch.full_like(tensor, float("nan"), memory_format=torch.contiguous_format)
    if first:
        buffer[:1] = tensor[:1]
        return buffer[:1]
    buffer.view(-1)[0] = tensor.reshape(-1)[0]
    return buffer.view(-1)[:1].view((1,) * tensor.dim())


def layouts(target: Target) -> Outcome:
    """Compare backward under odd layouts of the upstream gradient with the contiguous result."""
    run = target.call.run()
    labels = []
    for label, odd, plain in _variants(target.upstream(run)):
        reference = run.grads({i: g.clone() for i, g in plain.items()})
        try:
            found = target.call.run().grads(odd)
        except Exception as error:  # the backward of the user may raise anything
            return _layout_raised(target, label, error)
        wrong = [i for i in found if distance(found[i], reference[i]) > tolerance(target)]
        if wrong:
            return _layout_wrong(target, label, odd, plain, wrong, found, reference)
        labels.append(label)
    return Outcome(held=[f"upstream gradients {', '.join(labels)}"])


def _layout_raised(target: Target, label: str, error: Exception) -> Outcome:
    return target.raised(
        "upstream-layout",
        f"{target.backward} raises on an upstream gradient that is {label}",
        error,
        cause="backward assumes a contiguous grad_output; autograd promises none (y.sum() gives "
        "stride 0, y.t() a transpose)",
        because="the same values in a contiguous tensor work",
        fix="call grad_output.contiguous(), or reshape instead of view, before this line",
        evidence={"layout": label},
    )


def _layout_wrong(
    target: Target,
    label: str,
    odd: Mapping[int, Tensor],
    plain: Mapping[int, Tensor],
    wrong: list[int],
    found: Grads,
    reference: Grads,
) -> Outcome:
    place, how = _diverging(target, odd, plain)
    names = ", ".join(target.input_name(i) for i in wrong)
    gap = max(distance(found[i], reference[i]) for i in wrong)
    return target.broken(
        "upstream-layout",
        f"{target.backward} returns another gradient of {names} when the upstream gradient is {label}",
        location=place,
        inputs={i: f"relative difference {distance(found[i], reference[i]):.3g}" for i in wrong},
        observed=f"the same values, contiguous and {label}: relative difference {gap:.3g}",
        cause="backward reads the buffer of grad_output as if it were contiguous",
        because=how,
        fix="call grad_output.contiguous() before this line",
        evidence={"layout": label, "difference": gap},
    )


def _diverging(
    target: Target, odd: Mapping[int, Tensor], plain: Mapping[int, Tensor]
) -> tuple[Location | None, str]:
    """Find the first operation of backward that gives something else."""
    traces = []
    for upstream in (plain, odd):
        run = target.call.run()
        with Trace(target.function) as trace:
            run.grads(dict(upstream.items()))
        traces.append(trace.ops)
    op = first_divergence(traces[0], traces[1], tolerance(target))
    if op is None:
        return (
            None,
            "the same values came in; no single torch operation explains it (a kernel outside torch?)",
        )
    return (
        op.line,
        f"{op.name} is the first operation whose result differs from the contiguous run's",
    )


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

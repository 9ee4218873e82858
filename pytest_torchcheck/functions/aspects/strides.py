"""Upstream gradients that are transposed, strided, offset or expanded, against contiguous ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..common import Grads, tolerance
from ..lines import Trace, first_divergence
from ..relations.jacobians import distance
from ..target import Outcome, Target

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

"""Mixed dtypes, half precision and autocast, held to the float64 gradients."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...text.printable import message_of
from ..calls import Call, OpLimit, Run, Runaway
from ..lines import gradient_line, head, line_with
from ..relations.jacobians import distance, random_like
from ..target import Outcome, Target, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..target import Grads

_LONG = 2_000
"""Operations of one forward and backward above which a callable is taken for an iteration: its steps adapt to
the precision, so that a lower one shows nothing and may never end."""

LOW = (torch.float16, torch.bfloat16)

SLACK = 8.0
"""How many roundings of the low precision an error may amount to, beside the measured sensitivity (CHECKS R3, R5)."""


def check_precision(target: Target, *, autocast: bool = False) -> Outcome:
    """Run in mixed dtypes, in half precision and under autocast; hold the gradients to the float64 ones.

    Args:
        target: What is checked, in float64.
        autocast: Whether the callable is known to run under autocast; then an error counts as violated,
            as it does where forward is decorated with ``custom_fwd``. Elsewhere it is a loud refusal.
    """
    outcome = Outcome()
    values = [v for v in target.call.values if isinstance(v, Tensor)]
    if target.dtype != torch.float64 or any(v.is_complex() for v in values):
        return outcome
    with OpLimit() as usual:
        run = target.call.run()
        run.grads(target.upstream(run))
    if usual.count > _LONG:
        return Outcome(held=[f"float64 only ({usual.count} operations a step: an iteration)"])
    aspects: list[Callable[[], Outcome]] = [lambda: _mixed(target)]
    if not target.stochastic:  # another dtype draws other random numbers
        aspects += [lambda dtype=dtype: _low(target, dtype) for dtype in LOW]  # type: ignore[misc]
        aspects.append(lambda: _autocast(target, required=autocast))
    for aspect in aspects:
        if outcome.violated:
            break
        try:
            with OpLimit(most=2_000 + 20 * usual.count):
                outcome.add(aspect())
        except Runaway:  # an iteration that never converges in low precision shows nothing
            continue
    return outcome


def _mixed(target: Target) -> Outcome:
    """Cast one input at a time to float32: where forward promotes, backward must too."""
    call = target.call
    if len(call.wanted) < 2:
        return Outcome()
    done = []
    for index in call.wanted:
        mixed = call.cast(torch.float32, [index])
        rounded = call.replaced(index, mixed.values[index].to(call.values[index].dtype))
        name = target.input_name(index)
        try:
            run = mixed.run()
            if tuple(run.differentiable) != target.chosen:
                continue
        except Exception:  # forward may demand equal dtypes: it says so, loudly
            continue
        upstream = _upstream(run, target)
        wide = rounded.run()
        reference = wide.grads({i: g.to(wide.outputs[i].dtype) for i, g in upstream.items()})
        try:
            found = run.grads(upstream)
        except Exception as error:  # the backward of the user may raise anything
            return _mixed_raised(target, name, index, error)
        wrong = [i for i in found if distance(found[i], reference[i]) > 1e-3]
        if wrong:
            gap = max(distance(found[i], reference[i]) for i in wrong)
            return _mixed_wrong(target, name, wrong, gap)
        done.append(name)
    return Outcome(held=[f"mixed dtypes (float32 {', '.join(done)})"] if done else [])


def _mixed_raised(target: Target, name: str, index: int, error: Exception) -> Outcome:
    return target.raised(
        "mixed-dtype",
        f"{target.backward} raises when {name} is float32 and the rest float64: {first_line(error)}",
        error,
        inputs={index: "float32"},
        observed=f"forward accepts the mixture, backward raises {type(error).__name__}",
        cause="backward combines tensors of different dtypes in an operation that does not promote",
        because=f"torch said: {first_line(error)}",
        fix="cast to the upstream gradient's dtype in backward (or refuse mixed dtypes in forward)",
    )


def _mixed_wrong(target: Target, name: str, wrong: list[int], gap: float) -> Outcome:
    return target.broken(
        "mixed-dtype",
        f"{target.backward} returns a wrong gradient of {target.input_name(wrong[0])} when "
        f"{name} is float32 and the rest float64",
        location=gradient_line(target.function, target.position(wrong[0])),
        inputs=dict.fromkeys(wrong, f"relative difference {gap:.3g}"),
        observed=f"relative difference {gap:.3g} from the float64 gradient of the same values",
        cause="backward rounds or reinterprets a tensor of another dtype",
        because="only the dtype of one input changed",
        fix="compute in the promoted dtype",
        evidence={"difference": gap},
    )


def _low(target: Target, dtype: torch.dtype) -> Outcome:
    """Run in half precision, and hold the error against rounding and measured sensitivity."""
    name = str(dtype).removeprefix("torch.")
    low = target.call.cast(dtype)
    wide = low.cast(torch.float64)
    try:
        run = low.run()
        if tuple(run.differentiable) != target.chosen or not _finite(run, target):
            return Outcome()
        if dtype == torch.float16 and not all(_comfortable(low.values[i]) for i in low.wanted):
            return Outcome()
        exact = wide.run()
    except Exception:  # forward may know no half precision: it says so, loudly
        return Outcome()
    upstream = _upstream(run, target)
    reference = exact.grads({i: g.to(torch.float64) for i, g in upstream.items()})
    try:
        found = run.grads(upstream)
    except Exception as error:  # the backward of the user may raise anything
        if not _about_dtypes(error):
            return Outcome()
        return _low_raised(target, name, error)
    for index, grad in found.items():
        if dtype == torch.float16 and not _comfortable(reference[index]):
            continue  # so small or large that any computation in float16 loses it
        limit = _allowed(target, wide, upstream, reference, index, dtype)
        gap = distance(grad, reference[index])
        if grad is not None and gap > limit:
            return _low_wrong(target, name, index, gap, limit)
    return Outcome(held=[name])


def _about_dtypes(error: Exception) -> bool:
    """Say whether backward mixed dtypes; a kernel that this device lacks says something else."""
    text = message_of(error)
    return "not implemented for" not in text and bool(
        re.search(r"dtype|scalar type|BFloat16|Half|float16", text)
    )


def _comfortable(reference: Tensor | None) -> bool:
    largest = 0.0 if reference is None or not reference.numel() else float(reference.abs().max())
    return 1e-3 <= largest <= 1e3


def _finite(run: Run, target: Target) -> bool:
    return all(bool(run.outputs[i].isfinite().all()) for i in target.chosen)


def _upstream(run: Run, target: Target) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(0xCA57)
    return {i: random_like(run.outputs[i], generator) for i in target.chosen}


def _allowed(
    target: Target, wide: Call, upstream: Grads, reference: Grads, index: int, dtype: torch.dtype
) -> float:
    """Return the relative error that rounding alone explains.

    Twice the largest change of the float64 gradient when inputs, outputs' gradients and nothing else
    are moved by one rounding each, four times over, plus ``SLACK`` roundings of a sum of that length.
    """
    eps = float(torch.finfo(dtype).eps)
    generator = torch.Generator().manual_seed(0x20FF)
    moved = 0.0
    for _ in range(6):
        noisy = wide.with_values(
            v
            * (
                1 + 2 * eps * (torch.rand(v.shape, generator=generator, dtype=torch.float64) - 0.5)
            ).to(v)
            if isinstance(v, Tensor) and v.is_floating_point()
            else v
            for v in wide.values
        )
        try:
            grads = noisy.run().grads(
                {i: g.to(torch.float64) for i, g in upstream.items() if g is not None}
            )
        except Exception:  # a nudge may leave the domain
            continue
        moved = max(moved, distance(grads[index], reference[index]))
    length = max(
        wide.values[index].numel(), *(t.numel() for t in upstream.values() if t is not None)
    )
    return float(8 * moved + SLACK * eps * math.sqrt(max(length, 1)))


def _low_raised(target: Target, name: str, error: Exception) -> Outcome:
    return target.raised(
        "low-precision",
        f"{target.backward} raises in {name}: {first_line(error)}",
        error,
        observed=f"forward runs in {name}, backward raises {type(error).__name__}",
        cause=f"backward mixes {name} with another dtype",
        because=f"torch said: {first_line(error)}",
        fix="create every tensor in backward with the dtype of grad_output (new_zeros, zeros_like)",
        evidence={"dtype": name},
    )


def _low_wrong(target: Target, name: str, index: int, gap: float, limit: float) -> Outcome:
    of = target.input_name(index)
    return target.broken(
        "low-precision",
        f"{target.backward} loses the gradient of {of} in {name}: relative error {gap:.3g} "
        f"where rounding explains {limit:.3g}",
        location=gradient_line(target.function, target.position(index)),
        inputs={index: f"relative error {gap:.3g}"},
        observed=f"relative error {gap:.3g} against float64 on the same rounded inputs",
        cause=f"an intermediate of backward underflows, overflows or cancels in {name}",
        because=f"moving every input by one rounding of {name} and summing with rounding explains {limit:.3g} at most",
        fix="compute that intermediate in float32 (grad.float()) and cast the result back",
        evidence={"dtype": name, "error": gap, "allowed": limit},
    )


def _autocast(target: Target, *, required: bool) -> Outcome:
    """Run forward under autocast on float32 inputs and backward outside, as a training loop does."""
    declared = _uses_custom_fwd(target)
    call = target.call.cast(torch.float32)
    device = next((v.device.type for v in call.values if isinstance(v, Tensor)), "cpu")
    try:
        plain = call.run()
        with torch.autocast(device, dtype=torch.bfloat16):
            run = call.run()
        if tuple(run.differentiable) != target.chosen or not _finite(run, target):
            return Outcome()
    except Exception:  # forward may refuse the lower precision: it says so, loudly
        return Outcome()
    upstream = _upstream(run, target)
    wide = {i: g.to(plain.outputs[i].dtype) for i, g in upstream.items()}
    try:
        found = run.grads(upstream)
    except Exception as error:  # the backward of the user may raise anything
        if not (required or declared) or not _about_dtypes(error):
            return Outcome(held=[f"autocast: refused ({first_line(error)[:60]})"])
        return _autocast_raised(target, error)
    reference = plain.grads(wide)
    base = call.cast(torch.float64)
    for index, grad in found.items():
        doubles = {i: g.to(torch.float64) for i, g in upstream.items()}
        exact = base.run().grads(doubles)
        limit = _allowed(target, base, upstream, exact, index, torch.bfloat16)
        gap = distance(grad, reference[index])
        if grad is not None and gap > 4 * limit:
            return _autocast_wrong(target, index, gap, 4 * limit)
    return Outcome(held=["autocast"])


def _uses_custom_fwd(target: Target) -> bool:
    return line_with(target.function, r"custom_fwd", "forward") is not None


def _autocast_raised(target: Target, error: Exception) -> Outcome:
    return target.raised(
        "autocast",
        f"{target.backward} raises after a forward under autocast: {first_line(error)}",
        error,
        observed=f"forward under torch.autocast worked, backward raises {type(error).__name__}",
        cause="forward saw the lower precision that autocast chose and saved the inputs in another",
        because=f"torch said: {first_line(error)}; without autocast the same call works",
        fix="decorate forward with torch.amp.custom_fwd(device_type=..., cast_inputs=...) and backward with custom_bwd",
    )


def _autocast_wrong(target: Target, index: int, gap: float, limit: float) -> Outcome:
    name = target.input_name(index)
    return target.broken(
        "autocast",
        f"{target.backward} returns a wrong gradient of {name} after a forward under autocast",
        location=gradient_line(target.function, target.position(index))
        or head(target.function, "backward"),
        inputs={index: f"relative error {gap:.3g}"},
        observed=f"relative error {gap:.3g} against the run without autocast; rounding explains {limit:.3g}",
        cause="what forward saved under autocast is not what backward expects",
        because="only autocast was switched on",
        fix="decorate forward with torch.amp.custom_fwd(device_type=..., cast_inputs=...) and backward with custom_bwd",
        evidence={"error": gap, "allowed": limit},
    )

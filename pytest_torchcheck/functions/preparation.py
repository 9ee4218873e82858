"""Bring a call into float64 and to a small size, and see that forward and backward run."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .arguments import degenerate, is_large, jittered, redrawn, reductions, symmetrised
from .calls import Call, is_float
from .lines import error_line, gradient_line, head
from .relations.jacobians import as_real, float_outputs
from .target import Surrogate, Target, first_line

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..findings import Finding, Location


def prepare(
    call: Call,
    name: str,
    *,
    redraw: bool,
    tiny: bool = False,
    surrogate: Surrogate | None = None,
    used_at: Location | None = None,
    keep: Collection[int] = (),
) -> Target | Finding:
    """Bring a call into float64 and to a small size, and see that it runs.

    Args:
        call: The call as given or recorded.
        name: Its name.
        redraw: Whether to draw the values anew, within their ranges.
        tiny: Whether to cut large arguments to sizes of 2 and 3 before anything larger is tried.
        surrogate: A declared estimator.
        used_at: The user's line that applies it.
        keep: Places of matrices that stay symmetric where values are drawn anew.

    Returns:
        The target, or the finding that says why nothing can be checked.
    """
    plain = Target(name=name, call=call, surrogate=surrogate, used_at=used_at)
    if not call.wanted:
        return plain.finding("not-applicable", "not-applicable", f"{name} takes no floating tensor")
    double, error = _first_that_runs(call)
    if double is None:
        return _refused(plain, error)
    call, dtype, notes = double
    settings: dict[str, Any] = {}
    if dtype != torch.float64:
        settings = {"rtol": 5e-2, "step": 1e-2}
    original = None
    given = call
    if is_large(call) and _on_cpu(
        call
    ):  # a kernel may read past the end of sizes it was not written for
        smaller = next((c for c in reductions(call, tiny=tiny) if _follows(c, call)), None)
        if smaller is not None:
            original, call = call, smaller
            notes.append("sizes cut down, equal sizes kept equal")
    weak = degenerate(call)
    if redraw or weak:
        fresh = next((c for c in _draws(call, keep) if _runs(c) is None), None)
        if fresh is not None:
            call = fresh
            notes.append(f"values drawn anew{f' because {weak}' if weak else ''}")
    recorded = None if weak or call is given else given
    target = replace(
        plain,
        call=call,
        original=original,
        recorded=recorded,
        dtype=dtype,
        notes=tuple(notes),
        **settings,
    )
    return _measured(target)


def _measured(target: Target) -> Target | Finding:
    try:
        target.call.run()  # the first run of a callable may load or compile something
    except (
        Exception
    ) as error:  # forward may refuse to be asked for some gradients (needs_input_grad)
        asked = tuple(i for i in target.call.wanted if i not in target.call.optional)
        narrow = replace(target.call, wanted=asked, optional=())
        if not asked or asked == target.call.wanted or _runs_with_graph(narrow) is not None:
            return _refused(target, error)
        left = ", ".join(target.call.names[i] for i in target.call.optional)
        note = f"no gradient asked of {left}, as in the model: forward refuses"
        recorded = target.recorded and replace(target.recorded, wanted=asked, optional=())
        target = replace(target, call=narrow, recorded=recorded, notes=(*target.notes, note))
    start = time.perf_counter()
    run = target.call.run()
    forward = time.perf_counter() - start
    chosen = tuple(run.differentiable)
    name = target.name
    if not chosen:
        floating = float_outputs(run.outputs)
        if not floating:
            return target.finding(
                "not-applicable", "not-applicable", f"{name} returns no floating tensor"
            )
        return target.finding(
            "inconclusive",
            "no-gradient",
            f"no output of {name} requires a gradient: all are marked non-differentiable or cut off",
        )
    classes = {type(node)._forward_cls for node in run.nodes()}
    origin = next(iter(classes)) if len(classes) == 1 else None
    target = replace(target, chosen=chosen, origin=origin)
    backward = 0.0
    for _ in range(2):  # the first backward is slower than the others
        run = target.call.run()
        start = time.perf_counter()
        try:
            run.grads(target.upstream(run))
        except Exception as error:  # the backward of the user may raise anything
            return _raised(target, error)
        backward = time.perf_counter() - start
    if not _repeats(target.call):
        return target.finding(
            "inconclusive",
            "own-randomness",
            f"{name} gives other outputs each time, though every generator in reach is set back before it",
            cause="forward depends on something beside its arguments and the generators: a counter, a clock, a cache",
            because="two runs from the same seed differ",
            fix="make it a function of its arguments, or pass it a torch.Generator",
        )
    return replace(target, stochastic=_stochastic(target.call), cost=(forward, backward))


def _repeats(call: Call) -> bool:
    return all(torch.equal(a, b) for a, b in zip(call.evaluate(), call.evaluate(), strict=False))


def _stochastic(call: Call) -> bool:
    here, there = call.evaluate(), replace(call, seed=call.seed + 1).evaluate()
    return any(not torch.equal(a, b) for a, b in zip(here, there, strict=False))


def _raised(target: Target, error: Exception) -> Finding:
    message = first_line(error)
    if isinstance(error, NotImplementedError) and set(target.call.wanted) <= set(
        target.call.optional
    ):
        reason = f"{target.name} has no backward, and the model asks no gradient of it"
        return target.finding("not-applicable", "not-applicable", reason)
    if target.call.carried:
        held = ", ".join(target.call.names[i] for i in target.call.carried)
        return target.finding(
            "inconclusive",
            "own-arguments",
            f"{target.backward} raises with copies of {held}, which another argument holds as well: {message[:160]}",
            cause="backward may differentiate what that argument computes by its own tensors, which no copy is",
            because="in the model both are the same tensors; a check runs with values of its own",
            fix="check it within the model: gradients-exist and descent do",
        )
    place = error_line(target.function, error)
    if place is None or not _inside(target, place):
        index = re.search(r"gradient at index (\d+)", message)
        place = gradient_line(target.function, int(index[1]) if index else None)
    cause, fix = _explain_error(message, target)
    return target.finding(
        "violated",
        "gradcheck-raises",
        f"{target.backward} raises {type(error).__name__}: {message[:160]}",
        location=place,
        observed=f"forward ran in {target.dtype}; backward with a contiguous random upstream gradient raised",
        cause=cause,
        because=f"torch said: {message[:300]}",
        fix=fix,
    )


def _explain_error(message: str, target: Target) -> tuple[str, str]:
    if "incorrect number of gradients" in message:
        count = len(target.call.values)
        return (
            f"backward must return one value per argument of forward ({count})",
            "return None for every argument that is not differentiable",
        )
    if "invalid gradient" in message and "shape" in message:
        return (
            "a returned gradient has not its input's shape: a sum over a broadcast axis or a transpose is missing",
            "reduce (or transpose) the gradient to the input's shape before it is returned",
        )
    if "complex" in message.lower():
        return ("a complex gradient is returned for a real input", "return its real part")
    return ("backward fails on plain arguments", "see the line above")


def _inside(target: Target, place: Location) -> bool:
    own = head(target.function, "backward", "vjp")
    return own is None or own.file == place.file


def _first_that_runs(
    call: Call,
) -> tuple[tuple[Call, torch.dtype, list[str]] | None, Exception | None]:
    error: Exception | None = None
    for dtype in (torch.float64, torch.float32):
        candidate = call.cast(dtype)
        failure = _runs(candidate)
        if failure is None:
            notes = [] if dtype == torch.float64 else ["float64 is refused: checked in float32"]
            return (candidate, dtype, notes), None
        error = error or failure
    return None, error


def _refused(target: Target, error: Exception | None) -> Finding:
    message = "" if error is None else first_line(error)
    return target.finding(
        "inconclusive",
        "forward-raises",
        f"{target.name} could not be run on its own: {type(error).__name__}: {message[:160]}",
        location=error_line(target.function, error) if error is not None else None,
        cause="its forward refuses these arguments",
    )


def _runs(call: Call) -> Exception | None:
    """Return why a call does not run to finite outputs, or None if it does."""
    try:
        outputs = call.evaluate()
    except Exception as error:  # the forward of the user may raise anything
        return error
    if any(is_float(out) and not bool(as_real(out).isfinite().all()) for out in outputs):
        return ValueError("the outputs are not finite")
    return None


def _runs_with_graph(call: Call) -> Exception | None:
    """Return why a call does not run where gradients are asked of it, or None if it does."""
    try:
        call.run()
    except Exception as error:  # as above
        return error
    return None


def _on_cpu(call: Call) -> bool:
    return all(v.device.type == "cpu" for v in call.values if isinstance(v, Tensor))


def _draws(call: Call, keep: Collection[int]) -> list[Call]:
    drawn = [redrawn(call, 0), redrawn(call, 1), jittered(call, 0)]
    return [symmetrised(one, keep) for one in drawn] if keep else drawn


def _follows(smaller: Call, call: Call) -> bool:
    """Say whether a smaller call does the same thing: as many outputs, of as many axes."""
    if _runs(smaller) is not None:
        return False
    small, large = smaller.evaluate(), call.evaluate()
    return [(o.dim(), o.dtype) for o in small] == [(o.dim(), o.dtype) for o in large]

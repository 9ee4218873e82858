"""Gradients when only some inputs require one: needs_input_grad."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from ..lines import line_with
from ..relations.jacobians import distance
from ..target import Outcome, Target, first_line, tolerance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


def check_subsets(target: Target) -> Outcome:
    """Compare the gradients when only some inputs require one with those when all do."""
    wanted = target.call.wanted
    if len(wanted) < 2:
        return Outcome()
    run = target.call.run()
    upstream = target.upstream(run)
    reference = run.grads(upstream)
    for subset in _subsets(wanted):
        try:
            part = target.call.run(requires=subset)
            if not any(part.outputs[i].requires_grad for i in target.chosen):
                continue
            alive = {i: g for i, g in upstream.items() if part.outputs[i].requires_grad}
            found = part.grads(alive)
        except Exception as error:  # the backward of the user may raise anything
            return _subset_raised(target, subset, error)
        if set(alive) != set(upstream):
            continue
        for index in subset:
            if _differs(target, found[index], reference[index], index):
                return _subset_wrong(target, subset, index, found[index], reference[index])
    return Outcome(held=[f"needs_input_grad: {len(list(_subsets(wanted)))} subsets of the inputs"])


def _subsets(wanted: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    sizes = range(1, len(wanted)) if len(wanted) <= 3 else sorted({1, len(wanted) - 1})
    for size in sizes:
        yield from combinations(wanted, size)


def _differs(target: Target, found: Tensor | None, reference: Tensor | None, index: int) -> bool:
    if found is None and reference is None:
        return False
    if (found is None or reference is None) and index in target.call.optional:
        return False
    return distance(found, reference) > tolerance(target)


def _subset_wrong(
    target: Target,
    subset: tuple[int, ...],
    index: int,
    found: Tensor | None,
    reference: Tensor | None,
) -> Outcome:
    name = target.input_name(index)
    only = " and ".join(target.input_name(i) for i in subset)
    got = "None" if found is None else "zeros" if not bool(found.any()) else "another gradient"
    return target.broken(
        "needs-input-grad",
        f"{target.backward} returns {got} for {name} when only {only} requires a gradient",
        location=line_with(
            target.function,
            r"needs_input_grad|requires_grad",
            "backward",
            "vjp",
            "setup_context",
            "forward",
        ),
        inputs={index: f"{got} when only {only} requires a gradient"},
        observed=f"relative difference {distance(found, reference):.3g} from the gradient "
        "when all inputs require one",
        cause="ctx.needs_input_grad is read at the wrong index or is stale, so that one "
        "input's gradient hangs on another's flag",
        because=f"the same inputs and upstream gradient, only the flags changed: {name} alone went wrong",
        fix=f"test its own place in ctx.needs_input_grad for {name}, inside backward",
        evidence={"requires": [target.input_name(i) for i in subset]},
    )


def _subset_raised(target: Target, subset: tuple[int, ...], error: Exception) -> Outcome:
    only = " and ".join(target.input_name(i) for i in subset)
    return target.raised(
        "needs-input-grad",
        f"{target.backward} raises when only {only} requires a gradient: {first_line(error)}",
        error,
        doubtful=_differentiates(error),
        inputs=dict.fromkeys(subset, "requires a gradient"),
        cause="backward assumes that every input requires a gradient",
        because="with all inputs requiring one the same call works",
        fix="compute each gradient only if ctx.needs_input_grad asks for it, and return None otherwise",
        evidence={"requires": [target.input_name(i) for i in subset]},
    )


def _differentiates(error: BaseException) -> bool:
    """Say whether an error comes from a derivative that the backward itself asks of autograd, as adjoint methods do.

    Public solvers choose the tensors that require a gradient before they call such a Function.
    """
    trace, within = error.__traceback__, False
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__")
        if within and name == "torch.autograd":
            return True
        within = within or name == "torch.autograd.function"  # calls the backward
        trace = trace.tb_next
    return False

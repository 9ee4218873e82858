"""Backward again: twice over one graph, and with another call in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...probes.holding.aliasing import find_alias
from ..arguments import jittered, redrawn
from ..calls import seed_generators
from ..lines import Op, Trace, error_line, first_write, head, line_with, storage_of
from ..relations.experiments import held_tensors, saved_tensors
from ..relations.jacobians import distance
from ..target import Outcome, Target, first_line, reference_of, tolerance

if TYPE_CHECKING:
    from torch import Tensor

    from ...probes.holding.aliasing import Alias
    from ..calls import Call, Run


def check_repeatable(target: Target) -> Outcome:
    """Run backward twice over one graph, and twice interleaved with another call."""
    outcome = _twice(target)
    if not outcome.violated:
        outcome.add(_interleaved(target))
    return outcome


def _twice(target: Target) -> Outcome:
    if getattr(target.function, "clear_saved_tensors_on_access", False):
        return Outcome(held=["one backward per forward, as clear_saved_tensors_on_access says"])
    run = target.call.run()
    upstream = target.upstream(run)
    saved = [storage_of(t) for t in _kept(run)]
    with Trace(target.function) as trace:
        first = run.grads({i: g.clone() for i, g in upstream.items()})
        op = next((o for s in saved if s and (o := first_write(trace.ops, s)) is not None), None)
        try:
            second = run.grads({i: g.clone() for i, g in upstream.items()})
        except Exception as error:  # the backward of the user may raise anything
            return once_only(target, error, op, _alias(target, op, saved))
    wrong = [i for i in first if distance(second[i], first[i]) > tolerance(target)]
    if not wrong:
        return Outcome(held=["backward twice over one graph"])
    if _random_backward(target, run, upstream):
        return _redraws(target, wrong)
    gap = max(distance(second[i], first[i]) for i in wrong)
    alias = _alias(target, op, saved)
    return target.broken(
        "backward-not-reentrant",
        f"{target.backward} returns another gradient when it runs a second time",
        location=op.line if op is not None else None,
        inputs={i: f"relative difference {distance(second[i], first[i]):.3g}" for i in wrong},
        others=[alias.culprit("a saved tensor")] if alias is not None else [],
        observed=f"two backward passes over one graph (retain_graph=True) differ by {gap:.3g}",
        cause="backward changes what it saved"
        if op is not None
        else "backward keeps state between calls",
        because=f"{op.name} wrote into a saved tensor"
        if op is not None
        else "inputs and upstream gradient were the same",
        fix=alias.fix
        if alias is not None
        else "use out-of-place operations on saved tensors, and keep no state outside ctx",
        evidence={"difference": gap},
    )


def _kept(run: Run) -> list[Tensor]:
    return [*(t for t in saved_tensors(run) if t is not None), *held_tensors(run).values()]


def _alias(target: Target, op: Op | None, saved: list[int]) -> Alias | None:
    """Return the line of backward by which a saved tensor gets the name that an operation writes to."""
    which = next((i for i, s in enumerate(saved) if op is not None and s in op.written), None)
    if op is None or which is None:
        return None
    run = target.call.run()
    upstream = target.upstream(run)
    return find_alias(lambda: run.grads(upstream), _kept(run)[which], op.line)


def once_only(
    target: Target, error: Exception, op: Op | None = None, alias: Alias | None = None
) -> Outcome:
    """Word a backward that works only once.

    ``violated`` where it writes to what was saved. ``suspicious`` where it drops what it keeps on ctx, as reversible
    layers do to give memory back: a second backward through the graph then raises, and nothing is wrong in silence.
    """
    if op is not None:
        cause, because = "backward changes what it saved", f"{op.name} wrote into a saved tensor"
        fix = alias.fix if alias is not None else "use out-of-place operations on saved tensors"
    else:
        cause = "backward throws away or replaces what it keeps on ctx"
        because = "the first backward worked; retain_graph=True promises a second"
        fix = "leave ctx as it is in backward (save_for_backward frees its tensors by itself)"
    return target.broken(
        "backward-not-reentrant",
        f"{target.backward} raises when it runs a second time over one graph: {first_line(error)}",
        doubtful=op is None,
        location=op.line if op is not None else error_line(target.function, error),
        others=[alias.culprit("a saved tensor")] if alias is not None else [],
        observed=f"{type(error).__name__}: {first_line(error)}",
        cause=cause,
        because=because,
        fix=fix,
    )


def _random_backward(target: Target, run: Run, upstream: dict[int, Tensor]) -> bool:
    """See whether backward gives the same for the same state of the generators, and something else for others."""
    results = []
    for seed in (target.call.seed, target.call.seed, *(target.call.seed + i for i in (1, 2, 3))):
        seed_generators(seed)
        results.append(run.grads({i: g.clone() for i, g in upstream.items()}))
    same = [all(distance(r[i], results[0][i]) <= tolerance(target) for i in r) for r in results]
    return same[1] and not all(same[2:])


def _redraws(target: Target, wrong: list[int]) -> Outcome:
    run = target.call.run()
    with Trace(target.function, "backward") as trace:
        run.grads(target.upstream(run))
    drawing = next((op.line for op in trace.ops if op.draws), None)
    return target.broken(
        "stochastic-backward",
        f"{target.backward} draws its own random numbers instead of those of forward",
        location=drawing or head(target.function, "backward", "vjp"),
        inputs=dict.fromkeys(wrong, "differs from call to call"),
        observed="two backward passes over one graph differ; with the generator set back before each they agree",
        cause="the gradient belongs to another draw than the output",
        because="the only thing that changed was the state of the random generator",
        fix="draw in forward and ctx.save_for_backward the mask (or save the generator's state)",
    )


def _interleaved(target: Target) -> Outcome:
    """Run a second forward before the first one's backward."""
    run, upstream, reference = reference_of(target)
    del run
    first = target.call.run()
    if not any(_ran(other) for other in (redrawn(target.call, 3), jittered(target.call, 3))):
        return Outcome()  # other values leave the domain: there is no second call
    try:
        found = first.grads({i: g.clone() for i, g in upstream.items()})
    except Exception as error:  # the backward of the user may raise anything
        return _shared(target, f"{type(error).__name__}: {first_line(error)}")
    wrong = [i for i in found if distance(found[i], reference[i]) > tolerance(target)]
    if not wrong:
        return Outcome(held=["a second forward in between"])
    gap = max(distance(found[i], reference[i]) for i in wrong)
    return _shared(target, f"relative difference {gap:.3g}", wrong)


def _ran(call: Call) -> bool:
    try:
        call.run()
    except Exception:  # the forward of the user may raise anything
        return False
    return True


def _shared(target: Target, observed: str, wrong: list[int] | None = None) -> Outcome:
    name = target.function.__name__ if target.function is not None else target.name
    owner = rf"(?:{name}|cls|self|_?\w*cache\w*|_?[A-Z]+)\b"
    pattern = rf"^\s*{owner}[\w.\[\]'\"]*\s*=(?!=)|{owner}[\w.\[\]]*\.append\("
    place = line_with(target.function, pattern, "setup_context", "forward")
    return target.broken(
        "shared-state",
        f"{target.backward} gives another gradient after the Function has been called again",
        location=place,
        inputs=dict.fromkeys(wrong or [], "differs"),
        observed=f"forward(a), forward(b), backward of a: {observed}",
        cause="forward keeps tensors where the next call overwrites them (class, module or closure) instead of on ctx",
        because="without the second forward the same backward is right",
        fix="ctx.save_for_backward what backward needs",
    )

"""All checks of one callable, in order, each cause reported once."""

from __future__ import annotations

import numbers
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..findings import Finding, Location
from ..objects import trees
from ..state import randomness_kept
from .arguments import symmetric
from .aspects.derivatives import check_first, check_screened
from .aspects.precision import check_precision
from .aspects.reentrancy import check_repeatable
from .aspects.second import check_second
from .aspects.state import check_state, works_in_place
from .aspects.strides import check_inputs
from .aspects.subsets import check_subsets
from .aspects.transforms import check_checkpoint, check_compiled, check_forward_mode, check_vmap
from .aspects.upstream import check_unwritten, check_upstream
from .binding import make_call
from .lines import error_line
from .preparation import prepare
from .relations.jacobians import random_like
from .target import Outcome, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .calls import Call
    from .target import Surrogate, Target

SLOW_S = 0.25
"""Seconds of one forward and backward above which only the core is checked (about 60 runs)."""


def check_function(
    fn: Callable[..., Any],
    inputs: Any,
    *,
    name: str | None = None,
    twice: bool = False,
    surrogate: Surrogate | None = None,
    autocast: bool = False,
    compiled: bool = False,
    redraw: bool = False,
    optional: Iterable[int] = (),
    used_at: Location | None = None,
    seed: int = 0,
) -> list[Finding]:
    """Check the gradient of one callable against central differences, and everything around it.

    Args:
        fn: ``SomeFunction.apply`` or any callable that returns tensors.
        inputs: A tuple of positional arguments, a dict of keyword arguments, or one tensor. They
            are cast to float64, cut down where they are large, and never changed.
        name: How the findings call it; the Function's or the callable's own name by default.
        twice: Second derivatives are promised.
        surrogate: The gradient is meant to differ from forward's derivative.
        autocast: It is known to run under autocast.
        compiled: Also compile it with the ``aot_eager`` backend (seconds).
        redraw: Draw the values anew within their ranges instead of using them as they are.
        optional: Flat indices of inputs for which a gradient of None is accepted.
        used_at: The user's line that applies it.
        seed: Every run starts from it.

    Returns:
        One or more findings; a single ``passed`` one names what was measured.
    """
    call = make_call(fn, inputs, optional=optional, seed=seed)
    return check_call(
        call,
        name or _name_of(fn, call),
        twice=twice,
        surrogate=surrogate,
        autocast=autocast,
        compiled=compiled,
        redraw=redraw,
        used_at=used_at,
    )


def check_call(
    call: Call,
    name: str,
    *,
    twice: bool = False,
    surrogate: Surrogate | None = None,
    autocast: bool = False,
    compiled: bool = False,
    redraw: bool = False,
    only_first: bool = False,
    used_at: Location | None = None,
) -> list[Finding]:
    """Check a bound call; see :func:`check_function`.

    Args:
        call, name, twice, surrogate, autocast, compiled, redraw, used_at: As there.
        only_first: Screen the first derivatives, look at every entry of those that differ, and no more.
    """
    with randomness_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = prepare(
            call, name, redraw=redraw, tiny=only_first, surrogate=surrogate, used_at=used_at
        )
        if isinstance(target, Finding):
            return [target]
        try:
            if only_first:
                outcome = check_screened(target)
            else:
                outcome = _checked(target, twice=twice, autocast=autocast, compiled=compiled)
        except Exception as error:  # the user's code may raise on some arguments only
            if (place := error_line(target.function, error)) is None:
                raise
            outcome = _raised_at_times(target, error, place)
        finally:
            for generator in call.generators:
                generator.rewind()
        if outcome.violated and (kept := symmetric(call)):
            # a gradient that makes use of symmetry is right only where values drawn anew keep it
            options = {"tiny": only_first, "surrogate": surrogate, "used_at": used_at}
            again = prepare(call, name, redraw=redraw, keep=kept, **options)  # type: ignore[arg-type]
            if not isinstance(again, Finding) and not check_first(again).violated:
                return [_for_symmetric(again, kept, outcome)]
    if not outcome.findings:
        return [_passed(target, outcome)]
    options = {"twice": twice, "surrogate": surrogate, "autocast": autocast, "compiled": compiled}
    options |= {"redraw": redraw, "only_first": only_first, "used_at": used_at}
    return _switched_on(call, name, options) or outcome.findings


def _switched_on(call: Call, name: str, options: dict[str, Any]) -> list[Finding]:
    """Check a call with another number where one of 0 switches a gradient off; nothing where none does."""
    with randomness_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for argument, other in switched_on(call):
                return told(check_call(other, name, **options), call, argument, other)
        finally:
            for generator in call.generators:
                generator.rewind()
    return []


def _checked(target: Target, *, twice: bool, autocast: bool, compiled: bool) -> Outcome:
    outcome = check_repeatable(target)
    if _says(outcome, "stochastic-backward"):
        return outcome  # its gradient belongs to another draw each time
    written = check_unwritten(target)
    outcome.add(written)
    if written.violated:
        return outcome  # the rest of the same backward is computed from a spoilt upstream
    broken = bool(outcome.findings)
    first = check_first(target, fresh=broken)
    outcome.add(first)
    if broken:
        return outcome  # what follows compares several backward passes
    if not _says(first, "needs-input-grad"):
        outcome.add(check_subsets(target))
    zero_known = _says(first, "upstream-zero", "gradcheck-upstream-ignored")
    outcome.add(check_upstream(target, zero_known=zero_known))
    outcome.add(check_state(target))
    slow = sum(target.cost) > SLOW_S
    if slow:
        outcome.held.append(
            f"other properties left out: a forward and backward takes {sum(target.cost):.2g} s"
        )
    elif not outcome.violated:
        outcome.add(_variants(target, autocast=autocast))
    if not first.findings and not slow:
        outcome.add(check_forward_mode(target))
        outcome.add(check_vmap(target))
    if (
        not first.findings
        and target.surrogate is None
        and (twice or not (slow or outcome.violated))
    ):
        outcome.add(check_second(target, promised=twice))
    if compiled and not outcome.violated:
        outcome.add(check_compiled(target))
    return outcome


def _variants(target: Target, *, autocast: bool) -> Outcome:
    outcome = check_inputs(target)
    outcome.add(check_precision(target, autocast=autocast))
    passed_in = any(isinstance(v, torch.Generator) for v in target.call.values)
    if not passed_in and not works_in_place(
        target
    ):  # else recomputation starts from other arguments
        outcome.add(check_checkpoint(target))
    return outcome


def _says(outcome: Outcome, *codes: str) -> bool:
    return any(finding.code in codes for finding in outcome.findings)


def _for_symmetric(target: Target, kept: list[int], outcome: Outcome) -> Finding:
    """Say that the gradient is right where some matrices are symmetric, and wrong where they are not."""
    matrices = ", ".join(target.call.names[place] for place in kept)
    wrong = next(f for f in outcome.findings if f.status == "violated")
    return wrong.replace(
        status="suspicious",
        summary=f"{wrong.summary}, unless {matrices} equals its transpose",
        cause=f"the formula uses that {matrices} is symmetric, as it was when the model ran",
        because=f"with values drawn anew that keep {matrices} symmetric, all first derivatives agree",
        fix="nothing, if only symmetric matrices are meant: say so in its docstring",
    )


def _raised_at_times(target: Target, error: Exception, place: Location) -> Outcome:
    return target.broken(
        "gradcheck-raises",
        f"{target.name} raises {type(error).__name__} on some arguments: {first_line(error)}",
        location=place,
        observed="with a random upstream gradient it worked, with another or at other values it "
        f"raised {type(error).__name__}",
        cause="forward or backward works for some values only",
        because=f"{first_line(error)}",
        fix="see the line above",
    )


def _passed(target: Target, outcome: Outcome) -> Finding:
    notes = f" ({'; '.join(target.notes)})" if target.notes else ""
    count = len(outcome.held)
    main = next(
        (h for h in outcome.held if "entries" in h), outcome.held[0] if outcome.held else "it runs"
    )
    more = f", and {count - 1} more properties" if count > 1 else ""
    return target.finding(
        "passed",
        "held",
        f"{target.name}: {main}{more}{notes}",
        evidence={"held": list(outcome.held), "notes": list(target.notes)},
    )


def _name_of(fn: Callable[..., Any], call: Call) -> str:
    if call.function is not None:
        return call.function.__qualname__.rpartition(".<locals>.")[2]
    return getattr(fn, "__qualname__", type(fn).__name__).rpartition(".<locals>.")[2]


_OTHER = 0.5  # not 1: a factor that is forgotten shows


def switched_on(call: Call) -> Iterator[tuple[int, Call]]:
    """Yield the call with a number that is 0 replaced, and its place, where that gives inputs a gradient that had none.

    Forward must give what it gave before: a number that it reads is no matter of the gradient alone.
    """
    silent = _silent(call)
    for place, value in enumerate(call.values):
        if not silent or not _is_zero(value):
            continue
        other = call.replaced(place, _another(value))
        try:
            same = all(map(torch.equal, call.evaluate(), other.evaluate()))
        except Exception:  # the user's code may refuse the other number in any way
            continue
        if same and (left := _silent(other)) is not None and left < silent:
            yield place, other


def told(findings: Sequence[Finding], call: Call, place: int, other: Call) -> list[Finding]:
    """Say in findings with which number they were made, and that the one given is why there is no gradient."""
    name, first, now = call.names[place], call.values[place], other.values[place]
    first, now = (v.item() if isinstance(v, Tensor) else v for v in (first, now))
    note = f"measured with {name}={now!r}: with {name}={first!r}, as given, the gradient is zero"
    return [
        f.replace(
            because=f"{f.because}; {note}" if f.because else note,
            summary=f"{f.summary} ({note})" if f.status == "passed" else f.summary,
        )
        for f in findings
    ]


def _is_zero(value: Any) -> bool:
    """Say whether a plain number, or a tensor that holds one, is 0."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and trees.computable(value) and not bool(value.any())
    return isinstance(value, numbers.Real) and value == 0


def _another(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.full_like(value, _OTHER if value.is_floating_point() else 1)
    if isinstance(value, bool):
        return True
    return 1 if isinstance(value, numbers.Integral) else _OTHER


def _silent(call: Call) -> set[int] | None:
    """Return the inputs that no random upstream gradient reaches; None where that cannot be seen."""
    try:
        run = call.run()
        generator = torch.Generator().manual_seed(0x1D1E)
        upstream = {i: random_like(run.outputs[i], generator) for i in run.differentiable}
        grads = run.grads(upstream) if upstream else {}
    except Exception:  # the user's code may raise anything
        return None
    return {
        place
        for place, grad in grads.items()
        if isinstance(call.values[place], Tensor) and (grad is None or not bool(grad.any()))
    }

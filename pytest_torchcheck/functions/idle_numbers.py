"""Numbers among the arguments that switch a gradient off while they are 0: a strength before its ramp, a flag."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..objects import trees
from .relations.jacobians import random_like

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..findings import Finding
    from .calls import Call

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

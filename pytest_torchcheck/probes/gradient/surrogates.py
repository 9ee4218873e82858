"""Calls that keep their value while their operands move, pass no gradient on, or the wrong one; dead terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects.weak import ByTensor
from ..recorded.operations import record_step
from ..recorded.recording import DERIVATIVE, Recorder
from ..recorded.watch import Op, Watch, name_of, readable, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..recorded.values import Call, Value

_FLAT = frozenset(
    {
        "round", "floor", "ceil", "trunc", "sign", "fix", "sgn", "clamp", "clamp_min", "clamp_max", "clip",
        "relu", "relu6", "hardtanh", "hardsigmoid", "threshold", "zeros_like", "ones_like", "full_like", "dropout",
        "detach", "mul", "where", "masked_fill",
    }
)  # fmt: skip
"""Operations whose gradient is zero where they are flat: no surrogate."""
_SAME = 1e-12  # relative: a sum of the same values in another order
_MOVED = 1e-9


@dataclass(frozen=True, slots=True)
class _Seen:
    op: Op
    value: tuple[float, float]
    operands: tuple[tuple[float, float], ...]


class Held(Watch):
    """Notes two projections of the value and the operands of each call with a gradient."""

    def __init__(self, module: Any = None) -> None:
        super().__init__(module)
        self.calls: list[_Seen] = []

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See one call."""
        name = name_of(func)
        if name.rpartition(".")[2].strip("_") in _FLAT or not isinstance(result, Tensor):
            return
        operands = [t for t in tensors_in((args, kwargs)) if _live(t)]
        if any(t is result for t in operands):
            return  # nothing was computed
        operands = _behind(result, operands) or operands
        if _live(result) and operands:
            sums = tuple(_sums(t) for t in operands)
            self.calls.append(_Seen(self.op(name), _sums(result), sums))


def _behind(result: Tensor, operands: list[Tensor]) -> list[Tensor]:
    """Return the operands that a result is computed from, as its node tells: ``x.to(other)`` reads no value of other."""
    before = [node for node, _ in result.grad_fn.next_functions] if result.grad_fn else []
    return [
        t
        for t in operands
        if any(
            node is t.grad_fn if t.grad_fn else getattr(node, "variable", None) is t
            for node in before
        )
    ]


def _live(tensor: Tensor) -> bool:
    return tensor.requires_grad and tensor.is_floating_point() and readable(tensor)


def _sums(tensor: Tensor) -> tuple[float, float]:
    """Return two projections; a plain sum is blind behind a normalisation."""
    values = tensor.detach().to(torch.float64).flatten()
    place = torch.arange(values.numel(), dtype=torch.float64, device=values.device)
    return float((values * (1.7 * place).cos()).sum()), float((values * (2.3 * place).sin()).sum())


def held_between(here: Held, there: Held) -> list[Op]:
    """Return the calls of two runs that kept their value though an operand moved."""
    if [seen.op.name for seen in here.calls] != [seen.op.name for seen in there.calls]:
        return []
    found = []
    for first, second in zip(here.calls, there.calls, strict=True):
        kept = all(_apart(a, b) <= _SAME for a, b in zip(first.value, second.value, strict=True))
        moved = any(
            _apart(a, b) > _MOVED
            for one, other in zip(first.operands, second.operands, strict=False)
            for a, b in zip(one, other, strict=True)
        )
        if kept and moved and any(first.value):
            found.append(first.op)
    return found


def _apart(first: float, second: float) -> float:
    return abs(first - second) / max(abs(first), abs(second), 1e-300)


_STEPS = frozenset({"round", "floor", "ceil", "trunc", "sign", "fix", "sgn"})


class Stepwise(Watch):
    """Notes calls that give a constant by pieces of what requires a gradient, each line once.

    Rounding and signs, and the grid of :func:`torch.nn.functional.grid_sample` with
    ``mode="nearest"``, whose gradient is documented for ``bilinear`` and ``bicubic`` only.
    """

    def __init__(self, module: Any = None) -> None:
        super().__init__(module)
        self.found: dict[tuple[str, Any], tuple[Op, str]] = {}

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See one call."""
        name = name_of(func)
        bare = name.rpartition(".")[2].rstrip("_")
        given, what = None, ""
        if bare in _STEPS:
            given, what = next(iter(args), None), "what it is given"
        elif bare == "grid_sample" and "nearest" in (*args[2:3], kwargs.get("mode")):
            given, what = (args[1] if len(args) > 1 else kwargs.get("grid")), "its grid"
        if isinstance(given, Tensor) and given.requires_grad:
            op = self.op(name)
            self.found.setdefault((name, op.location), (op, what))


_SUMS = frozenset({"add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "__iadd__", "add_"})


@dataclass(frozen=True, slots=True)
class DeadTerm:
    """A number that is added to the loss and has no graph.

    Attributes:
        derivative: The call of ``torch.autograd.grad`` that it comes from.
        added: The operation that adds it.
    """

    derivative: Op
    added: Op


class DeadTerms:
    """Follows what is computed of derivatives without a graph; costs nothing where there is none.

    A weight or a perturbation that is made of a derivative is meant to be constant: only numbers
    that are added to others which carry a graph count.
    """

    def __init__(self) -> None:
        self.found: list[DeadTerm] = []
        self._constant: ByTensor[Op] = ByTensor()

    def see(
        self, name: str, bare: str, args: Any, kwargs: Any, result: Any, op: Callable[[], Op]
    ) -> None:
        """See one call and its result; ``op`` describes it where that is needed."""
        if name == DERIVATIVE:
            made: Op | None = None
            for tensor in tensors_in(result):
                if tensor.is_floating_point() and not tensor.requires_grad:
                    made = made or op()
                    self._constant[tensor] = made
            return
        if not self._constant:
            return
        given = list(tensors_in((args, kwargs)))
        source = next(
            (one for tensor in given if (one := self._constant.get(tensor)) is not None), None
        )
        if source is None:
            return
        for tensor in tensors_in(result):
            if not tensor.requires_grad:
                self._constant[tensor] = source
            elif bare in _SUMS and not tensor.dim():
                self.found.append(DeadTerm(source, op()))


_ADDITIONS = ("add", "__add__", "__radd__", "add_", "__iadd__")
_DIFFERENCES = ("sub", "__sub__", "sub_", "__isub__", "subtract")


def wrong_way_round(run: Callable[[], object], module: nn.Module) -> Op | None:
    """Return the sum ``a + (z - a).detach()`` whose ``a`` is computed from ``z`` without a gradient.

    Its value is ``z``, as if nothing had been computed of it, and the gradient goes to ``a`` and never comes to
    ``z``. An estimator has the value of what is computed (a quantised value, a hard choice), and the gradient of
    what it is computed from. A factor on a gradient is written in the same way, and its ``a`` passes a gradient on.

    Args:
        run: Returns the loss.
        module: The model.

    Returns:
        The operation that adds, or None. Cost: one recorded forward and loss.
    """
    recorder = Recorder(module)
    try:
        record_step(run, recorder, backward=False)
        return next((call.op for call in recorder.calls if _is_wrong(call)), None)
    finally:
        recorder.release()


def _is_wrong(call: Call) -> bool:
    sign = _verb(call) in _DIFFERENCES
    if len(call.inputs) != 2 or not (sign or _verb(call) in _ADDITIONS):
        return False
    carrier, stopped = sorted(call.inputs, key=lambda v: not v.tensor.requires_grad)
    if not carrier.tensor.requires_grad or (sign and call.inputs[0] is not carrier):
        return False
    maker = stopped.maker
    if maker is None or _verb(maker) != "detach" or (apart := maker.inputs[0].maker) is None:
        return False
    if _verb(apart) not in _DIFFERENCES or len(apart.inputs) != 2:
        return False
    kept, taken = reversed(apart.inputs) if sign else apart.inputs
    value = kept.tensor
    if taken is not carrier or not value.requires_grad or not _comes_from(carrier, kept):
        return False
    ones = torch.ones_like(carrier.tensor)
    grads = torch.autograd.grad(carrier.tensor, value, ones, retain_graph=True, allow_unused=True)
    return grads[0] is None


def _verb(call: Call) -> str:
    return call.op.name.rpartition(".")[2]


def _comes_from(value: Value, source: Value) -> bool:
    """Say whether a value is computed from another one, by any way: also by one that no gradient goes."""
    seen: set[int] = set()
    left = [value]
    while left:
        one = left.pop()
        if one is source:
            return True
        if id(one) in seen or one.maker is None:
            continue
        seen.add(id(one))
        left += one.maker.read
    return False

"""What made a number that is not finite, and why a kernel gives it for what it was given, in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects import trees
from ...objects.peek import tuple_like
from ..recorded.watch import Op, readable, tensors_in

if TYPE_CHECKING:
    from torch.autograd.graph import Node

    from ...findings import Location


Origin = Literal["computed", "constant", "given", "uninitialised"]
"""Where a non-finite number comes from: ``computed`` by an operation on finite ones (or on infinities
written on purpose); ``constant`` written on purpose, as a mask's -inf; ``given`` with an input,
parameter or
buffer; ``uninitialised`` memory of ``torch.empty`` that was never written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """The operation at which numbers stop being finite.

    Attributes:
        kind: What it made.
        phase: Whether it ran in the forward or in the backward.
        origin: See :data:`Origin`.
        op: The operation; in the backward the forward operation whose gradient it computes.
        location: The user's line of ``op``.
        module: Qualified name of the module in whose forward it runs.
        kernel: The operator below it, such as ``aten.div`` in the backward of a square root.
        fact: What it was given, as a clause: ``sqrt of 0 in 3 of 8 elements``.
        result: Dtype and shape of what it made, such as ``float16 [8, 7, 24]``.
        count: How many elements of it are not finite.
        upward: Whether an infinity of plus is among it.
        then: Where an infinity became the NaN that was seen, the operation that did this.
        written: Where an infinity that was written on purpose, or given, became the NaN (``0 *
            inf``; a row of nothing but -inf), the event that brought it in.
        hidden: Where only gradients are not finite: the forward operation that dropped what ``op``
            gave, so that the outputs are finite (``torch.where``, a mask, an index).
    """

    kind: Literal["nan", "inf"]
    phase: Literal["forward", "backward"]
    origin: Origin
    op: Op
    location: Location | None
    module: str
    kernel: str
    fact: str
    result: str
    count: int
    upward: bool = False
    then: Op | None = None
    written: NonFinite | None = None
    hidden: Op | None = None


def readable_values(tensor: Tensor) -> bool:
    """Say whether a tensor has floating numbers that can be looked at."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and readable(tensor)
        and tensor.numel() > 0
    )


def any_nonfinite(tensors: list[Tensor]) -> bool:
    """Say whether one of these tensors holds a NaN or an infinity."""
    return any(holds_nonfinite(tensor) for tensor in tensors)


def holds_nonfinite(tensor: Tensor) -> bool:
    """Say whether a tensor can be read and holds a NaN or an infinity."""
    return readable_values(tensor) and not bool(trees.dense(tensor).isfinite().all())


_Say = Callable[[Tensor], str | None]


def _count(mask: Tensor) -> str:
    return f"{int(mask.sum())} of {mask.numel()} elements"


def _outside(name: str, low: float, high: float) -> _Say:
    def say(x: Tensor) -> str | None:
        bad = (x < low) | (x > high)
        if not bool(bad.any()):
            return None
        extreme = float(x[bad].abs().max())
        return f"{name} outside [{low:g}, {high:g}] in {_count(bad)} (as far as {extreme:.3g})"

    return say


def _root(name: str, *, zero: bool) -> _Say:
    def say(x: Tensor) -> str | None:
        below, at = x < 0, x == 0
        parts = []
        if zero and bool(at.any()):
            parts.append(f"{name} of 0 in {_count(at)}")
        if bool(below.any()):
            parts.append(
                f"{name} of a negative number in {_count(below)} (min {float(x.min()):.3g})"
            )
        return " and ".join(parts) or None

    return say


def _exponential(name: str, base: float) -> _Say:
    def say(x: Tensor) -> str | None:
        limit = math.log(torch.finfo(x.dtype).max) / math.log(base)
        over = x > limit
        if not bool(over.any()):
            return None
        kind = str(x.dtype).removeprefix("torch.")
        return (
            f"{name} overflow in {_count(over)}: max input {float(x.max()):.4g}, "
            f"{kind} holds up to {limit:.4g}"
        )

    return say


_UNARY: Mapping[str, _Say] = {
    "sqrt": _root("sqrt", zero=False),
    "rsqrt": _root("rsqrt", zero=True),
    "log": _root("log", zero=True),
    "log2": _root("log2", zero=True),
    "log10": _root("log10", zero=True),
    "log1p": lambda x: _root("log", zero=True)(x + 1),
    "reciprocal": lambda x: f"1/0 in {_count(x == 0)}" if bool((x == 0).any()) else None,
    "exp": _exponential("exp", math.e),
    "expm1": _exponential("expm1", math.e),
    "exp2": _exponential("exp2", 2.0),
    "acos": _outside("acos", -1, 1),
    "asin": _outside("asin", -1, 1),
    "atanh": _outside("atanh", -1, 1),
    "erfinv": _outside("erfinv", -1, 1),
    "logit": _outside("logit", 0, 1),
}


_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "convolution"})


def forward_domain(
    func: Callable[..., Any],
    kernel: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    made: Tensor,
) -> str:
    """Say which operands made a kernel's result non-finite.

    Args:
        func: The kernel, to be run again in float64 where overflow is suspected.
        kernel: Its name without namespace, such as ``div``.
        args: Its arguments as they were before the call.
        kwargs: Its keyword arguments.
        made: The non-finite result.

    Returns:
        A clause with numbers, such as ``sqrt of a negative number in 3 of 8 elements (min -0.2)``.
    """
    name = kernel.rstrip("_")
    operands = [t for t in tensors_in((args, kwargs)) if t.is_floating_point()]
    if operands and name in _UNARY and (said := _UNARY[name](operands[0])) is not None:
        return said
    said = _particular(name, args, kwargs, operands, made) or _overflow(func, args, kwargs, made)
    if said is not None:
        return said
    bad = ~made.isfinite()
    sizes = ", ".join(f"max {float(t.abs().max()):.3g}" for t in operands if t.numel())
    return f"{kernel} gave {_count(bad)} not finite from operands with {sizes or 'no elements'}"


def _particular(
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    operands: list[Tensor],
    made: Tensor,
) -> str | None:
    """Explain the kernels that read more than one operand or reduce."""
    if name in ("div", "true_divide", "floor_divide", "remainder") and len(args) > 1:
        return _division(args[0], args[1])
    if name in ("_softmax", "_log_softmax", "logsumexp", "_safe_softmax") and operands:
        return _empty_rows(name.strip("_"), operands[0], args[1] if len(args) > 1 else -1)
    if name == "pow" and len(args) > 1:
        return _power(args[0], args[1])
    if name in ("add", "sub", "mul") and len(args) > 1:
        return _infinite(name, args[0], args[1])
    if name == "addcmul" and len(operands) > 2:
        return _infinite(name, operands[1], operands[2])
    if name in _PRODUCTS and made.isnan().any() and any(t.isinf().any() for t in operands):
        count = sum(int(t.isinf().sum()) for t in operands)
        return (
            f"0 * inf or inf - inf in {_count(made.isnan())}: {name} reads {count} infinite numbers"
        )
    if name in ("mean", "sum", "var", "std", "var_mean", "std_mean") and operands:
        each = operands[0].numel() // max(made.numel(), 1)
        if each == 0:
            return f"{name} over 0 elements"
        if each == 1 and name.startswith(("var", "std")):
            return f"{name} over 1 element divides by 0 degrees of freedom"
    if name.startswith("nll_loss") and operands and len(args) > 1:
        ignored = int((args[1] == args[4]).sum()) if len(args) > 4 else 0
        if ignored == args[1].numel():
            return f"the mean over 0 targets: all {ignored} hold ignore_index {args[4]}"
    if "attention" in name and operands:
        return _masked_rows(name.strip("_"), made)
    return None


def _division(top: Any, bottom: Any) -> str | None:
    a, b = _broadcast(top, bottom)
    both, only = (a == 0) & (b == 0), (a != 0) & (b == 0)
    parts = [
        f"{label} in {_count(mask)}"
        for label, mask in (("0/0", both), ("x/0", only))
        if bool(mask.any())
    ]
    return " and ".join(parts) or _infinite("div", a, b)


def _broadcast(*things: Any) -> tuple[Tensor, ...]:
    tensors = [torch.as_tensor(thing) for thing in things]
    return tuple(torch.broadcast_tensors(*tensors))


def _infinite(name: str, a: Tensor, b: Tensor) -> str | None:
    """Explain inf - inf, 0 * inf and inf / inf."""
    a, b = _broadcast(a, b)
    cases = {
        "inf - inf": a.isinf() & b.isinf() if name in ("add", "sub") else None,
        "0 * inf": ((a == 0) & b.isinf()) | (a.isinf() & (b == 0))
        if name in ("mul", "addcmul")
        else None,
        "inf / inf": a.isinf() & b.isinf() if name == "div" else None,
    }
    for label, mask in cases.items():
        if mask is not None and bool(mask.any()):
            return f"{label} in {_count(mask)}"
    return None


def _power(base: Any, exponent: Any) -> str | None:
    a, b = _broadcast(base, exponent)
    roots = (a < 0) & (b != b.double().round())
    poles = (a == 0) & (b < 0)
    if bool(roots.any()):
        return f"a negative number to a fractional power in {_count(roots)}"
    if bool(poles.any()):
        return f"0 to a negative power in {_count(poles)}"
    return None


def _empty_rows(name: str, x: Tensor, dim: Any) -> str | None:
    if not isinstance(dim, int):
        dim = dim[0] if isinstance(dim, (list, tuple)) and dim else -1
    empty = (x == -torch.inf).all(dim)
    if bool(empty.any()):
        rows = empty.numel()
        return f"{name} over {int(empty.sum())} of {rows} rows that are all -inf"
    over = (x == torch.inf).any(dim)
    return (
        f"{name} over +inf in {int(over.sum())} of {over.numel()} rows"
        if bool(over.any())
        else None
    )


def _masked_rows(name: str, made: Tensor) -> str:
    rows = made.isnan().all(-1)
    return f"{name} of {int(rows.sum())} of {rows.numel()} queries that may attend to nothing (all -inf)"


def _overflow(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Tensor
) -> str | None:
    """Run the kernel in float64: where that is finite, the numbers left the range of the dtype."""
    if made.dtype in (torch.float64, torch.complex128) or not all(
        bool(t.isfinite().all()) for t in tensors_in((args, kwargs)) if t.is_floating_point()
    ):
        return None
    try:
        with torch.random.fork_rng(devices=[]):  # a dropout draws again
            wide = next(tensors_in(func(*_wide(args), **_wide(dict(kwargs)))))
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # a kernel that takes no float64, or writes to its operand: nothing measured
    if wide.shape != made.shape or not bool(wide.isfinite().all()):
        return None
    limit = torch.finfo(made.dtype).max
    bad = ~made.isfinite()
    kind = str(made.dtype).removeprefix("torch.")
    largest = float(wide.abs().max())
    if largest > limit:
        return f"{kind} overflow in {_count(bad)}: {largest:.6g} > {limit:.6g}"
    return f"{kind} overflow on the way in {_count(bad)}: the exact result is at most {largest:.3g}"


def _wide(thing: Any) -> Any:
    if isinstance(thing, Tensor):
        return thing.double() if thing.is_floating_point() else thing
    if isinstance(thing, tuple):
        return tuple_like(thing, [_wide(item) for item in thing])
    if isinstance(thing, list):
        return [_wide(item) for item in thing]
    if isinstance(thing, dict):
        return {key: _wide(item) for key, item in thing.items()}
    return torch.float64 if isinstance(thing, torch.dtype) and thing.is_floating_point else thing


_SAVED: Mapping[str, tuple[str, str]] = {
    "SqrtBackward": ("_saved_result", "sqrt of 0"),
    "RsqrtBackward": ("_saved_result", "rsqrt of 0"),
    "LogBackward": ("_saved_self", "log of 0"),
    "Log2Backward": ("_saved_self", "log of 0"),
    "DivBackward": ("_saved_other", "division by 0"),
    "ReciprocalBackward": ("_saved_result", "1/0"),
    "PowBackward": ("_saved_self", "a power of 0"),
    "LinalgVectorNormBackward": ("_saved_result", "the norm of a zero vector"),
    "NormBackward": ("_saved_result", "the norm of a zero vector"),
    "StdBackward": ("_saved_result", "the standard deviation of equal elements"),
    "CdistBackward": ("_saved_result", "the distance of equal points"),
    "EuclideanDistBackward": ("_saved_result", "the distance of equal points"),
    "PdistBackward": ("_saved_result", "the distance of equal points"),
    "HypotBackward": ("_saved_result", "hypot of (0, 0)"),
    "AngleBackward": ("_saved_self", "the angle of 0"),
    "AcosBackward": ("_saved_self", "acos at 1 or -1"),
    "AsinBackward": ("_saved_self", "asin at 1 or -1"),
}


def backward_domain(node: Node) -> str | None:
    """Say at which forward operands a node's derivative is not finite.

    Args:
        node: The node that is running; its saved tensors are still there.

    Returns:
        A clause such as ``sqrt of 0 in 3 of 8 elements``, or None where no such operand is found.
    """
    name = node.name().rstrip("0123456789")
    attribute, label = _SAVED.get(name, ("", ""))
    saved = getattr(node, attribute, None) if attribute else None
    if not isinstance(saved, Tensor):
        return None
    at_one = name in ("AcosBackward", "AsinBackward")
    mask = (
        saved.abs() == 1
        if at_one
        else ~saved.isfinite()
        if name in ("RsqrtBackward", "ReciprocalBackward")
        else saved == 0
    )
    return f"{label} in {_count(mask)}" if bool(mask.any()) else None

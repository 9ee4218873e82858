"""Where a gradient becomes zero on its way back: the last tensor that had one, and what killed it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...explanation import on_line
from ...lean import dataclass
from ..recorded.operations import gradients_kept, record_step, values_behind
from ..recorded.recording import Recorder
from ..recorded.watch import Op, describe, tensors_in
from .paths import Ahead, Stopped
from .resting import at_rest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor, nn

    from ...findings import Location
    from ..recorded.values import Call, Value

ZeroKind = Literal[
    "inactive",
    "infinite",
    "single-choice",
    "single-position",
    "saturated",
    "times-zero",
    "step",
    "sampling",
    "dropped",
    "overwritten",
    "partly-overwritten",
    "normalised",
    "cancels",
    "unread",
    "function",
    "first-step",
    "itself",
    "padding",
    "at-rest",
    "other",
]
"""Why a gradient is zero: ``inactive`` a rectifier without a positive input; ``infinite`` one whose
inputs are all minus infinity; ``single-choice`` a softmax over one entry; ``single-position`` an
attention with one position to attend to; ``saturated`` a clamp, squashing function or softmax at its bound; ``times-zero`` a factor
that is zero; ``step`` a rounding or sign, flat everywhere; ``sampling`` a draw that is not
reparameterised;
``overwritten`` the values were replaced; ``partly-overwritten`` those that count were, where other
tensors say; ``normalised`` a normalisation removes what the gradient would
change; ``cancels`` the contributions of several uses, or of all samples, add up to zero;
``unread`` it is joined with other values, and the loss reads the others only;
``function`` a custom
backward that returned zeros; ``first-step`` the loss reads one position of a recurrence, at which
its reverse direction has taken one step; ``itself`` a tensor is compared with itself; ``padding`` a
table is read at the index of its padding only; ``at-rest`` a term of the loss is held at a bound past which it
would only lower the loss; ``other`` none of these was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroGradient:
    """The operation at which a parameter's gradient becomes zero, going backward.

    Attributes:
        parameter: Qualified name.
        kind: See :data:`ZeroKind`.
        op: The operation; its output still has a gradient, its operand has none.
        location: The user's line of it.
        module: Qualified name of the module in whose forward it runs.
        fact: What was measured, as a clause.
        reached: Root mean square of that gradient.
        left: Root mean square behind the operation: exactly 0.0, or what rounding leaves of it.
        uses: The operations whose gradients meet there, where there are several.
        choosing: Where all is infinite, the operation that gives infinities alone, of values some of which are finite.
    """

    parameter: str
    kind: ZeroKind
    op: Op
    location: Location | None
    module: str
    fact: str
    reached: float
    left: float
    uses: tuple[Op, ...] = ()
    choosing: Op | None = None


def find_zero_gradients(
    run: Callable[[], object],
    module: nn.Module,
    names: Iterable[str],
    *,
    inputs: Mapping[str, Tensor] | None = None,
) -> dict[str, ZeroGradient]:
    """Find the operation at which the gradient of connected parameters becomes zero.

    Args:
        run: One forward that returns the loss, with or without its backward, or a whole training step.
        module: The model; its gradients are put back.
        names: Qualified names of parameters of ``module``.
        inputs: Leaves to be looked at as well, by any name.

    Returns:
        The operation by name. A name is left out where the parameter is not connected to the loss,
        where its gradient is neither zero nor what rounding leaves of zero (or is not finite), or
        where no single operation takes it there. Cost: one recorded step for all names.
    """
    known = dict(module.named_parameters(remove_duplicate=False))
    parameters = {name: known[name] for name in names} | dict(inputs or {})
    recorder = Recorder(module, parameters, gradients=True)
    # before the run: an optimizer that steps in it gives them other values
    values = {name: recorder.value_of(parameter) for name, parameter in parameters.items()}
    try:
        with gradients_kept(module.parameters()):
            ahead = Ahead(values_behind(record_step(run, recorder), alias=False))
        parts = {part for part, _ in module.named_modules()}
        found = {name: _zero(name, value, ahead, parts) for name, value in values.items()}
        return {name: zero for name, zero in found.items() if zero is not None}
    finally:
        recorder.release()


def find_zero_gradient(
    run: Callable[[], object], module: nn.Module, name: str
) -> ZeroGradient | None:
    """Find the operation for one parameter, as :func:`find_zero_gradients` does for several."""
    return find_zero_gradients(run, module, [name]).get(name)


def _zero(name: str, parameter: Value, ahead: Ahead, parts: set[str]) -> ZeroGradient | None:
    stopped = ahead.stopped(parameter) if ahead.vanishes(parameter) else None
    if stopped is None:
        return None
    kind, fact = _reason(stopped)
    op = stopped.call.op
    if kind == "times-zero" and (source := _zeros_made(stopped)) is not None:
        product = op.name
        kind, fact = _reason(source)
        op = source.call.op
        if source.call is not stopped.call:
            fact += f"; {product} multiplies by what that gave"
    choosing: Op | None = None
    if kind == "inactive" and (infinite := _infinite_since(stopped.value)) is not None:
        made, chosen = infinite
        fact += f"; the infinity comes from {made.op.name}, which is given finite values alone"
        if chosen is not None:
            choosing = chosen.op
            fact += f", and {choosing.name}{on_line(choosing.location)} chooses it, where others are finite"
        kind, op = "infinite", made.op
    if held := at_rest(stopped, ahead.following, parts):
        kind, op, fact = "at-rest", stopped.call.op, held
    reading = _only_reader(stopped)
    if reading is not None and (kind == "unread" or _is_one_step(name, stopped)):
        kind, op = kind if kind == "unread" else "first-step", reading.op
        fact = (
            f"{op.name} reads {reading.outputs[0].tensor.numel()} of the "
            f"{stopped.output.tensor.numel()} elements that {stopped.call.op.name} gives, and no gradient "
            f"comes to {name}"
        )
    return ZeroGradient(
        parameter=name,
        kind=kind,
        op=op,
        location=op.location,
        module=op.module,
        fact=fact,
        reached=stopped.reached,
        left=stopped.value.rms or 0.0,
        uses=tuple(call.op for call in stopped.users) if stopped.uses > 1 else (),
        choosing=choosing,
    )


def _infinite_since(value: Value) -> tuple[Call, Call | None] | None:
    """Return the call that makes infinities of finite values, where a value holds nothing else.

    With it the call behind it that gives nothing but infinities of values of which some are finite, as a maximum does.
    """
    if not bool(torch.isinf(value.tensor.detach()).all()):
        return None
    seen: set[int] = set()
    choosing: Call | None = None
    while value.maker is not None and id(value) not in seen:
        seen.add(id(value))
        made = value.maker
        held = [v for v in made.inputs if bool(torch.isinf(v.tensor.detach()).any())]
        if not held or _writes_infinity(made):  # what is written in place holds it before as well
            return made, choosing
        whole = [v for v in held if bool(torch.isinf(v.tensor.detach()).all())]
        if choosing is None and not whole:
            choosing = made
        value = (whole or held)[0]
    return None


def _writes_infinity(call: Call) -> bool:
    given = (*call.args, *call.kwargs.values())
    return any(isinstance(one, float) and math.isinf(one) for one in given)


def _only_reader(stopped: Stopped) -> Call | None:
    """Return the call that picks a part of a result, as it is or unpacked and moved, where nothing else reads it."""
    value: Value = stopped.output
    seen: set[int] = set()
    while id(value) not in seen:  # what is contiguous already is its own result
        seen.add(id(value))
        reading = [call for call in value.consumers if call.outputs and not call.shape_only]
        verb = reading[0].op.name.rpartition(".")[2] if len(reading) == 1 else ""
        if verb not in (*_PICKING, *_MOVING):
            return None
        made = reading[0].outputs[0]
        if verb in _PICKING and made.tensor.numel() < value.tensor.numel():
            return reading[0]
        value = made
    return None


def _is_one_step(name: str, stopped: Stopped) -> bool:
    """Say whether these are the recurrent weights of a reverse direction, of which some positions are read.

    Where it takes its first step, they have multiplied nothing but the initial state of zeros.
    """
    recurrent = stopped.call.op.name.rpartition(".")[2] in _RECURRENT
    return recurrent and name.endswith("_reverse") and "weight_hh" in name


_RECURRENT = ("gru", "lstm", "rnn_tanh", "rnn_relu")
_MOVING = ("_pad_packed_sequence", "transpose", "permute", "movedim", "contiguous")
_PICKING = ("__getitem__", "select", "narrow", "index_select")
_DIFFERENCES = ("sub", "__sub__", "sub_", "rsub", "__rsub__", "div", "__truediv__", "true_divide")
_RECTIFIERS = ("relu", "relu_", "threshold", "threshold_", "relu6")
_BOUNDED = ("clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_max", "hardtanh", "hardtanh_", "relu6",
            "hardsigmoid", "hardswish")  # fmt: skip
_SQUASHING = ("sigmoid", "sigmoid_", "tanh", "tanh_", "softsign", "erf")
ATTENTION = "scaled_dot_product_attention"
_SOFTMAX = ("softmax", "log_softmax", "gumbel_softmax", "softmin", "cross_entropy", "logsumexp")
_PRODUCTS = ("mul", "mul_", "div", "div_", "matmul", "linear", "bmm", "mm", "mv", "dot", "einsum", "addmm",
             "baddbmm", "addcmul", "conv1d", "conv2d", "conv3d", "multiply", "bilinear", "outer")  # fmt: skip
_PAIRS = ("matmul", "__matmul__", "bmm", "baddbmm", "einsum")
_STEPS = ("round", "round_", "floor", "floor_", "ceil", "ceil_", "trunc", "sign", "sgn", "heaviside", "fix",
          "hardshrink")  # fmt: skip
_REPLACING = ("where", "masked_fill", "masked_fill_", "zero_", "fill_", "copy_", "__setitem__", "index_fill",
              "index_fill_", "scatter", "scatter_", "index_copy", "masked_scatter", "index_put_")  # fmt: skip
_JOINING = ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "column_stack", "pad")
_NORMS = ("layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm", "normalize")


def _reason(stopped: Stopped) -> tuple[ZeroKind, str]:
    """Say why an operation passes no gradient on, from what its operands hold."""
    call, value, output = stopped.call, stopped.value, stopped.output
    before, after = value.tensor.detach(), output.tensor.detach()
    name = call.op.name
    verb = name.rpartition(".")[2]
    count = before.numel()
    measured = f"the gradient has rms {stopped.reached:.3g} after {name} and {value.rms or 0.0:.3g} before it"
    if call.kind == "function":
        return "function", f"{measured}: its backward returned zeros"
    if verb in ("normal", "bernoulli", "multinomial", "poisson", "binomial"):
        return "sampling", f"{measured}: torch defines the gradient of a draw as zero"
    if "dropout" in verb and not bool(after.any()):
        return "dropped", f"all {count} outputs of {name} are zero"
    if verb in _RECTIFIERS and bool((after <= 0).all()):
        top = "" if before is after else f"; the largest is {float(before.max()):.3g}"
        return "inactive", f"none of the {count} inputs of {name} is positive{top}"
    if verb == ATTENTION and len(call.args) > 1 and call.args[1].shape[-2] == 1:
        return "single-position", f"{name} attends to 1 position: its weights are constant"
    if verb in _SOFTMAX and (dim := _dim(call, before)) is not None:
        if before.shape[dim] == 1:
            return (
                "single-position" if _compares_positions(value, dim) else "single-choice",
                f"{name} runs over dimension {dim} of size 1: its output is constant",
            )
        if verb in ("softmax", "gumbel_softmax") and bool((after.amax(dim) == 1).all()):
            return "saturated", f"{name} gives exactly 1.0 to one entry in every row"
    if verb in _BOUNDED and before.shape == after.shape and bool((before != after).all()):
        return "saturated", f"all {count} inputs of {name} lie outside its bounds"
    if verb in _SQUASHING and bool(((after.abs() == 1) | (after == 0)).all()):
        return "saturated", f"all {count} outputs of {name} are exactly at its bounds"
    if verb in _STEPS:
        return "step", f"{name} is flat: its derivative is zero everywhere"
    if verb in _PRODUCTS and (factor := _zero_factor(call, value)) is not None:
        return "times-zero", f"the other operand of {name}, {factor}, is all zeros"
    if verb in _REPLACING:
        if _picks_some(call.args):
            return (
                "partly-overwritten",
                f"{name} replaced those values of {describe(before)} that the loss uses",
            )
        return "overwritten", f"{name} replaced all {count} values of {describe(before)}"
    if verb in _NORMS:
        return "normalised", f"{measured}: the loss does not change along what {name} lets through"
    if verb in _JOINING and stopped.uses == 1:
        return "unread", f"{measured}: the part of it that this operand became gets none"
    if verb in _DIFFERENCES and len(call.args) > 1 and call.args[0] is call.args[1]:
        return "itself", f"both operands of {name} are one tensor, {describe(before)}"
    if verb == "embedding" and (read := _padding_read(call)) is not None:
        return "padding", f"all {read[1]} indices that {name} reads are {read[0]}, its padding_idx"
    if stopped.uses > 1:
        return "cancels", f"{measured}: the gradients of its {stopped.uses} uses cancel"
    if before.numel() < after.numel():
        return "cancels", f"{measured}: the contributions of its {after.numel()} outputs cancel"
    return "other", measured


def _padding_read(call: Call) -> tuple[int, int] | None:
    """Return the padding index of a table and how many times it is read, where nothing else is."""
    padding = call.kwargs.get("padding_idx", call.args[2] if len(call.args) > 2 else None)
    indices = call.args[0]
    only = padding is not None and bool((indices == padding).all())
    return (padding, indices.numel()) if only else None


_ZEROING = ("inactive", "times-zero", "overwritten")


def _picks_some(args: tuple[Any, ...]) -> bool:
    """Say whether a write goes to some values of a tensor only, which other tensors choose."""
    if len(args) < 2 or not isinstance(args[0], torch.Tensor):
        return False
    chosen = [args[1]] if isinstance(args[1], torch.Tensor) else args[1]
    if not isinstance(chosen, list | tuple) or not all(isinstance(i, torch.Tensor) for i in chosen):
        return False
    sizes = args[0].shape[: sum(i.dim() if i.dtype == torch.bool else 1 for i in chosen)]
    picked = {i.numel() if i.dtype != torch.bool else int(i.sum()) for i in chosen}
    return max(picked, default=0) < math.prod(sizes)


def _zeros_made(stopped: Stopped) -> Stopped | None:
    """Return the call that made a factor of zeros from values that were not, seen as where the gradient stops.

    None where the zeros were there before the run: a parameter that starts at zero, a constant.
    """
    call, value = stopped.call, stopped.value
    factors = [v for v in call.inputs if v.tensor is not value.tensor and _is_zero(v.tensor)]
    found = factors[0] if factors else None
    while found is not None and (maker := found.maker) is not None and not maker.shape_only:
        lively = [v for v in maker.inputs if not _is_zero(v.tensor)]
        data = [v for v in lively if v.origin != "parameter"]
        if lively:
            others = [v for v in maker.inputs if v not in lively]
            if not data or any(v.origin in ("parameter", "source") for v in others):
                return None
            source = Stopped(maker, data[0], found, stopped.reached, (maker,))
            return source if _reason(source)[0] in _ZEROING else None
        found = next(iter(maker.inputs), None)
    return None


def _compares_positions(scores: Value, dim: int) -> bool:
    """Say whether a softmax runs over the keys of an attention: what it reads is a product of two computed values.

    Scores of shape (batch, positions, 1) are not told from those of a pooling that is normalised
    over the wrong dimension; those with heads are, and those of one query.
    """
    shape = scores.tensor.shape
    if dim != len(shape) - 1 or (len(shape) < 4 and (len(shape) < 3 or shape[-2] != 1)):
        return False
    found: Value | None = scores
    while found is not None and (maker := found.maker) is not None:
        if maker.op.name.rpartition(".")[2] in _PAIRS:
            computed = [value for value in maker.inputs if value.maker is not None]
            return found.tensor.shape[-1] == 1 and len(computed) > 1
        same = [v for v in maker.inputs if v.tensor.numel() == found.tensor.numel() and v.maker]
        found = same[0] if same else None  # scaled, masked, reshaped
    return False


def _is_zero(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and not bool(tensor.detach().any())


def _dim(call: Call, tensor: Tensor) -> int | None:
    """Return the dimension along which a softmax runs, from 0."""
    dim = call.kwargs.get("dim")
    if dim is None and call.op.name.endswith("cross_entropy"):
        dim = 1 if tensor.ndim > 1 else 0
    if dim is None and len(call.args) > 1:
        dim = call.args[1]
    return int(dim) % tensor.ndim if isinstance(dim, int) and tensor.ndim else None


def _zero_factor(call: Call, value: Value) -> str | None:
    """Describe the operand other than ``value`` that is zero throughout."""
    for tensor in tensors_in((call.args, call.kwargs)):
        if tensor is not value.tensor and tensor.numel() and not bool(tensor.detach().any()):
            return describe(tensor)
    for number in (*call.args, *call.kwargs.values()):
        if isinstance(number, (int, float)) and not isinstance(number, bool) and number == 0:
            return f"the number {number}"
    return None

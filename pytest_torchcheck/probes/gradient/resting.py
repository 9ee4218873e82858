"""Terms of a loss at rest: a bound holds them past which their own value would only lower the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..recorded.watch import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..recorded.values import Call, Value
    from .paths import Stopped

HINGES: Final = frozenset(
    {
        "margin_ranking_loss", "hinge_embedding_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
        "cosine_embedding_loss", "multi_margin_loss", "multilabel_margin_loss",
    }
)  # fmt: skip
"""Losses that are 0, their lowest value, once a margin is kept."""
LARGER: Final = frozenset({"maximum", "minimum", "max", "min", "fmax", "fmin"})
"""Functions that give the larger or the smaller one of two tensors."""
_RECTIFIERS: Final = ("relu", "relu6")
_CLAMPS: Final = ("clamp", "clip", "clamp_min", "clamp_max")
_POWERS: Final = ("square", "pow")
_SCALES: Final = ("mul", "multiply", "div", "divide", "truediv", "true_divide")
_ADDS: Final = frozenset(
    {
        "add", "sub", "subtract", "rsub", "neg", "sum", "mean", "nansum", "nanmean", "stack", "cat", "concat", "where",
        "masked_fill", "masked_select", "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel",
        "transpose", "permute", "movedim", "contiguous", "clone", "expand", "getitem", "select", "narrow",
        "index_select", "to", "float", "double", "type_as",
    }
)  # fmt: skip
"""Operations whose result is linear in each operand, without ``__`` and ``r`` around their names."""

_FAR: Final = 1e4
"""Size of numbers that stand for infinity: no training brings what they fill back to a bound."""


def at_rest(
    stopped: Stopped, follows: Callable[[Value], Collection[Value]], modules: Collection[str]
) -> str:
    """Say what shows that a gradient is zero because a term of the loss is at rest; empty where nothing does.

    So is a hinge whose margin is kept, or a divergence below its free bits: a bound replaces all of the values,
    the loss grows with what the bound gives (from above: falls with it), and what it gives is only added up
    and scaled on its way to the loss. A bound within the model's forward counts where the forward adds up.

    Args:
        stopped: Where the gradient ends.
        follows: Returns the values that are computed from one, and that the loss is computed from.
        modules: Qualified names of the model's modules.
    """
    sides = {_side(call, stopped.value) for call in stopped.users}
    side = sides.pop() if len(sides) == 1 else 0
    if not side:
        return ""
    given = [o for call in stopped.users for o in follows(stopped.value) if o in call.outputs]
    if not given or any(o.sign != side or not _added(o, follows, modules) for o in given):
        return ""
    verb, name = _verb(stopped.call), stopped.call.op.name
    held = (
        f"{name} gives 0 alone: its margin is kept"
        if verb in HINGES
        else f"{name} is given zeros alone, by a hinge"
        if verb in _POWERS
        else f"none of the {stopped.value.tensor.numel()} values that {name} is given lies "
        f"{'above' if side > 0 else 'below'} its bound"
    )
    return f"{held}, and the loss {'grows' if side > 0 else 'falls'} with what it gives"


def _verb(call: Call) -> str:
    """Return the bare name of a function: ``mul`` of ``Tensor.__imul__``."""
    bare = call.op.name.rpartition(".")[2]
    verb = bare.strip("_")
    return verb[1:] if bare.startswith(("__r", "__i")) and verb[1:] in (*_ADDS, *_SCALES) else verb


def _side(call: Call, value: Value) -> int:
    """Return 1 where a call holds all of a value at a lower bound, -1 at an upper one, 0 otherwise."""
    verb, before = _verb(call), value.tensor.detach()
    after = call.outputs[-1].tensor.detach()
    if not bool((before.abs() < _FAR).any()):
        return 0
    if verb in _POWERS:  # of a hinge
        made = None if bool(before.any()) else value.maker
        return int(made is not None and any(_side(made, given) > 0 for given in made.inputs))
    if verb in HINGES:
        return int(not bool(after.any()))
    if verb in _RECTIFIERS:
        return int(bool((after <= 0).all()))
    if verb in LARGER:
        others = [t for t in tensors_in((call.args, call.kwargs)) if t is not value.tensor]
        if len(others) != 1 or others[0].requires_grad:
            return 0
    elif verb not in _CLAMPS:
        return 0
    if call.outputs[-1].tensor is value.tensor:  # in place: what was given is gone
        low, high = (
            call.kwargs.get(key, call.args[at] if len(call.args) > at else None)
            for key, at in (("min", 1), ("max", 1 if verb == "clamp_max" else 2))
        )
        return int(low is not None and verb != "clamp_max") - int(high is not None)
    return int(bool((after > before).all())) - int(bool((after < before).all()))


def _added(
    start: Value, follows: Callable[[Value], Collection[Value]], modules: Collection[str]
) -> bool:
    """Say whether a value is only added up and scaled on its way to the loss, and leaves the model as one number."""
    stack, seen = [start], {start}
    while stack:
        value = stack.pop()
        ahead = set(follows(value))
        for call in value.consumers:
            made = [output for output in call.outputs if output in ahead]
            leaves = _within(value.maker, modules) and not _within(call, modules)
            if made and (not _linear(call, value) or (leaves and value.tensor.dim())):
                return False
            new = [output for output in made if output not in seen]
            stack += new
            seen.update(new)
    return True


def _within(call: Call | None, modules: Collection[str]) -> bool:
    """Say whether a call runs in a forward of the model; a loss that is a module has a name of its own."""
    return call is not None and bool(call.op.module_class) and call.op.module in modules


def _linear(call: Call, value: Value) -> bool:
    """Say whether a result is linear in a value, and no values of the model's scale it, but a number."""
    verb = _verb(call)
    if verb in _SCALES:
        turned = ".__r" in call.op.name or call.args[0] is not value.tensor
        others = [v.tensor for v in call.inputs if v is not value]
        scaled = any(t.requires_grad and t.dim() for t in others)
        return call.inputs.count(value) == 1 and not scaled and not ("div" in verb and turned)
    return verb in _ADDS

"""What a contract calls.

How many arguments each function must take, and what to write where it takes others.
"""

from __future__ import annotations

import dis
import functools
import inspect
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch

from ..objects.peek import attribute, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable


def takes(function: Any, count: int) -> bool | None:
    """Say whether a callable takes so many positional arguments.

    None where its signature is not known.
    """
    if isinstance(function, torch.nn.Module):
        function = function.forward  # a module's own __call__ takes anything
    signature = signature_of(function, follow_wrapped=False)  # what is called is the wrapper
    if signature is None:
        return None
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


_ALONE: Final[weakref.WeakKeyDictionary[Any, bool]] = weakref.WeakKeyDictionary()


def takes_output_alone(loss: Any) -> bool:
    """Say whether a loss takes the output and nothing else: ``loss(output)``."""
    try:
        known = _ALONE.get(loss)
    except TypeError:  # no weak reference to it, or no hash
        return takes(loss, 1) is True and takes(loss, 2) is False
    if known is None:
        known = _ALONE[loss] = takes(loss, 1) is True and takes(loss, 2) is False
    return known


def loss_of(loss: Callable[..., Any], output: Any, targets: Any) -> Any:
    """Call a loss with the targets, or without where there are none and it takes none."""
    if targets is None and takes_output_alone(loss):
        return loss(output)
    return loss(output, targets)


def shown(function: Any) -> str:
    """Return a callable as its name with its arguments, such as ``make(width, depth=2)``."""
    while isinstance(function, functools.partial):
        function = function.func
    name = attribute(function, "__name__") or type(function).__name__
    name = "the lambda" if name == "<lambda>" else name
    if (signature := signature_of(function)) is None:
        return f"{name}(...)"
    plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return f"{name}({', '.join(map(str, plain))})"


def wrong_factory(model: Any) -> str | None:
    """Return what is wrong with a factory, which is called without arguments."""
    if isinstance(model, torch.nn.Module) or takes(model, 0) is not False:
        return None
    name = getattr(model, "__name__", type(model).__name__)
    lacking = [
        p.name
        for p in inspect.signature(model).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    call = ", ".join(f"{name}=..." for name in lacking)
    fixed = (
        f"write {call} between lambda and its colon"
        if name == "<lambda>"
        else f"write model=lambda: {name}({call})"
    )
    return (
        f"model: a factory is called without arguments, and {shown(model)} needs "
        f"{', '.join(lacking)}; {fixed}"
    )


def wrong_optimizer(optimizer: Any) -> str | None:
    """Return what is wrong with a function that makes an optimizer of the model."""
    example = "optimizer=lambda model: torch.optim.{}(model.parameters())"
    if isinstance(optimizer, torch.optim.Optimizer):
        return (
            f"optimizer: got an optimizer that is already built, {type(optimizer).__name__}; each "
            f"check needs one of its own; write {example.format(type(optimizer).__name__)}"
        )
    if isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer):
        name = optimizer.__name__
        return f"optimizer: got the class {name}; write {example.format(name)}"
    if optimizer is None or takes(optimizer, 1) is not False:
        return None
    return (
        f"optimizer: is called as optimizer(model), and {shown(optimizer)} does not take one "
        f"argument; "
        f"write {example.format('AdamW')}"
    )


def wrong_train_step(step: Any, optimizer: Any) -> str | None:
    """Return what is wrong with a training step.

    It is called with model, optimizer, inputs and targets; one that uses the optimizer needs the
    user's own, since with another it is another step.
    """
    if step is None:
        return None
    if takes(step, 4) is not False:
        if optimizer is not None or not _reads_second(step):
            return None
        return (
            f"optimizer: {shown(step)} uses the optimizer that it is given, and none is declared; "
            "write optimizer=lambda model: torch.optim.AdamW(model.parameters()), with your own "
            "optimizer and its arguments"
        )
    return (
        "train_step: is called as train_step(model, optimizer, inputs, targets), and "
        f"{shown(step)} does not take four arguments; write def train_step(model, optimizer, "
        "inputs, targets): ... with all four, even if some stay unused"
    )


def _reads_second(function: Any) -> bool:
    """Say whether a Python function reads its second positional argument; False if not known."""
    while isinstance(function, functools.partial):
        if function.args:
            return False
        function = function.func
    if isinstance(function, torch.nn.Module):
        function = function.forward
    bound = int(inspect.ismethod(function))
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_argcount <= 1 + bound:
        return False
    name = code.co_varnames[1 + bound]
    return any(
        name in (one.argval if isinstance(one.argval, tuple) else (one.argval,))
        for one in dis.get_instructions(code)
        if one.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE"))
    )


def wrong_batch(batch: Any) -> str | None:
    """Return what is wrong with a function that makes a batch from a seed."""
    if not inspect.isroutine(batch) or takes(batch, 1) is not False:
        return None
    return (
        f"batch: is called as batch(seed), and {shown(batch)} does not take one argument; write "
        "batch=lambda seed: (inputs, targets)"
    )


def _loss_written(loss: Any) -> str:
    name = shown(loss).partition("(")[0]
    return "..." if name == "the lambda" else f"{name}(...)"


def wrong_loss(loss: Any, *, has_targets: bool, may_have: bool | None) -> str | None:
    """Return what is wrong with a loss, which is called with the output and the targets.

    Args:
        loss: The callable.
        has_targets: Whether targets are declared.
        may_have: Whether a real batch may bring them; None where there is one, and it brings none.
    """
    two = takes(loss, 2)
    if takes_output_alone(loss):
        if not has_targets:
            return None
        return (
            f"loss: is called as loss(output, targets), and {shown(loss)} takes the output "
            "alone; write loss=lambda output, targets: ..., or omit targets="
        )
    if two is False:
        return (
            f"loss: is called as loss(output, targets), and {shown(loss)} does not take two "
            f"arguments; "
            f"write loss=lambda output, targets: {_loss_written(loss)}"
        )
    if not has_targets and may_have is None and not takes(loss, 1) and _reads_second(loss):
        return (
            "loss: loss(output, targets) needs targets, and the batch has none; a batch with "
            "targets is a pair: batch=(inputs, targets), with several inputs as a tuple"
        )
    if not has_targets and may_have is False:
        return (
            "loss: loss(output, targets) needs targets; declare targets=Labels('B', classes=10) "
            "or give a real batch=(inputs, targets); or loss='output' where the model returns "
            "its own"
        )
    return None

"""Operators registered with ``torch.library``: opcheck's verdicts with the line and the edit, and their gradients."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..findings import Culprit, Finding, Location
from ..sources import of_object
from ..state import randomness_kept
from ..text.printable import message_of
from .binding import make_call
from .calls import is_float
from .engine import check_call
from .target import first_line


def check_operator(
    operator: Any,
    inputs: Any,
    *,
    name: str | None = None,
    twice: bool = False,
    used_at: Location | None = None,
    derivatives: bool = True,
    kwargs: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Check an operator's registration with ``torch.library.opcheck``, and its gradient.

    Args:
        operator: A ``torch.library.custom_op``, an ``OpOverload`` or an ``OpOverloadPacket``.
        inputs: A tuple of positional arguments, or a dict of keyword arguments.
        name: How the findings call it; its qualified name by default.
        twice: Second derivatives are promised.
        used_at: The user's line that calls it.
        kwargs: Keyword arguments beside positional ``inputs``.
        derivatives: Also check its gradient, where one is registered.

    Returns:
        One or more findings.
    """
    overload = _overload(operator)
    definition = definition_of(overload)
    label = name or str(overload._schema.name)
    args = () if isinstance(inputs, Mapping) else _tuple(inputs)
    named = {**(inputs if isinstance(inputs, Mapping) else {}), **(kwargs or {})}
    trains = definition is None or getattr(definition, "_backward_fn", None) is not None
    findings = _opcheck(
        overload, definition, label, _ready(args, trains), _ready(named, trains), used_at
    )
    if derivatives and trains and _has_floats((args, named)) and not findings:
        shadow = shadow_of(definition, label)
        call = make_call(overload, args, kwargs=named, function=shadow)
        findings += check_call(call, label, twice=twice, used_at=used_at)
    if findings:
        return findings
    held = f"{label}: opcheck ({len(_UTILITIES)} tests) on {_described((args, named))}"
    return [Finding(status="passed", code="held", summary=held, evidence={"function": label})]


_UTILITIES = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


def definition_of(overload: Any) -> Any:
    """Return the ``custom_op`` behind an overload, or None where it was registered otherwise."""
    return torch._library.custom_ops.OPDEFS.get(str(overload._schema.name))


def shadow_of(definition: Any, name: str) -> type[torch.autograd.Function] | None:
    """Return a Function class that stands for a custom_op, so that lines of its parts can be found.

    It is never applied.
    """
    if definition is None or getattr(definition, "_backward_fn", None) is None:
        return None
    parts = {
        "forward": staticmethod(definition._init_fn),
        "backward": staticmethod(definition._backward_fn),
    }
    setup = getattr(definition, "_setup_context_fn", None)
    parts["setup_context"] = staticmethod(setup or _no_context)
    made: type[torch.autograd.Function] = type(name, (torch.autograd.Function,), parts)
    return made


def _no_context(ctx: Any, inputs: Any, output: Any) -> None:
    """Stand for a setup_context that was not given."""


def _overload(operator: Any) -> Any:
    if isinstance(operator, torch._library.custom_ops.CustomOpDef):
        return operator._opoverload
    if isinstance(operator, torch._ops.OpOverloadPacket):
        return getattr(operator, operator.overloads()[0])
    return operator


def _tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def _ready(values: Any, trains: bool) -> Any:
    def fresh(value: Tensor) -> Tensor:
        copy = value.detach().clone()
        return copy.requires_grad_() if trains and is_float(copy) else copy

    return pytree.tree_map_only(Tensor, fresh, values)


def _has_floats(values: Any) -> bool:
    return any(isinstance(v, Tensor) and is_float(v) for v in pytree.tree_leaves(values))


def _described(values: Any) -> str:
    tensors = [v for v in pytree.tree_leaves(values) if isinstance(v, Tensor)]
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in tensors)


def _opcheck(
    overload: Any, definition: Any, label: str, args: Any, kwargs: Any, used_at: Location | None
) -> list[Finding]:
    with randomness_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results: dict[str, Any] = {}
        for utility in _UTILITIES:
            found = torch.library.opcheck(
                overload, args, kwargs, test_utils=utility, raise_exception=False
            )
            results.update(found)
            if found.get(utility) != "SUCCESS":
                break  # the later tests fail for the same reason
    failures = {k: v for k, v in results.items() if v != "SUCCESS"}
    return [_finding(k, v, overload, definition, label, used_at) for k, v in failures.items()]


def _finding(
    utility: str,
    error: Exception,
    overload: Any,
    definition: Any,
    label: str,
    used_at: Location | None,
) -> Finding:
    message = message_of(error)
    code, summary, cause, fix, part = _explained(utility, message, label)
    place = _line(definition, part) or used_at
    return Finding(
        status="suspicious"
        if code == "opcheck-fake-missing"
        else "violated",  # that one refuses loudly
        code=code,
        summary=summary,
        culprits=(
            Culprit("function", label, location=place),
            *([Culprit("call", label, "called here", used_at)] if used_at else []),
        ),
        location=place,
        observed=f"opcheck's {utility} failed; schema {overload._schema}",
        cause=cause,
        because=f"torch said: {first_line(error)[:300]}",
        fix=fix,
        evidence={"function": label, "test": utility, "message": message[:2000]},
    )


def _explained(utility: str, message: str, label: str) -> tuple[str, str, str, str, str]:
    """Return code, summary, cause, fix and the part of the definition to show."""
    mutated = re.search(r"Argument (\w+) is not defined as mutable but was mutated", message)
    if mutated:
        return (
            "opcheck-mutation",
            f"{label} writes into {mutated[1]} and does not declare it",
            "the schema promises that its inputs stay as they are; compiled code relies on that",
            f'declare mutates_args=("{mutated[1]}",), or work on a copy',
            "_init_fn",
        )
    if "alias" in message:
        return (
            "opcheck-alias",
            f"{label} returns an input or a view of one",
            "the schema promises a new tensor; compiled code may reuse the input's memory",
            "return a clone",
            "_init_fn",
        )
    if "no fake impl" in message or "no abstract impl" in message:
        return (
            "opcheck-fake-missing",
            f"{label} has no fake kernel",
            "torch.compile, torch.export and fake tensors cannot tell the shape of its output",
            "register one with @op.register_fake that returns empty tensors of the right shape, dtype and strides",
            "_init_fn",
        )
    if "mismatched tensor metadata" in message or utility == "test_faketensor":
        what = re.search(r"(Shapes|Dtypes|Strides|Devices?)\b", message)
        return (
            "opcheck-fake",
            f"{label}'s fake kernel gives other {what[1].lower() if what else 'metadata'} than the real one",
            "compiled code allocates by the fake kernel and computes with the real one",
            "let the fake kernel return the shape, dtype and strides that the real one returns",
            "_abstract_fn",
        )
    if utility == "test_autograd_registration":
        return (
            "opcheck-autograd",
            f"{label} has no autograd formula registered at an autograd key",
            "gradients go through the implementation, which torch.compile does not see",
            "use op.register_autograd(backward, setup_context=...)",
            "_init_fn",
        )
    return (
        "opcheck-compiled",
        f"{label} gives something else under AOT dispatch",
        "its backward is not traceable, or not registered where the compiler looks",
        "write backward in torch operations or other custom operators, and register it with register_autograd",
        "_backward_fn",
    )


def _line(definition: Any, part: str) -> Location | None:
    if definition is None:
        return None
    for name in (part, "_init_fn"):
        thing = getattr(definition, name, None)
        if thing is not None and (found := of_object(thing)) is not None:
            return found
    return None

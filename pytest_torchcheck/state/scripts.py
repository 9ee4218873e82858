"""Scripted and traced modules, which refuse much of what any other module answers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

_ASKED: Final = (
    "get_submodule",
    "get_parameter",
    "get_buffer",
    "register_forward_hook",
    "register_forward_pre_hook",
)
"""What torch replaces by a function that raises, although ``nn.Module``'s own works for scripts too."""


def _forward(_: Any, script: Any, cls: type) -> Any:
    """Give a module's compiled forward; where the class is asked, which torch refuses, a type without source."""
    return torch._C.ScriptMethod if script is None else script.__getattr__("forward")


@contextlib.contextmanager
def scripts_answer() -> Iterator[None]:
    """Let scripted and traced modules name their parts and take forward hooks, as any module, within the block."""
    script: Any = vars(torch.jit)["RecursiveScriptModule"]
    forward = vars(torch.jit.ScriptModule).get("forward")
    put: list[tuple[Any, str, Any]] = []
    if forward is not None and all(name in vars(script) for name in _ASKED):
        put = [(script, name, getattr(nn.Module, name)) for name in _ASKED]
        put.append((type(forward), "__get__", _forward))
    # else TorchScript is switched off (PYTORCH_JIT=0), and the classes are modules like others
    before = [vars(owner)[name] for owner, name, _ in put]
    for owner, name, value in put:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(put, before, strict=True):
            setattr(owner, name, value)

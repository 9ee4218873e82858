"""What forward keeps for backward that has no graph: a constant there, although it follows the inputs."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...record.tracing import find_line
from ...sources import nodes, of_line
from ..lines import line_with, method_of
from ..relations.experiments import aliases, held_tensors, saved_tensors
from ..relations.jacobians import distance

if TYPE_CHECKING:
    from types import FrameType

    from ...findings import Location
    from ..calls import Run
    from ..target import Target

_MOVED = 1e-3
"""Share by which inputs are changed to see what follows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tensor that backward gets and that is neither an input nor an output.

    Attributes:
        name: As the user knows it: ``sig``, or ``ctx.gate``.
        saved: The line of forward that keeps it, where it is known.
        read: The line of backward that reads it, where it is an attribute.
    """

    name: str
    saved: Location | None
    read: Location | None = None


def intermediates(target: Target) -> list[Kept]:
    """Return what is kept, changes with the inputs, and has no graph; a few runs.

    What backward does not use is left out.
    """
    call = target.call
    run = call.run()
    moved = [v * (1 + _MOVED) if i in call.wanted else v for i, v in enumerate(call.values)]
    try:
        other = call.with_values(tuple(moved)).run()
    except Exception:  # the user's forward may refuse other values
        return []
    held, later = held_tensors(run), held_tensors(other)
    found = []
    for name, value in held.items():
        read = line_with(target.function, rf"\.{name}\b", "backward", "vjp")
        if name in later and read is not None and _is_loose(value, later[name], run):
            saved = line_with(target.function, rf"\.{name}\b[^=]*=[^=]", "setup_context", "forward")
            found.append(Kept(name=f"ctx.{name}", saved=saved, read=read))
    before, after = saved_tensors(run, target.function), saved_tensors(other, target.function)
    if len(before) == len(after):
        loose = [
            i
            for i, value in enumerate(before)
            if _is_loose(value, after[i], run) and value is not None and _is_used(target, value)
        ]
        names, place = _saving(target, len(before)) if loose else ([], None)
        found += [Kept(name=names[i], saved=place) for i in loose if names]
    return found


def _is_loose(value: Tensor | None, other: Tensor | None, run: Run) -> bool:
    """Say whether a tensor follows the inputs and has no graph, and is no output."""
    return (
        value is not None
        and other is not None
        and value.is_floating_point()
        and not value.requires_grad
        and not any(aliases(value, out) for out in run.outputs)
        and (value.shape != other.shape or not torch.equal(value, other))
    )


def _is_used(target: Target, value: Tensor) -> bool:
    """See whether the gradient changes with a tensor that was saved."""

    def unpack(tensor: Tensor) -> Tensor:
        same = tensor.shape == value.shape and torch.equal(tensor, value)
        return tensor * (1 + _MOVED) + _MOVED if same else tensor

    with saved_tensors_hooks(lambda tensor: tensor, unpack):
        run = target.call.run()
    try:
        found = run.grads(target.upstream(run))
    except Exception:  # the user's backward may refuse another value: it reads it
        return True
    plain = target.call.run()
    usual = plain.grads(target.upstream(plain))
    return any(distance(found[i], usual[i]) > 0 for i in found)


def _saving(target: Target, count: int) -> tuple[list[str], Location | None]:
    """Return the arguments of the ``save_for_backward`` that runs, and its line; nothing where they are not so many."""
    methods = [method_of(target.function, name) for name in ("setup_context", "forward")]
    files = {os.path.abspath(m.__code__.co_filename) for m in methods if m is not None}
    ran: dict[tuple[str, int], str] = {}

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        file = os.path.abspath(frame.f_code.co_filename)
        if event != "call" and file in files:
            ran[file, line] = frame.f_code.co_qualname
        return False

    find_line(target.call.run, watcher, least=1)
    calls = [
        (file, node)
        for file in files
        for node in nodes(file)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "save_for_backward"
        and (file, node.lineno) in ran
    ]
    if len(calls) != 1:
        return [], None
    file, node = calls[0]
    if len(node.args) != count or any(isinstance(a, ast.Starred) for a in node.args):
        return [], None
    return [ast.unparse(a) for a in node.args], of_line(file, node.lineno, ran[file, node.lineno])

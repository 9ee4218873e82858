"""What attributes of modules hold beside parameters and buffers, as plain words that can be compared."""

from __future__ import annotations

import itertools
import re
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import sources
from ..lean import dataclass
from ..objects import trees
from ..objects.peek import PLAIN, entries, length, opaque, pairs
from ..probes.holding.held_by_models import holdings
from ..state import is_lazy, saved_state
from ..state.outer import holds_tensors, outer_containers
from ..state.tensors import refuses

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from ..findings import Location
    from ..probes.holding.held_by_models import Holding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """A piece of state outside of the state dict.

    Attributes:
        name: Qualified name, such as ``head.mean``.
        kind: ``buffer`` (not persistent), ``left-out`` (a buffer that an overridden ``state_dict``
            does not return), ``tensor`` or ``attribute`` (numbers, texts, lists of them).
        owner: The module that holds it.
        key: The attribute of the owner.
        value: A copy of the tensor, or the text of a plain value.
        saver: The function that leaves it out, where one does.
        graph: Whether it is a tensor that was computed with a graph.
    """

    name: str
    kind: str
    owner: nn.Module
    key: str
    value: torch.Tensor | str
    saver: Location | None = None
    graph: bool = False

    @property
    def location(self) -> Location | None:
        """The line that makes it; of what is left out, the function that does so."""
        if self.kind == "left-out":
            return self.saver
        if self.kind == "buffer":
            patterns = (
                rf"register_buffer\(\s*[\"']{re.escape(self.key)}[\"']",
                r"register_buffer\(.*persistent\s*=",
            )
            found = (sources.search(type(self.owner), pattern) for pattern in patterns)
            place = next((line for line in found if line is not None), None)
            return place or sources.of_assignment(self.owner, self.key, plain=True)
        return sources.of_assignment(self.owner, self.key, plain=True)


def pieces(model: nn.Module, held: Iterable[Holding] | None = None) -> dict[str, Piece]:
    """Take a picture of everything outside of the state dict that could be state.

    Args:
        model: Any module.
        held: Its :func:`holdings`, where they are known.
    """
    found = _left_out(model)
    for prefix, owner in model.named_modules():
        if isinstance(owner, torch.jit.ScriptModule):
            continue
        for key in owner._non_persistent_buffers_set:
            buffer = owner._buffers.get(key)
            if buffer is not None:
                name = f"{prefix}.{key}" if prefix else key
                copy = buffer.detach().clone()
                found[name] = Piece(name=name, kind="buffer", owner=owner, key=key, value=copy)
        for key, value in vars(owner).items():
            if key not in _OWN and (text := plain(value)) is not None:
                name = f"{prefix}.{key}" if prefix else key
                found[name] = Piece(name=name, kind="attribute", owner=owner, key=key, value=text)
    for each in holdings(model) if held is None else held:
        if each.kind == "tensor" and each.via != "closure":
            copy = each.value.detach().clone()
            found[each.path] = Piece(
                name=each.path, kind="tensor", owner=each.owner, key=each.name, value=copy,
                graph=each.value.grad_fn is not None,
            )  # fmt: skip
    return found


def _left_out(model: nn.Module) -> dict[str, Piece]:
    """Return the buffers that are registered to be saved, and that a ``state_dict`` of the user's does not return."""
    savers = [
        (name, place)
        for name, m in model.named_modules()
        for how in ("state_dict", "_save_to_state_dict")
        if getattr(type(m), how) is not getattr(nn.Module, how)
        and (place := sources.of_user_object(getattr(type(m), how))) is not None
    ]
    if not savers:
        return {}
    saved = saved_state(model)
    found: dict[str, Piece] = {}
    for prefix, owner in model.named_modules():
        for key, buffer in owner._buffers.items():
            name = f"{prefix}.{key}" if prefix else key
            if buffer is None or name in saved or key in owner._non_persistent_buffers_set:
                continue
            saver = next((place for at, place in savers if not at or prefix.startswith(at)), None)
            if saver is not None and not is_lazy(buffer):
                copy = buffer.detach().clone()
                found[name] = Piece(
                    name=name, kind="left-out", owner=owner, key=key, value=copy, saver=saver
                )
    return found


_OWN = frozenset(vars(nn.Module()))


def plain(value: Any) -> str | None:
    """Return the text of a value made of numbers and texts only; None for anything else, and for None."""
    if opaque(value):
        return None
    if type(value) in PLAIN:
        return None if value is None else repr(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    stack, seen = [value], 0
    while stack:
        thing = stack.pop()
        seen += 1
        if seen > _LONG:
            return None
        if isinstance(thing, (list, tuple)):
            stack.extend(entries(thing))
        elif isinstance(thing, dict):
            stack.extend(itertools.chain(*pairs(thing)))
        elif not isinstance(thing, PLAIN):
            return None
    try:
        return repr(value)
    except RecursionError:  # lists in lists, deeper than Python's own repr goes
        return None


def differing(before: dict[str, Piece], after: dict[str, Piece]) -> list[Piece]:
    """Return the pieces that are new or have another value, as they are after."""
    found = []
    for name, piece in after.items():
        old = before.get(name)
        if old is None or type(old.value) is not type(piece.value):
            found.append(piece)
        elif isinstance(piece.value, torch.Tensor) and isinstance(old.value, torch.Tensor):
            if not trees.same(old.value, piece.value):
                found.append(piece)
        elif old.value != piece.value:
            found.append(piece)
    return found


def per_sample(piece: Piece, size: int | None) -> bool:
    """Say whether a tensor has one entry per sample: a cache or a hidden state of this batch."""
    return isinstance(piece.value, torch.Tensor) and (size is None or size in piece.value.shape)


_LONG = 10_000  # elements from which on a list is a vocabulary and no state


def marks(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return, by the path of each attribute and buffer, what changes as a call binds it, writes to it or lengthens it.

    Only what the attribute itself is: what stands inside an object or a nested container is not
        looked at.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, module in model.named_modules():
        own = [(k, v) for k, v in vars(module).items() if k not in _OWN and not opaque(v)]
        for key, value in (*own, *module._buffers.items()):
            size = length(value) if isinstance(value, list | dict | set | deque) else 0
            if isinstance(value, torch.Tensor) and not (refuses(value) or value.is_inference()):
                size = value._version
            found[f"{name}.{key}" if name else key] = (id(value), size)
    for name, value in outer_containers(model).items():
        if holds_tensors(value) or not length(value):
            found.setdefault(name, (id(value), length(value)))
    return found


def kept_since(
    model: nn.Module, held: dict[str, tuple[int, int]], there: Container[str]
) -> tuple[str, ...]:
    """Return what calls since then bound, wrote to or lengthened; not the attributes of a module that they made.

    Args:
        model: As it is now.
        held: Its :func:`marks` of then.
        there: Names of its modules of then.
    """
    made = {name for name, _ in model.named_modules() if name not in there}
    return tuple(
        name
        for name, mark in marks(model).items()
        if held.get(name) != mark and name.rpartition(".")[0] not in made
    )

"""What a step that leaks leaves behind: which tensors, who made them, and the object and line that keep them."""

from __future__ import annotations

import contextlib
import gc
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...objects import heap
from ..memory.allocations import STOPS, Allocation, named_tensors, storages
from ..memory.replay import location_of
from ..memory.tracker import MemoryTracker
from .holders import Link, Roots, blame, hook_line, lines_run
from .leaks import Leak, LeakedTensor, LeakKind, grows

if TYPE_CHECKING:
    from collections.abc import Callable


def explained(
    step: Callable[[], Any],
    module: nn.Module | None,
    per_step: int,
    live: tuple[int, ...],
    added: dict[str, int],
    code: tuple[Callable[..., Any], ...],
) -> Leak:
    """Run the step again under a tracker of allocations, and say what stays, who made it and who holds it.

    Args:
        step: As given to :func:`~.leaks.find_leak`, ``module`` and ``code`` too.
        module: The model.
        per_step: Bytes that each step adds.
        live: Live bytes after each measured step, relative to the first.
        added: Hooks added per step, by name.
        code: Functions in which to look for the line that keeps something.
    """
    tracker = MemoryTracker(model=module)
    seen: list[dict[_Kind, list[tuple[int, Allocation]]]] = []
    with tracker:
        for _ in range(_ROUNDS):
            tracker.next_step()
            with lines_run() as ran:
                step()
            gc.collect(1)
            seen.append(_live_by_kind(tracker))
    growing = _growing(seen)
    chain: list[Link] = []
    kind: LeakKind = "tensors"
    carriers = _carriers({address for kept in growing for address, _ in seen[-1][kept]})
    if carriers:
        carrier, kind = _most_telling(carriers)
        carriers.clear()  # they would be found as holders
        chain = Roots(module).chain(carrier)
        del carrier
    holder, location = blame(chain, code, ran)
    if added:
        kind = "hooks"
        name = next(iter(added))
        holder = f"hooks of {name}"
        location = hook_line(module, name, ran) or location
    return Leak(
        kind=kind,
        bytes_per_step=per_step,
        live_bytes=live,
        tensors=_describe(growing, seen),
        holder=holder,
        chain=tuple(link.text for link in chain),
        location=location,
        hooks=added or None,
    )


STOPS.add(explained.__code__)  # lines outside the step are not part of it


_ROUNDS = 3
_Kind = tuple[Any, ...]
"""What made a tensor: operation, module, line, dtype and rank; its sizes may grow."""


def _live_by_kind(tracker: MemoryTracker) -> dict[_Kind, list[tuple[int, Allocation]]]:
    found: dict[_Kind, list[tuple[int, Allocation]]] = {}
    for address, a in tracker.addresses().items():
        if a.born >= 0:
            kind = (a.op, a.module, a.site, a.dtype, len(a.shape))
            found.setdefault(kind, []).append((address, a))
    return found


def _growing(seen: list[dict[_Kind, list[tuple[int, Allocation]]]]) -> list[_Kind]:
    """Return what had more bytes after every round, the most first."""
    totals = {
        kind: [sum(a.size for _, a in live.get(kind, ())) for live in seen] for kind in seen[-1]
    }
    found = [kind for kind, counts in totals.items() if grows(counts)]
    return sorted(found, key=lambda kind: totals[kind][0] - totals[kind][-1])


def _describe(
    growing: list[_Kind], seen: list[dict[_Kind, list[tuple[int, Allocation]]]]
) -> tuple[LeakedTensor, ...]:
    made = []
    for kind in growing:
        first, last = seen[0].get(kind, []), seen[-1][kind]
        newest = max((a for _, a in last), key=lambda a: a.born)
        more = sum(a.size for _, a in last) - sum(a.size for _, a in first)
        made.append(
            LeakedTensor(
                shape=newest.shape,
                dtype=str(newest.dtype).removeprefix("torch."),
                bytes_per_step=more // (_ROUNDS - 1),
                count_per_step=(len(last) - len(first)) / (_ROUNDS - 1),
                op=newest.op,
                module=newest.module,
                location=None if newest.site is None else location_of(newest.site),
            )
        )
    return tuple(made)


def _carriers(addresses: set[int]) -> list[tuple[Tensor, bool, int]]:
    """Return the tensors that Python can see and that keep leaked storages, with how they do.

    Each is ``(tensor, by its graph rather than its own storage, bytes or nodes that it keeps)``.
    """
    found = []
    heap.thaw()
    with torch._C.DisableTorchFunctionSubclass():  # any class of the process, which may refuse
        for thing in gc.get_objects():
            if not issubclass(type(thing), Tensor):  # isinstance would wake lazy proxies
                continue
            own = any(storage._cdata in addresses for storage in storages(thing))
            nodes = _saved(thing.grad_fn, addresses) if thing.grad_fn is not None else 0
            if own or nodes:
                found.append((thing, bool(nodes) or thing.grad_fn is not None, nodes))
    return found


def _saved(node: Any, addresses: set[int], most: int = 5000) -> int:
    """Count the leaked tensors that a graph keeps."""
    seen = {node}
    queue = deque([node])
    count = 0
    while queue and len(seen) < most:
        current = queue.popleft()
        for name in dir(current):
            if not name.startswith("_saved_"):
                continue
            try:
                value = getattr(current, name)
            except RuntimeError:  # already freed
                continue
            for _, tensor in named_tensors(value):
                count += any(storage._cdata in addresses for storage in storages(tensor))
        for tensor in _context_tensors(current):
            count += any(storage._cdata in addresses for storage in storages(tensor))
        for following, _ in current.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                queue.append(following)
    return count


def _context_tensors(node: Any) -> list[Tensor]:
    """Return the tensors of a custom Function's ctx: saved ones and plain attributes."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return []
    found = [value for value in vars(node).values() if isinstance(value, Tensor)]
    with contextlib.suppress(RuntimeError):  # already freed
        found += [value for value in node.saved_tensors if value is not None]
    return found


def _most_telling(carriers: list[tuple[Tensor, bool, int]]) -> tuple[Tensor, LeakKind]:
    """Choose the tensor to follow: the one that keeps most of a graph, else the largest."""

    def weight(entry: tuple[Tensor, bool, int]) -> tuple[bool, int, int]:
        tensor, by_graph, count = entry
        return by_graph, count, sum(storage.nbytes() for storage in storages(tensor))

    tensor, by_graph, _ = max(carriers, key=weight)
    return tensor, "graph" if by_graph else "tensors"

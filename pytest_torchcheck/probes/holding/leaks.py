"""What a step keeps: tensors and hooks that grow with every step, who made them and who holds them.

Detection counts bytes of storages at the level of operations, as :mod:`.memory` does, and nothing else:
no stack is looked at and no object searched. It sees what a graph in C++ holds, which no search through
Python's objects can. Only after something has grown is the step run again to say what and who.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from pytest_torchcheck.probes.holding.holders import Link, Roots, blame, hook_line, lines_run
from pytest_torchcheck.probes.memory.allocations import STOPS, Allocation, named_tensors, storages
from pytest_torchcheck.probes.memory.replay import location_of
from pytest_torchcheck.probes.memory.tracker import MemoryTracker

from ...objects import heap
from .live_bytes import LiveBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_torchcheck.findings import Location

LeakKind = Literal["graph", "tensors", "hooks"]
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakedTensor:
    """Tensors of one kind that stay behind.

    Attributes:
        shape, dtype: Of the newest.
        bytes_per_step: What all of them add in one step.
        count_per_step: How many more there are per step; 0 for one that grows.
        op, module: What made them.
        location: The user's line that made them.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes_per_step: int
    count_per_step: float
    op: str
    module: str
    location: Location | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Something that grows with every step.

    Attributes:
        kind: ``graph``: tensors kept alive together with what backward needs of them; ``tensors``:
            detached ones; ``hooks``: hooks on a module or parameter.
        bytes_per_step: How much stays per step; 0 where only hooks grow.
        live_bytes: Live after each measured step, relative to the first.
        tensors: What stays, the largest first.
        holder: Qualified name of what holds them, such as ``net.history`` or ``closure losses of step``.
        chain: From the tensor to the root that keeps it, one name per link.
        location: The line that keeps them, where it can be told.
        hooks: Hooks added per step, by module or parameter name.
    """

    kind: LeakKind
    bytes_per_step: int
    live_bytes: tuple[int, ...]
    tensors: tuple[LeakedTensor, ...] = ()
    holder: str = ""
    chain: tuple[str, ...] = ()
    location: Location | None = None
    hooks: Mapping[str, int] | None = None


def find_leak(
    step: Callable[[], Any],
    module: nn.Module | None = None,
    *,
    steps: int = 5,
    warmup: int = 2,
    ignore_bytes: int = 0,
    code: Iterable[Callable[..., Any]] = (),
) -> Leak | None:
    """Run a step several times and say what of it stays behind, if anything grows.

    Without a leak this costs the steps themselves, each with a count of bytes per operation (about 10 us
    each), and no search. What stops growing within as many further steps is a bounded cache, not a leak;
    what a garbage collection frees is none either.

    Args:
        step: Does one step; what it returns is dropped.
        module: The model, to name modules and to count hooks.
        steps: How many steps must all grow; at least 2.
        warmup: Steps before, in which optimizers and caches may be filled.
        ignore_bytes: Growth per step up to this is none, where nothing of a graph is kept: a history of
            detached losses, say.
        code: Functions in which to look for the line that keeps something, besides those that hold it.

    Raises:
        ValueError: Fewer than two steps.
    """
    if steps < 2 or warmup < 0:
        raise ValueError(
            f"a leak shows over steps >= 2, after warmup >= 0; got {steps} and {warmup}"
        )
    counter = LiveBytes()
    for _ in range(warmup):
        with counter:
            step()
    live, hooks = _observe(step, module, counter, steps)
    if not _grows(live) and not _added(hooks):
        return None
    gc.collect()
    more, later = _observe(step, module, counter, steps)
    gc.collect()
    if counter.live <= more[0]:
        more = [0]  # cycles, which the collector frees
    if not _grows(more) and not _added(later):
        return None  # or a cache that is full by now
    added = _added(later)
    per_step = (more[-1] - more[0]) // steps if _grows(more) else 0
    del counter
    leak = _explain(step, module, per_step, tuple(v - more[0] for v in more), added, tuple(code))
    if leak.kind == "tensors" and leak.bytes_per_step <= ignore_bytes:
        return None
    if any("(maxlen " in link for link in leak.chain):  # bounded, and longer than we looked
        return None
    return leak


def _observe(
    step: Callable[[], Any], module: nn.Module | None, counter: LiveBytes, steps: int
) -> tuple[list[int], list[Counter[str]]]:
    live: list[int] = []
    hooks: list[Counter[str]] = []
    for number in range(steps + 1):
        with counter:
            step()
        if number and live and counter.live > live[-1]:
            gc.collect(0)  # young cycles, such as those of a traceback, are no leak
        live.append(counter.live)
        hooks.append(count_hooks(module))
    return live, hooks


def _grows(live: list[int]) -> bool:
    return len(live) > 1 and all(after > before for before, after in itertools.pairwise(live))


def _added(hooks: list[Counter[str]]) -> dict[str, int]:
    """Return what got more hooks in every step, with how many per step."""
    found = {}
    for name in hooks[-1]:
        counts = [seen[name] for seen in hooks]
        if all(after > before for before, after in itertools.pairwise(counts)):
            found[name] = (counts[-1] - counts[0]) // (len(counts) - 1)
    return found


def count_hooks(module: nn.Module | None) -> Counter[str]:
    """Count the hooks on every module and parameter, by qualified name."""
    found: Counter[str] = Counter()
    if module is None:
        return found
    for name, part in module.named_modules():
        count = sum(len(getattr(part, kind, ())) for kind in _HOOKS)
        if count:
            found[name or type(part).__name__] = count
    for name, parameter in module.named_parameters():
        backward = getattr(parameter, "_backward_hooks", None)
        after = getattr(parameter, "_post_accumulate_grad_hooks", None)
        count = len(backward or ()) + len(after or ())
        if count:
            found[name] = count
    return found


# ---------------------------------------------------------------------- explanation


def _explain(
    step: Callable[[], Any],
    module: nn.Module | None,
    per_step: int,
    live: tuple[int, ...],
    added: dict[str, int],
    code: tuple[Callable[..., Any], ...],
) -> Leak:
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


STOPS.add(_explain.__code__)  # lines outside the step are not part of it


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
    found = [kind for kind, counts in totals.items() if _grows(counts)]
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

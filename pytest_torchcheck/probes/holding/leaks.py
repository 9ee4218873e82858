"""What a step keeps: tensors and hooks that grow with every step, who made them and who holds them.

Detection counts bytes of storages at the level of operations, as :mod:`.memory` does, and nothing else:
no stack is looked at and no object searched. It sees what a graph in C++ holds, which no search through
Python's objects can. Only after something has grown is the step run again to say what and who.
"""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import torch

from ... import sources
from ...late import resolve
from ...lean import dataclass
from ...measure.plain_step import plain_step
from ...state import seed_everything
from ...subject.gradients import clear_gradients
from ...subject.optimizers import optimizers_of
from .live_bytes import LiveBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn

    from ...findings import Location
    from ...subject import Subject

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
    if not grows(live) and not _added(hooks):
        return None
    gc.collect()
    more, later = _observe(step, module, counter, steps)
    gc.collect()
    if counter.live <= more[0]:
        more = [0]  # cycles, which the collector frees
    if not grows(more) and not _added(later):
        return None  # or a cache that is full by now
    added = _added(later)
    per_step = (more[-1] - more[0]) // steps if grows(more) else 0
    del counter
    live_bytes = tuple(v - more[0] for v in more)
    # named late: it follows every allocation, which nothing that passes needs
    explained = resolve("probes.holding.leaked:explained")
    leak: Leak = explained(step, module, per_step, live_bytes, added, tuple(code))
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


def grows(live: list[int]) -> bool:
    """Say whether a number rises with every step."""
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


IGNORED_BYTES = 1024
"""Detached bytes per step that are no leak: a history of losses, say."""


def training_leak(subject: Subject) -> Leak | None:
    """Look for what the user's step, or the plain one, leaves behind; cached."""
    key = ("leak", "training")
    if key not in subject.cache:
        with subject.pristine(steps=True) as model:
            clear_gradients(model)
            model.train()
            seed_everything(subject.seed)
            optimizer = subject.make_optimizer(model)
            batch = subject.batch()
            for group in (g for o in optimizers_of(optimizer) for g in o.param_groups):
                if "history_size" in group:  # a bounded history fills for as long as it is
                    group["history_size"] = 1

            def step() -> None:
                _train(subject, model, optimizer, batch.clone())

            functions = [
                f for f in (subject.contract.train_step, subject.contract.loss) if callable(f)
            ]
            subject.cache[key] = find_leak(step, model, ignore_bytes=IGNORED_BYTES, code=functions)
    found: Leak | None = subject.cache[key]
    return found


def _train(subject: Subject, model: torch.nn.Module, optimizer: Any, batch: Any) -> None:
    if subject.contract.train_step is None and subject.contract.loss is None:
        plain_step(subject, model, optimizer, batch)
    else:
        subject.train_step(model, optimizer, batch)


def inference_leak(subject: Subject) -> Leak | None:
    """Look for what calls in eval mode without gradients leave behind."""
    with subject.pristine(train=False, seeded=True) as model:
        batch = subject.batch()

        def call() -> None:
            with torch.no_grad():
                subject.call(model, batch.clone())

        return find_leak(call, model, steps=3, warmup=2, ignore_bytes=IGNORED_BYTES)


def is_certain(leak: Leak, subject: Subject) -> bool:
    """Say whether a leak is one: graphs and hooks are; detached tensors where the model itself keeps them."""
    if leak.kind != "tensors":
        return True
    metric = any("torchmetrics" in type(m).__module__ for m in subject.model.modules())
    return leak.holder.startswith(type(subject.model).__name__) and not metric


def grad_line(subject: Subject) -> Location | None:
    """Return the line of the model's classes that turns gradients on, else where its forward begins."""
    for module in subject.model.modules():
        found = sources.search(
            type(module), r"enable_grad|set_grad_enabled|requires_grad_\(|inference_mode\(False"
        )
        if found is not None and sources.rank(found.file) > 0:
            return found
    return sources.of_object(type(subject.model).forward)

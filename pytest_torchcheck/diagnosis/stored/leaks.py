"""Tensors that outlive a step, graphs that grow, and what a step leaves at a model so that it can no longer be copied."""

from __future__ import annotations

import ast
import copy
import functools
import gc
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import sources
from ...explanation import listed, on_line
from ...findings import Culprit, Finding, Location
from ...measure.evidence import short
from ...objects import heap
from ...probes.holding.held_by_models import holdings
from ...runs.training.observation import checksums
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...text.printable import message_of
from ...text.units import format_bytes
from ...verdicts import suspicious, violated
from ..outputs.eval_lines import keeping_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import FunctionType

    from torch import nn

    from ...loop.carried_graphs import Carried
    from ...probes.holding.held_by_models import Holding
    from ...probes.holding.leaks import Leak
    from ...probes.holding.tensor_caches import TensorCache
    from ...subject import Subject


def leaks(
    leak: Leak,
    *,
    kind: str,
    root: str | None = None,
    certain: bool = True,
    given: Sequence[tuple[str, Location]] = (),
) -> Finding:
    """Explain what grows with every step.

    Args:
        leak: What was found.
        kind: ``training step`` or ``call``.
        root: The finding that this one repeats, if any.
        certain: Whether it breaks a promise, or only looks like it.
        given: The variables with a graph that the line which keeps it reads, and the lines that
            bound them.
    """
    first = leak.tensors[0] if leak.tensors else None
    each = f"{format_bytes(leak.bytes_per_step)} per {kind}" if leak.bytes_per_step else ""
    if leak.kind == "hooks":
        code, summary, cause, fix, culprit = _growing_hooks(leak, kind)
    else:
        code, summary, cause, fix, culprit = _kept_tensors(leak, each)
    made = violated if certain else suspicious
    return made(
        code,
        summary,
        culprits=(
            culprit,
            *(Culprit("tensor", name, "brings its graph", place) for name, place in given[:2]),
        ),
        location=leak.location or (first.location if first is not None else None),
        observed=(
            f"live bytes after each {kind}, from the first: {', '.join(map(str, leak.live_bytes))}"
            if any(leak.live_bytes)
            else "live bytes stay constant"
        )
        + (
            f"; hooks per {kind}: {', '.join(f'{n} +{c}' for n, c in leak.hooks.items())}"
            if leak.hooks
            else ""
        ),
        cause=cause,
        because=_stays(leak, kind) + _brought(leak, given),
        fix=fix,
        evidence=_leak_evidence(leak),
    ).replace(root=root)


def _growing_hooks(leak: Leak, kind: str) -> tuple[str, str, str, str, Culprit]:
    """Say which module gets more hooks, and how to stop it."""
    assert leak.hooks is not None
    name, count = next(iter(leak.hooks.items()))
    code = "leak-hooks"
    summary = f"{name} gets {count} more hook{'s' if count > 1 else ''} with every {kind}"
    cause = "every step registers a hook that is never removed"
    fix = "register it once in __init__, or keep the handle and call handle.remove()"
    culprit = Culprit("module", name, f"+{count} hooks per {kind}", leak.location)
    return code, summary, cause, fix, culprit


def _kept_tensors(leak: Leak, each: str) -> tuple[str, str, str, str, Culprit]:
    """Say what keeps tensors alive, and how to drop them."""
    holder = leak.holder or "something"
    code = "leak-graph" if leak.kind == "graph" else "leak-tensors"
    summary = f"{holder} keeps {each} alive"
    cause = (
        "tensors are kept with their graph, so all tensors saved for backward stay too"
        if leak.kind == "graph"
        else "tensors are kept and never released"
    )
    fix = (
        f"keep .detach() or .item() of it, or delete it after the step (line {leak.location.line})"
        if leak.kind == "graph" and leak.location is not None
        else "keep .detach() or .item() of it, or delete it after the step"
        if leak.kind == "graph"
        else "bound it (deque(maxlen=...)), or clear it after each step"
    )
    culprit = Culprit("tensor", holder, each, leak.location)
    return code, summary, cause, fix, culprit


def _leak_evidence(leak: Leak) -> dict[str, Any]:
    """Return what was measured of a leak, as plain values."""
    return {
        "live_bytes": list(leak.live_bytes),
        "bytes_per_step": leak.bytes_per_step,
        **({"holders": list(leak.chain)} if leak.chain else {}),
        "tensors": [
            {
                "shape": list(t.shape),
                "dtype": t.dtype,
                "bytes per step": t.bytes_per_step,
                "created by": t.op,
                "module": t.module,
                "line": short(t.location),
            }
            for t in leak.tensors[:10]
        ],
    }


def cached(
    leak: Leak, cache: TensorCache, *, kind: str, root: str | None = None, certain: bool = False
) -> Finding:
    """Explain a cached function that is called with tensors made anew, and so keeps every one of them."""
    told = leaks(leak, kind=kind, root=root, certain=certain or cache.bounded is None)
    many = f"{cache.per_step} more entr{'y' if cache.per_step == 1 else 'ies'} with every {kind}"
    line = f"line {cache.called.line}" if cache.called is not None else f"the {kind}"
    each = f"{format_bytes(leak.bytes_per_step)} per {kind}"
    return told.replace(
        summary=(f"{cache.name} caches by newly created tensors: it keeps {each} alive and never "
            "hits"),
        culprits=(
            Culprit("call", cache.name, "called here with a new tensor", cache.called),
            Culprit("call", cache.name, "keeps its arguments" + ("" if cache.bounded is None else f", up to {cache.bounded} times"), cache.made),
        ),
        location=cache.called or cache.made,
        cause="a tensor is hashed by identity: a tensor with the same values is another key",
        because=(f"0 hits and {many}, {cache.kept} by now; {line} passes a new tensor each time; "
            f"{_stays(leak, kind)}"),
        fix=f"cache {cache.name} by numbers and shapes, not by tensors, or not at all",
    )  # fmt: skip


def _brought(leak: Leak, given: Sequence[tuple[str, Location]]) -> str:
    if not given or leak.location is None:
        return ""
    name, place = given[0]
    return (
        f"; line {leak.location.line} reads {name}, which line {place.line} computes with its graph"
    )


def _stays(leak: Leak, kind: str) -> str:
    parts = []
    if leak.tensors:
        first = leak.tensors[0]
        made = f" created on line {first.location.line}" if first.location is not None else ""
        parts.append(
            f"a {first.dtype} tensor {list(first.shape)}{made} "
            + (
                f"stays per {kind}"
                if first.count_per_step
                else f"grows by {first.bytes_per_step} bytes per {kind}"
            )
        )
    if len(leak.chain) > 1:
        parts.append(" <- ".join(leak.chain))
    if leak.hooks:
        parts.append("the number of hooks was counted after every step")
    return "; ".join(parts) or "live bytes grew in every step, also after garbage collection"


def longer_graph(
    name: str, nodes: Sequence[int], carried: Carried, *, code: str = "leak-graph"
) -> Finding:
    """Explain a tensor that is kept between steps and whose graph every step makes longer."""
    place = carried.location
    first, *others = carried.culprits() or (Culprit("tensor", name),)
    kept = name.startswith("model.")
    at = on_line(place)
    given = next(iter(carried.given), None)
    read = f"; {given[0]}, read on line {place.line}, has one too" if given and place else ""
    handed = given is not None and place is not None and given[1].function != place.function
    return violated(
        code,
        f"{name} keeps the graph of every training step",
        culprits=[replace(first, detail=f"{nodes[-1]} nodes"), *others],
        location=place,
        observed=f"the graph behind {name} has {', '.join(map(str, nodes))} nodes after {len(nodes)} steps",
        cause=f"the new value is computed{at} from the old one, with gradients"
        if kept
        else "the argument is kept with its graph"
        if handed
        else "a loss is accumulated with its graph",
        because=f"{name} has a grad_fn after each step{read}"
        if kept
        else f"{name} has a grad_fn, and each step adds the graph of its loss to it",
        fix=f"detach the stored value{at}, or update it under torch.no_grad()"
        if kept
        else f"pass {given[0]}.detach(), or .item() of a loss, on line {given[1].line}"
        if handed and given is not None
        else "add a Python number: total += loss.item()",
        evidence={"nodes": list(nodes)},
    )


def copied_after_training(subject: Subject, names: Collection[str]) -> Finding | None:
    """Copy the model after a training step of the user's, where attributes keep tensors with a graph.

    A tensor that the loss reads after the forward has to keep its graph: an auxiliary loss, the
    parameters of a distribution. That is suspicious. One that can be detached at the end of the
    forward, with equal weights after the step, keeps it for nothing.

    Args:
        subject: Whose model.
        names: Paths of attributes that a forward leaves with a graph.
    """
    with subject.pristine(steps=True) as model:
        try:
            _step(subject, model)
        except SubjectError:
            return None  # other checks tell it
        try:
            copy.deepcopy(model)
        except RuntimeError as error:
            said = message_of(error).partition(".")[0][:160]
        else:
            return None
        guilty = [h for h in holdings(model) if h.path in names and h.value.grad_fn is not None]
        plain = all(h.path == h.attribute and h.value.dim() > 1 for h in guilty)
    if not guilty:
        return None
    declared = subject.contract.loss is not None or subject.contract.train_step is not None
    paths = {h.path for h in guilty}
    cut, whole = (_detached(subject, names) if declared else None for names in (paths, ()))
    used, idle = cut != whole, plain and cut is not None and cut == whole
    first = guilty[0]
    norm = next(filter(None, map(_normed, guilty)), "")
    made = violated if idle and not norm else suspicious
    places = {c.name: c.location for c in keeping_lines(subject, train=True)}
    place = places.get(first.attribute) or first.location
    return made(
        "copy-after-training",
        f"after a training step the model cannot be copied: {listed([h.path for h in guilty])} keeps its graph",
        culprits=[
            Culprit("tensor", h.path, location=places.get(h.attribute) or h.location)
            for h in guilty
        ],
        location=place,
        observed=f"copy.deepcopy(model) after one step: {said}",
        cause=f"torch.nn.utils.{norm} computes it in each forward and keeps it with its graph"
        if norm
        else f"the forward keeps {first.path} with the graph that computed it",
        because=f"with it detached at the end of the forward, a step gives {'other' if used else 'the same'} weights: "
        f"its graph is {'' if used else 'not '}used"
        if idle or used
        else (
            f"{first.path}.grad_fn is not None after the step, and the newly built model can be "
            "copied"
        ),
        fix=f"use torch.nn.utils.parametrizations.{norm}, whose modules can be copied"
        if norm
        else _uncarried(first.name, place, used=used, idle=idle),
    )


def _normed(held: Holding) -> str:
    """Return the name of torch's old normalisation whose hook computes an attribute before each forward."""
    hooks = getattr(held.owner, "_forward_pre_hooks", {}).values()
    for hook in hooks:
        home = type(hook).__module__
        if home.startswith("torch.nn.utils.") and getattr(hook, "name", None) == held.name:
            return home.rpartition(".")[2]
    return ""


def _uncarried(name: str, place: Location | None, *, used: bool, idle: bool) -> str:
    """Say how an attribute is kept without its graph, or not kept."""
    line = on_line(place)
    if used:
        return f"return {name} from forward{line}, or set it to None once the step has read it"
    return (
        f"when forward has read it, detach it: self.{name} = self.{name}.detach() at its end"
        if _read_behind(place, name)
        else f"keep {name}.detach(){line}"
    ) + ("" if idle else ", or return it from forward if the loss reads it")


def _read_behind(place: Location | None, attribute: str) -> bool:
    """Say whether the function that assigns an attribute reads it on a later line, where it needs the graph."""
    function = None if place is None else sources.function_around(place.file, place.line)
    return place is not None and any(
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.ctx, ast.Load)
        and node.lineno > place.line
        for node in sources.own_nodes(function)
    )


def _step(subject: Subject, model: nn.Module, *, times: int = 1) -> None:
    model.train()
    seed_everything(subject.seed)
    made = subject.make_optimizer(model)
    for _ in range(times):
        subject.train_step(model, made, subject.batch().clone())


def _detached(subject: Subject, names: Collection[str]) -> dict[str, int] | None:
    """Return the checksums after two steps in which these attributes are detached as each forward ends.

    The first step of Adam goes by the sign of the gradient.
    """

    def cut(module: nn.Module, args: Any, output: Any) -> None:
        for held in holdings(module):
            if held.path in names and held.value.grad_fn is not None:
                vars(held.owner)[held.name] = held.value.detach()

    with subject.pristine(steps=True) as model:
        hook = model.register_forward_hook(cut)
        try:
            _step(subject, model, times=2)
        except SubjectError:
            return None
        finally:
            hook.remove()
        return checksums(model)


def held_by_cache(twin: nn.Module) -> Finding | None:
    """Explain a copy that lives on after its last use, where a function of the user's caches what it was called with."""
    heap.thaw()
    for thing in gc.get_objects():
        if not issubclass(type(thing), functools._lru_cache_wrapper):  # wakes no lazy proxy
            continue
        function: FunctionType | None = getattr(thing, "__wrapped__", None)
        place = None if function is None else sources.of_object(function)
        if place is None or sources.rank(place.file) != 2 or not _holds(thing, twin):
            continue
        name = function.__qualname__ if function is not None else ""
        return violated(
            "copy-held",
            f"a copy of {type(twin).__name__} is never freed: {name} caches it",
            culprits=[Culprit("call", name, "lru_cache", place)],
            observed="a copy and its parameters stay alive after one forward and the last use of "
            "the copy",
            cause=f"functools.lru_cache keeps the arguments of {name}, including self, for the "
            "whole process",
            because=f"the cache of {name} holds {thing.cache_info().currsize} entries, and the copy in one of them",
            fix="cache in an attribute of the instance, or cache a function of plain numbers",
        )
    return None


_MOST = 20_000


def _holds(wrapper: Any, wanted: object) -> bool:
    """Say whether a cache holds an object in a key or a value; the function itself is not looked into."""
    skip = {id(getattr(wrapper, "__wrapped__", None)), id(getattr(wrapper, "__dict__", None))}
    queue, seen = deque([(wrapper, 0)]), set[int]()
    while queue and len(seen) < _MOST:
        thing, depth = queue.popleft()
        for part in gc.get_referents(thing):
            if part is wanted:
                return True
            if id(part) in seen or id(part) in skip or isinstance(part, type) or depth > 3:
                continue
            seen.add(id(part))
            queue.append((part, depth + 1))
    return False

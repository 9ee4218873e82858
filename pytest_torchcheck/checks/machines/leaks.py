"""No step and no call leaves tensors, graphs or hooks behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...codes import memory as explain
from ...loop.carried_graphs import (
    given_with_graph,
    growing_graph,
    where_buffers_keep_a_graph,
    where_graph_is_carried,
    where_hooks_are_added,
)
from ...probes.gradient.kept_graph import kept_graph
from ...probes.holding.leaks import inference_leak, is_certain, training_leak
from ...probes.holding.tensor_caches import tensor_cache
from ...runs.facts import forward_facts
from ...runs.training.steps import trajectory
from ...verdicts import inconclusive, not_applicable, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...probes.holding.leaks import Leak
    from ...probes.holding.tensor_caches import TensorCache
    from ...subject import Subject


def step_leak(subject: Subject) -> Iterator[Finding]:
    """Count live bytes and hooks after each of several steps; explain only what grows."""
    if not any(p.requires_grad for p in subject.model.parameters()):
        yield not_applicable("no parameter requires a gradient, so there is no training step")
        return
    leak = leak_of_steps(subject)
    grown = None
    if leak is None and trajectory(subject).carries:
        grown = growing_graph(subject)
    if grown is not None:
        yield explain.longer_graph(*grown, where_graph_is_carried(subject, grown[0]))
        return
    if leak is None:
        yield passed("live bytes and hooks were constant from one step to the next")
        return
    if (cache := _tensor_cache(subject, leak, training=True)) is not None:
        yield explain.cached(leak, cache, kind="training step", certain=is_certain(leak, subject))
        return
    if leak.kind == "graph" and not leak.holder:
        holder, line = where_buffers_keep_a_graph(subject)
        leak = replace(leak, holder=f"model.{holder}", location=line) if holder else leak
    given = (
        given_with_graph(subject, leak.location)
        if leak.kind == "graph" and leak.location is not None
        else ()
    )
    added = where_hooks_are_added(subject) if leak.kind == "hooks" else None
    leak = leak if added is None else replace(leak, location=added)
    yield explain.leaks(leak, kind="training step", certain=is_certain(leak, subject), given=given)


def inference_memory(subject: Subject) -> Iterator[Finding]:
    """Look for outputs with a graph under no_grad, and for what repeated calls keep."""
    seen = forward_facts(subject)
    found, with_graph = seen.outputs, seen.with_graph
    if not found:
        yield not_applicable("the model returns no tensor")
        return
    if with_graph and any(isinstance(m, torch.jit.ScriptModule) for m in subject.model.modules()):
        yield inconclusive(
            f"{with_graph[0]} carries a graph under no_grad, but TorchScript's optimised graphs "
            "always do"
        )
        return
    excused = ""
    if with_graph:
        kept = kept_graph(subject)
        loose = [path for path in with_graph if path not in kept.derivatives]
        if loose or kept.kept_bytes:
            yield explain.inference_graph(subject, loose or list(with_graph), len(found), kept)
            return
        excused = "; that of a derivative holds no tensors"
    leak = inference_leak(subject) if seen.grows else None
    if leak is None:
        yield passed(
            f"no graph on {len(found)} outputs under no_grad{excused}; live bytes were "
            "constant over calls"
        )
        return
    known = subject.cache.get(("leak", "training"))
    same = known is not None and known.holder == leak.holder
    code = {"hooks": "leak-hooks", "graph": "leak-graph", "tensors": "leak-tensors"}
    root = f"step-leak/{code[known.kind]}" if same and known is not None else None
    if (cache := _tensor_cache(subject, leak, training=False)) is not None:
        yield explain.cached(leak, cache, kind="call", root=root, certain=is_certain(leak, subject))
        return
    yield explain.leaks(leak, kind="call", root=root, certain=is_certain(leak, subject))


def leak_of_steps(subject: Subject) -> Leak | None:
    """Look for a leak where the steps that are run anyway left more behind with each of them."""
    return training_leak(subject) if trajectory(subject).grows else None


def _tensor_cache(subject: Subject, leak: Leak, *, training: bool) -> TensorCache | None:
    """Look for a cached function that keeps it, where nothing else is known to."""
    if leak.kind == "hooks" or (leak.holder and "_lru_cache_wrapper" not in leak.chain):
        return None
    return tensor_cache(subject, training=training)

"""A second backward through a graph whose buffers are freed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import Explanation, listed, on_line
from ...findings import Culprit
from ...probes.recorded.watch import nodes_of
from ..crashes.table import entry
from ..stored.graph_holders import Holder, holders, kept_attributes, kept_variables

if TYPE_CHECKING:
    import re

    from ...findings import Location
    from ..crashes.history import Op, Shared
    from ..crashes.scene import Scene


def loss_tensor_of(scene: Scene) -> torch.Tensor | None:
    """Return the tensor that backward was called on, live."""
    for frame, _ in reversed(scene.frames):
        if frame.f_code.co_name == "backward":
            for name in ("self", "tensors"):
                value = frame.f_locals.get(name)
                value = value[0] if isinstance(value, tuple) and value else value
                if isinstance(value, torch.Tensor):
                    return value
    return None


@entry(
    r"Trying to backward through the graph a second time",
    r"saved intermediate results have already been freed",
)
def second_backward(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A graph that an earlier backward has freed."""
    again = scene.replay()
    place = scene.location
    loss = loss_tensor_of(scene)
    graph = nodes_of(loss.grad_fn) if loss is not None else None
    frames = [frame for frame, _ in scene.frames]
    found: tuple[Holder, ...] = again.held if again is not None else ()
    shared = again.shared if again is not None else None
    if shared is not None and not found and not shared.is_loss:
        return _in_one_run(scene, shared)
    found = found or (holders(scene.model, frames, graph) if shared is None else ())
    certain = bool(found)
    # the state of the model is put back before an error is explained: then its source has to do
    if shared is None:
        found = found or kept_attributes(scene.model) or kept_variables(frames)
    if found:
        return _kept_graph(found, shared, scene, certain, place)
    calls = [
        op for op in (again.ops if again is not None else []) if op.name in ("backward", "grad")
    ]
    lines = [op.location.line for op in calls if op.location is not None]
    return scene.explain(
        code="second-backward",
        summary=f"{scene.at} runs backward a second time through the same graph",
        observed=f"backward was called {len(calls)} times, on lines "
        f"{listed([str(n) for n in lines])}"
        if len(calls) > 1
        else scene.values(),
        cause="two backward calls share a part of the graph: the first one frees it",
        because=scene.quote(),
        fix=f"add the losses and call backward once{scene.on_line}, or detach inputs that the "
        "second loss must not train",
        culprits=scene.call_culprit(),
    )


def _kept_graph(
    found: tuple[Holder, ...],
    shared: Shared | None,
    scene: Scene,
    certain: bool,
    place: Location | None,
) -> Explanation | None:
    """Explain a tensor that carries its graph from one backward into another."""
    first = found[0]
    line = on_line(first.location)
    return scene.explain(
        code="second-backward",
        summary=f"{first.root} carries the graph of an earlier "
        f"{'step' if shared is None else 'backward'} into backward",
        observed=f"{scene.phase}: backward reaches a graph that is already freed"
        + (f"; {first.name} has grad_fn={first.grad_fn}" if first.grad_fn else ""),
        cause=f"{first.root} is kept{line} with its graph and used again "
        + ("in the next step" if shared is None else "before a later backward")
        if certain
        else (
            f"likely {listed([h.root for h in found])}, which is kept{line}, still has the "
            "graph of the previous step"
        ),
        because=(
            (
                f"{first.name} is part of the loss's graph and outlives the "
                f"{'step' if shared is None else 'first backward'}; "
            )
            if certain
            else ""
        )
        + scene.quote(90),
        fix=f"keep {first.root.rpartition('.')[2]} without its graph: .detach(){line}",
        culprits=tuple(
            Culprit(
                "tensor",
                h.root,
                f"grad_fn={h.grad_fn}" if h.grad_fn else "kept from step to step",
                h.location,
            )
            for h in found[:3]
        )
        + tuple(
            Culprit("call", h.caller.text, "passes it on", h.caller)
            for h in found[:3]
            if h.caller is not None
        ),
        location=first.location or place,
    )


def _in_one_run(scene: Scene, shared: Shared) -> Explanation:
    """Two backward calls of one run, of different losses, through one tensor that was made before the first."""
    op, place = shared.made_by, scene.location
    made = shared.assigned or (op.location if op is not None else None)
    name = shared.name or (sources.assigned_name(made) if made is not None else "")
    name = name or (f"the result of {op.name}" if op is not None else "a tensor")
    first = shared.first.location
    loops = (
        first is not None
        and place is not None
        and (first.file, first.line) == (place.file, place.line)
    )
    source = _source(op) if op is not None and shared.assigned is None else None
    came = source[0] if source is not None else None
    if came is not None and made is not None and (came.file, came.line) == (made.file, made.line):
        came = None
    if loops:
        cause = (
            f"{name} is part of the graph of both backward passes{scene.on_line}: the first "
            "one frees its graph, the second one needs it"
        )
        fix = f"create {name} without its graph: .detach(){on_line(made)}" + (
            f", or torch.no_grad(){on_line(came)}" if came is not None else ""
        )
        fix += "; if it is to be trained, compute it again before each backward"
    else:
        cause = (
            f"both losses contain {name}: the backward{on_line(first)} frees its graph, and the "
            f"one{scene.on_line} needs it"
        )
        fix = (
            f"add the losses and call backward once, or use {name}.detach() in the loss that "
            f"must not train what it was computed from{on_line(made)}"
        )
    trained = f" of {source[1]}" if source is not None and source[1] else ""
    return scene.explain(
        code="second-backward",
        summary=(f"{scene.at} runs backward again through {name}, whose graph an earlier backward "
            "of the same call has freed"),
        observed=f"{scene.phase}: backward number {shared.count} of one call, on line "
            f"{place.line if place else '?'}; {name} was created before the first one and has "
            f"grad_fn={shared.grad_fn}",
        cause=cause,
        because=scene.quote(90),
        fix=fix,
        culprits=(
            Culprit("tensor", name, f"created{on_line(made)} with its graph", made),
            *((Culprit("tensor", sources.assigned_name(came) or name, f"takes the graph{trained} here", came),)
              if came is not None else ()),
            *((Culprit("call", place.text, "runs through it again", place),) if place else ()),
        ),
        location=made,
    )  # fmt: skip


def _source(op: Op) -> tuple[Location | None, str] | None:
    """Return the line of an op's own function on which a graph comes in, and the module it is of."""
    seen: set[int] = set()
    queue, last = [op], None
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        for fact in current.inputs:
            maker = fact.made_by
            if not fact.requires_grad:
                continue
            if (
                maker is None
                or maker.module != op.module
                or maker.frame is None
                or op.frame is None
                or maker.frame[2] != op.frame[2]
            ):
                module = maker.module if maker is not None else fact.name
                last = last or (current.location, module)
            else:
                queue.append(maker)
    return last

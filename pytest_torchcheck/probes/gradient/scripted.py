"""Parameters of scripted and traced modules: what the compiled graph does with them, which no recorder sees."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from .provenance import GraphCut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

    from ...findings import Location

_DETACHING = ("aten::detach", "aten::detach_")


def cuts_in_scripts(model: nn.Module, names: Iterable[str]) -> dict[str, GraphCut]:
    """Say of each parameter that a scripted or traced module holds how its compiled graph loses it.

    Args:
        model: The model, or a part of it, is such a module.
        names: Qualified names of parameters without gradient; those outside of scripts are left out.

    Returns:
        By name: ``never-used`` where no compiled method reads it, ``detach`` where what is computed from it is
        detached there, else ``compiled``: it is read, and where its gradient is lost cannot be seen.
    """
    scripts = _outermost(model)
    found: dict[str, GraphCut] = {}
    for name in names:
        script = next((s for s in scripts if not s or name.startswith(f"{s}.")), None)
        if script is not None:
            found[name] = _cut(name, script, scripts[script])
    return found


def _outermost(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        inside = any(not s or name.startswith(f"{s}.") for s in found)
        if isinstance(module, torch.jit.ScriptModule) and not inside:
            found[name] = module
    return found


def _cut(name: str, script: str, module: Any) -> GraphCut:
    reads = list(_reads(module, name[len(script) + 1 if script else 0 :].split(".")))
    graph = f"the compiled graph of {script}" if script else "the compiled graph"
    if not reads:
        return GraphCut(kind="never-used", parameters=(name,), fact=f"{graph} does not read it")
    if all(kind for kind, _ in reads):
        kind, place = reads[0]
        fact = f"in {graph}, {kind} takes what is computed from it"
        return GraphCut(kind="detach", parameters=(name,), location=place, fact=fact)
    return GraphCut(kind="compiled", parameters=(name,), fact=f"{graph} reads it")


def _reads(module: Any, path: list[str]) -> Iterator[tuple[str, Location | None]]:
    """Yield, for each time that a compiled method of a module reads a parameter, what detaches it, and where.

    Nodes live as long as their graph does: names and lines come out of here, not nodes.
    """
    for method in module._c._method_names():
        graph = module._c._get_method(method).inlined_graph
        places: dict[str, tuple[str, ...]] = {next(graph.inputs()).debugName(): ()}
        for node in graph.findAllNodes("prim::GetAttr", True):
            owner = places.get(node.inputsAt(0).debugName())
            if owner is None:
                continue
            place = (*owner, node.s("name"))
            places[node.output().debugName()] = place
            if list(place) == path:
                cut = _detaching(node)
                yield ("", None) if cut is None else (cut.kind(), _line_of(cut))


def _detaching(read: Any) -> Any:
    """Return the node that detaches what is computed from what a node reads; None where none does."""
    nodes, seen = [read], set[str]()
    while nodes:
        node = nodes.pop(0)
        for output in node.outputs():
            if output.debugName() in seen:
                continue
            seen.add(output.debugName())
            for use in output.uses():
                if use.user.kind() in _DETACHING:
                    return use.user
                nodes.append(use.user)
    return None


def _line_of(node: Any) -> Location | None:
    """Return the line of the source that a node was compiled from, or traced at."""
    text = node.sourceRange()
    found = re.search(r'File "([^"]+)", line (\d+)', text) or re.search(r"^(.+?)\((\d+)\): ", text)
    return sources.of_line(found[1], int(found[2])) if found is not None else None

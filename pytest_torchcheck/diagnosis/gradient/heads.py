"""The layer that gives the logits their classes and its lines; parameters under two names, of which one froze them."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

import torch
from torch import nn

from ... import sources
from ...findings import Culprit
from ...lean import dataclass
from ..crashes.layers import computed
from ..lines.layer_sizes import building_line, size_origin
from ..lines.size_values import value_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.autograd.graph import Node

    from ...findings import Location
    from ...subject import Subject

_SIZES = ("out_features", "out_channels", "num_embeddings")
_NODES = 200


def head_of(model: nn.Module, logits: torch.Tensor | None, classes: int) -> str:
    """Return the name of the layer, or of the bare parameter, that gives logits their classes; empty where none does.

    Of several with as many outputs it is the one nearest to these logits in their graph; the last
    one of the model where they have no graph.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    for leaf in _leaves(logits.grad_fn if logits is not None else None):
        if id(leaf) in names and (found := layer_of(model, names[id(leaf)], classes)):
            return found
    heads = [
        n
        for n, m in model.named_modules()
        if _outputs(m) == classes and not isinstance(m, nn.Embedding)
    ]
    return heads[-1] if heads else ""


def layer_of(model: nn.Module, parameter: str, classes: int) -> str:
    """Return the layer of a parameter, or the parameter itself where it is a bare one; empty where it has other sizes."""
    owner = model.get_submodule(parameter.rpartition(".")[0])
    if _outputs(owner) == classes:
        return parameter.rpartition(".")[0]
    value = model.get_parameter(parameter)
    bare = value.dim() >= 2 and classes in value.shape and not _is_torchs(owner)
    return parameter if bare else ""


def _outputs(module: nn.Module) -> int | None:
    return next((getattr(module, name) for name in _SIZES if hasattr(module, name)), None)


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _leaves(root: Node | None) -> Iterator[torch.Tensor]:
    """Yield the leaves of a graph, those nearest to its end first; of one operation before those of what it read."""
    pending: deque[Node] = deque([] if root is None else [root])
    seen: set[Node] = set()
    while pending and len(seen) < _NODES:
        node = pending.popleft()
        if node in seen:
            continue
        seen.add(node)
        deeper = []
        for child, _ in node.next_functions:
            leaf = _leaf(child)
            if leaf is not None:
                yield leaf
            elif child is not None:
                deeper.append(child)
        pending += deeper


def _leaf(node: Node | None) -> torch.Tensor | None:
    """Return the leaf behind a node, through transpositions and casts alone."""
    for _ in range(4):
        if node is None:
            return None
        if (leaf := getattr(node, "variable", None)) is not None:
            return leaf if isinstance(leaf, torch.Tensor) else None
        if len(node.next_functions) != 1:
            return None
        node = node.next_functions[0][0]
    return None


def head_culprits(model: nn.Module, name: str, classes: int) -> tuple[Culprit, ...]:
    """Return the line that builds a head, and up to two lines that give it its number of outputs."""
    if name in dict(model.named_parameters()):
        place = sources.of_parameter(model, name)
        return (Culprit("parameter", name, f"{classes} outputs", place),)
    module = model.get_submodule(name)
    argument = next((size for size in _SIZES if hasattr(module, size)), "")
    built = building_line(model, name)
    origin = size_origin(model, name, argument, classes)
    places = [*value_lines(model, name, argument), *([origin.location] if origin else [])]
    fresh = dict.fromkeys(
        p for p in places if built is None or (p.file, p.line) != (built.file, built.line)
    )
    return (
        Culprit("module", name, f"{classes} outputs", built),
        *(Culprit("call", p.text, "sets the size", p) for p in list(fresh)[:2]),
    )


def heads_behind(
    model: nn.Module | None, output: torch.Tensor | None, size: int
) -> tuple[Culprit, ...]:
    """Return what :func:`head_culprits` does of the layer that gives an output a size; empty where there is none."""
    name = head_of(model, output, size) if model is not None else ""
    return head_culprits(model, name, size) if model is not None and name else ()


def widened(head: tuple[Culprit, ...], wanted: str) -> str:
    """Return the edit of a head, such as ``give cls 5 classes on line 3 (its value comes from line 9)``."""
    if not head:
        return f"give the model's last layer {wanted}"
    line = f" on line {head[0].location.line}" if head[0].location is not None else ""
    return f"give {head[0].name} {wanted}{line}{computed(head[1:])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """One module that the model knows by two names, or two that hold the same parameters, frozen through the second.

    Attributes:
        name, other: The module in the parameter's name, and the one through which it was frozen.
        own, shared: What is one object: these modules, or by its two names what they hold first.
        is_module: Whether it is the modules.
        location: The line that gives ``other`` what ``name`` holds.
    """

    name: str
    other: str
    own: str
    shared: str
    is_module: bool
    location: Location | None


def frozen_through(subject: Subject, name: str, texts: Sequence[str]) -> Alias | None:
    """Return the other name of the modules around a parameter, where what froze it names that one only.

    Args:
        subject: Whose model.
        name: Of the parameter.
        texts: The line that froze it, and the head of the loop around it.
    """
    model = subject.model
    held = [one for _, one in model.named_parameters(remove_duplicate=False)]
    if sum(one is subject.named_parameters()[name] for one in held) < 2:
        return None
    for path, other in _pairs(model, name):
        ours, theirs = path.rpartition(".")[2], other.rpartition(".")[2]
        if any(named(theirs, text) for text in texts) and not any(
            named(ours, text) for text in texts
        ):
            is_module = model.get_submodule(path) is model.get_submodule(other)
            leaf = "" if is_module else f".{next(iter(_held(model.get_submodule(path))))}"
            return Alias(
                name=path, other=other, own=path + leaf, shared=other + leaf, is_module=is_module,
                location=aliasing_line(subject, other, ours),
            )  # fmt: skip
    return None


def _pairs(model: nn.Module, name: str) -> Iterator[tuple[str, str]]:
    """Yield the modules around a parameter with others of the same kind that hold the same, the outermost first."""
    modules = dict(model.named_modules(remove_duplicate=False))
    parts = name.split(".")
    for depth in range(1, len(parts)):
        path = ".".join(parts[:depth])
        own = modules[path]
        for other, module in modules.items():
            if other == path or path.startswith(f"{other}.") or other.startswith(f"{path}."):
                continue
            if other and (module is own or (type(module) is type(own) and _same(module, own))):
                yield path, other


def _same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = _held(one), _held(other)
    return len(mine) > 0 and mine == theirs


def _held(module: nn.Module) -> dict[str, int]:
    return {name: id(p) for name, p in module.named_parameters(remove_duplicate=False)}


def named(name: str, text: str) -> bool:
    """Say whether a text has a name as a word of its own."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def aliasing_line(subject: Subject, name: str, source: str = "") -> Location | None:
    """Return the line that gives a module one more name: the one that assigns it what is there already.

    Args:
        subject: Whose model.
        name: Of the module.
        source: Attribute of what it is given, or a shallow copy of it; no deep copy gives the same parameters.
    """
    owner_name, _, leaf = name.rpartition(".")
    owner = type(subject.model.get_submodule(owner_name))
    plain = sources.search(owner, rf"\.{re.escape(leaf)}\s*=\s*[\w.]+\s*(#.*)?$")
    if plain is not None:
        return plain
    lines = sources.matches(owner, rf"\.{re.escape(leaf)}(\.\w+)?\s*=(?!=)") if source else []
    made = [place for place in lines if named(source, place.text.partition("=")[2])]
    shallow = [place for place in made if "deepcopy" not in place.text]
    return next(iter(shallow), None) or sources.of_parameter(subject.model, name)

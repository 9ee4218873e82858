"""Operations that lose the gradient, be it for some places of the batch only: why, and what to write instead."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ... import sources
from ...explanation import parameter
from ...probes.gradient.provenance import find_cut, find_stops
from ...runs.again import forward_and_loss
from ...text.wording import names_text
from ...verdicts import violated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding, Location
    from ...probes.gradient.places import GradientByPlace
    from ...probes.gradient.provenance import GraphCut
    from ...subject import Subject

CAUSES = {
    "never-used": "no operation of the forward reads it",
    "compiled": "its gradient is lost within TorchScript, or after it: compiled operations are not recorded",
    "frozen": "it does not require a gradient in this forward",
    "detach": "detach() cuts the graph",
    "straight-through": (
        "a straight-through estimator: the gradient of its result goes to the value that is added "
        "without .detach(), and not to it"
    ),
    "data": ".data detaches the values from the graph",
    "item": "the tensor is turned into a Python number and comes back as a constant",
    "numpy": "a round trip through NumPy cuts the graph",
    "no-grad": "the operation runs with gradients disabled",
    "integer-cast": "rounding, comparing or indexing has no gradient",
    "recreated": "a new tensor is created from the values, without their graph",
    "sampling": "the value is sampled without reparameterisation",
    "checkpoint": "reentrant checkpointing gets no input that requires a gradient",
    "function": "a custom autograd Function gives an output without a gradient",
    "backward-none": "a custom backward returns None for it",
    "not-reaching-loss": "the loss does not use the values computed from it",
    "derivative": "autograd.grad without create_graph=True gives a gradient without a graph",
    "differentiated": (
        "the loss uses a derivative of values computed from it, and the derivative does not "
        "depend on it"
    ),
    "dropped": "the graph of the values computed from it does not lead back to it",
    "zeroed": "only its shape is used",
    "non-differentiable": "the operation has no gradient",
}


FIXES = {
    "never-used": "use it in forward, or delete it",
    "compiled": "declare the model as it is before torch.jit, for which the line is found, or declare "
    "MayLackGradient({names}, reason=...)",
    "frozen": "set requires_grad to True before it is used, or declare it: Frozen({names}, reason=...)",
    "detach": "drop .detach() on this line",
    "straight-through": "train it by a term of the loss that reads it without this line (a codebook "
    "loss), or by hand, and declare MayLackGradient({names}, reason=...)",
    "data": "drop .data on this line",
    "item": "keep the tensor: drop the conversion to a Python number on this line",
    "numpy": "replace NumPy by torch on this line",
    "no-grad": "drop this no_grad, or move the operation out of it",
    "integer-cast": "use a differentiable version (softmax for argmax), or a straight-through estimator",
    "recreated": "use the tensor itself instead of creating a new one from it",
    "sampling": "reparameterise: mean + std * torch.randn_like(std), or rsample()",
    "checkpoint": "pass use_reentrant=False to checkpoint",
    "function": "make the output differentiable in the Function's forward",
    "backward-none": "return its gradient in backward",
    "not-reaching-loss": "use this output in the loss, or drop the part that computes it",
    "derivative": "pass create_graph=True to autograd.grad on this line",
    "differentiated": "let the loss use the value itself too, or declare MayLackGradient({names}, reason=...)",
    "dropped": "keep it connected on this line",
    "zeroed": "use its values",
    "non-differentiable": "replace the operation by a differentiable one",
}


_WRITTEN = {
    "detach": "detach",
    "data": r"\.data",
    "item": r"item|list|numpy|float|int\(|math\.",
    "numpy": r"numpy|np\.|array",
    "derivative": "grad",
}
"""By kind, what the line of an operation says where the operation is written there."""


def kind_at(kind: str, location: Location | None) -> str:
    """Return the kind of a cut, told from the lines around it where those show that it is meant.

    ``z + (q - z).detach()`` gives the value of ``q`` and the gradient of ``z``: what the sum takes
    with its graph, it takes away without it. ``x + f(x).detach()`` takes nothing away, and cuts.
    """
    if kind not in ("detach", "data") or location is None:
        return kind
    line = sources.statement(location.file, location.line)
    if line is None:
        return kind
    places, cut = [line], {}
    if isinstance(line, ast.Assign) and isinstance(name := line.targets[0], ast.Name):
        cut[name.id] = line.value  # a later line may add it
        function = sources.function_around(location.file, location.line)
        places += [
            n for n in sources.own_nodes(function) if isinstance(n, ast.stmt) and n is not line
        ]
    for place in places:
        for node in ast.walk(place):
            kept = set(_terms(node))
            lost = (
                kept
                if place is line
                else {
                    term
                    for text, sign, _ in kept
                    if text in cut
                    for term in _terms(cut[text], sign)
                }
            )
            if any((text, -sign, True) in lost for text, sign, detached in kept if not detached):
                return "straight-through"
    return kind


def names_around(location: Location) -> tuple[str, str]:
    """Return what ``name = value.detach()`` cuts and the name that it gives; empty where a line does more than that."""
    line = sources.statement(location.file, location.line)
    if not isinstance(line, ast.Assign) or not isinstance(name := line.targets[0], ast.Name):
        return "", ""
    cut = line.value.func if isinstance(line.value, ast.Call) else line.value
    if not isinstance(cut, ast.Attribute) or cut.attr not in ("detach", "data"):
        return "", ""
    before = ast.unparse(cut.value)
    return (before, name.id) if before != name.id and before.isidentifier() else ("", "")


def _terms(node: ast.AST, sign: int = 1, detached: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Yield the terms of a sum: the code of each, its sign, and whether it lost its graph."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from _terms(node.left, sign, detached)
        yield from _terms(node.right, sign if isinstance(node.op, ast.Add) else -sign, detached)
        return
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _terms(node.operand, -sign, detached)
    elif isinstance(node, ast.Attribute) and node.attr == "data":
        yield from _terms(node.value, sign, True)
    elif isinstance(called, ast.Attribute) and called.attr == "detach":
        yield from _terms(called.value, sign, True)
    elif isinstance(node, ast.expr):
        yield ast.unparse(node), sign, detached


def fix_of(kind: str, location: Location | None, *, default: str = "") -> str:
    """Return the edit for a kind of cut; it speaks of the line only where that holds the operation.

    An operation of a library is placed at the line that calls the library.
    """
    fix = FIXES.get(kind, default)
    shown = _WRITTEN.get(kind)
    if location is None or shown is None or re.search(shown, location.text):
        return fix
    return fix.replace("on this line", "in what this line calls")


def last_stop(subject: Subject) -> GraphCut | None:
    """Return the operation nearest to the loss that loses the gradients on the way to it; None where none does."""
    with subject.pristine():
        stops = find_stops(forward_and_loss(subject), subject.model)
    last = max(
        (stop for stop in stops if stop.op is not None),
        key=lambda stop: stop.op.index if stop.op is not None else 0,
        default=None,
    )
    return last or _shared_cut(subject)


def _shared_cut(subject: Subject) -> GraphCut | None:
    """Return the operation that cuts most of the parameters off, such as an ``.item()`` on the way to the loss."""
    trainable = {n: p for n, p in subject.named_parameters().items() if p.requires_grad}
    with subject.pristine():
        cuts = find_cut(forward_and_loss(subject), subject.model, trainable)
    places: dict[Any, list[GraphCut]] = defaultdict(list)
    for cut in cuts.values():
        if cut.op is not None and (cut.region or cut.location) is not None:
            places[cut.kind, cut.region or cut.location].append(cut)
    return max(places.values(), key=len)[-1] if places else None


def by_place(subject: Subject, found: GradientByPlace) -> Finding:
    """Explain samples that train a parameter in some places of the batch only."""
    return violated(
        "gradient-by-place",
        f"whether a sample trains {names_text(list(found.names))} depends on its place in the batch",
        culprits=[parameter(subject, n, "trained from some places only") for n in found.names[:8]],
        location=_cut(subject),
        observed=f"sample {found.sample} has the same output in places {found.places[0]} and {found.places[1]}; "
        f"its gradient by {found.name} has a norm of {found.norms[0]:.4g} there and {found.norms[1]:.4g} here",
        cause="the gradient is cut, or scaled, for some places of the batch",
        because="all samples moved by one place and all outputs moved with them, so the model is the same function",
        fix="let gradients pass for every sample; what decides that some do not must belong to the sample",
        evidence={"parameters": list(found.names)},
    )


def _cut(subject: Subject) -> Location | None:
    """Return the first line of the user's forwards that cuts a gradient."""
    for module in subject.model.modules():
        kind = type(module)
        if sources.is_own_class(kind):
            pattern = r"\.detach\(|no_grad|\.data\b|register_hook|requires_grad"
            if (place := sources.search(kind, pattern)) is not None:
                return place
    return sources.of_own_class(subject.model)

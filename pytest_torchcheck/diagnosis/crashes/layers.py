"""What the entries on layers share: the layer's input and its history, what dropped a dimension on the way, and the line that decides a size."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ... import sources
from ...explanation import on_line
from ...findings import Culprit
from ...lean import dataclass
from ..lines.layer_sizes import Origin, building_line, size_origin
from ..lines.size_values import value_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...explanation import Explanation
    from ...findings import Location
    from .history import Fact, Op
    from .scene import Scene


_KEEPS_SIZE = frozenset(
    {"relu", "relu_", "gelu", "silu", "tanh", "sigmoid", "dropout", "contiguous", "clone", "detach", "to",
     "float", "double", "half", "leaky_relu", "elu", "softplus", "layer_norm", "batch_norm", "hardtanh"}
)  # fmt: skip


_RESHAPES = frozenset({"flatten", "view", "reshape", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as",
                       "__getitem__", "long", "int", "to", "contiguous", "clone", "repeat", "view_as", "clamp",
                       "type_as", "movedim", "transpose", "permute"})  # fmt: skip


def flattened_from(fact: Fact | None) -> tuple[int, ...]:
    """Return the sizes that were flattened into a tensor's last dimension, such as ``(16, 5, 5)``.

    Empty where the history shows no flattening.
    """
    while fact is not None and fact.made_by is not None and fact.made_by.inputs:
        op, source = fact.made_by, fact.made_by.inputs[0]
        if op.name in ("flatten", "view", "reshape") and len(source.shape) > len(fact.shape):
            last = fact.shape[-1] if fact.shape else 0
            product, sizes = 1, []
            for size in reversed(source.shape):
                product *= size
                sizes.append(size)
                if product >= last:
                    break
            return tuple(reversed(sizes)) if product == last and len(sizes) > 1 else ()
        if op.name not in _KEEPS_SIZE:
            return ()
        fact = source
    return ()


_SPATIAL = {"conv1d": 1, "conv2d": 2, "conv3d": 3}


def dimension_lost(fact: Fact | None, *, several: bool = False) -> Op | None:
    """Return the op that last gave a tensor one dimension fewer than it read, or None.

    Args:
        fact: The tensor.
        several: Also count an op that takes several dimensions away.
    """
    while fact is not None and fact.made_by is not None and fact.made_by.inputs:
        op, source = fact.made_by, fact.made_by.inputs[0]
        lost = len(source.shape) - len(fact.shape)
        if (lost == 1 or (several and lost > 1)) and op.name not in ("flatten", "view", "reshape"):
            return op
        fact = source
    return None


def single_sample(fact: Fact | None) -> tuple[Op, Op | None] | None:
    """Find a convolution that took one sample without a batch dimension on the way to a tensor.

    Returns:
        The convolution, and the op that dropped the batch dimension before it (None where the input
        never had one); None where every convolution got a batch.
    """
    while fact is not None and fact.made_by is not None and fact.made_by.inputs:
        op, source = fact.made_by, fact.made_by.inputs[0]
        if len(source.shape) == _SPATIAL.get(op.name, -2) + 1:
            dropped = dimension_lost(source)
            if dropped is not None and dropped.inputs[0].shape[1:] != dropped.outputs[0].shape:
                dropped = None
            return op, dropped
        fact = source
    return None


def made_from(fact: Fact | None, most: int = 40) -> list[Op]:
    """Return the ops that made a tensor, the last one first, along first inputs of reshaping ops."""
    found: list[Op] = []
    while fact is not None and not fact.name and fact.made_by is not None and len(found) < most:
        found.append(fact.made_by)
        if fact.made_by.name not in _RESHAPES | {
            "add",
            "__add__",
            "__radd__",
            "sub",
            "__sub__",
            "mul",
            "__mul__",
        }:
            break
        fact = fact.made_by.inputs[0] if fact.made_by.inputs else None
    return found


def sized_by(fact: Fact | None, size: int, most: int = 40) -> tuple[Op | None, str]:
    """Follow a size of a tensor back through what it was made of.

    Returns:
        The first op of its history whose result has that size, and the name of the input, parameter
        or buffer that had it before any op; either may be missing.
    """
    maker: Op | None = None
    for _ in range(most):
        if fact is None or fact.name or fact.made_by is None:
            return maker, fact.name if fact is not None else ""
        maker = fact.made_by
        fact = next((f for f in maker.inputs if size in f.shape), None)
    return maker, ""


def named_source(fact: Fact | None, most: int = 40) -> str:
    """Return the name of the input, parameter or buffer that a tensor was reshaped from, or empty."""
    for _ in range(most):
        if fact is None:
            return ""
        if fact.name:
            return fact.name
        if fact.made_by is None or fact.made_by.name not in _RESHAPES or not fact.made_by.inputs:
            return ""
        fact = fact.made_by.inputs[0]
    return ""


_BEHIND = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """The op that last took dimensions from a tensor, on another line than the one that failed.

    Attributes:
        words: What it did, as a clause.
        batch: Whether the batch dimension is among them.
        fix: The edit of its line.
        culprit: Its line.
    """

    words: str
    batch: bool
    fix: str
    culprit: Culprit


def dropped(scene: Scene, fact: Fact | None) -> Dropped | None:
    """Return the op that last took dimensions from a tensor; None where none did, or on the failing line itself."""
    op = dimension_lost(fact, several=True)
    return None if op is None else dropped_by(scene, op)


def dropped_by(scene: Scene, op: Op) -> Dropped | None:
    """Say what an op took from a tensor; None where it stands on the failing line, or where that is not known."""
    place = op.location
    if place is None or not op.outputs or not scene.meeting(place):
        return None
    name = "an index" if op.name == "__getitem__" else op.name
    before, after = list(op.inputs[0].shape), list(op.outputs[0].shape)
    batch = _takes_batch(op, scene.batch_size()) and from_input(scene, op.inputs[0])
    words = f"{name} on line {place.line} gives {after} from {before}"
    fix = f"keep the dimension on line {place.line}"
    if batch:
        words += ", without the batch dimension"
        fix = f"keep dimension 0, the batch, on line {place.line}"
        if op.name == "squeeze":
            fix = (
                f"name the dimensions that squeeze should drop on line {place.line}: all but "
                "the batch (or flatten(1))"
            )
    culprit = Culprit("call", name, f"gives {after} from {before}", place)
    return Dropped(words=words, batch=batch, fix=fix, culprit=culprit)


def _takes_batch(op: Op, batch: int | None) -> bool:
    """Say whether an op drops the first dimension of a tensor, whose size is that of the batch."""
    before, after = op.inputs[0].shape, op.outputs[0].shape
    if batch is None or before[:1] != (batch,):
        return False
    if op.name == "squeeze":
        named = op.arguments and op.arguments[0] not in (
            "0",
            "dim=0",
            str(-len(before)),
            f"dim={-len(before)}",
        )
        return batch == 1 and not named
    if op.name == "__getitem__":
        single = len(op.arguments) == 1 and re.fullmatch(r"-?\d+", op.arguments[0]) is not None
        return single and after == before[1:]
    return False


def makers(facts: Iterable[Fact]) -> list[Op]:
    """Return the ops that made some tensors."""
    return [fact.made_by for fact in facts if fact.made_by is not None]


def behind(last: Iterable[Op]) -> Iterator[Op]:
    """Yield some ops and those that led to them, the nearest first."""
    pending, seen = list(last), set[int]()
    while pending and len(seen) < _BEHIND:
        op = pending.pop(0)
        if id(op) not in seen:
            seen.add(id(op))
            yield op
            pending += makers(op.inputs)


def from_input(scene: Scene, fact: Fact) -> bool:
    """Say whether a tensor was computed from what the model is called with: a table's first dimension is no batch."""
    own = {key for key, _ in scene.model.named_parameters()} if scene.model is not None else set()
    names = {fact.name} | {f.name for op in behind(makers([fact])) for f in op.inputs}
    return bool((names & set(scene.inputs)) - own)


def input_of(scene: Scene) -> torch.Tensor | None:
    """Return the tensor that the innermost running module was called with."""
    for value in scene.arguments().values():
        if isinstance(value, torch.Tensor):
            return value
    found = scene.argument("input", "x")
    return found if isinstance(found, torch.Tensor) else None


def input_fact(scene: Scene) -> Fact | None:
    """Return the history of the failing call's first tensor."""
    op = scene.failing_op
    return op.inputs[0] if op is not None and op.inputs else None


def where_decided(scene: Scene, value: int | None = None) -> tuple[Location | None, Origin | None]:
    """Return the line that decides the innermost module's input size, and how it is written there."""
    name = scene.path_of(scene.module)
    origin = size_origin(scene.model, name, value=value)
    return (origin.location if origin else building_line(scene.model, name)), origin


def edit(
    scene: Scene, origin: Origin | None, place: Location | None, wanted: int, default: str
) -> str:
    """Return the fix as one edit of the line that decides a size."""
    line = on_line(place)
    if origin is None:
        return f"{default}{line}"
    if origin.constant:
        return f"write {origin.argument}={wanted} instead of {origin.expression}{line}"
    return (
        f"make {origin.argument} ({origin.expression}{line}) {wanted}{computed(size_values(scene))}"
    )


def or_declared(scene: Scene, want: int, got: int) -> str:
    """Ask which of two is meant, where a layer reads the model's input itself: the layer or the input.

    Args:
        scene: The error.
        want: The size that the layer was built for.
        got: The size that it is given.

    Returns:
        What follows a fix of the layer; empty where the input is made by other layers.
    """
    fact, given = input_fact(scene), input_of(scene)
    source = named_source(fact)
    if not source and fact is None and given is not None:
        source = next((k for k, value in scene.inputs.items() if value.shape == given.shape), "")
    value = scene.inputs.get(source)
    if value is None or got not in value.shape[1:]:
        return ""
    shape = list(value.shape)
    dimension = len(shape) - 1 - shape[:0:-1].index(got)
    if given is not None and len(given.shape) == len(shape):
        same = (d for d in range(1, len(shape)) if given.shape[d] == got == shape[d])
        dimension = next(same, dimension)
    return (
        f"; or, if the layer is right, declare {source} in the contract with {want} instead of "
        f"{got} in dimension {dimension}"
    )


def size_values(
    scene: Scene, path: str = "", beside: Location | None = None
) -> tuple[Culprit, ...]:
    """Return the lines that assign what a module's size is computed from, where there is one or two of them.

    Args:
        scene: The error.
        path: Qualified name of the module; the innermost running one by default.
        beside: A line that is named already.
    """
    path = path or scene.path_of(scene.module)
    return tuple(
        Culprit("call", place.text, "sets the size", place)
        for place in value_lines(scene.model, path)
        if beside is None or (place.file, place.line) != (beside.file, beside.line)
    )


def computed(values: tuple[Culprit, ...]) -> str:
    """Return in brackets from which lines a size comes; empty for none."""
    lines = [str(c.location.line) for c in values if c.location is not None]
    return f" (its value comes from line {' or '.join(lines)})" if lines else ""


_TOLD = (RuntimeError, IndexError, ValueError, AssertionError)


def with_squeeze(scene: Scene, found: Explanation) -> Explanation:
    """Let the line that dropped the batch dimension be the cause, where one did on the way to what failed."""
    told = isinstance(scene.error, _TOLD) and "CUDA" not in scene.message
    if not told or scene.batch_size() != 1 or scene.phase not in ("forward", "loss"):
        return found
    lost = next(_lost(scene), None)
    if lost is None or lost.culprit.location == found.location:
        return found
    line = on_line(found.location)
    known = lost.words in found.cause
    others = [c for c in found.culprits if c.location != lost.culprit.location]
    return replace(
        found,
        cause=found.cause if known else f"{lost.words}; then{line} {found.cause}",
        fix=lost.fix,
        culprits=(lost.culprit, *scene.call_culprit(detail="needs the dimension"), *others)[:4],
        location=lost.culprit.location,
    )


def _lost(scene: Scene) -> Iterator[Dropped]:
    op = scene.failing_op
    last = makers(op.inputs) if op is not None else _named(scene)
    for one in behind(last):
        lost = dropped_by(scene, one) if one.name == "squeeze" and one.inputs else None
        if lost is not None and lost.batch:
            yield lost


def _named(scene: Scene) -> list[Op]:
    """Return what made tensors of the shapes that the failing line names, where the line itself failed and no call of torch's."""
    again, place, frame = scene.replay(), scene.location, scene.frame
    if again is None or place is None or frame is None:
        return []
    read = sources.names_read(place.file, place.line)
    values = [frame.f_locals[n] for n in read if isinstance(frame.f_locals.get(n), Tensor)]
    shapes = {tuple(value.shape) for value in values}
    return [op for op in reversed(again.ops) if any(fact.shape in shapes for fact in op.outputs)]

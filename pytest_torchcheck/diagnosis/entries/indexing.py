"""Indices out of range: embedding tables, gather and advanced indexing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...explanation import Explanation, describe, dtype_word, on_line
from ...findings import Culprit
from ...lean import dataclass
from ..crashes.layers import computed, made_from, named_source, size_values
from ..crashes.table import entry
from ..lines.layer_sizes import Origin, building_line, size_origin
from .dtype_pairs import made_culprit
from .sizes.shapes import label

if TYPE_CHECKING:
    from ...findings import Location
    from ..crashes.history import Fact
    from ..crashes.scene import Scene

_COUNTERS = frozenset({"arange", "cumsum", "range", "linspace"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Indices:
    """What was looked up.

    Attributes:
        low, high: Smallest and largest index.
        shown: dtype and shape.
        source: Name of the input that holds them, or empty.
        counted: Name of the function that counts positions (``arange``), or empty.
        line: Where they are made, when known.
    """

    low: int
    high: int
    shown: str
    source: str = ""
    counted: str = ""
    line: Location | None = None


def _indices(scene: Scene, tensor: torch.Tensor, fact: Fact | None) -> _Indices | None:
    if tensor.numel() == 0 or tensor.device.type == "meta" or tensor.is_floating_point():
        return None
    history = made_from(fact)
    counter = next((op for op in history if op.name in _COUNTERS), None)
    source = named_source(fact)
    if not source and not history:
        same = [
            k
            for k, v in scene.inputs.items()
            if v.shape == tensor.shape and v.dtype == tensor.dtype
        ]
        same = [k for k in same if torch.equal(scene.inputs[k], tensor)]
        source = same[0] if len(same) == 1 else ""
    return _Indices(
        low=int(tensor.min()),
        high=int(tensor.max()),
        shown=describe(tensor),
        source=source,
        counted=counter.name if counter is not None else "",
        line=counter.location if counter is not None else None,
    )


def _looks_like_count(tensor: torch.Tensor) -> bool:
    """Say whether the last dimension counts 0, 1, 2 ... in every row."""
    if tensor.dim() == 0 or tensor.shape[-1] < 3:
        return False
    return torch.equal(
        tensor, torch.arange(tensor.shape[-1], device=tensor.device).expand_as(tensor)
    )


@entry(
    r"index out of range in self",
    r"Index \d+ of input takes value (-?\d+) which is not in the valid range \[0, \d+\)",
)
def embedding(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """An embedding that is asked for a row it does not have."""
    module = scene.module
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return _functional(scene)
    arguments = scene.arguments()
    tensor = arguments.get("input")
    if not isinstance(tensor, torch.Tensor):
        return None
    again = scene.replay()
    live = again.failing.args if again is not None and again.failing is not None else ()
    fact = (
        again.fact(live[0])
        if again is not None and live and isinstance(live[0], torch.Tensor)
        else None
    )
    found = _indices(scene, tensor, fact)
    if found is None:
        return None
    if not found.counted and not found.source and _looks_like_count(tensor):
        found = _Indices(
            low=found.low, high=found.high, shown=found.shown, counted="positions 0, 1, 2 ..."
        )
    return _table(scene, scene.at, scene.path_of(module), module.num_embeddings, found)


def _functional(scene: Scene) -> Explanation | None:
    frame = scene.called("embedding")
    if frame is None:
        return None
    tensor, weight = frame.get("input"), frame.get("weight")
    if not isinstance(tensor, torch.Tensor) or not isinstance(weight, torch.Tensor):
        return None
    names = (
        {id(p): name for name, p in scene.model.named_parameters()}
        if scene.model is not None
        else {}
    )
    again = scene.replay()
    fact = next(
        (f for f in (again.failing.op.inputs if again and again.failing else ()) if not f.name),
        None,
    )
    found = _indices(scene, tensor, fact)
    name = names.get(id(weight), "the embedding table")
    return None if found is None else _table(scene, name, name, weight.shape[0], found)


def _table(scene: Scene, name: str, path: str, rows: int, found: _Indices) -> Explanation:
    """Explain a lookup outside a table of ``rows`` rows."""
    call = scene.location
    built = building_line(scene.model, path) if path else None
    origin = size_origin(scene.model, path, value=rows) if path else None
    decided = origin.location if origin is not None else built
    beside = on_line(decided)
    observed = (
        f"indices {found.shown}, {found.low}..{found.high}; {name} has {rows} rows, 0..{rows - 1}"
    )
    length = scene.input_with_size(found.high + 1)
    need = found.high + 1
    values = size_values(scene, path, decided) if path else ()
    how = _wider(origin, need, beside, values, name)
    culprits = _table_culprits(path, name, rows, found, built, scene, values)
    if found.low < 0:
        return _negative(found, name, rows, observed, scene, culprits, call)
    if found.counted:
        made = f" ({found.counted}{f' on line {found.line.line}' if found.line else ''})"
        return scene.explain(
            code="position-range",
            summary=f"{name} has {rows} positions, and the sequence has {need}",
            observed=observed + (f"; {length}" if length else ""),
            cause=f"the position table {name} is shorter than the sequences",
            because=f"the indices are positions{made} up to {found.high}"
            + (f", and {length}" if length else ""),
            fix=f"{how}, or declare a smaller size of the input in the contract",
            culprits=culprits,
            location=decided,
        )
    source = found.source or "the input"
    off = " (off by one: row 0 counts too)" if found.high == rows else ""
    return scene.explain(
        code="embedding-range",
        summary=f"{name} has {rows} rows, and {source} holds index {found.high}",
        observed=observed,
        cause=f"the table {name} is smaller than the vocabulary of {source}{off}"
        if found.source
        else (
            f"a table of {rows} rows is indexed with {found.high}{off}: ids beyond the "
            "vocabulary, or positions beyond the table"
        ),
        because=f"the largest index is {found.high}, the largest row {rows - 1}; {scene.said}",
        fix=f"{how}, or declare the ids as 0..{rows - 1} in the contract",
        culprits=culprits,
        location=decided,
    )


def _negative(
    found: _Indices,
    name: str,
    rows: int,
    observed: str,
    scene: Scene,
    culprits: tuple[Culprit, ...],
    call: Location | None,
) -> Explanation:
    """Explain an index below 0."""
    source = found.source or "the indices"
    return scene.explain(
        code="embedding-range",
        summary=f"{name} is indexed with {found.low}: indices must be 0..{rows - 1}",
        observed=observed,
        cause=(
            f"{source} holds {found.low}, which marks padding or 'ignore'; a table has no "
            "negative rows"
        ),
        because=f"the smallest index is {found.low}; {scene.said}",
        fix=(
            f"replace this value before the lookup, as in ids.clamp(min=0){scene.on_line}, "
            "or use padding_idx"
        ),
        culprits=culprits,
        location=call,
    )


def _wider(
    origin: Origin | None, need: int, on_line: str, values: tuple[Culprit, ...], name: str
) -> str:
    """Say how to give the table more rows."""
    return (
        f"write {origin.argument}={need} or more instead of {origin.expression}{on_line}"
        if origin is not None and origin.constant
        else (
            f"make {origin.argument} ({origin.expression}) at least "
            f"{need}{on_line}{computed(values)}"
        )
        if origin is not None
        else f"build {name} with at least {need} rows{on_line}"
    )


def _table_culprits(
    path: str,
    name: str,
    rows: int,
    found: _Indices,
    built: Location | None,
    scene: Scene,
    values: tuple[Culprit, ...],
) -> tuple[Culprit, ...]:
    """Return the table, the call, and what decides the size."""
    return (
        Culprit("module", path or name, f"{rows} rows, index {found.high}", built),
        *scene.call_culprit(),
        *values,
    )


@entry(r"index (?P<i>-?\d+) is out of bounds for dimension (?P<d>-?\d+) with size (?P<n>\d+)",
       r"INDICES element is out of DATA bounds, id=(?P<i>-?\d+) axis_dim=(?P<n>\d+)",
       r"Class values must be (?:smaller than num_classes|non-negative)")  # fmt: skip
def bounds(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """gather, scatter, index_select or advanced indexing beyond a dimension."""
    named = match.groupdict()
    facts = scene.failing_op.inputs if scene.failing_op is not None else ()
    word = scene.failing_op.name if scene.failing_op is not None else ""
    word = {"__getitem__": "indexing", "__setitem__": "assignment"}.get(
        word, word
    ) or "an indexed access"
    index = named.get("i")
    where = f"dimension {named['d']}" if named.get("d") else "the dimension"
    shown = label(facts[0]) if facts else "a tensor"
    if index is None:
        classes = re.search(
            r"num_classes=(\d+)", " ".join(scene.failing_op.arguments if scene.failing_op else ())
        )
        what = f"num_classes{f'={classes[1]}' if classes else ''}"
        return scene.explain(
            code="index-range",
            summary=f"{scene.at}: one_hot received a class outside {what}",
            observed=shown,
            cause="a class index is negative, or not smaller than the number of classes",
            fix=f"raise num_classes or subtract the first label{scene.on_line}",
        )
    size = named["n"]
    counted = next(
        (op for fact in facts[1:] for op in made_from(fact) if op.name in _COUNTERS), None
    )
    source = next((name for fact in facts[1:] if (name := named_source(fact))), "")
    cause = f"{source or 'the index'} reaches {index}, and {where} has {size}: 0..{int(size) - 1}"
    if counted is not None and counted.location is not None:
        cause += f"; the index is generated by {counted.name} on line {counted.location.line}"
    if int(index) == int(size):
        cause += " (off by one)"
    made: tuple[Culprit, ...] = ()
    if facts and scene.model is not None and (name := named_source(facts[0])):
        made = (Culprit("tensor", name, f"size {size}", building_line(scene.model, name)),)
    words = scene.input_words()
    return scene.explain(
        code="index-range",
        summary=f"{scene.at}: index {index} is outside {where} of size {size} ({word} of {shown})",
        observed=f"index {index}, size {size}, {shown}"
        + (f"; the model's input is {words}" if words else ""),
        cause=cause,
        fix=f"keep the index below {size}{scene.on_line}, or make {where} larger",
        culprits=scene.blame() + made,
    )


@entry(r"tensors used as indices must be long, int, byte or bool tensors",
       r"for argument #1 'indices' to have one of the following scalar types: Long, Int; but got (\S+) instead",
       r"(?<!\w)\w+\(\):? [Ee]xpected dtype int(?:32)?(?:/int64|64| or int64)? for index",
       r"[Ee]xpected a long tensor for index, but got \w+", r"dtype of indices should be Long but got \w+",
       r"only integer tensors of a single element can be converted to an index")  # fmt: skip
def index_dtype(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Floating numbers used as indices."""
    tensor = input_value(scene)
    facts = scene.failing_op.inputs if scene.failing_op is not None else ()
    floats = [fact for fact in facts if fact.dtype.startswith(("float", "bfloat"))]
    first = scene.failing_op is not None and scene.failing_op.name.startswith("embedding")
    index = next(iter(floats if first and facts[0] in floats else reversed(floats)), None)
    source = named_source(index)
    floating = tensor is not None and tensor.is_floating_point() and first
    shown = describe(tensor) if floating else "a floating-point tensor"
    cause = (
        f"{source or 'the index tensor'} holds floating-point numbers: ids and features may be "
        "swapped, or the ids were converted with the features"
    )
    got, wanted = dtype_word(match[1]) if match.groups() and match[1] else "", "integers"
    if got.startswith(("int", "uint", "bool")):
        index = next((fact for fact in facts if fact.dtype == got), None)
        source, shown, wanted = named_source(index), f"{got} numbers", "int32 or int64"
        cause = f"{source or 'the index tensor'} holds {got}, and indices are int32 or int64"
    return scene.explain(
        code="index-dtype",
        summary=f"{scene.at} received {shown} as indices: they must be {wanted}",
        observed=f"indices {source + ' ' if source else ''}{shown}",
        cause=cause,
        fix=(
            f"call .long() on the indices{scene.on_line}, or declare the input with Ints(...) "
            "in the contract"
        ),
        culprits=(*scene.blame(), *made_culprit(scene, index)),
    )


def input_value(scene: Scene) -> torch.Tensor | None:
    """Return the tensor argument ``input`` of the innermost torch function, live."""
    value = scene.argument("input")
    return value if isinstance(value, torch.Tensor) else None


@entry(
    r"shape of the mask \[([\d, ]*)\] at index (\d+) does not match the shape of the indexed tensor \[([\d, ]*)\] at index (\d+)"
)
def mask_shape(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A boolean mask of another shape than what it selects from."""
    return scene.explain(
        code="mask-shape",
        summary=f"{scene.at}: a mask [{match[1]}] selects from a tensor [{match[3]}]",
        observed=f"mask [{match[1]}], tensor [{match[3]}]: they differ in dimension {match[2]}",
        cause="the mask was created for another length or another order of dimensions",
        fix=f"compute the mask from the tensor that it selects from{scene.on_line}",
    )

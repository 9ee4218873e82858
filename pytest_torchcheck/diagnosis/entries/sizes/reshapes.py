"""Views, permutations and dimensions that do not exist; unpacking of a wrong number of values."""

from __future__ import annotations

import ast
import math
import re
from typing import TYPE_CHECKING

import torch

from .... import sources
from ....explanation import Explanation, clipped, numbers, on_line
from ....probes.numbers.views import Moved, moved
from ....sources import edits
from ...crashes.layers import dropped, made_from, named_source
from ...crashes.table import entry
from ...lines.axis_order import transposing
from .shapes import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...crashes.scene import Scene

_MIXERS = frozenset(
    {
        "permute",
        "transpose",
        "t",
        "T",
        "mT",
        "movedim",
        "moveaxis",
        "swapaxes",
        "expand",
        "__getitem__",
    }
)


@entry(r"shape '\[([\d, -]*)\]' is invalid for input of size (\d+)")
def view_size(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A view or reshape to another number of elements."""
    wanted, size = numbers(match[1]), int(match[2])
    op = scene.failing_op
    fact = op.inputs[0] if op is not None and op.inputs else None
    shape = fact.shape if fact is not None and fact.shape else ()
    word = op.name if op is not None else "view"
    fixed = math.prod(n for n in wanted if n >= 0)
    source = label(fact) if fact is not None else f"a tensor of {size} elements"
    summary = (
        f"{scene.at}: {word}({', '.join(map(str, wanted))}) of {source}, which has {size} elements"
    )
    observed = f"{size} elements, {word} to {list(wanted)}"
    words = scene.input_words()
    observed += f"; the model's input is {words}" if words else ""
    cause = f"{size} elements cannot be reshaped to {list(wanted)}"
    because = (
        f"{size} is not a multiple of {fixed}"
        if -1 in wanted
        else f"{'*'.join(map(str, wanted))} = {fixed}, not {size}"
    )
    fix = f"choose sizes with {_viewed(scene, word)}{scene.on_line}"
    if shape:
        each = math.prod(shape[1:])
        if (
            wanted
            and wanted[0] > 0
            and -1 not in wanted
            and math.prod(wanted[1:]) == each
            and wanted[0] != shape[0]
        ):
            cause = f"the batch size {wanted[0]} is hard-coded in the {word}"
            because = f"the tensor holds {shape[0]} samples of {each} elements"
            written = edits.like_tensor(scene.location, "shape[0]") or "the size of dimension 0"
            fix = f"write {written} (or -1) instead of {wanted[0]}{scene.on_line}"
        elif (odd := _written_in(scene, word, wanted, shape)) is not None:
            cause = f"{wanted[odd]} is written in for dimension {odd} of the {word}, where the tensor has {shape[odd]}"
            because = f"all other sizes of {list(wanted)} fit its shape {list(shape)}"
            fix = (
                f"write {_size_of(scene, odd, shape[odd])} instead of {wanted[odd]}{scene.on_line}"
            )
        elif len(wanted) == 2 and -1 in wanted:
            cause = f"a sample has {each} elements here, not {fixed}"
            because = f"{'*'.join(map(str, shape[1:])) or 1} = {each} per sample in {list(shape)}"
            fix = f"write {each} instead of {fixed}, or use .flatten(1){scene.on_line}"
    return scene.explain(
        code="view-size",
        summary=summary,
        observed=observed,
        cause=cause,
        because=f"{because}; {scene.said}",
        fix=fix,
        culprits=scene.blame(observed),
    )


def _written_in(scene: Scene, word: str, wanted: Sequence[int], shape: Sequence[int]) -> int | None:
    """Return the dimension whose size is written as a number, and is the only one in which a tensor has another one."""
    if len(wanted) != len(shape) or len(shape) < 3:
        return None
    odd = [
        d for d, (size, own) in enumerate(zip(wanted, shape, strict=True)) if size not in (-1, own)
    ]
    texts = edits.argument_texts(scene.location, word, len(wanted))
    return odd[0] if len(odd) == 1 and texts and texts[odd[0]] == str(wanted[odd[0]]) else None


def _size_of(scene: Scene, dim: int, size: int) -> str:
    """Return a size by the shape of the tensor that the function is given, where that has it; else in words."""
    written = edits.like_tensor(scene.location, f"shape[{dim}]")
    known = scene.frame.f_locals if scene.frame is not None else {}
    value = known.get(written.partition(".")[0])
    if isinstance(value, torch.Tensor) and value.shape[dim : dim + 1] == (size,):
        return written
    return f"the tensor's own size in dimension {dim}"


def _viewed(scene: Scene, word: str) -> str:
    """Return what the sizes of a view multiply to: what was drawn says nothing of other batches."""
    place = scene.location
    calls = [] if place is None else sources.around(place.file, place.line, ast.Call)
    named = [
        c.func.value
        for c in calls
        if sources.called(c) == word and isinstance(c.func, ast.Attribute)
    ]
    if len(named) == 1 and isinstance(named[0], ast.Name) and named[0].id not in ("torch", "F"):
        return f"the product {named[0].id}.numel(), written by its shape,"
    return "as many elements as the tensor has, written by its shape,"


@entry(r"view size is not compatible with input tensor's size and stride")
def view_stride(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A view of a tensor whose elements do not stand in order."""
    op = scene.failing_op
    fact = op.inputs[0] if op is not None and op.inputs else None
    mixer = next((made for made in made_from(fact) if made.name in _MIXERS), None)
    line = mixer.location if mixer is not None else None
    cause = (
        "the tensor is not contiguous: its elements are not stored in the order of its dimensions"
    )
    if mixer is not None:
        cause = f"{mixer.name}" + on_line(line) + " left the tensor non-contiguous"
    shape = f" {list(fact.shape)}" if fact is not None else ""
    fix = f"use .reshape instead of .view{scene.on_line}"
    swapped = None if fact is None or op is None else _swapped(fact.shape, op.arguments)
    if swapped is not None:  # a reshape would run, and mix the elements
        cause += f"; and dimension {swapped.now} is given the size of dimension {swapped.was}, not its elements"
        fix = f"{transposing(swapped)}{scene.on_line}"
    return scene.explain(
        code="view-not-contiguous",
        summary=f"{scene.at}: view of a tensor{shape} that is not contiguous",
        observed=f"view{shape or ' of a non-contiguous tensor'}"
        + (f" to {', '.join(op.arguments)}" if op and op.arguments else ""),
        cause=cause,
        because=scene.said
        if mixer is None
        else f"the history of the tensor shows {mixer.name}; {scene.said}",
        fix=fix,
    )


def _swapped(given: tuple[int, ...], arguments: Sequence[str]) -> Moved | None:
    """Return the dimension whose size a view names at another place, so that other elements come there."""
    sizes = [int(number) for number in re.findall(r"-?\d+", " ".join(arguments))]
    known = math.prod(size for size in sizes if size >= 0)
    made = tuple(math.prod(given) // max(known, 1) if size < 0 else size for size in sizes)
    found = moved(given, made) if math.prod(made) == math.prod(given) else None
    if found is None or not found[2]:
        return None
    was, now = found[:2]
    return Moved(
        module="", name="view", given=given, made=made, was=was, now=now, certain=True, location=None
    )  # fmt: skip


@entry(r"Dimension out of range \(expected to be in range of \[(-?\d+), (-?\d+)\], but got (-?\d+)\)",
       r"number of dimensions in the tensor input does not match the length of the desired ordering of dimensions i\.e\. input\.dim\(\) = (\d+) is not equal to len\(dims\) = (\d+)()",
       r"permute\(\): duplicate dims are not allowed()()()",
       r"the number of sizes provided \((\d+)\) must be greater or equal to the number of dimensions in the tensor \((\d+)\)()",
       r"too many indices for tensor of dimension (\d+)()()")  # fmt: skip
def dimension(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A dimension that the tensor does not have."""
    op = scene.failing_op
    facts = op.inputs if op is not None else ()
    ranks = (int(match[2]) + 1,) if match[0].startswith("Dimension") else ()
    # of several operands (cat) the one that lacks the dimension; a scalar counts as of one
    # dimension
    fact = next((f for f in facts if max(len(f.shape), 1) in ranks), next(iter(facts), None))
    word = op.name if op is not None else "the call"
    word = "indexing" if word == "__getitem__" else word
    shape = list(fact.shape) if fact is not None else None
    name = named_source(fact)
    what = f"{name or 'a tensor'} {shape}" if shape is not None else "a tensor"
    what, detail, cause = _asked_for(match, shape, what)
    batch = scene.batch_size()
    fix = f"name a dimension that exists{scene.on_line} (negative ones count from the end)"
    culprits, location = scene.blame(), scene.location
    lost = dropped(scene, fact)
    if lost is not None:
        cause += f"; {lost.words}"
        culprits += (lost.culprit,)
    elif shape and batch is not None and shape[0] != batch and not name:
        cause += "; the batch dimension may have been removed earlier by squeezing or indexing"
    if lost is not None and lost.batch:
        fix, location = lost.fix, lost.culprit.location
        culprits = (lost.culprit, *scene.call_culprit(detail="needs the dimension"))
    return scene.explain(
        code="dimension-missing",
        summary=f"{scene.at}: {word} of {what} with {detail}",
        observed=f"{what}, {detail}"
        + (f"; the model's input is {scene.input_words()}" if scene.input_words() else ""),
        cause=cause,
        fix=fix,
        culprits=culprits,
        location=location,
    )


def _asked_for(match: re.Match[str], shape: list[int] | None, what: str) -> tuple[str, str, str]:
    """Return which dimension the call asks for, and why there is none such."""
    said = match[0]
    if said.startswith("Dimension"):
        rank = int(match[2]) + 1
        what = (
            what if shape is not None else f"a tensor of {rank} dimension{'s' if rank != 1 else ''}"
        )
        detail = f"dimension {match[3]}"
        cause = f"dimension {match[3]} is requested, and there are {rank}: 0..{match[2]}"
    elif said.startswith("number of dimensions"):
        detail = f"{match[2]} dimensions"
        cause = f"{match[2]} dimensions are named, and the tensor has {match[1]}"
    elif said.startswith("permute"):
        detail = "a dimension named twice"
        cause = "one dimension is named twice, so another is missing"
    elif said.startswith("the number of sizes"):
        detail, cause = f"{match[1]} sizes", f"{match[1]} sizes are given for {match[2]} dimensions"
    else:
        detail = "too many indices"
        cause = f"the tensor has {match[1]} dimensions, and more are indexed"
    return what, detail, cause


@entry(r"not enough values to unpack \(expected (?:at least )?(\d+), got (\d+)\)",
       r"too many values to unpack \(expected (\d+)(?:, got (\d+))?\)", types=("ValueError",))  # fmt: skip
def unpacking(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A shape or an output unpacked into another number of names."""
    place = scene.location
    if place is None:
        return None
    shape = re.search(r"(\w+)\.(?:shape|size\(\))", place.text)
    name = shape[1] if shape else ""
    value = scene.frames[-1][0].f_locals.get(name) if scene.frames and name else None
    dims = list(getattr(value, "shape", ())) if value is not None else []
    got = match[2] or (str(len(dims)) if dims else "more")
    if name:
        cause = f"{name} has {got} dimensions{f' {dims}' if dims else ''}, and the line expects {match[1]}"
        fix = f"give {name} {match[1]} dimensions before line {place.line}, or unpack as many as there are"
        code, what = "input-rank", f"{name}.shape"
    else:
        cause = f"the right side gives {got} values, and there are {match[1]} names on the left"
        fix = f"use as many names as there are values on line {place.line}"
        code, what = "unpack-count", "a value"
    words = scene.input_words()
    return scene.explain(
        code=code,
        summary=f"{scene.at} unpacks {what} into {match[1]} names, got {got}",
        observed=f"{got} values for {match[1]} names"
        + (f"; the model's input is {words}" if words else ""),
        cause=cause,
        because=scene.said.replace("torch said", "Python said"),
        fix=fix,
    )


@entry(r"unflatten: Provided sizes \[([\d, -]+)\] don't multiply up to the size of dim (\d+) \((\d+)\)",
       r"split_sizes to sum exactly to (\d+) \(input tensor's size at dimension (-?\d+)\), but got split_sizes=\[([\d, ]+)\]",
       r"divisible by (?:the square of upscale_factor|the product of kernel_size)()()()")  # fmt: skip
def splitting(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A dimension that cannot be split as asked."""
    return scene.explain(
        code="split-sizes",
        summary=f"{scene.at}: {_split_words(match, scene)}",
        observed=scene.values(),
        cause="the parts do not add or multiply up to the size of the dimension",
        fix=f"choose sizes that fit{scene.on_line}",
    )


def _split_words(match: re.Match[str], scene: Scene) -> str:
    """Say what was to be split into what."""
    groups = match.groups()
    if "unflatten" in match[0]:
        return f"dimension {groups[1]} of size {groups[2]} cannot be unflattened to [{groups[0]}]"
    if "split_sizes" in match[0]:
        total = sum(numbers(groups[2]))
        return (
            f"parts of [{groups[2]}] add up to {total}, and dimension {groups[1]} has {groups[0]}"
        )
    return clipped(scene.first_line, 110)

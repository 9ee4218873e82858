"""Two tensors that do not fit: products, broadcasting, cat and stack."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from .... import sources
from ....explanation import Explanation, listed, numbers, on_line
from ....findings import Culprit, Location
from ....record.tracing import line_giving
from ....sources.slices import cuts
from ...crashes.layers import dropped, named_source
from ...crashes.table import entry
from ...lines.spelled_sizes import spelled
from .binary import regression_shape, weights_shape

if TYPE_CHECKING:
    from ...crashes.history import Fact
    from ...crashes.layers import Dropped
    from ...crashes.scene import Scene


def operands(scene: Scene) -> tuple[Fact, ...]:
    """Return the tensors of the failing call, as far as a replay could name it."""
    op = scene.failing_op
    return () if op is None else op.inputs


def label(fact: Fact) -> str:
    """Return ``pos_embed [1, 20, 32]``: the name of what a tensor was sliced from, and its shape."""
    name = named_source(fact)
    made = fact.made_by.name if fact.made_by is not None and not name else ""
    if name and name != fact.name:
        name = f"a slice of {name}"
    return f"{name or (made and f'the output of {made}') or 'a tensor'} {list(fact.shape)}"


def owned(scene: Scene, fact: Fact) -> tuple[str, Location | None]:
    """Return the parameter or buffer that a tensor is a slice of, and the line that makes it."""
    name = named_source(fact)
    if not name or scene.model is None:
        return "", None
    own = {key for key, _ in scene.model.named_parameters()} | {
        key for key, _ in scene.model.named_buffers()
    }
    return (name, sources.of_parameter(scene.model, name)) if name in own else ("", None)


@entry(r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)",
       r"Expected size for first two dimensions of batch2 tensor to be: \[(\d+), (\d+)\] but got: \[(\d+), (\d+)\]",
       r"size mismatch, got input \((\d+)\), mat \((\d+x\d+)\), vec \((\d+)\)()",
       r"inconsistent tensor size, expected tensor \[(\d+)\] and src \[(\d+)\]()()")  # fmt: skip
def product(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A matrix product whose inner sizes differ."""
    facts = operands(scene)
    a: Fact | None = None
    b: Fact | None = None
    if len(facts) >= 2 and facts[0].shape and facts[1].shape:
        a, b = facts[0], facts[1]
        left, right = a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[-1]
        shown = f"{label(a)} by {label(b)}"
    elif "batch2" in match[0]:
        left, right = int(match[2]), int(match[4])
        shown = f"matrices with {left} columns by matrices with {right} rows"
        if match[1] != match[3]:
            shown += f", in batches of {match[1]} and {match[3]}"
    elif "mat1" in match[0]:
        left, right = int(match[2]), int(match[3])
        shown = f"{match[1]}x{match[2]} by {match[3]}x{match[4]}"
    else:
        found = numbers(match[0])
        left, right = found[0], found[-1]
        shown = match[0].split(", ", 1)[-1]
    cause = f"the first has {left} columns, the second {right} rows"
    fix = f"make both sizes equal{scene.on_line}"
    because = scene.said
    if left == right:
        cause = "the batch dimensions differ"
        fix = f"make the batch dimensions equal{scene.on_line}"
    elif a is not None and b is not None and len(b.shape) > 1 and b.shape[-1] == left:
        cause = "likely the second factor must be transposed"
        because = f"its last dimension has {left}, the size that is needed; {scene.said}"
        fix = f"transpose the second factor (.transpose(-2, -1)){scene.on_line}"
    elif a is not None and b is not None and len(a.shape) > 1 and a.shape[-2] == right:
        cause = "likely the first factor must be transposed"
        because = f"its second-to-last dimension has {right}, the size that is needed; {scene.said}"
        fix = f"transpose the first factor (.transpose(-2, -1)){scene.on_line}"
    return scene.explain(
        code="matmul-shapes",
        summary=f"{scene.at} multiplies {shown}: {left} and {right} differ",
        observed=shown
        + (f"; the model's input is {scene.input_words()}" if scene.input_words() else ""),
        cause=cause,
        because=because,
        fix=fix,
        culprits=(*scene.blame(shown), *scene.made_elsewhere(facts[:2])),
    )


@entry(r"einsum\(\): (subscript (\w) has size (\d+) for operand (\d+) which does not broadcast with previously seen size (\d+)"
       r"|the number of subscripts in the equation .*)")  # fmt: skip
def einsum(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """An einsum whose letters do not fit its operands."""
    facts = operands(scene)
    op = scene.failing_op
    equation = next(
        (text for text in (op.arguments if op else ()) if "->" in text or "," in text), ""
    )
    shapes = ", ".join(label(fact) for fact in facts)
    letter = match[2]
    return scene.explain(
        code="einsum-shapes",
        summary=f"{scene.at}: einsum {equation or ''} does not fit its operands".replace("  ", " "),
        observed=shapes or match[1],
        cause=(
            (
                f"the letter {letter} stands for {match[3]} in operand {match[4]} and for "
                f"{match[5]} before it"
            )
            if letter
            else "an operand and its subscripts have different numbers of dimensions"
        ),
        fix=f"rename the letter or transpose the operand{scene.on_line}",
        culprits=(*scene.blame(shapes), *scene.made_elsewhere(facts)),
    )


_BROADCAST = (
    r"The size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\) at non-singleton dimension (?P<dim>\d+)",
    r"The expanded size of the tensor \((?P<a>\d+)\) must match the existing size \((?P<b>\d+)\) at non-singleton dimension (?P<dim>\d+)",
    r"output with shape \[(?P<a>[\d, ]*)\] doesn't match the broadcast shape \[(?P<b>[\d, ]*)\]",
    r"shape mismatch: (?:value tensor|indexing tensors).*\[(?P<a>[\d, ]+)\].*\[(?P<b>[\d, ]+)\]",
)


@entry(*_BROADCAST)
def broadcast(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """An elementwise op whose operands cannot be broadcast."""
    facts = tuple(fact for fact in operands(scene) if fact.shape)
    a, b = numbers(match["a"]), numbers(match["b"])
    dimension = match.groupdict().get("dim")
    shapes = (
        " and ".join(label(fact) for fact in facts[:2])
        if len(facts) >= 2
        else f"sizes {match['a']} and {match['b']}"
    )
    at = f" in dimension {dimension}" if dimension else ""
    summary = f"{scene.at} cannot combine {shapes}"
    observed = f"{match['a']} against {match['b']}{at}"
    words = scene.input_words()
    observed += f"; the model's input is {words}" if words else ""
    if (found := regression_shape(scene) or weights_shape(scene)) is not None:
        return found
    if (found := _short_table(scene, facts, dimension, observed)) is not None:
        return found
    if (found := _cut_short(scene, summary, observed)) is not None:
        return found
    cause = f"the sizes differ{at}, and neither is 1"
    because = scene.said
    fix = f"make the sizes equal{scene.on_line}"
    if len(facts) >= 2 and (change := _fitting_change(facts[0].shape, facts[1].shape)) is not None:
        cause, measured, edit = change
        because = f"{measured}; {scene.said}"
        fix = f"{edit}{scene.on_line}"
    elif len(a) == len(b) == 1 and abs(a[0] - b[0]) == 1:
        cause = (
            f"one side has one element more{at}: a class or start token, or a shift by one, on "
            "one side only"
        )
        because = f"{a[0]} and {b[0]} differ by one; {scene.said}"
        fix = f"add it to both sides or drop it from the longer one{scene.on_line}"
    culprits: tuple[Culprit, ...] = scene.blame(shapes)
    stored = [
        (name, made, fact) for fact in facts[:2] for name, made in [owned(scene, fact)] if name
    ]
    culprits += tuple(Culprit("tensor", n, f"{list(fact.shape)}", at) for n, at, fact in stored)
    if len(stored) == 1 and fix.startswith("make the sizes equal"):
        name, made, _ = stored[0]
        fix = f"build {name}{on_line(made)} for the sizes that inputs have, or interpolate it{scene.on_line}"
    return scene.explain(
        code="broadcast-shapes",
        summary=summary,
        observed=observed,
        cause=cause,
        because=because,
        fix=fix,
        culprits=(*culprits, *scene.made_elsewhere(facts[:2])),
    )


def _cut_short(scene: Scene, summary: str, observed: str) -> Explanation | None:
    """Explain a slice that reaches past the end of what it cuts, such as a ring buffer that does not wrap round."""
    place, frame = scene.location, scene.frame
    if place is None or frame is None:
        return None
    cut = next(cuts(sources.statement(place.file, place.line), frame.f_locals), None)
    if cut is None:
        return None
    made = None
    if cut.variable.isidentifier() and scene.rerun is not None:
        made = line_giving(scene.rerun, frame.f_code, cut.variable)
    return scene.explain(
        code="broadcast-shapes",
        summary=summary,
        observed=observed,
        cause=f"{cut.text} reaches past the end: it is cut to {max(0, cut.length - cut.start)} of "
        f"{cut.stop - cut.start} entries",
        because=f"{cut.fact}; {scene.said}",
        fix=f"keep the indices below {cut.length}{on_line(made or place)}: start again at 0, as a ring "
        f"does (indices % {cut.length}), or store more entries",
        location=made or place,
        culprits=(*scene.blame(cut.text), *scene.meeting(made)),
    )


def _holds(scene: Scene, name: str, place: int, needs: int) -> bool:
    """Say whether a stored table has as many entries as are needed: then a slice of it is wrong, not its length."""
    owner, _, word = name.rpartition(".")
    module = dict(scene.model.named_modules()).get(owner) if scene.model is not None else None
    stored = getattr(module, word, None)
    return (
        isinstance(stored, torch.Tensor) and stored.dim() >= -place and stored.shape[place] >= needs
    )


def _short_table(
    scene: Scene, facts: tuple[Fact, ...], dimension: str | None, observed: str
) -> Explanation | None:
    """Explain a slice of a stored table that is shorter than what it is added to."""
    if len(facts) < 2 or dimension is None:
        return None
    rank = max(len(fact.shape) for fact in facts[:2])
    for table, other in ((facts[0], facts[1]), (facts[1], facts[0])):
        name, made = owned(scene, table)
        place = int(dimension) - rank
        if not name or -place > min(len(table.shape), len(other.shape)):
            continue
        has, needs = table.shape[place], other.shape[place]
        # only a table that was cut to length is meant to be longer than what it is added to
        if has >= needs or table.name == name or _holds(scene, name, place, needs):
            continue
        return scene.explain(
            code="table-too-short",
            summary=f"{name} holds {has} positions, and {needs} are needed",
            observed=observed,
            cause=f"the table {name} was built for {has} positions, and the input is {needs} long",
            because=f"a slice of {name} gave {list(table.shape)}, added to {list(other.shape)}"
            + (f"; {source}" if (source := scene.input_with_size(needs)) else ""),
            fix=f"build {name} with at least {needs} positions"
            + on_line(made)
            + ", or declare a smaller size of the input in the contract",
            culprits=(
                Culprit("tensor", name, f"{has} positions", made),
                *scene.call_culprit(),
            ),
            location=made,
        )
    return None


def _fitting_change(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[str, str, str] | None:
    """Return cause, measured fact and edit where one change makes two shapes fit."""
    short, long, which = (a, b, "first") if len(a) < len(b) else (b, a, "second")
    if len(short) < len(long) and short and short == long[: len(short)]:
        blanks = "[" + ", ".join([":"] * len(short) + ["None"] * (len(long) - len(short))) + "]"
        return (
            (
                f"the {which} operand lacks its last "
                f"dimension{'s' if len(long) - len(short) > 1 else ''}"
            ),
            (
                f"{list(short)} are the first sizes of {list(long)}, and broadcasting aligns "
                "the last ones"
            ),
            f"write {blanks} after the {which} operand",
        )
    if len(a) == len(b) and len(a) > 1 and a != b and sorted(a) == sorted(b):
        swapped = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if len(swapped) == 2:
            return (
                "likely two dimensions of one operand are swapped",
                f"{list(a)} and {list(b)} hold the same sizes in another order",
                f"call .transpose({swapped[0]}, {swapped[1]}) on one of them",
            )
    return None


@entry(
    r"Sizes of tensors must match except in dimension (-?\d+)\. Expected size (\d+) but got size (\d+) for tensor number (\d+)",
    r"Tensors must have same number of dimensions: got (\d+) and (\d+)()()",
    r"stack expects each tensor to be equal size, but got (\[[\d, ]*\]) at entry (\d+) and (\[[\d, ]*\]) at entry (\d+)",
)
def concatenation(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Cat or stack of tensors whose other sizes differ."""
    facts = operands(scene)
    stack = match[0].startswith("stack")
    lost: Dropped | None = None
    word = "stack" if stack else "cat"
    shapes = [label(fact) for fact in facts]
    shown = listed(shapes, 4) if shapes else match[0]
    if stack:
        cause = f"entry {match[4]} has shape {match[3]}, entry {match[2]} has {match[1]}"
        fix = f"pad or crop the tensors to the same shape{scene.on_line}"
    elif not match[3]:
        least = min(int(match[1]), int(match[2]))
        cause = "the tensors have different numbers of dimensions"
        fix = f"unsqueeze the one with {least} dimensions{scene.on_line}"
        lost = next((d for f in facts if len(f.shape) == least and (d := dropped(scene, f))), None)
        if lost is not None:
            cause += f": {lost.words}"
            fix = lost.fix if lost.batch else fix
    else:
        cause = (
            f"tensor {match[4]} has {match[3]} where the first one has {match[2]}, outside "
            f"dimension {match[1]}"
        )
        fix = f"crop, pad or interpolate tensor {match[4]} to the size of the first{scene.on_line}"
        first = {fact.shape[0] for fact in facts if fact.shape}
        samples = _of_samples(scene, *first) if len(first) == 2 else None
        if samples is not None:
            cause, fix = samples
        elif len({fact.shape for fact in facts}) == 2 and abs(int(match[2]) - int(match[3])) == 1:
            cause += (
                "; a difference of one often comes from an odd size that was halved and "
                "doubled again"
            )
    return scene.explain(
        code=f"{word}-sizes",
        summary=f"{scene.at}: {word} of tensors that do not fit: {shown}",
        observed=shown
        + (f"; the model's input is {scene.input_words()}" if scene.input_words() else ""),
        cause=cause,
        fix=fix,
        culprits=_each_line(
            *scene.blame(shown),
            *((lost.culprit,) if lost is not None else ()),
            *scene.made_elsewhere(facts),
        ),
    )


def _of_samples(scene: Scene, one: int, other: int) -> tuple[str, str] | None:
    """Return cause and fix where the batch's size meets a number of samples that the line spells out."""
    size = scene.batch_size()
    found = spelled(scene.error, one if other == size else other)
    if size is None or size not in (one, other) or found is None or scene.frame is None:
        return None
    place, word = found
    names = [
        name
        for name in dict.fromkeys(re.findall(r"(?<![\w.])[a-zA-Z_]\w*", place.text))
        if isinstance(value := scene.frame.f_locals.get(name), torch.Tensor)
        if value.dim() and len(value) == size
    ]
    wanted = f"len({names[0]})" if names else "the size of the batch"
    cause = f"{word} samples are written on line {place.line}, and the batch has {size}"
    return cause, f"write {wanted} instead of {word} on line {place.line}"


def _each_line(*culprits: Culprit) -> tuple[Culprit, ...]:
    """Return culprits without a second one of a line."""
    return tuple({c.location or c.name: c for c in reversed(culprits)}.values())[::-1]


@entry(
    r"both arguments to matmul need to be at least 1D",
    r"batch[12] must be a 3D tensor",
    r"(?:self|mat\d?|vec|tensor) must be a (?:matrix|vector)",
)
def product_rank(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A product of tensors with the wrong number of dimensions."""
    facts = operands(scene)
    shown: Any = " by ".join(label(fact) for fact in facts[:2]) or "its factors"
    lost = next((d for fact in facts if (d := dropped(scene, fact)) is not None), None)
    return scene.explain(
        code="matmul-shapes",
        summary=f"{scene.at} multiplies {shown}: the number of dimensions is wrong",
        observed=str(shown),
        cause="bmm needs three dimensions, mm two, matmul at least one"
        + (f"; {lost.words}" if lost is not None else ""),
        fix=lost.fix
        if lost is not None and lost.batch
        else f"use matmul (@), which broadcasts the dimensions before the last two{scene.on_line}",
        culprits=_each_line(*scene.blame(), *((lost.culprit,) if lost is not None else ())),
    )

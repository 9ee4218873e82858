"""Relations between Jacobians of which a part is right: some outputs, some entries, all but one factor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...objects.trees import place_of
from .jacobians import Block, as_real
from .relation import Relation, Shapes, factor_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def one_output(block: Block, shapes: Shapes) -> Relation | None:
    """Some outputs are right and others ignored or wrong."""
    if len(shapes.outputs) < 2:
        return None
    wrong = [i for i, (s, e) in block.rows.items() if bool(block.wrong[s:e].any())]
    if len(wrong) == len(block.rows):
        return None
    start, end = block.rows[wrong[0]]
    part = Block(
        index=block.index,
        analytical=block.analytical[start:end],
        numerical=block.numerical[start:end],
        noise=block.noise,
        missing=False,
        rows={wrong[0]: (0, end - start)},
        rtol=block.rtol,
    )
    if float(part.numerical.abs().max()) <= part.noise:
        return _unmarked(shapes, wrong[0])
    ignored = not bool(part.analytical.any())
    factor = None if ignored else factor_of(part, part.analytical)
    how = (
        "is ignored"
        if ignored
        else "is used wrongly"
        if factor is None
        else f"counts {factor:.4g} times"
    )
    return Relation(
        code="gradcheck-output",
        symptom=f"a gradient of {shapes.name} in which output {wrong[0]} {how}",
        cause=f"the upstream gradient of output {wrong[0]} {how}",
        because=f"the rows of output {wrong[0]} differ, those of the other "
        f"{'outputs' if len(block.rows) - len(wrong) > 1 else 'output'} agree",
        fix=f"add the part of output {wrong[0]} to the gradient of {shapes.name}, or ctx.mark_non_differentiable it",
        evidence={"outputs": list(wrong), "factor": factor},
    )


def _unmarked(shapes: Shapes, output: int) -> Relation:
    return Relation(
        code="gradcheck-output",
        symptom=f"a gradient of {shapes.name} through output {output}, which is not differentiable",
        cause=f"output {output} is not marked non-differentiable, and backward passes its upstream gradient on",
        because=f"forward's output {output} is constant around {shapes.name}, yet its upstream "
        f"gradient reaches {shapes.name}; the other rows agree",
        fix=f"ctx.mark_non_differentiable output {output} in forward, and leave its gradient out in backward",
        evidence={"outputs": [output]},
    )


def upstream_ignored(block: Block, shapes: Shapes) -> Relation | None:
    """The same gradient comes back for every upstream gradient."""
    rows = block.analytical
    if rows.shape[0] < 2 or not block.close(rows, rows[:1].expand_as(rows)):
        return None
    return Relation(
        code="gradcheck-upstream-ignored",
        symptom=f"a gradient of {shapes.name} that ignores the upstream gradient",
        cause="backward does not multiply by grad_output",
        because=f"the same gradient came back for each of {rows.shape[0]} different upstream gradients",
        fix="multiply by the upstream gradient (the chain rule)",
    )


def unread_slice(block: Block, shapes: Shapes) -> str | None:
    """Name the slice of an upstream gradient that gives an input nothing, where forward's output depends on it."""
    for output, (start, end) in block.rows.items():
        value = shapes.outputs[output]
        if value.is_complex() or value.dim() == 0:
            continue
        came, due = (
            jacobian[start:end].abs().amax(1).view(value.shape)
            for jacobian in (block.analytical, block.numerical)
        )
        for dim in range(value.dim()):
            rest = [other for other in range(value.dim()) if other != dim]
            idle = came.amax(rest) == 0 if rest else came == 0
            lacking = idle & ((due.amax(rest) if rest else due) > block.noise)
            if bool(lacking.any()) and not bool(idle.all()):
                at = ", ".join([*":" * dim, str(int(lacking.nonzero()[0]))])
                return f"{shapes.upstream.get(output, 'grad_output')}[{at}]"
    return None


def identity(block: Block, shapes: Shapes) -> Relation | None:
    """The direct path (a residual) is missing."""
    rest = block.numerical - block.analytical
    if rest.shape[0] != rest.shape[1] or rest.shape[0] < 2:
        return None
    factor = float(rest.diagonal().mean())
    if abs(factor) <= 1e-3 or not block.close(
        factor * torch.eye(len(rest), dtype=torch.float64), rest
    ):
        return None
    return Relation(
        code="gradcheck-term",
        symptom=f"a gradient of {shapes.name} without its direct path",
        cause=f"the term {factor:.4g} * grad_output is missing",
        because="numerical - analytical is that multiple of the identity at all entries",
        fix=f"add {factor:.4g} * grad_output to the gradient of {shapes.name}",
        evidence={"factor": factor},
    )


def elementwise(block: Block, shapes: Shapes) -> Relation | None:
    """A factor that is one of the tensors at hand: the wrong one, or one left out."""
    for scale, along in ((True, 1), (False, 0)):
        size = block.analytical.shape[along]
        for name, tensor in shapes.others.items():
            flat = as_real(tensor)
            if (
                tensor.is_complex()
                or flat.numel() != size
                or bool((flat - flat[0]).abs().max() < 1e-9)
            ):
                continue
            weight = flat[None, :] if scale else flat[:, None]
            if block.close(block.analytical * weight):
                return _factor_missing(name, shapes, "is missing", f"multiply by {name}")
            if bool((flat != 0).all()) and block.close(block.analytical / weight):
                return _factor_missing(
                    name, shapes, "is there but does not belong", f"leave out the factor {name}"
                )
    return None


def _factor_missing(name: str, shapes: Shapes, verb: str, fix: str) -> Relation:
    return Relation(
        code="gradcheck-factor",
        symptom=f"a gradient of {shapes.name} in which the factor {name} {verb}",
        cause=f"the factor {name} {verb}",
        because=f"with {'' if 'missing' in verb else '1 / '}{name} multiplied in, all entries agree",
        fix=f"{fix} in the gradient of {shapes.name}",
        evidence={"tensor": name},
    )


def masked(block: Block, shapes: Shapes) -> Relation | None:
    """Where both are not zero they agree: a mask is wrong or missing."""
    there = block.analytical.abs() > block.noise
    due = block.numerical.abs() > block.noise
    if not bool((there & due).any()) or bool((block.wrong & there & due).any()):
        return None
    extra, lacking = int((block.wrong & there).sum()), int((block.wrong & due).sum())
    if extra and lacking:
        return None
    if bool((due.sum(1) > 1).any()):
        return None if extra else _cross_terms(shapes, lacking)
    columns = [int(i) for i in block.wrong.any(0).nonzero().flatten()]
    if lacking and (repeated := _repeated(columns, shapes)) is not None:
        return _overwritten(shapes, *repeated)
    if lacking and not _by_value(columns, due.any(0), shapes):
        return None  # cut by place, not by value: no mask of forward's
    values = as_real(shapes.input)[columns]
    span = f"{float(values.min()):.4g} to {float(values.max()):.4g}"
    if extra:
        how, fix = "passes where forward is constant", "set it to zero there"
    else:
        how, fix = "is cut where forward still varies", "let it through there"
    return Relation(
        code="gradcheck-mask",
        symptom=f"a gradient of {shapes.name} that {how}",
        cause=f"the mask of the gradient is wrong: it {how}, {_pattern(columns, shapes.input)} "
        f"({shapes.name} from {span})",
        because=f"{int((there & due).sum())} entries that are not 0 in either agree; "
        f"{extra or lacking} are 0 in only one",
        fix=f"multiply by the mask that forward applies to {shapes.name}: {fix}",
        evidence={"entries": columns[:16], "extra": extra, "lacking": lacking},
    )


def _by_value(columns: Sequence[int], due: Tensor, shapes: Shapes) -> bool:
    """Say whether a mask could tell these entries from the others: by a bound on the values, or by another tensor."""
    size = shapes.input.numel()
    made = [id(out) for out in shapes.outputs.values()]
    given = [t for t in (*shapes.others.values(), *shapes.indices.values()) if id(t) not in made]
    if any(t.numel() == size for t in given if t is not shapes.input):
        return True
    if len(columns) == 1 < size and columns[0] in (0, size - 1):
        return False
    values = as_real(shapes.input)
    cut = values[list(columns)]
    rest = due.clone()
    rest[list(columns)] = False
    kept = values[rest]
    low, high = float(cut.min()), float(cut.max())
    below, inside, above = kept < low, (kept >= low) & (kept <= high), kept > high
    if bool(inside.any()):
        return False
    return len(columns) > 1 or not (bool(below.any()) and bool(above.any()))


def _repeated(columns: Sequence[int], shapes: Shapes) -> tuple[str, list[int]] | None:
    """Return the index argument in which every row that went wrong occurs more than once."""
    tensor = shapes.input
    if tensor.dim() == 0 or tensor.is_complex():
        return None
    rows = {c // max(math.prod(tensor.shape[1:]), 1) for c in columns}
    for name, index in shapes.indices.items():
        values, counts = index.flatten().unique(return_counts=True)
        if rows and rows <= {int(v) for v in values[counts > 1]}:
            return name, sorted(rows)
    return None


def _overwritten(shapes: Shapes, name: str, rows: Sequence[int]) -> Relation:
    return Relation(
        code="gradcheck-accumulate",
        symptom=f"a gradient of {shapes.name} that keeps only one of several contributions",
        cause=f"{name} holds the same index more than once, and backward overwrites instead of adding",
        because=f"of {shapes.name}, just the rows that {name} repeats are wrong: {', '.join(map(str, rows[:6]))}",
        fix="use index_add_, scatter_add_ or index_put_(accumulate=True)",
        evidence={"index": name, "rows": list(rows[:16])},
    )


def _cross_terms(shapes: Shapes, lacking: int) -> Relation:
    return Relation(
        code="gradcheck-cross-terms",
        symptom=f"a gradient of {shapes.name} without its cross terms",
        cause=f"each output depends on several entries of {shapes.name}, and backward treats some of them as constant",
        because=f"{lacking} entries are 0 that should not be; all others agree",
        fix=f"add the terms by which other entries of {shapes.name} enter (a mean, a norm, a sum in forward)",
        evidence={"lacking": lacking},
    )


def few(block: Block, shapes: Shapes) -> Relation | None:
    """Few entries are wrong: say which."""
    wrong = block.wrong
    count, total = int(wrong.sum()), wrong.numel()
    touched = (block.numerical.abs() > block.noise) | (block.analytical.abs() > block.noise)
    if count > 0.5 * max(int(touched.sum()), 1):
        return None
    columns = [int(i) for i in wrong.any(0).nonzero().flatten()]
    where = _pattern(columns, shapes.input)
    return Relation(
        code="gradcheck-entries",
        symptom=f"a gradient of {shapes.name} that is wrong at {count} of {total} entries",
        cause=f"the formula fails at some entries only: {where}",
        because=f"the other {total - count} entries agree",
        fix=f"treat these entries of {shapes.name} in backward as forward does: boundaries, padding, masks, ties",
        evidence={"entries": columns[:16], "count": count},
    )


def _pattern(columns: Sequence[int], tensor: Tensor) -> str:
    entries = columns if not tensor.is_complex() else sorted({c // 2 for c in columns})
    places = [place_of(entry, tensor.shape) for entry in entries]
    if len(places) == 1:
        return f"entry {list(places[0])}"
    for axis in range(tensor.dim()):
        indices = {place[axis] for place in places}
        if len(indices) == 1 and tensor.shape[axis] > 1:
            index = next(iter(indices))
            last = " (the last)" if index == tensor.shape[axis] - 1 else ""
            return f"all of them at index {index}{last} of axis {axis}"
    return f"entries {', '.join(str(list(place)) for place in places[:4])}" + (
        " ..." if len(places) > 4 else ""
    )

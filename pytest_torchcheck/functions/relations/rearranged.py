"""Relations between Jacobians whose entries stand in the wrong places: transposes, shifts, sums over the wrong axis."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from .relation import Relation, Shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from .jacobians import Block


def transposed(block: Block, shapes: Shapes) -> Relation | None:
    """Axes exchanged, reversed, or shifted."""
    shape = shapes.input.shape
    if shape.numel() < 2 or not 1 <= len(shape) <= 4 or shapes.input.is_complex():
        return None
    out = block.analytical.shape[0]
    for label, candidate in _rearrangements(block.analytical, out, tuple(shape)):
        if block.close(candidate):
            transposed = label.startswith("axes")
            return Relation(
                code="gradcheck-transpose" if transposed else "gradcheck-shifted",
                symptom=f"the gradient of {shapes.name} {'transposed' if transposed else 'in the wrong order'}",
                cause=f"its entries stand in the wrong places: {label}",
                because=f"with {label} undone all {block.analytical.numel()} entries agree",
                fix=f"rearrange the gradient of {shapes.name} into the input's own order",
            )
    return None


def _rearrangements(
    matrix: Tensor, out: int, shape: tuple[int, ...]
) -> Iterator[tuple[str, Tensor]]:
    dims = range(len(shape))
    whole = matrix.view(out, *shape)
    for order in itertools.permutations(dims):
        if order == tuple(dims):
            continue
        back = [0, *(1 + order.index(d) for d in dims)]
        moved = [shape[d] for d in order]
        names = f"axes {tuple(dims)} read as {order}"
        if tuple(moved) == shape:
            yield names, whole.permute(0, *(1 + d for d in order)).reshape(out, -1)
        yield names, matrix.reshape(out, *moved).permute(back).reshape(out, -1)
    for axis in dims:
        if shape[axis] > 1:
            yield f"axis {axis} reversed", whole.flip(1 + axis).reshape(out, -1)
        if shape[axis] > 2:
            for by in range(1, min(shape[axis], 9)):
                yield f"axis {axis} shifted by {-by}", whole.roll(by, 1 + axis).reshape(out, -1)


def adjoint(block: Block, shapes: Shapes) -> Relation | None:
    """Backward applies forward's own linear map, or a transposed factor, instead of the adjoint."""
    out, size = block.analytical.shape
    if shapes.input.is_complex() or out < 2:
        return None
    if out == size and block.close(block.analytical.T):
        return Relation(
            code="gradcheck-transpose",
            symptom=f"the gradient of {shapes.name} with the Jacobian not transposed",
            cause="backward applies forward's own linear map where its transpose is due",
            because=f"the transposed analytical Jacobian equals the numerical one at all {out * size} entries",
            fix="apply the adjoint: transpose the matrix, flip the kernel or the scan, roll the other way",
        )
    if len(shapes.outputs) != 1:
        return None
    result = next(iter(shapes.outputs.values()))
    if result.is_complex() or not (2 <= result.dim() <= 3 and 2 <= shapes.input.dim() <= 3):
        return None
    whole = block.analytical.view(*result.shape, *shapes.input.shape)
    for rows in itertools.permutations(range(result.dim())):
        for columns in itertools.permutations(range(shapes.input.dim())):
            order = [*rows, *(result.dim() + c for c in columns)]
            turned = whole.permute(order)
            if order == sorted(order) or turned.shape != whole.shape:
                continue
            if block.close(turned.reshape(out, size)):
                return Relation(
                    code="gradcheck-transpose",
                    symptom=f"the gradient of {shapes.name} with a factor transposed",
                    cause="a matrix in the formula is used where its transpose is due",
                    because=f"with the axes of upstream and gradient reordered all {out * size} entries agree",
                    fix=f"transpose the factors of the gradient of {shapes.name} (.transpose(-1, -2))",
                )
    return None


def centred(block: Block, shapes: Shapes) -> Relation | None:
    """Forward subtracts a mean that backward takes for a constant."""
    out = block.analytical.shape[0]
    if shapes.input.is_complex() or not 1 <= shapes.input.dim() <= 4:
        return None
    whole = block.analytical.view(out, *shapes.input.shape)
    for axis in range(shapes.input.dim()):
        if shapes.input.shape[axis] < 2:
            continue
        centred = whole - whole.mean(1 + axis, keepdim=True)
        if block.close(centred.reshape(out, -1)):
            return Relation(
                code="gradcheck-cross-terms",
                symptom=f"a gradient of {shapes.name} without the mean's part",
                cause=f"forward subtracts the mean over axis {axis} of {shapes.name}, and "
                "backward treats that mean as constant",
                because=f"with its mean over axis {axis} subtracted all {block.analytical.numel()} entries agree",
                fix=f"subtract the mean over axis {axis} from the gradient of {shapes.name} too",
                evidence={"axis": axis},
            )
    return None


def broadcast(block: Block, shapes: Shapes) -> Relation | None:
    """A sum over the axes along which the input was repeated: left out, or over the wrong axis."""
    shape = tuple(shapes.input.shape)
    if shapes.input.is_complex():
        return None
    for position, out in shapes.outputs.items():
        start, end = block.rows[position]
        found, right = block.analytical[start:end], block.numerical[start:end]
        if out.is_complex() or out.dim() == 0 or not bool(block.wrong[start:end].any()):
            continue
        aligned = (1,) * (out.dim() - len(shape)) + shape
        repeated = [d for d in range(out.dim()) if len(aligned) != out.dim() or aligned[d] == 1]
        whole = found.view(*out.shape, -1)
        target = right.view(*out.shape, -1)
        for axis in (d for d in repeated if out.shape[d] > 1):
            kept = [k for k in range(out.shape[axis]) if bool(whole.select(axis, k).any())]
            wanted = [k for k in range(out.shape[axis]) if bool(target.select(axis, k).any())]
            if (
                0 < len(kept) < len(wanted)
                and len(kept) <= max(1, len(wanted) // 2)
                and block.close(whole.select(axis, kept[0]), target.select(axis, kept[0]))
            ):
                return Relation(
                    code="gradcheck-broadcast",
                    symptom=f"the gradient of {shapes.name} without its sum over axis {axis}",
                    cause=f"{shapes.name} {list(shape)} is repeated along axis {axis} of the output {list(out.shape)}, "
                    "so its gradient is a sum along that axis",
                    because=f"only index {kept[0]} of {out.shape[axis]} along that axis "
                    "contributes, and that one agrees",
                    fix=f"sum the gradient of {shapes.name} over axis {axis}",
                    evidence={"axis": axis},
                )
        for order in itertools.permutations(range(out.dim())):
            if order == tuple(range(out.dim())) or out.dim() > 4:
                continue
            if tuple(out.shape[d] for d in order) != tuple(out.shape):
                continue
            if block.close(whole.permute(*order, out.dim()).reshape(found.shape), right):
                wrong = [d for d in range(out.dim()) if order[d] != d]
                return Relation(
                    code="gradcheck-broadcast",
                    symptom=f"the gradient of {shapes.name} reduced over the wrong axis",
                    cause=f"axes {wrong} of the upstream gradient are mixed up when it is reduced to {list(shape)}",
                    because=f"with axes {wrong} of the upstream gradient exchanged all {found.numel()} entries agree",
                    fix=f"reduce the gradient of {shapes.name} over the axes along which it is repeated",
                    evidence={"axes": list(wrong)},
                )
    return None

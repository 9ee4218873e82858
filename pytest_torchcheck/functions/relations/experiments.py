"""Experiments that explain a wrong gradient: change one thing in a run and see whether it comes right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..lines import storage_of
from .jacobians import Block, analytical, as_real
from .relation import Relation, Shapes

if TYPE_CHECKING:
    from ..calls import Call, Run
    from ..target import Target

_MOST = 40


def stale_needs(target: Target, call: Call, block: Block, shapes: Shapes) -> Relation | None:
    """See whether the gradient comes right when only this input requires one."""
    if len(call.wanted) < 2:
        return None
    try:
        matrix, _ = analytical(call.run(requires=[block.index]), target.chosen)
    except Exception:  # the experiment may fail in any way; then it explains nothing
        return None
    if not block.close(matrix[block.index]):
        return None
    return Relation(
        code="needs-input-grad",
        symptom=f"a gradient of {shapes.name} that depends on which inputs require one",
        cause="ctx.needs_input_grad is read at the wrong index, or at the wrong time",
        because=f"with only {shapes.name} requiring a gradient all {block.analytical.numel()} "
        "entries agree; with all inputs requiring one they do not",
        fix="index ctx.needs_input_grad by the argument's own position, inside backward",
        where="needs",
    )


def affine(target: Target, call: Call, block: Block, shapes: Shapes) -> Relation | None:
    """See whether the gradient comes right without the part that does not depend on the upstream gradient."""
    run = call.run()
    found = run.grads({i: torch.zeros_like(run.outputs[i]) for i in target.chosen})[block.index]
    if found is None or not bool(found.any()) or not bool(as_real(found).isfinite().all()):
        return None
    if not block.close(block.analytical - as_real(found)):
        return None
    return Relation(
        code="upstream-zero",
        symptom=f"a gradient of {shapes.name} that is not zero for a zero upstream gradient",
        cause="a term of the gradient is not multiplied by grad_output",
        because=f"an upstream of 0 gives entries up to {float(as_real(found).abs().max()):.3g}; "
        "without them all entries agree",
        fix=f"multiply every term of the gradient of {shapes.name} by the upstream gradient of its output",
    )


def wrong_saved(target: Target, call: Call, block: Block, shapes: Shapes) -> Relation | None:
    """Put another tensor of the call in the place of each saved one, and see whether the gradient comes right."""
    if target.function is None or block.analytical.numel() > 40_000:
        return None
    slots = _slots(call)
    tried = 0
    for slot, (label, saved) in slots.items():
        for name, candidate in shapes.others.items():
            if candidate.shape != saved.shape or candidate.dtype != saved.dtype:
                continue
            if bool(torch.equal(candidate, saved)):
                continue
            tried += 1
            if tried > _MOST:
                return None
            if _comes_right(target, call, block, slot, candidate):
                return _saved_relation(label, _known_as(saved, shapes), name, slot, block, shapes)
    return None


def _comes_right(
    target: Target, call: Call, block: Block, slot: int | str, candidate: Tensor
) -> bool:
    """See whether the gradient is right with one saved tensor replaced: along one direction, then everywhere."""
    try:
        run = _substituted(call, slot, candidate)
        upstream = target.upstream(run)
        grad = run.grads(upstream)[block.index]
        if grad is None:
            return False
        right = torch.cat([as_real(upstream[i]) for i in target.chosen]) @ block.numerical
        if not bool(
            torch.allclose(as_real(grad), right, rtol=1e-2, atol=1e-3 * float(right.abs().max()))
        ):
            return False
        matrix, _ = analytical(_substituted(call, slot, candidate), target.chosen)
    except Exception:  # a tensor in the wrong place may raise anything
        return False
    return block.close(matrix[block.index])


def _saved_relation(
    label: str, actual: str, name: str, slot: Any, block: Block, shapes: Shapes
) -> Relation:
    what = f"{label} ({actual})" if actual else label
    return Relation(
        code="gradcheck-saved",
        symptom=f"a gradient of {shapes.name} computed from the wrong tensor",
        cause=f"{what} is used where {name} is needed",
        because=f"with {name} in the place of {label} all {block.analytical.numel()} entries agree",
        fix=f"save {name} instead, or write the formula in terms of {actual or 'what is saved'}",
        evidence={"slot": str(slot), "instead": name},
        where="save",
    )


def _known_as(saved: Tensor, shapes: Shapes) -> str:
    for name, tensor in shapes.others.items():
        if tensor.shape == saved.shape and bool(torch.equal(tensor.to(saved.dtype), saved)):
            return name
    return ""


def _slots(call: Call) -> dict[int | str, tuple[str, Tensor]]:
    """Return what the Function saved: by position, or by attribute of ctx."""
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.detach().clone())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        run = call.run()
    found: dict[int | str, tuple[str, Tensor]] = {
        i: (f"saved tensor {i}", tensor) for i, tensor in enumerate(packed)
    }
    for name, tensor in held_tensors(run).items():
        found[name] = (f"ctx.{name}", tensor.detach().clone())
    return found


def _substituted(call: Call, slot: int | str, candidate: Tensor) -> Run:
    if isinstance(slot, str):
        run = call.run()
        for node in run.nodes():
            if slot in vars(node):
                setattr(node, slot, candidate)
        return run
    order: list[int] = []

    def pack(tensor: Tensor) -> tuple[int, Tensor]:
        order.append(0)
        return len(order) - 1, tensor

    def unpack(packed: tuple[int, Tensor]) -> Tensor:
        position, tensor = packed
        return candidate if position == slot else tensor

    with saved_tensors_hooks(pack, unpack):
        return call.run()


def held_tensors(run: Run) -> dict[str, Tensor]:
    """Return the tensors that are kept as attributes of ctx, by attribute name."""
    return {
        name: value
        for node in run.nodes()
        for name, value in vars(node).items()
        if isinstance(value, Tensor)
    }


def saved_tensors(run: Run, function: type | None = None) -> list[Tensor | None]:
    """Return what was given to ``save_for_backward``, of one Function or of all; None where it was None.

    Args:
        run: Whose graph.
        function: The Function whose first call counts; all of all by default.
    """
    nodes = run.nodes()
    if function is not None:
        nodes = [n for n in nodes if getattr(type(n), "_forward_cls", None) is function][:1]
    found: list[Tensor | None] = []
    for node in nodes:
        try:
            found += getattr(node, "saved_tensors", ())
        except RuntimeError:  # freed, or changed since
            continue
    return found


def aliases(tensor: Tensor, other: Tensor) -> bool:
    """Say whether two tensors share memory."""
    here = storage_of(tensor)
    return here != 0 and here == storage_of(other)

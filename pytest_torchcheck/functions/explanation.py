"""Wrong Jacobians become findings: one per cause, with the entry, the relation and the line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..findings import Culprit, Location
from ..objects.trees import place_of
from .arguments import resized
from .lines import computing_lines, gradient_line, line_with
from .relations.experiments import affine, stale_needs, wrong_saved
from .relations.jacobians import Block, as_real, numerical, real_size
from .relations.jumps import nearly, stepwise
from .relations.relation import Relation, Shapes
from .relations.search import find_relation, follows_size
from .target import MEANT, keeps_nothing, only_passes_on

if TYPE_CHECKING:
    from ..findings import Finding
    from .calls import Call, Run
    from .target import Target

Experiment = Callable[[Block, Shapes], Relation | None]


def shapes_of(target: Target, call: Call, run: Run, index: int) -> Shapes:
    """Return what the relations need to know of one input."""
    outputs = {i: run.outputs[i].detach() for i in target.chosen}
    others = {
        target.input_name(i): value
        for i, value in enumerate(call.values)
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
    }
    for i, out in outputs.items():
        others["the output" if len(outputs) == 1 else f"output {i}"] = out
    indices = {
        target.input_name(i): value
        for i, value in enumerate(call.values)
        if isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)
    }
    return Shapes(
        name=target.input_name(index),
        input=call.values[index],
        outputs=outputs,
        others=others,
        indices=indices,
        upstream=_upstream_names(target, run),
    )


def _upstream_names(target: Target, run: Run) -> dict[int, str]:
    """Return what backward calls the upstream gradient of each output that the Function itself returns."""
    function = target.function
    backward = getattr(function, "backward", None)
    if function is None or not callable(backward):
        return {}
    taken = [
        name
        for name, one in inspect.signature(backward).parameters.items()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ][1:]
    made = f"{function.__name__}Backward"
    return {
        i: taken[i]
        for i in target.chosen
        if i < len(taken) and type(run.outputs[i].grad_fn).__name__ == made
    }


def others_of(target: Target, call: Call, index: int) -> list[tuple[str, int]]:
    """Return the other inputs that gradients are checked of, with their names."""
    return [(target.input_name(other), other) for other in call.wanted if other != index]


def explained(
    target: Target,
    call: Call,
    run: Run,
    wrong: Sequence[Block],
    blocks: Sequence[Block],
    *,
    explain: bool,
) -> list[Finding]:
    """Turn wrong Jacobians into findings, one per cause."""
    found: list[tuple[Block, Relation]] = []
    for block in wrong:
        if any(_mutual(relation, target, block) for _, relation in found):
            continue
        peers = [(target.input_name(b.index), b) for b in blocks if b.index != block.index]
        experiments = [] if target.surrogate else _experiments(target, call, explain=explain)
        shapes = shapes_of(target, call, run, block.index)
        relation = find_relation(block, shapes, peers, experiments)
        if relation.code == "gradcheck-scale" and target.surrogate is None:
            relation = _sized(target, call, block, relation, shapes)
        found.append((block, relation))
    merged: dict[tuple[Any, ...], list[tuple[Block, Relation]]] = {}
    for block, relation in found:
        key = _cause_key(target, relation, block)
        merged.setdefault(key, []).append((block, relation))
    named = {target.input_name(b.index): b for b in blocks}
    return [_finding(target, call, group, named) for group in merged.values()]


def _sized(
    target: Target, call: Call, block: Block, relation: Relation, shapes: Shapes
) -> Relation:
    """See whether a wrong factor is a size: change that size, and see whether the factor follows."""
    factor = relation.evidence.get("factor")
    if not isinstance(factor, float) or factor <= 0:
        return relation
    size = round(max(factor, 1 / factor))
    if size < 2 or abs(max(factor, 1 / factor) - size) > 1e-3:
        return relation
    try:
        there = _ratio_at(target, resized(call, size, size - 1), block.index)
    except Exception:  # another size may not fit: then nothing is known of it
        return relation
    return follows_size(relation, shapes, size, size - 1, there) or relation


def _ratio_at(target: Target, call: Call, index: int) -> float:
    """Return analytical / numerical of a few entries of one input, for one random upstream gradient."""
    run = call.run()
    upstream = target.upstream(run)
    grad = run.grads(upstream)[index]
    columns = range(min(8, real_size(call.values[index])))
    v = torch.cat([as_real(upstream[i]) for i in target.chosen])
    right = v @ numerical(call, index, target.chosen, step=target.step, columns=columns)
    found = torch.zeros_like(right) if grad is None else as_real(grad)[: len(columns)]
    return float(found @ right) / float(right @ right)


def _mutual(relation: Relation, target: Target, block: Block) -> bool:
    return bool(relation.evidence.get("mutual")) and relation.evidence.get(
        "with"
    ) == target.input_name(block.index)


def _cause_key(target: Target, relation: Relation, block: Block) -> tuple[Any, ...]:
    """What makes two wrong gradients one cause: the same tensor in the wrong place, or the same line and relation."""
    if relation.code == "gradcheck-saved":
        return (relation.code, relation.evidence.get("slot"), relation.evidence.get("instead"))
    if relation.code in ("gradcheck-scale", "gradcheck-sign", "gradcheck-mismatch"):
        place = gradient_line(target.function, target.position(block.index))
        factor = relation.evidence.get("factor")
        line = None if place is None else place.line
        return (relation.code, line, round(factor, 6) if isinstance(factor, float) else None)
    return (relation.code, block.index)


def _experiments(target: Target, call: Call, *, explain: bool) -> list[Experiment]:
    """Return the searches that run the Function again; the first decides what a mismatch means."""
    more = (stale_needs, affine, wrong_saved) if explain else ()
    return [
        lambda block, shapes: stepwise(
            call,
            block.index,
            shapes.name,
            target.chosen,
            others_of(target, call, block.index),
            alike=nearly(block.analytical, block.numerical),
            wide=lambda: nearly(
                block.analytical, numerical(call, block.index, target.chosen, step=1e-2)
            ),
        ),
        *(lambda block, shapes, run=run: run(target, call, block, shapes) for run in more),
    ]


def _finding(
    target: Target, call: Call, group: Sequence[tuple[Block, Relation]], named: Mapping[str, Block]
) -> Finding:
    block, relation = group[0]
    names = [target.input_name(b.index) for b, _ in group]
    worst = int((block.error - block.tolerance).argmax())
    row, column = divmod(worst, block.error.shape[1])
    a, n = float(block.analytical[row, column]), float(block.numerical[row, column])
    count, total = int(block.wrong.sum()), block.wrong.numel()
    entry = entry_name(call.values[block.index], column)
    symptom = relation.symptom
    if len(names) > 1:
        symptom = symptom.replace(f" of {names[0]}", f" of {' and of '.join(names)}")
    concerned = {b.index for b, _ in group}
    if relation.evidence.get("mutual"):  # the other half of an exchange is told with this one
        concerned.add(named[str(relation.evidence["with"])].index)
    # what nobody in the model wants may be sloppy
    unasked = concerned.isdisjoint(call.asked)
    meant = _is_meant(target, call, relation, block)
    made = target.finding(
        "suspicious" if unasked or meant else "violated",
        relation.code,
        f"{target.backward} returns {symptom}",
        location=_place_of(target, block, relation),
        inputs={
            b.index: f"{int(b.wrong.sum())} of {b.wrong.numel()} entries differ" for b, _ in group
        },
        observed=f"d output{_output_of(block, row, target)} / d {names[0]}{entry}: analytical "
        f"{a:.6g}, numerical {n:.6g}; {count} of {total} entries differ "
        f"({str(target.dtype).removeprefix('torch.')}, step {target.step:g}, rtol {target.rtol:g})",
        cause=_meaning(relation) if meant else relation.cause,
        because=relation.because,
        fix=_fix_of(relation, meant),
        evidence={
            **relation.evidence,
            "input": names[0],
            "entry": entry,
            "analytical": a,
            "numerical": n,
            "wrong_entries": count,
            "entries": total,
        },
    )
    if relation.where != "gradient":
        return made
    # what is returned may be wrong in any of the lines that compute it
    parts = [
        Culprit("call", target.backward, "computes a part of it", line)
        for line in computing_lines(target.function, target.position(block.index))
    ]
    made = made.replace(culprits=(*made.culprits, *parts))
    lines = sorted(part.location.line for part in parts if part.location is not None)
    if relation.code == "gradcheck-mismatch" and lines:
        told = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
        made = made.replace(because=f"{made.because}; it is computed from {told}")
    return made


def _place_of(target: Target, block: Block, relation: Relation) -> Location | None:
    """Return the line of the user's function that a relation points to."""
    return {
        "gradient": lambda: gradient_line(target.function, target.position(block.index)),
        "return": lambda: gradient_line(target.function, None, assigned=False),
        "save": lambda: line_with(
            target.function, r"save_for_backward|ctx\.\w+\s*=", "setup_context", "forward"
        ),
        "needs": lambda: line_with(target.function, r"needs_input_grad", "backward", "vjp"),
    }[relation.where]()


_STRAIGHT = re.compile(
    r"(?:^|_|(?<=[a-z0-9]))S(?:TE|te)(?![a-z])|_ste(?:_|$)|(?i:straight.?through|surrogate)"
)


_ON_PURPOSE = (
    "gradcheck-factor",
    "gradcheck-mask",
    "gradcheck-upstream-ignored",
    "gradcheck-zero",
    "upstream-zero",
)
"""What a Function that passes its input on does to a gradient: stop or mask it, or add that of another loss."""


def _is_meant(target: Target, call: Call, relation: Relation, block: Block) -> bool:
    """Say whether nobody writes such a Function by accident: its only effect is a gradient of its own.

    That is so where forward is locally constant or moves in steps (spikes, rounding), where backward passes
    everything and forward bounds values on both sides, or keeps nothing that could tell backward of a bound,
    where a Function that is named as a straight-through
    estimator lets a gradient through, and where forward is the identity and backward multiplies by a
    constant or a mask (gradient reversal, scaling, stopping) or adds to it (a penalty, an auxiliary loss).
    """
    if relation.code == "gradcheck-surrogate":
        return True
    if relation.code in _ON_PURPOSE and only_passes_on(target, call):
        return True
    out, size = block.numerical.shape
    same = torch.eye(out, dtype=torch.float64) if out == size else None
    if relation.code == "gradcheck-mask" and relation.evidence.get("extra"):
        own = target.function
        named = own is not None and _STRAIGHT.search(f"{own.__name__}\n{own.__doc__ or ''}")
        through = same is not None and block.close(block.analytical, same)
        meant = through and (
            _bounded(call.values[block.index], block) or keeps_nothing(target, call)
        )
        return bool(named) or meant
    return (
        relation.code in ("gradcheck-scale", "gradcheck-sign")
        and same is not None
        and block.close(block.numerical, same)
    )


def _meaning(relation: Relation) -> str:
    """Return the cause of a gradient that may be meant: it blames no mask."""
    told = relation.cause.replace("the mask of the gradient is wrong: it", "the gradient")
    return told if told == relation.cause else f"{told}: an estimator, or a mask that is forgotten"


def _fix_of(relation: Relation, meant: bool) -> str:
    """Return the edit, with the way to say that such a gradient is meant."""
    known = not meant or "promises.StraightThrough" in relation.fix
    return relation.fix if known else f"{relation.fix}; if it is meant, {MEANT}"


def _bounded(value: Tensor, block: Block) -> bool:
    """Say whether forward is constant for the smallest and for the largest values, as a clamp to a range is."""
    kept = block.numerical.diagonal().abs() > block.noise
    values = as_real(value)
    if not bool(kept.any()):
        return False
    return bool((values[~kept] < values[kept].min()).any()) and bool(
        (values[~kept] > values[kept].max()).any()
    )


def entry_name(tensor: Tensor, entry: int) -> str:
    """Return the index of a real entry, such as ``[1, 2]`` or ``[0].imag``."""
    part = ""
    if tensor.is_complex():
        entry, imaginary = divmod(entry, 2)
        part = ".imag" if imaginary else ".real"
    if tensor.dim() == 0:
        return part
    return f"{list(place_of(entry, tensor.shape))}{part}"


def _output_of(block: Block, row: int, target: Target) -> str:
    outputs = target.call.evaluate()
    for position, (start, end) in block.rows.items():
        if start <= row < end:
            name = f" {position}" if len(block.rows) > 1 else ""
            return f"{name}{entry_name(outputs[position], row - start)}"
    return ""

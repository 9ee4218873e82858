"""The operation that gives an output a size which is not the declared one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...probes.recorded.operations import record
from ...specs import TensorSpec
from ...specs.shapes import SpecError
from ...specs.walk import spec_leaves
from ...subject.errors import SubjectError
from ..crashes.place import Place
from .eval_lines import eval_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...batches import Batch
    from ...probes.recorded.operations import Step, Trace
    from ...subject import Subject


_VIEWS = frozenset(
    {"permute", "transpose", "movedim", "swapaxes", "mT", "T", "view", "reshape", "flatten", "unflatten", "squeeze",
     "unsqueeze", "rearrange", "stack"}
)  # fmt: skip
"""What moves dimensions: their sizes come from elsewhere."""


def sizing_line(subject: Subject, batch: Batch, path: str, output: Any) -> Place | None:
    """Return the operation from which on the one dimension of an output that is wrong has its size.

    None where another number of dimensions is declared, or where more than one of them differs.

    Args:
        subject: Whose forward.
        batch: On which the output differs from its spec.
        path: Of the output.
        output: What it is there.
    """
    wanted = _declared(subject.contract.output, path, batch.sizes)
    if not isinstance(output, torch.Tensor) or wanted is None or len(wanted) != output.dim():
        return None
    wrong = [d for d, size in enumerate(output.shape) if size != wanted[d]]
    if len(wrong) != 1:
        return None
    try:
        with subject.pristine() as model:
            trace = record(eval_run(subject, batch), model)
    except SubjectError:
        return None
    shape = tuple(output.shape)
    start = next((p for p in trace.outputs if trace.values[p].shape == shape), None)
    step = None if start is None else _giving(trace, start, wrong[0] - len(shape))
    if step is None or step.op.location is None or step.op.name.rpartition(".")[2] in _VIEWS:
        return None
    made = list(trace.values[step.results[0]].shape)
    read = list(trace.values[step.operands[0]].shape)
    return Place(
        op=step.op.name,
        location=step.op.location,
        module=step.op.module,
        module_class=step.op.module_class,
        fact=f"{step.op.name} gives {made} from {read}, and dimension {wrong[0]} keeps the size "
        f"{shape[wrong[0]]} from there on",
    )


def _declared(spec: Any, path: str, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the declared shape of an output."""
    one = spec if isinstance(spec, TensorSpec) else spec_leaves(spec, "output").get(path)
    if one is None or one.shape is None:
        return None
    try:
        return one.shape.resolve(sizes)
    except SpecError:
        return None  # a symbol that no input has


def _giving(trace: Trace, place: int, dim: int) -> Step | None:
    """Return the first operation on the way to a value that gives its size in a dimension, counted from the end."""
    size, found = trace.values[place].shape[dim], None
    while (step := trace.makers.get(place)) is not None and step is not found and step.operands:
        found = step
        read = (trace.values[p].shape for p in step.operands)
        alike = [
            p
            for p, shape in zip(step.operands, read, strict=True)
            if len(shape) >= -dim and shape[dim] == size and p in trace.makers
        ]
        if not alike:
            return found
        place = alike[0]
    return found

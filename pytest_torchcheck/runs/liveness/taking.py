"""Which parts of a layer's outputs a forward takes, and which of them nothing reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...lean import dataclass
from ...objects import trees
from ...probes.recorded.recording import Recorder
from ...probes.recorded.watch import storage_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Location
    from ...probes.recorded.values import Call, Value
    from ...subject import Subject

_MIXING = ("matmul", "mm", "einsum", "linear", "conv", "softmax", "attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taking:
    """A call that takes one part, or every part, out of a layer's outputs.

    Attributes:
        op: Its name, such as ``Tensor.chunk``.
        place: The line.
        items: How many parts it returns.
        unread: The numbers of those that no operation is given.
        region: What it takes: start, sizes and strides in the tensor's memory.
        share: How many such parts make up the whole.
    """

    op: str
    place: Location
    items: int
    unread: tuple[int, ...]
    region: tuple[int, ...]
    share: int


def takings(subject: Subject, weight: str) -> list[Taking]:
    """Return the calls that first take apart what a layer computes, in the order of a forward in train mode.

    Args:
        subject: Whose forward runs once.
        weight: The name of the layer's weight.
    """
    with subject.pristine(train=True, seeded=True) as model, Recorder(model) as recorder:
        with torch.enable_grad():
            output = subject.call(model, subject.batch().clone())
        try:
            kept = {id(tensor) for tensor in trees.tensors(output).values()}
            start = recorder.value_of(model.get_parameter(weight))
            calls = sorted(_first(start), key=lambda call: call.op.index)
            return list(filter(None, (_taking(call, kept) for call in calls)))
        finally:
            recorder.release()


def _first(start: Value) -> Iterator[Call]:
    """Iterate over the first calls behind a weight that return parts of what they are given."""
    pending = [value for call in start.consumers for value in call.outputs]
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for call in value.consumers:
            if call.inputs[0] is value and _parts(value, call):
                yield call
            elif _keeps_places(value, call):
                pending.append(call.outputs[0])


def _parts(value: Value, call: Call) -> bool:
    """Say whether a call returns views of some of a tensor's elements."""
    whole, memory = value.tensor.numel(), storage_of(value.tensor)
    return bool(call.outputs) and all(
        0 < made.tensor.numel() < whole and storage_of(made.tensor) == memory
        for made in call.outputs
    )


def _keeps_places(value: Value, call: Call) -> bool:
    """Say whether a call gives each element of a tensor its own place again: an activation, a view, a norm."""
    mixes = any(word in call.op.name.lower() for word in _MIXING)
    others = [one.tensor for one in call.inputs if one is not value and one.origin == "parameter"]
    if mixes or len(call.outputs) != 1 or any(one.dim() > 1 for one in others):
        return False
    return call.outputs[0].tensor.numel() == value.tensor.numel()


def _taking(call: Call, kept: set[int]) -> Taking | None:
    if call.op.location is None:
        return None
    first = call.outputs[0].tensor
    return Taking(
        op=call.op.name,
        place=call.op.location,
        items=len(call.outputs),
        unread=tuple(
            number
            for number, made in enumerate(call.outputs)
            if not made.consumers and id(made.tensor) not in kept
        ),
        region=tuple(int(n) for n in (first.storage_offset(), *first.shape, *first.stride())),
        share=call.inputs[0].tensor.numel() // first.numel(),
    )

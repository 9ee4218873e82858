"""A slice given twice to one ``cat`` while another is never read; lines at which uses of one value part."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import sources
from ...lean import dataclass
from ..recorded.operations import gradients_kept, record_step
from ..recorded.recording import Recorder
from ..recorded.watch import readable, storage_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from torch import nn

    from ...findings import Location
    from ..recorded.values import Call, Value
    from ..recorded.watch import Op

_JOINING = ("cat", "stack", "concat", "concatenate", "hstack", "vstack", "dstack", "column_stack")
_PARTS = ("unbind", "chunk", "split", "tensor_split", "split_with_sizes", "hsplit", "vsplit")
_SLICES = ("__getitem__", "select", "narrow")
_RECURRENT = ("gru", "lstm", "rnn_tanh", "rnn_relu")
_DEPTH = 5
_MOST_ELEMENTS = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubled:
    """A call that joins a slice with itself.

    Attributes:
        joining: The call.
        given: Which slice it is given twice, such as ``[0]``.
        unread: Which one nothing reads.
        made: The line that takes the unread slice, where one does.
    """

    joining: Op
    given: str
    unread: str
    made: Location | None


def find_doubled(run: Callable[[], object], module: nn.Module, op: Op) -> Doubled | None:
    """Find a call that joins a slice of what an operation gave with itself, while another slice is never read.

    Args:
        run: One forward that returns the loss.
        module: The model; its gradients are put back.
        op: The operation, of an earlier run; its name and line tell it in this one.
    """
    recorder = Recorder(module)
    try:
        with gradients_kept(module.parameters()):
            record_step(run, recorder, backward=False)
        found = (_joined(call, op) for call in recorder.calls)
        return next((one for one in found if one is not None), None)
    finally:
        recorder.release()


def _joined(call: Call, op: Op) -> Doubled | None:
    if call.kind != "op" or call.op.name.rpartition(".")[2] not in _JOINING or not call.args:
        return None
    given = list(tensors_in(call.args[0]))
    values = {id(value.tensor): value for value in call.inputs}
    same = next((b for i, a in enumerate(given) for b in given[i + 1 :] if _same(a, b)), None)
    value = values.get(id(same)) if same is not None else None
    maker = value.maker if value is not None else None
    if value is None or maker is None or not maker.inputs:
        return None
    whole, name = maker.inputs[0], maker.op.name.rpartition(".")[2]
    if not _from(whole, op):
        return None
    if name in _PARTS:
        places = [i for i, part in enumerate(maker.outputs) if not part.consumers]
        own = next((i for i, part in enumerate(maker.outputs) if part is value), None)
        others = [c for c in whole.consumers if not c.shape_only and c is not maker]
        if not places or own is None or others:
            return None
        return Doubled(
            joining=call.op, given=f"part {own}", unread=f"part {places[0]}", made=maker.op.location
        )
    recurrent = op.name.rpartition(".")[2] in _RECURRENT
    return _sliced(call, value, whole, recurrent=recurrent) if name in _SLICES else None


def _sliced(call: Call, value: Value, whole: Value, *, recurrent: bool) -> Doubled | None:
    """Say which slice along the first dimension, that has one, no call reads of a tensor of which another is doubled."""
    readers = [c for c in whole.consumers if c.kind == "op" and not c.shape_only]
    views = [out for c in readers for out in c.outputs]
    names = {c.op.name.rpartition(".")[2] for c in readers}
    if not names <= set(_SLICES) or not all(_within(v.tensor, whole.tensor) for v in views):
        return None  # something reads all of it, or in a way that is not known
    read = _marked([v.tensor for v in views if v.consumers], whole.tensor)
    own = _marked([value.tensor], whole.tensor)
    if read is None or own is None:
        return None
    for dim in range(whole.tensor.dim()):
        rest = [d for d in range(whole.tensor.dim()) if d != dim]
        lines, mine = (marks.any(dim=rest) if rest else marks for marks in (read, own))
        idle = (~lines).nonzero().flatten().tolist()
        if idle and int(mine.sum()) == 1:
            place = int(mine.nonzero()[0])
            # of the states of recurrent layers, the two directions of one stand side by side
            other = place ^ 1 if recurrent and not dim and place ^ 1 in idle else idle[0]
            if len(idle) > 1 and other != place ^ 1:
                return None
            before = ":, " * dim
            return Doubled(
                joining=call.op,
                given=f"[{before}{place}]",
                unread=f"[{before}{other}]",
                made=_taking(views, whole.tensor.select(dim, other)),
            )
    return None


def _taking(views: list[Value], part: Tensor) -> Location | None:
    """Return the line that takes a slice which nothing reads."""
    makers = [v.maker for v in views if not v.consumers and _same(v.tensor, part)]
    return next((m.op.location for m in makers if m is not None), None)


def _same(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors are one, or the same part of one memory."""
    if a is b:
        return True
    if not (readable(a) and readable(b)) or storage_of(a) is None or a.shape != b.shape:
        return False
    return (storage_of(a), a.storage_offset(), a.stride()) == (
        storage_of(b),
        b.storage_offset(),
        b.stride(),
    )


def _within(part: Tensor, whole: Tensor) -> bool:
    known = readable(part) and readable(whole) and storage_of(whole) is not None
    return known and storage_of(part) == storage_of(whole)


def _marked(parts: list[Tensor], whole: Tensor) -> Tensor | None:
    """Return which elements of a tensor some views of it hold, in the shape of the tensor."""
    size = whole.untyped_storage().nbytes() // whole.element_size()
    if size > _MOST_ELEMENTS or math.prod(whole.shape) == 0:
        return None
    with torch._C.DisableTorchFunction():
        marks = torch.zeros(size, dtype=torch.bool)
        for part in parts:
            marks.as_strided(part.shape, part.stride(), part.storage_offset()).fill_(True)
        return marks.as_strided(whole.shape, whole.stride(), whole.storage_offset()).clone()


def _from(value: Value, op: Op) -> bool:
    """Say whether an operation gave a value, or what it was computed from within a few steps."""
    values = [value]
    for _ in range(_DEPTH):
        makers = [v.maker for v in values if v.maker is not None]
        if any((m.op.name, m.op.location) == (op.name, op.location) for m in makers):
            return True
        values = [v for m in makers for v in m.inputs]
    return False


def where_parted(
    run: Callable[[], object], module: nn.Module, names: Iterable[str], uses: Collection[Op]
) -> list[Location]:
    """Run once more and return the lines of one function of the user's from which several operations came.

    Going inward from the outermost call, these are the first lines that are not the same. Empty where the
    operations stand on one line, or in different functions.

    Args:
        run: What was recorded before.
        module: The model.
        names: The parameters that it was recorded for.
        uses: Operations of that record.
    """
    known = dict(module.named_parameters(remove_duplicate=False))
    watch = _Lines(module, {name: known[name] for name in names}, gradients=True)
    watch.wanted = {op.index: op.name for op in uses}
    try:
        with gradients_kept(module.parameters()):
            record_step(run, watch)
    finally:
        watch.release()
    if len(watch.lines) != len(watch.wanted):
        return []  # the run does not repeat
    for level in zip(*watch.lines.values(), strict=False):
        places = {(place.file, place.line): place for place in level}
        if len(places) > 1:
            one = len({(place.file, place.function) for place in level}) == 1
            return sorted(places.values(), key=lambda place: place.line) if one else []
    return []


class _Lines(Recorder):
    """Notes the user's lines, from the outermost, that led to some operations."""

    wanted: dict[int, str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lines: dict[int, list[Location]] = {}

    def op(self, name: str, location: Location | None = None) -> Op:
        """Make the next operation, and keep the lines of a wanted one."""
        made = super().op(name, location)
        if self.wanted.get(made.index) == name:
            self.lines[made.index] = [
                sources.of_line(code.co_filename, frame.f_lineno, code.co_qualname)
                for frame in self.frames()
                if sources.rank((code := frame.f_code).co_filename) == 2
            ][::-1]
        return made

"""A run, or a training step, as a list of operations with what each gave, to be laid beside another."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ... import sources
from ...lean import dataclass
from .recording import Recorder
from .watch import Op, readable, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.autograd.graph import Node

    from ...findings import Location
    from .values import Call, Value

LIMIT_BYTES = 512 * 2**20
"""What a trace may hold; beyond it only fingerprints are kept, which tell equal from different."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a tensor held: its values, or beyond the limit of the trace their fingerprint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    values: Tensor | None
    fingerprint: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One operation.

    Attributes:
        op: Its name, line and module.
        operands: Places of the values that it read in :attr:`Trace.values`.
        results: Places of what it made.
        numbers: Its arguments that are no tensors.
        callers: The user's lines that led to its own line, the nearest first.
    """

    op: Op
    operands: tuple[int, ...]
    results: tuple[int, ...]
    numbers: tuple[float, ...] = ()
    callers: tuple[Location, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two steps of different runs the same step."""
        place = self.op.location
        return (
            self.op.name,
            self.op.module,
            place and (place.file, place.line),
            len(self.operands),
            len(self.results),
        )


@dataclass(slots=True)
class Trace:
    """Every operation of one run and every value that it read or made, in order.

    Attributes:
        steps: The operations.
        values: The values; parameters and buffers as they were before the run.
        makers: The step that made a value, by its place.
        outputs: Places of the tensors that the run returned.
    """

    steps: list[Step] = field(default_factory=list)
    values: list[Snapshot] = field(default_factory=list)
    makers: dict[int, Step] = field(default_factory=dict)
    outputs: tuple[int, ...] = ()


def record(
    run: Callable[[], object], module: nn.Module | None = None, *, limit_bytes: int = LIMIT_BYTES
) -> Trace:
    """Run once and keep what every operation gave.

    Args:
        run: Returns its outputs, in any nest. Reseed and restore state inside it, so that two runs
            differ in nothing but what is meant to. Its backward, if it has one, is not recorded.
        module: Names modules.
        limit_bytes: How much of the values to keep, first come first kept.

    Returns:
        The trace; it holds copies of the activations, so let go of it after comparing.
    """
    tracer = _Tracer(module, limit_bytes)
    try:
        with tracer:
            result = run()
            outputs = tuple(tracer.place(tracer.value_of(t)) for t in tensors_in(result))
        return tracer.trace(outputs)
    finally:
        tracer.release()


class _Tracer(Recorder):
    """Copies each value when it is made or first read, before anything can overwrite it."""

    def __init__(self, module: nn.Module | None, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes
        self._snapshots: list[Snapshot] = []
        self._places: dict[int, int] = {}
        self._order: dict[int, Call] = {}
        self._callers: dict[int, tuple[Location, ...]] = {}
        self._alive: list[Value] = []
        super().__init__(module)

    def place(self, value: Value) -> int:
        """Return the place of a value, copying it if it is new."""
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = len(self._snapshots)
            self._alive.append(value)  # an id is reused once its object is gone
            self._snapshots.append(self._copy(value.tensor))
        return place

    def op(self, name: str, location: Location | None = None) -> Op:
        """Make the next operation and keep the lines that led to it."""
        made = super().op(name, location)
        lines = [
            sources.of_line(code.co_filename, frame.f_lineno, code.co_qualname)
            for frame in self.frames()
            if sources.rank((code := frame.f_code).co_filename) == 2
        ]
        self._callers[made.index] = tuple(lines[1:])
        return made

    def seen(self, value: Value) -> None:
        """Copy what the run was given."""
        self.place(value)

    def recorded(self, call: Call) -> None:
        """Copy what a call made."""
        self._order.setdefault(id(call), call)
        for value in (*call.inputs, *call.outputs):
            self.place(value)

    def trace(self, outputs: tuple[int, ...]) -> Trace:
        """Return what was recorded, without any tensor of the run."""
        trace = Trace(values=self._snapshots, outputs=outputs)
        for call in self._order.values():
            step = Step(
                op=call.op,
                operands=tuple(self.place(value) for value in call.read),
                results=tuple(self.place(value) for value in call.outputs),
                numbers=tuple(_numbers_in((call.args, call.kwargs))),
                callers=self._callers.get(call.op.index, ()),
            )
            trace.steps.append(step)
            trace.makers.update(dict.fromkeys(step.results, step))
        return trace

    def _copy(self, tensor: Tensor) -> Snapshot:
        shape, dtype = tuple(tensor.shape), tensor.dtype
        size = tensor.numel() * tensor.element_size()
        if not readable(tensor):
            return Snapshot(shape, dtype, None)
        if size > self._left_bytes:
            return Snapshot(shape, dtype, None, fingerprint(tensor))
        self._left_bytes -= size
        return Snapshot(shape, dtype, tensor.detach().clone())


def _numbers_in(thing: Any) -> Iterator[float]:
    if isinstance(thing, int | float) and not isinstance(thing, bool):
        yield thing
    elif isinstance(thing, list | tuple):
        for item in thing:
            yield from _numbers_in(item)
    elif isinstance(thing, Mapping):
        for item in thing.values():
            yield from _numbers_in(item)
    elif isinstance(thing, slice):
        yield from _numbers_in((thing.start, thing.stop, thing.step))


def fingerprint(tensor: Tensor) -> int:
    """Return a 64-bit hash of a tensor's bytes, in their order."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, flat.numel(), 2**20):
        part = flat[start : start + 2**20].to(torch.int64)
        place = torch.arange(start, start + part.numel(), device=flat.device)
        # multiplicative hashing (Knuth), wrapped to 64 bits
        mixed = (part + 1) * (place * 6364136223846793005 + 1442695040888963407)
        total = total * 31 + (mixed ^ (mixed >> 29)).sum()
    return int(total)


def aligned(first: Trace, second: Trace) -> Iterator[tuple[Step | None, Step | None]]:
    """Pair the steps of two runs in order; a step that the other run lacks is paired with None."""
    keys = [step.key for step in first.steps], [step.key for step in second.steps]
    if keys[0] == keys[1]:
        yield from zip(first.steps, second.steps, strict=True)
        return
    matcher = SequenceMatcher(a=keys[0], b=keys[1], autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(first.steps[a0:a1], second.steps[b0:b1], strict=True)
        else:
            yield from ((step, None) for step in first.steps[a0:a1])
            yield from ((None, step) for step in second.steps[b0:b1])


def changed(first: Snapshot, second: Snapshot, allowed: float = 0.0) -> Tensor | bool | None:
    """Compare two values element by element; NaN equals NaN.

    Args:
        first: One.
        second: The other.
        allowed: Relative difference that is rounding, see :func:`differing`; at 0.0 other bits are
            a change.

    Returns:
        A bool tensor of their shape; or True/False where only fingerprints tell; or None where the
        values cannot be compared (other shapes, nothing kept).
    """
    if first.shape != second.shape:
        return None
    if first.values is None or second.values is None:
        if first.fingerprint and second.fingerprint and first.dtype == second.dtype:
            return first.fingerprint != second.fingerprint
        return None
    return differing(first.values, second.values, allowed)


def narrow(trace: Trace) -> bool:
    """Say whether a run in float64 computes fractions in a narrower dtype, as a softmax in float32 does: these round."""
    for snapshot in trace.values:
        values = snapshot.values
        if values is None or not values.is_floating_point() or values.dtype == torch.float64:
            continue
        if bool((values.isfinite() & (values != values.round())).any()):
            return True
    return False


def differing(a: Tensor, b: Tensor, allowed: float) -> Tensor:
    """Say which elements of two tensors of one shape differ by more than rounding.

    Args:
        a: One.
        b: The other.
        allowed: Relative difference that is rounding, of the element's own magnitude or of the
            middle one of those that differ, whichever is larger: what is left of larger terms that
            cancel is rounded as they are, and a -1e9 of a mask says nothing of the scores beside
            it.
    """
    unlike = (a != b) & ~((a != a) & (b != b))
    if not allowed or not (a.is_floating_point() or a.is_complex()) or not bool(unlike.any()):
        return unlike
    size = torch.maximum(a.abs(), b.abs()).to(torch.float64)
    finite = size[unlike & size.isfinite()]
    middle = finite.median() if finite.numel() else size.new_zeros(())
    return unlike & ~((a - b).abs() <= allowed * torch.maximum(size, middle))


def error(first: Snapshot, second: Snapshot) -> tuple[float, float]:
    """Return the largest difference and the largest magnitude of two values of one shape.

    Entries that are equal, or NaN in both, differ by 0; entries of which one is not finite, by inf.
    """
    assert first.values is not None
    assert second.values is not None
    a, b = first.values, second.values
    if a.numel() == 0:
        return 0.0, 0.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide).cpu(), b.to(wide).cpu()
    same = (a == b) | ((a != a) & (b != b))
    distance = torch.where(same, 0.0, (a - b).abs())
    distance = torch.where(distance.isnan(), torch.inf, distance)
    finite = b.abs()[b.abs().isfinite()]
    return float(distance.max()), float(finite.max()) if finite.numel() else 0.0


@contextmanager
def gradients_kept(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Take the gradients of some leaves away for a while, and put them back."""
    kept = [(p, p.grad) for p in {id(p): p for p in parameters}.values()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def record_step(
    run: Callable[[], object], recorder: Recorder, *, backward: bool = True
) -> list[Value]:
    """Run once under the recorder; return the values of the loss.

    Args:
        run: Returns the loss, or any nest of tensors (then their sum is the loss).
        recorder: Not entered yet. The gradients it measures are complete afterwards.
        backward: Whether to run the backward that ``run`` left out.

    Raises:
        RuntimeError: What ``run`` raised, unless it is a ``backward`` from a tensor without a graph:
            then that tensor is the loss.
    """
    with recorder:
        try:
            result = run()
        except RuntimeError:
            if not recorder.backward_roots or recorder.backward_roots[-1].requires_grad:
                raise
            result = None
        tensors = {id(t): t for t in (*tensors_in(result), *recorder.backward_roots)}
        roots = [recorder.value_of(tensor) for tensor in tensors.values()]
        live = [value.tensor for value in roots if value.tensor.requires_grad]
        if backward and live and not recorder.backward_roots:
            leaves = [p for p in _leaves(live) if p.grad is not None]
            with gradients_kept(leaves):
                torch.autograd.backward(live, [torch.ones_like(t) for t in live])
    return roots


def _leaves(roots: Iterable[Tensor]) -> Iterator[Tensor]:
    """Iterate over the leaves outside of any module that a backward would write to."""
    stack = [tensor.grad_fn for tensor in roots if tensor.grad_fn is not None]
    seen: set[Node] = set(stack)
    while stack:
        node = stack.pop()
        if isinstance(variable := getattr(node, "variable", None), Tensor):
            yield variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


def values_behind(roots: Iterable[Value], *, alias: bool) -> set[Value]:
    """Return the values from which others were computed, these included."""
    found = set(roots)
    stack = list(found)
    while stack:
        call = stack.pop().maker
        if call is None or (call.kind == "alias" and not alias):
            continue
        for value in call.read:
            if value not in found:
                found.add(value)
                stack.append(value)
    return found

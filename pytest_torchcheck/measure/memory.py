"""A step's memory at any size, with nothing allocated by default, and what the CPU's own allocator saw of it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from torch.profiler import ProfilerActivity, profile, record_function

from ..lean import dataclass
from ..probes.memory.allocations import OutOfBudget
from ..probes.memory.fake import Unmeasurable, explain
from ..probes.memory.tracker import MemoryTracker
from .plain_step import StepKind, user_step
from .steps import StepFailed, Tracked, real_model, subject_for, track

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ..contracts import Contract
    from ..probes.memory.profile import MemoryProfile
    from ..subject import Subject
    from .plain_step import StepKind


def measure_memory(
    contract: Contract,
    *,
    at: Mapping[str, int] | None = None,
    fake: bool = True,
    step: StepKind = "training",
    device: str = "cpu",
    dtype: str | None = None,
    seed: int = 0,
    allocator: bool = False,
) -> MemoryProfile:
    """Measure the memory of one step, by phase, category, module and line.

    The step is the contract's own (``train_step`` where declared), run twice; the second run is
    reported, since the first one makes the optimizer's state. The bytes are those of tensors, and are
    the same on fake tensors, on the real ones of any CPU, and on every run.

    Args:
        contract: The contract.
        at: Sizes of symbols, such as ``{"B": 32, "T": 4096}``, also beyond the declared ranges; those
            of the base batch otherwise.
        fake: Allocate nothing: for models and sizes that do not fit this machine. Always on the CPU.
        step: ``"training"``, or ``"inference"``: a forward in eval mode without gradients.
        device: Where to run for real.
        dtype: Name of the floating dtype; the contract's first one, else the model's own, by default.
        seed: Decides the batch.
        allocator: Also ask the device's allocator for its peak, which holds the workspaces of kernels
            too. On the CPU that runs two more steps under torch's profiler; on CUDA it is always there.

    Returns:
        The profile, plain data.

    Raises:
        DeclarationError: ``at`` or ``dtype`` names what does not exist.
        Unmeasurable: The step cannot run on fake tensors; says at which operation and line.
        torch.OutOfMemoryError: It ran for real and did not fit.
    """
    subject = subject_for(contract, device=device, dtype=dtype, seed=seed)
    try:
        tracked = attempt(lambda: track(subject, at=at, fake=fake, step=step))
        profile = tracked.profile
        if allocator and not fake and profile.allocator_peak_bytes is None:
            profile = profile.replace(
                allocator_peak_bytes=allocator_peak(subject, at=at, step=step)
            )
        return profile
    finally:
        subject.close()


def attempt(run: Callable[[], Tracked], *, explained: bool = False) -> Tracked:
    """Run a measurement; what a fake kernel cannot do becomes :class:`Unmeasurable`, the rest is raised.

    Args:
        run: Tracks one step.
        explained: Raise the user's own error with its phase and batch, as a check's runner explains it.
    """
    try:
        return run()
    except StepFailed as failed:
        if isinstance(failed.error, Unmeasurable):
            raise failed.error from None
        if isinstance(failed.error, OutOfBudget):
            raise failed.error from failed
        if failed.fake:
            raise explain(failed.error, failed.tracker) from failed.error
        if explained and failed.original is not None:
            raise failed.original from failed.error
        raise failed.error from None


_MARK = "torchcheck: last step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The allocator's events of a run, in order.

    Attributes:
        changes: Bytes taken (positive) and given back, by operations that ran one after the other.
        addresses: Where each block lies; a block is given back at the address at which it was taken.
        paths: The events that each happened in, the outermost first, each as its name and its start.
        last: Place at which the last step begins.
    """

    changes: tuple[int, ...]
    addresses: tuple[int, ...]
    paths: tuple[tuple[tuple[str, int], ...], ...]
    last: int

    @property
    def peak(self) -> int:
        """The most bytes live at once in the last step, on top of what was there before the first."""
        return self._peak(set())

    def peak_between(self, operations: Collection[str]) -> int:
        """The same without what one of these operations takes and gives back before it returns.

        Args:
            operations: Names such as ``aten::convolution``.
        """
        taken: dict[int, tuple[int, tuple[str, int] | None]] = {}
        inside: set[int] = set()
        for place, (change, address, path) in enumerate(
            zip(self.changes, self.addresses, self.paths, strict=True)
        ):
            operation = next((event for event in path if event[0] in operations), None)
            if change > 0:
                taken[address] = place, operation
            elif address in taken:
                begin, owner = taken.pop(address)
                if owner is not None and owner == operation:
                    inside |= {begin, place}
        return self._peak(inside)

    def _peak(self, left_out: Collection[int]) -> int:
        live = most = 0
        for place, change in enumerate(self.changes):
            if place in left_out:
                continue
            live += change
            if place >= self.last:
                most = max(most, live)
        return most


def record(run: Callable[[], Any], repeats: int = 2) -> Record:
    """Run a step under torch's profiler and return every allocation on the CPU.

    The profiler sees what tensors cannot show: memory that a kernel takes and gives back within one
    operation, such as the reordered weights of a convolution. It does not see that something is given
    back which was taken before it started, so that the first step must run under it too.

    Args:
        run: One step.
        repeats: How often to run it.
    """
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
            for number in range(repeats):
                with record_function(_MARK if number == repeats - 1 else "torchcheck: first steps"):
                    run()
    finally:
        if collecting:
            gc.enable()
    found: list[tuple[int, int, int, tuple[tuple[str, int], ...]]] = []
    inner = watched.profiler
    assert inner is not None
    assert inner.kineto_results is not None
    stack: list[tuple[Any, tuple[tuple[str, int], ...]]] = [
        (root, ()) for root in inner.kineto_results.experimental_event_tree()
    ]
    while stack:
        event, path = stack.pop()
        kind, fields = event.typed
        if kind.name == "Allocation":
            if fields.device.type == "cpu":
                found.append((event.start_time_ns, fields.alloc_size, fields.ptr or 0, path))
            continue
        inner_path = (*path, (event.name, event.start_time_ns))
        stack.extend((child, inner_path) for child in event.children)
    found.sort(key=lambda entry: entry[0])
    places = [
        place for place, entry in enumerate(found) if any(name == _MARK for name, _ in entry[3])
    ]
    return Record(
        changes=tuple(entry[1] for entry in found),
        addresses=tuple(entry[2] for entry in found),
        paths=tuple(entry[3] for entry in found),
        last=places[0] if places else len(found),
    )


def allocator_peak(subject: Subject, *, at: Mapping[str, int] | None, step: StepKind) -> int:
    """Return the most that was live on the CPU in a subject's second step, in bytes.

    Counted are what the model and the batch hold, and what the allocator gave out from then on.
    """
    with real_model(subject, dict(at or {}), step) as (model, batch):
        tracker = MemoryTracker(model=model, inputs=batch.tensors())
        with tracker:
            pass
        held = sum(size for _, size in tracker.before)
        return held + record(user_step(subject, model, batch, step)).peak

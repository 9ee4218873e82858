"""What a contract's step holds: on request, at any size, with nothing allocated by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchcheck.probes.memory.allocations import OutOfBudget
from pytest_torchcheck.probes.memory.fake import Unmeasurable, explain

from .allocator import allocator_peak
from .steps import StepFailed, Tracked, subject_for, track

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_torchcheck.contracts import Contract
    from pytest_torchcheck.probes.memory.profile import MemoryProfile

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

"""What a benchmark keeps beside its times: work, memory, samples and tokens a second, and the share of the peak."""

from __future__ import annotations

import contextlib
import platform
from typing import TYPE_CHECKING, Any, Final

import torch

from ..probes.memory.fake import Unmeasurable
from ..specs import Tokens
from ..subject.errors import SubjectError
from .repeated import repeated
from .steps import StepFailed, track

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..declared.limits import Kind
    from ..subject import Subject
    from .plain_step import StepKind

_PEAK_TFLOPS: Final = {
    # dense, without sparsity, from the makers' data sheets: float32 without and with TF32, half precision
    "H200": (66.9, 494.7, 989.4), "H100 PCIe": (51.2, 378.0, 756.0), "H100": (66.9, 494.7, 989.4),
    "A100": (19.5, 156.0, 312.0), "L40S": (91.6, 183.0, 362.0), "L4": (30.3, 60.0, 121.0),
    "A10G": (31.2, 35.0, 70.0), "V100": (15.7, 15.7, 125.0), "T4": (8.1, 8.1, 65.0),
    "B200": (75.0, 1125.0, 2250.0), "RTX 4090": (82.6, 82.6, 165.2), "RTX 3090": (35.6, 35.6, 71.0),
}  # fmt: skip
"""Tera floating-point operations a second, by a part of the device's name, the longer names first."""


def peak_flops(name: str, dtype: torch.dtype | None, *, tf32: bool) -> float | None:
    """Return the peak of a device by its name, in operations a second; None where it is not known.

    Args:
        name: As the driver says, such as ``NVIDIA A100-SXM4-80GB``.
        dtype: Of the products; None stands for float32.
        tf32: Whether float32 products may use TF32.
    """
    words = name.replace("-", " ")
    for part, (single, with_tf32, half) in _PEAK_TFLOPS.items():
        if f" {part} " not in f" {words} ":
            continue
        if dtype in (torch.float16, torch.bfloat16):
            return half * 1e12
        if dtype in (None, torch.float32):
            return (with_tf32 if tf32 else single) * 1e12
    return None


def facts(subject: Subject, kind: Kind) -> dict[str, Any]:
    """Return what is known of one repeat before it is timed, as plain types.

    Returns:
        ``flops`` and ``peak_bytes`` are those of the repeat, None where they cannot be measured; ``samples``
        and ``tokens`` are 0 where the batch has none; ``peak_flops`` is the device's, None where not known.
    """
    batch, symbol = subject.batch(), subject.source.batch_symbol
    tokens = [
        leaf.numel()
        for path, leaf in batch.input_leaves()
        if isinstance(subject.source.specs.get(path), Tokens) and isinstance(leaf, torch.Tensor)
    ]
    flops, peak_bytes = _work(subject, kind)
    return {
        "parameters": sum(p.numel() for p in subject.model.parameters()),
        "flops": flops,
        "peak_bytes": peak_bytes,
        "samples": batch.sizes.get(symbol, 0) if symbol is not None else 0,
        "tokens": max(tokens, default=0),
        "device": _device(subject),
        "peak_flops": _peak(subject),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


@contextlib.contextmanager
def benchmarked(benchmark: Any, subject: Subject, kind: Kind) -> Iterator[Callable[..., Any]]:
    """Time what a contract repeats with pytest-benchmark, and keep what is known of it in ``extra_info``.

    Args:
        benchmark: The fixture of pytest-benchmark, of a test that runs.
        subject: Whose model, on its device and dtype.
        kind: ``forward``, ``inference`` or ``training-step``.

    Yields:
        What was timed, to be run once more.

    Raises:
        SubjectError: The model cannot be built or called.
    """
    known = facts(subject, kind)
    benchmark.extra_info.update(known)
    with repeated(subject, kind) as once:
        benchmark(once)
        yield once
    if benchmark.stats is not None:
        benchmark.extra_info.update(per_second(known, benchmark.stats.stats.mean))


def per_second(known: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return samples, tokens and operations a second, and the share of the device's peak that they reach."""
    found = {
        f"{name}_per_second": known[name] / seconds
        for name in ("samples", "tokens", "flops")
        if known[name]
    }
    if known["peak_flops"] and known["flops"]:
        found["flops_utilisation"] = known["flops"] / seconds / known["peak_flops"]
    return found


def _work(subject: Subject, kind: Kind) -> tuple[int | None, int | None]:
    """Return operations and peak bytes; a forward's peak is that of the forward of a training step."""
    try:
        step: StepKind = "inference" if kind == "inference" else "training"
        measured = track(subject, fake=True, step=step, repeats=1, flops=True)
    except (StepFailed, Unmeasurable, SubjectError):
        return None, None
    if kind != "forward":
        return measured.flops, measured.profile.peak_bytes
    flops = sum(share.count for share in measured.flops_by_line if share.phase == "forward")
    return flops, measured.profile.by_phase.get("forward")


def _device(subject: Subject) -> str:
    if subject.device.type != "cuda":
        return str(subject.device)
    return f"{subject.device} ({torch.cuda.get_device_name(subject.device)})"


def _peak(subject: Subject) -> float | None:
    if subject.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(subject.device)
    dtype = next((p.dtype for p in subject.model.parameters() if p.is_floating_point()), None)
    return peak_flops(name, dtype, tf32=torch.backends.cuda.matmul.allow_tf32)

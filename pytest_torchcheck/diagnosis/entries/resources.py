"""Memory that ran out, CUDA errors that come late or follow from others."""

from __future__ import annotations

import gc
import inspect
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...explanation import Explanation, describe, times
from ...findings import Culprit
from ...objects import heap
from ...state import is_range_error
from ...text.printable import message_of
from ...text.units import format_bytes
from ..crashes.explain import explain_scene
from ..crashes.table import entry

if TYPE_CHECKING:
    from ...findings import Plain
    from ..crashes.scene import Scene

_UNITS = {"B": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_ADVICE = {
    "forward": "a smaller batch with gradient accumulation, activation checkpointing or autocast",
    "loss": "a smaller batch, or the loss in chunks of the batch",
    "backward": "a smaller batch, gradient accumulation or activation checkpointing",
    "step": "an optimizer with less state (SGD, 8-bit or fused Adam), or zero_grad(set_to_none=True) before it",
    "build": "a smaller model, or building on the meta device",
}


def _asked(message: str) -> int | None:
    if (
        found := re.search(r"[Tt]ried to allocate ([\d.]+) (bytes|B|KiB|MiB|GiB|TiB)", message)
    ) is not None:
        return int(float(found[1]) * _UNITS[found[2]])
    if (found := re.search(r"allocate (\d+) bytes", message)) is not None:
        return int(found[1])
    return None


def _largest(device: str, most: int = 5) -> list[torch.Tensor]:
    """Return the largest live tensors on a device, each memory once."""
    seen: dict[int, torch.Tensor] = {}
    heap.thaw()
    for thing in gc.get_objects():
        if type(thing) not in (torch.Tensor, torch.nn.Parameter):
            continue
        tensor: torch.Tensor = thing
        if (
            tensor.device.type != device.partition(":")[0]
            or tensor.layout != torch.strided
            or tensor.is_nested
        ):
            continue
        if isinstance(tensor, torch.nn.parameter.UninitializedParameter):
            continue
        key = tensor.untyped_storage().data_ptr()
        if key and (key not in seen or tensor.nbytes > seen[key].nbytes):
            seen[key] = tensor
    return sorted(seen.values(), key=lambda tensor: -tensor.untyped_storage().nbytes())[:most]


@entry(
    r"CUDA out of memory",
    r"DefaultCPUAllocator: (?:can't|not enough) (?:allocate )?memory",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"(?:MPS|XPU|HIP) (?:backend )?out of memory",
    r"Unable to allocate [\d.]+ \w+ for an array",
)
def out_of_memory(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """An allocation that failed."""
    asked = _asked(scene.message)
    place = scene.location
    op = scene.failing_op
    names = {}
    if scene.model is not None:
        names = {
            id(p): name
            for name, p in (*scene.model.named_parameters(), *scene.model.named_buffers())
        }
    alive = _largest(scene.device)
    rows: list[Plain] = [
        {"name": names.get(id(t), "tensor"), "shape": times(t.shape), "dtype": str(t.dtype).removeprefix("torch."),
         "memory": format_bytes(t.untyped_storage().nbytes())}
        for t in alive
    ]  # fmt: skip
    largest = ", ".join(
        f"{names.get(id(t), 'tensor')} {describe(t)} {format_bytes(t.untyped_storage().nbytes())}"
        for t in alive[:3]
    )
    total = re.search(
        r"total capacity of ([\d.]+ \w+).*?of which ([\d.]+ \w+) is free", scene.message
    )
    how_much = f" ({format_bytes(asked)} more)" if asked is not None else ""
    what = (
        f"{op.name} of {', '.join(str(list(f.shape)) for f in op.inputs[:3])}"
        if op is not None and op.inputs
        else scene.at
    )
    batch = scene.batch_size()
    return scene.explain(
        code="out-of-memory",
        summary=f"{scene.at} runs out of memory on {scene.device} in the {scene.phase} phase{how_much}",
        observed=f"{what} asked for {format_bytes(asked)}"
        if asked is not None
        else f"{what} could not be allocated",
        cause=f"the {scene.phase} phase needs more memory than is available"
        + (f": {total[2]} of {total[1]} was free" if total else "")
        + (f", with a batch of {batch}" if batch else ""),
        because=(f"the largest tensors alive: {largest}; " if largest else "") + scene.said,
        fix=f"try {_ADVICE.get(scene.phase, 'a smaller batch')}"
        + (f"; the line is {place.line}" if place else ""),
        culprits=scene.blame(how_much.strip(" ()")),
        evidence={"largest tensors": rows, "asked_bytes": asked},
    )


@entry(r"device-side assert triggered", r"CUDA error: (?:an illegal memory access|unspecified launch failure|misaligned address)",
       r"vectorized_gather_kernel|Assertion `.{0,300}(?:index|t >= 0|srcIndex).{0,300}` failed")  # fmt: skip
def device_assert(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A CUDA kernel that found a wrong index: the line is not the one of the message, so run on the CPU."""
    kind = "an illegal access" if "illegal" in match[0] else "a device-side assert"
    again = _on_the_cpu(scene)
    if again is not None and is_range_error(again.error):  # nothing else loses a context
        found = explain_scene(again)
        if found is not None:
            return found.replace(
                because=f"{found.because}; CUDA reported {kind}, and the same batch on the CPU raised this",
                evidence={**found.evidence, "cuda_message": scene.first_line},
            )
        return scene.explain(
            code="device-assert",
            summary=(
                f"{again.at} fails on CUDA with {kind}; on the CPU with "
                f"{type(again.error).__name__}: {again.first_line}"
            )[:200],
            observed=again.first_line,
            cause="the same batch fails on the CPU, where the message and the line are exact",
            because=f"replayed on the CPU; CUDA said {scene.first_line!r}",
            fix="fix the error reported on the CPU",
            culprits=again.blame(),
            location=again.location,
        )
    return scene.explain(
        code="device-assert",
        summary=f"{kind} on CUDA in the {scene.phase} phase: most likely an index or label out of range",
        observed=scene.first_line,
        cause="likely an index out of range in an Embedding, gather or class loss; kernels run "
        "asynchronously, so the line of the message is not reliable",
        because=scene.said + "; it could not be replayed on the CPU",
        fix="run the contract with devices=('cpu',), or set CUDA_LAUNCH_BLOCKING=1, to see the exact line",
    )


def _on_the_cpu(scene: Scene) -> Scene | None:
    """Run what failed on the CPU and return the scene of its error, or None."""
    rerun = scene.rerun
    if rerun is None:
        return None
    try:
        takes_device = "device" in inspect.signature(rerun).parameters
    except (TypeError, ValueError):
        takes_device = False
    if not takes_device and scene.device.startswith("cuda"):
        return None  # the context is lost: anything on that device fails now

    def on_the_cpu() -> object:
        return rerun(device="cpu") if takes_device else rerun()

    try:
        on_the_cpu()
    except Exception as error:  # the user's code may raise anything
        if "CUDA error" in message_of(error):
            return None
        return replace(
            scene,
            error=error,
            model=getattr(rerun, "model", None) or scene.model,
            batch=getattr(rerun, "batch", None) or scene.batch,
            rerun=on_the_cpu,
            device="cpu",
        )
    return None


@entry(
    r"CUBLAS_STATUS_(\w+)", r"CUDNN_STATUS_(\w+)", r"cuDNN error: (\w+)", r"CUSOLVER_STATUS_(\w+)"
)
def library(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A failure inside a CUDA library: it mostly follows from a shape, an index or memory."""
    status = match[1]
    again = _on_the_cpu(scene)
    if again is not None and (found := explain_scene(again)) is not None:
        return found.replace(because=f"{found.because}; on CUDA the same batch ends in {match[0]}")
    causes = {
        "NOT_INITIALIZED": (
            "the library could not be initialised: too little free memory for its workspace, "
            "or an earlier CUDA error"
        ),
        "EXECUTION_FAILED": "a kernel failed: an index out of range before it, wrong sizes, or too little memory",
        "INTERNAL_ERROR": "most often too little free memory, or an earlier CUDA error",
        "NOT_SUPPORTED": (
            "the library has no kernel for this layout, dtype or size: often a tensor that is "
            "not contiguous"
        ),
        "INVALID_VALUE": "sizes or strides that the library does not support",
        "MAPPING_ERROR": "an earlier CUDA error, or too little free memory",
    }
    cause = causes.get(status, "a CUDA library failed")
    return scene.explain(
        code="cuda-library",
        summary=f"{scene.at}: {match[0]} in the {scene.phase} phase",
        observed=scene.first_line,
        cause=f"likely {cause}",
        fix="run the contract with devices=('cpu',): an error of sizes or indices then names its "
        "line" + ("; make the operand contiguous()" if status == "NOT_SUPPORTED" else ""),
    )


@entry(r"Cannot re-initialize CUDA in forked subprocess")
def forked(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """CUDA in a process that was forked after CUDA had been started."""
    place = scene.location
    return scene.explain(
        code="cuda-forked",
        summary=f"{scene.at} uses CUDA in a forked process",
        observed=scene.first_line,
        cause=(
            "the process was forked after CUDA had started: a DataLoader worker, or a "
            "multiprocessing pool, touches a CUDA tensor"
        ),
        fix=(
            "keep CUDA out of Dataset and collate_fn (move batches in the loop), or use "
            "multiprocessing_context='spawn'"
        ),
        culprits=(Culprit("dataset", scene.at, location=place),),
    )

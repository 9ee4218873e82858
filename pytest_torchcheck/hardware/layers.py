"""What may be asked of an accelerator, and how torch answers it."""

from __future__ import annotations

import gc
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ACCELERATORS: Final = ("cuda", "xpu", "mps")
CONTEXT_BYTES: Final = 850_000_000
"""What a process's CUDA context takes of a GPU beside its tensors (pytorch's own test runner counts 0.85 GB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator that has computed.

    Attributes:
        kind: ``cuda``, ``xpu`` or ``mps``.
        index: Its number among the visible ones.
        name: What the driver calls it.
        capability: Such as ``9.0``; empty where there is none.
        total, free: Bytes of memory; 0 where unknown.
    """

    kind: str
    index: int
    name: str = ""
    capability: str = ""
    total: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a process that tried to compute on every device found.

    Attributes:
        devices: Those that computed the right answer.
        reason: Why there are no more of them; empty where nothing went wrong.
        versions: ``torch``, ``runtime`` and ``driver``, where known.
    """

    devices: tuple[Device, ...] = ()
    reason: str = ""
    versions: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain types only."""
        return {**asdict(self), "versions": dict(self.versions)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one device.

    Attributes:
        free: What the driver would still give.
        total: All of it.
        own: What this process's allocator holds.
    """

    free: int
    total: int
    own: int

    @property
    def others(self) -> int:
        """What is taken by other processes, this one's context left out."""
        return max(0, self.total - self.free - self.own - CONTEXT_BYTES)


class Layer(Protocol):
    """What the plugin asks of accelerators; :class:`TorchLayer` is the real one."""

    def count(self, kind: str) -> int:
        """Return how many devices of a kind this process sees."""

    def started(self) -> bool:
        """Say whether this process holds a context on an accelerator; starts none."""

    def capability(self, kind: str, index: int) -> tuple[int, int] | None:
        """Return a device's compute capability, or None where there is no such thing."""

    def memory(self, kind: str, index: int) -> Memory:
        """Return a device's memory."""

    def held(self) -> int:
        """Return the bytes of live tensors on all devices."""

    def allocations(self) -> int:
        """Return how many blocks this process has allocated on all devices since it started."""

    def synchronize(self) -> None:
        """Wait for all devices; raises where a context is lost."""

    def collect(self, *, workspaces: bool = False) -> None:
        """Free what nobody uses and reset the peaks; cuBLAS's workspaces too where asked."""

    def limit(self, kind: str, index: int, share: float) -> None:
        """Let this process's allocator have no more than a share of a device's memory."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Say whether an exception reports that a device's memory is full."""

    def probe(self, kind: str, timeout_s: float) -> Probe:
        """Compute on every device in another process."""


def _module(kind: str) -> Any:
    import torch

    return getattr(torch, kind)


class TorchLayer:
    """The accelerators that torch knows; imports torch only when asked what cannot be known without."""

    def count(self, kind: str) -> int:
        """Return how many devices of a kind this process sees."""
        module = _module(kind)
        if not module.is_available():
            return 0
        return int(module.device_count())

    def started(self) -> bool:
        """Say whether this process holds a context on an accelerator; starts none."""
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if cuda is not None and cuda.is_initialized():
            return True
        xpu = getattr(torch, "xpu", None)
        return xpu is not None and bool(xpu.is_initialized())

    def _started_modules(self) -> Iterator[Any]:
        torch = sys.modules.get("torch")
        for kind in ("cuda", "xpu"):
            module = getattr(torch, kind, None)
            if module is not None and module.is_initialized():
                yield module

    def capability(self, kind: str, index: int) -> tuple[int, int] | None:
        """Return a device's compute capability, or None where there is no such thing."""
        if kind != "cuda":
            return None
        major, minor = _module(kind).get_device_capability(index)
        return int(major), int(minor)

    def memory(self, kind: str, index: int) -> Memory:
        """Return a device's memory."""
        module = _module(kind)
        if kind == "mps":
            total, own = int(module.recommended_max_memory()), int(module.driver_allocated_memory())
            return Memory(free=max(0, total - own), total=total, own=own)
        free, total = module.mem_get_info(index)
        return Memory(free=int(free), total=int(total), own=int(module.memory_reserved(index)))

    def held(self) -> int:
        """Return the bytes of live tensors on all devices."""
        return sum(
            int(module.memory_allocated(index))
            for module in self._started_modules()
            for index in range(module.device_count())
        )

    def allocations(self) -> int:
        """Return how many blocks this process has allocated on all devices since it started."""
        total = 0
        for module in self._started_modules():
            for index in range(module.device_count()):
                stats = module.memory_stats(index)
                # cudaMallocAsync, as an allocator, counts no blocks; its peak starts anew with each test
                total += int(
                    stats.get("allocation.all.allocated", 0)
                    or stats.get("allocated_bytes.all.peak", 0)
                )
        return total

    def synchronize(self) -> None:
        """Wait for all devices in use; raises where a context is lost.

        Source:
            "Poisoned contexts": pytorch's own suite synchronises after each test (pytorch issue 49019);
            texts of errors are not looked at, since libraries wrap them.
        """
        for module in self._started_modules():
            current = module.current_device()
            module.synchronize()
            for index in range(module.device_count()):
                # asking an unused device to synchronise would start a context on it
                if index != current and module.memory_reserved(index):
                    module.synchronize(index)

    def collect(self, *, workspaces: bool = False) -> None:
        """Free what nobody uses and reset the peaks.

        Args:
            workspaces: Also those that cuBLAS keeps for each stream, which would count as a leak of
                the test that used a product first. A CUDA graph that a fixture holds may still use
                them: only where leaks are looked for.
        """
        gc.collect()
        for module in self._started_modules():
            module.synchronize()
            clear = getattr(sys.modules["torch"]._C, "_cuda_clearCublasWorkspaces", None)
            if workspaces and clear is not None and module.__name__ == "torch.cuda":
                clear()
            module.empty_cache()
            for index in range(module.device_count()):
                if module.memory_reserved(index):
                    module.reset_peak_memory_stats(index)

    def limit(self, kind: str, index: int, share: float) -> None:
        """Let this process's allocator have no more than a share of a device's memory."""
        _module(kind).set_per_process_memory_fraction(share, index)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Say whether an exception reports that a device's memory is full."""
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(error, torch.OutOfMemoryError)

    def probe(self, kind: str, timeout_s: float) -> Probe:
        """Compute on every device in another process, so that a broken driver cannot hang the run."""
        return _run_probe([sys.executable, "-c", _PROBE, kind], kind, timeout_s)


_PROBE: Final = """
import json, sys
kind = sys.argv[1]
found = {"devices": [], "reason": "", "versions": {}}
try:
    import torch
    found["versions"]["torch"] = torch.__version__
    runtime = torch.version.cuda or getattr(torch.version, "hip", None) or getattr(torch.version, "xpu", None)
    found["versions"]["runtime"] = str(runtime or "none")
    module = getattr(torch, kind)
    count = module.device_count() if module.is_available() else 0
    if not count:
        found["reason"] = "torch " + torch.__version__ + " sees no " + kind + " device"
    for index in range(count):
        try:
            device = kind if kind == "mps" else kind + ":" + str(index)
            answer = float((torch.ones(4096, device=device) + 1).sum())
            module.synchronize()
            if answer != 8192.0:
                raise RuntimeError("4096 times 1+1 summed to " + str(answer))
            entry = {"kind": kind, "index": index}
            if kind != "mps":
                free, total = module.mem_get_info(index)
                entry.update(name=module.get_device_name(index), free=free, total=total)
            if kind == "cuda":
                entry["capability"] = "%d.%d" % module.get_device_capability(index)
            found["devices"].append(entry)
        except Exception as error:
            found["reason"] = kind + ":" + str(index) + ": " + type(error).__name__ + ": " + str(error).split("\\n")[0]
except Exception as error:
    found["reason"] = type(error).__name__ + ": " + str(error).split("\\n")[0]
print("\\n" + json.dumps(found))
"""


def _run_probe(command: Sequence[str], kind: str, timeout_s: float) -> Probe:
    """Run a probing process and read its last line."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Probe(
            reason=f"the process that probes {kind} gave no answer in {timeout_s:g} s", versions={}
        )
    except OSError as error:
        return Probe(reason=f"the process that probes {kind} did not start: {error}", versions={})
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
        devices = tuple(Device(**device) for device in found["devices"])
    except (ValueError, IndexError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        ending = (
            f"signal {-done.returncode}"
            if done.returncode < 0
            else f"exit status {done.returncode}"
        )
        return Probe(
            reason=f"the process that probes {kind} ended with {ending}: {last}", versions={}
        )
    versions = dict(found["versions"])
    if kind == "cuda" and devices and (driver := driver_version()):
        versions["driver"] = driver
    return Probe(devices=devices, reason=found["reason"], versions=versions)


_layer: Layer = TorchLayer()


def layer() -> Layer:
    """Return the layer in use."""
    return _layer


def install(new: Layer) -> Layer:
    """Put another layer in use, a simulated one for instance, and return the one before."""
    global _layer
    before, _layer = _layer, new
    return before


def _smi(*arguments: str) -> str:
    """Return what nvidia-smi prints, or nothing where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (subprocess.TimeoutExpired, OSError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def parse_smi_list(text: str) -> tuple[str, ...]:
    """Return the UUIDs of ``nvidia-smi -L``; a GPU split by MIG gives its parts instead of itself."""
    found: list[list[str]] = []
    for line in text.splitlines():
        match = re.search(r"\(UUID: ((?:GPU|MIG)-[^)\s]+)\)", line)
        if match is None:
            continue
        if match[1].startswith("GPU-"):
            found.append([match[1]])
        elif found:
            found[-1].append(match[1])
    return tuple(uuid for group in found for uuid in (group[1:] or group))


def present_gpus() -> tuple[str, ...]:
    """Return the UUIDs of this machine's NVIDIA GPUs; imports no torch, starts no context."""
    return parse_smi_list(_smi("-L"))


def driver_version() -> str:
    """Return the NVIDIA driver's version, or an empty text."""
    return (_smi("--query-gpu=driver_version", "--format=csv,noheader").splitlines() or [""])[
        0
    ].strip()

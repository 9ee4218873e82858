"""A device layer that obeys its test: GPUs, full memories and lost contexts without a GPU.

Loaded with ``-p simulated_devices``; ``SIMULATED`` holds its settings as JSON. Tests import it to do on
the simulated device what they would do on a real one.
"""

from __future__ import annotations

import json
import os
from typing import Any

from pytest_torchcheck import hardware

GIB = 2**30


class OutOfMemoryError(RuntimeError):
    """Stands for torch.OutOfMemoryError."""


class SimulatedLayer:
    """Devices as ``SIMULATED`` describes them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.gpus = int(settings.get("gpus", 1))
        self.total = int(settings.get("total_gib", 16) * GIB)
        self.others = int(settings.get("others_gib", 0) * GIB)
        self.own = 0
        self.blocks = 0
        self.begun = bool(settings.get("begun", False))
        self.broken = ""
        self.limits: list[float] = []
        self.collected = 0

    def count(self, kind: str) -> int:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        return (
            self.gpus
            if seen is None
            else min(self.gpus, len([name for name in seen.split(",") if name]))
        )

    def started(self) -> bool:
        return self.begun

    def capability(self, kind: str, index: int) -> tuple[int, int] | None:
        major, minor = self.settings.get("capability", (9, 0))
        return major, minor

    def memory(self, kind: str, index: int) -> hardware.Memory:
        free = self.total - self.others - self.own
        return hardware.Memory(free=free, total=self.total, own=self.own)

    def held(self) -> int:
        return self.own

    def allocations(self) -> int:
        return self.blocks

    def synchronize(self) -> None:
        if self.broken:
            raise RuntimeError(
                f"CUDA error: {self.broken}\nCUDA kernel errors might be asynchronously reported"
            )

    def collect(self, *, workspaces: bool = False) -> None:
        self.synchronize()
        self.collected += 1

    def limit(self, kind: str, index: int, share: float) -> None:
        self.limits.append(share)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, OutOfMemoryError)

    def probe(self, kind: str, timeout_s: float) -> hardware.Probe:
        devices = tuple(
            hardware.Device(
                kind=kind,
                index=index,
                name="Simulated 16",
                capability="9.0",
                total=self.total,
                free=self.total,
            )
            for index in range(self.count(kind))
        )
        reason = "" if devices else "the simulation has none"
        return hardware.Probe(
            devices=devices, reason=reason, versions={"torch": "simulated", "driver": "1.0"}
        )


def layer() -> SimulatedLayer:
    """Return the layer in use."""
    found = hardware.layer()
    assert isinstance(found, SimulatedLayer)
    return found


def compute(size: int = 0) -> None:
    """Allocate on the device, and keep ``size`` bytes."""
    layer().begun = True
    layer().synchronize()
    layer().blocks += 1
    layer().own += size


def lose(message: str = "device-side assert triggered") -> None:
    """Lose the context, as a kernel does that fails after its launch has returned."""
    layer().begun = True
    layer().broken = message


def run_out() -> None:
    """Fail for lack of memory."""
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB")


def pytest_configure() -> None:
    global _before
    _before = hardware.install(SimulatedLayer(json.loads(os.environ.get("SIMULATED", "{}"))))


def pytest_unconfigure() -> None:
    hardware.install(_before)

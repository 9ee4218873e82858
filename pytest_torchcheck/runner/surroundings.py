"""What a verdict was reached with: versions, the machine and the seed."""

from __future__ import annotations

import platform

import torch


def threads() -> int:
    """Return how many threads torch computes with, which decides in which order it adds."""
    return torch.get_num_threads()


def environment(seed: int) -> dict[str, str]:
    """Return the versions and the seed that decide a verdict, as plain strings."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(terse=True),
        "seed": str(seed),
    }
    if torch.cuda.is_available() and torch.cuda.device_count():
        found["gpu"] = torch.cuda.get_device_name(0)
        found["cuda"] = str(torch.version.cuda)
    return found

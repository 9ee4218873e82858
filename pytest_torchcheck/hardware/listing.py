"""What the driver lists: which GPUs there are, and its version."""

from __future__ import annotations

import re
import shutil
import subprocess


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

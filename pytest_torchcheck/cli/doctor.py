"""``doctor``: versions, devices, plugins and settings, to be pasted into a bug report."""

from __future__ import annotations

import os
import platform
import re
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from .. import __version__, hardware
from ..adapters import adapters
from . import DONE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

PACKAGES: Final = (
    "numpy", "pytest", "hypothesis", "pytest-xdist", "pytest-randomly", "pytest-timeout",
    "torchvision", "timm",
    "transformers", "lightning", "pytorch-lightning", "diffusers", "torch-geometric", "peft",
    "jaxtyping",
)  # fmt: skip
VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTHONHASHSEED",
    "PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "CI",
)  # fmt: skip
PLUGIN: Final = "pytest_torchcheck.plugin"
SETTINGS: Final = ("pyproject.toml", "pytest.ini", "pytest.toml", "tox.ini", "setup.cfg")


def run(given: argparse.Namespace) -> int:
    """Print the report."""
    del given
    sys.stdout.write("\n".join(lines()) + "\n")
    return DONE


def lines() -> Iterator[str]:
    """Yield the report line by line.

    It holds no path outside the project and no value of other variables.
    """
    yield f"pytest-torchcheck {__version__}"
    python = f"python {platform.python_version()} ({platform.python_implementation()})"
    yield f"{python}, {platform.platform(terse=True)}"
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    threads = f"{torch.get_num_threads()} threads, {hardware.cores()} cores"
    yield f"torch {torch.__version__} ({cuda}), {threads}"
    yield "packages: " + (", ".join(_versions()) or "none of those that matter")
    yield "devices: " + ", ".join(_devices())
    yield "plugins of pytest: " + (", ".join(_plugins()) or "none")
    yield f"pytest-torchcheck in pytest: {_loaded()}"
    yield "adapters: " + ", ".join(_adapters())
    names = [n for n in (*VARIABLES, *sorted(os.environ)) if n in VARIABLES or "TORCHCHECK" in n]
    found = [f"{name}={os.environ[name]}" for name in dict.fromkeys(names) if name in os.environ]
    yield "environment: " + (", ".join(found) or "nothing that matters")
    yield "settings:"
    yield from _settings() or ["  none"]


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue


def _devices() -> Iterator[str]:
    yield f"cpu ({platform.processor() or platform.machine()})"
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            yield (
                f"cuda:{index} {properties.name}, compute capability "
                f"{properties.major}.{properties.minor}, {properties.total_memory >> 20} MiB"
            )
        driver = hardware.driver_version()
        if driver:
            yield f"driver {driver}"
    else:
        present = len(hardware.present_gpus())
        yield f"no cuda ({present} GPUs present, unusable by this torch)" if present else "no cuda"
    if torch.backends.mps.is_available():
        yield "mps"


def _plugins() -> list[str]:
    found = {
        f"{point.name} ({point.dist.name} {point.dist.version})"
        for point in metadata.entry_points(group="pytest11")
        if point.dist is not None
    }
    return sorted(found)


def _loaded() -> str:
    """Say whether pytest loads this plugin without being told to, and why not where it does not."""
    given = " ".join([os.environ.get("PYTEST_ADDOPTS", ""), *_settings()])
    if re.search(r"-p\W*no:torchcheck\b", given):
        return "switched off by -p no:torchcheck"
    names = (point.value.partition(":")[0] for point in metadata.entry_points(group="pytest11"))
    if PLUGIN not in names:
        why = "no installed package names it to pytest; install pytest-torchcheck"
    elif os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        why = "PYTEST_DISABLE_PLUGIN_AUTOLOAD is set; unset it"
    else:
        return "loaded by itself"
    return f"not loaded by itself: {why}, or give pytest -p {PLUGIN}"


def _adapters() -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = list(adapters())
    return [*found, *(str(warning.message) for warning in caught)]


def _settings() -> list[str]:
    """Return the lines of the project's files that set something of this plugin."""
    found = []
    for name in SETTINGS:
        path = Path(name)
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        set_here = re.findall(r"^\s*((?:torchcheck\w*|addopts|filterwarnings)\s*=.*)", text, re.M)
        found += [f"  {name}: {line.strip()}" for line in set_here]
    return found

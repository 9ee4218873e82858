"""Hold the programs of the gallery and the models of the soundness tests to their checks on a device, and print what came out.

``python -m tests.gpu.programs --part 3/15`` takes every fifteenth program, the third one first: run the
parts beside each other, each in a process of its own. A program that is written for the CPU (it creates a
tensor there) is told so, rightly, and counted apart.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

import pytest_torchcheck

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchcheck import Report

FOR_THE_CPU = {"device-pair", "device-sync", "sequence-lengths", "copy-differs", "pickle-differs"}
"""What is said of a mended program that is right on the CPU only."""


def programs(device: str) -> Iterator[tuple[str, str, Any]]:
    """Yield kind, name and what returns the report of every program; contracts that name no device are on this one."""
    real = pytest_torchcheck.Contract

    class Here(real):  # type: ignore[misc, valid-type]
        def __init__(self, **fields: Any) -> None:
            super().__init__(**{"devices": (device,), **fields})

    pytest_torchcheck.Contract = Here
    from tests.gallery import gallery
    from tests.soundness import by_hand, losses, met_in_packages  # noqa: F401  # they enter SOUND
    from tests.soundness.models import SOUND

    gallery.Contract = real

    class Folder:
        @staticmethod
        def chdir(path: Any) -> None:
            os.chdir(path)

    for kind in ("bug", "fixed"):
        for name in gallery.ENTRIES:
            path = gallery.HERE / name / f"{kind}.py"
            yield kind, name, lambda path=path: gallery.run(path, Folder)
    for name, make in SOUND.items():
        yield "sound", name, lambda make=make: make().check()


def outcome(kind: str, name: str, report: Report) -> str:
    """Return one word: what was to come out (``found``, ``passed``), or what did instead."""
    codes = [
        f.code
        for f in report.findings
        if f.root is None
        and (f.status in ("violated", "error") or (f.status == "suspicious" and kind != "sound"))
    ]
    if any(f.status == "error" or "explaining it failed" in str(f) for f in report.findings):
        return "failed itself"
    if "device-assert" in codes and name != "device-assert":
        return "lost the device"
    if kind == "bug":
        return "found" if name in codes else "missed"
    if set(codes) <= FOR_THE_CPU:
        return "for the CPU" if codes else "passed"
    return "false alarm"


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.programs", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part", default="1/1", help="N/M: the N-th of M parts")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    here, counts = os.getcwd(), Counter[str]()
    for number, (kind, name, run) in enumerate(programs(options.device)):
        if number % parts != part - 1:
            continue
        os.chdir(here)
        torch.manual_seed(0)
        found = outcome(kind, name, run())
        counts[f"{kind}: {found}"] += 1
        if found not in ("found", "passed", "for the CPU"):
            print(f"{kind} {name}: {found}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))


if __name__ == "__main__":
    main()

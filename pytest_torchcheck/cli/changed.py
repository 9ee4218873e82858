"""``changed FILE ...``: the contracts of changed files, as a hook before a commit runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from . import DONE

if TYPE_CHECKING:
    import argparse

_DECLARES: Final = re.compile(r"\bpytest_torchcheck\b")
_NOTHING_COLLECTED: Final = 5


def run(given: argparse.Namespace) -> int:
    """Run the contracts, and no other test, of the files that mention this package."""
    chosen = [file for file in given.files if declares(Path(file))]
    if not chosen:
        return DONE  # without importing torch
    command = [sys.executable, "-m", "pytest", "--torchcheck", "-m", "torchcheck", "-q"]
    status = subprocess.run([*command, *given.options, *chosen], check=False).returncode
    return DONE if status == _NOTHING_COLLECTED else status


def declares(file: Path) -> bool:
    """Say whether a file is Python that names this package; one that is gone does not."""
    if file.suffix != ".py":
        return False
    try:
        return _DECLARES.search(file.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False

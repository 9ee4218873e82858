"""``changed FILE ...``: the contracts that rest on changed files, as a hook before a commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from . import DONE, CommandError
from .importing import Project, declares

if TYPE_CHECKING:
    import argparse

_NOTHING_COLLECTED: Final = 5
_SHOWN: Final = 5  # names in the line that says that nothing imports them


def run(given: argparse.Namespace) -> int:
    """Run the contracts, and no other test, of the files that import a changed file, or are one."""
    files = given.files or _of_git()
    if not files:
        sys.stdout.write("no file has changed since the last commit\n")
        return DONE
    chosen = _contract_files(files)
    if not chosen:  # without importing torch
        shown = ", ".join(files[:_SHOWN])
        more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
        sys.stdout.write(f"no contract file imports the changed files ({shown}{more})\n")
        return DONE
    command = [sys.executable, "-m", "pytest", "--torchcheck", "-m", "torchcheck", "-q"]
    status = subprocess.run([*command, *given.options, *chosen], check=False).returncode
    return DONE if status == _NOTHING_COLLECTED else status


def _contract_files(files: list[str]) -> list[str]:
    """Return the changed files that name this package, then the test files that import one."""
    own = [file for file in files if declares(Path(file))]
    changed = {Path(file).resolve() for file in files if file.endswith(".py")}
    root = Path.cwd().resolve()
    found = Project(root).contract_files(changed) if changed else []
    given = {Path(file).resolve() for file in own}
    return [*own, *(os.path.relpath(file, root) for file in found if file not in given)]


def _of_git() -> list[str]:
    """Return the files below this folder that differ from the last commit, new ones included.

    Raises:
        CommandError: git cannot tell.
    """
    found: list[str] = []
    for arguments in (
        ["diff", "--name-only", "--relative", "-z", "HEAD"],
        ["ls-files", "--others", "--exclude-standard", "-z"],
    ):
        try:
            done = subprocess.run(
                ["git", *arguments], capture_output=True, text=True, check=True, encoding="utf-8"
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise CommandError(
                "git cannot say here which files have changed; name them: changed FILE ..."
            ) from error
        found += [name for name in done.stdout.split("\0") if name]
    return found

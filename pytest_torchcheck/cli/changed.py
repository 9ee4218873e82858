"""``changed FILE ...``: the contracts that rest on changed files, as a hook before a commit."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from . import DONE, CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

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


_DECLARES: Final = re.compile(r"\bpytest_torchcheck\b")
_SETTINGS: Final = ("pytest.toml", "pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
_PATTERNS: Final = re.compile(r"^\s*python_files\s*=\s*(.*(?:\n[ \t]+.*)*)", re.M)
_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


def declares(file: Path) -> bool:
    """Say whether a file is Python that names this package; one that is gone does not."""
    return file.suffix == ".py" and _DECLARES.search(_text(file)) is not None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class Project:
    """The Python files below a folder, and which of them import which.

    An import that could mean several files means all of them, so that nothing is missed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._imports: dict[Path, frozenset[Path]] = {}

    def contract_files(self, changed: set[Path]) -> list[Path]:
        """Return the test files that name this package and rest on one of the changed files.

        Both may be through modules that they import. A ``conftest.py`` is imported by the test
        files of its folder and below.

        Args:
            changed: Resolved paths; a file that is gone counts under the name that it had.
        """
        self._all.update(file for file in changed if self.root in file.parents)
        patterns = self._patterns()
        found = []
        for file in sorted(self._all):
            if not file.is_file() or not any(fnmatch(file.name, one) for one in patterns):
                continue
            reached = self._reached({file})
            with_conftest = reached | self._reached(self._conftests(file))
            if with_conftest & changed and any(map(declares, reached)):
                found.append(file)
        return found

    @cached_property
    def _all(self) -> set[Path]:
        found: set[Path] = set()
        for folder, folders, names in os.walk(self.root):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".")
                and name not in _LEFT_OUT
                and not Path(folder, name, "pyvenv.cfg").exists()
            ]
            found |= {Path(folder, name) for name in names if name.endswith(".py")}
        return found

    def _patterns(self) -> list[str]:
        """Return the patterns of test files that the project's settings name, or pytest's own."""
        for name in _SETTINGS:
            found = _PATTERNS.search(_text(self.root / name))
            if found is not None:
                return re.findall(r"[\w*?.-]+", found[1])
        return ["test_*.py", "*_test.py"]

    @cached_property
    def _modules(self) -> dict[str, set[Path]]:
        """The files by every name that they may be imported by.

        A package's files have no name without the package.
        """
        found: dict[str, set[Path]] = defaultdict(set)
        for file in self._all:
            parts = file.relative_to(self.root).with_suffix("").parts
            below = file.parent
            shortest = 1
            while below != self.root and below / "__init__.py" in self._all:
                below, shortest = below.parent, shortest + 1
            if parts[-1] == "__init__":
                parts, shortest = parts[:-1], max(shortest - 1, 1)
            for length in range(shortest, len(parts) + 1):
                found[".".join(parts[-length:])].add(file)
        return found

    def _conftests(self, file: Path) -> set[Path]:
        folders = {*file.parents} - {*self.root.parents}
        return {folder / "conftest.py" for folder in folders} & self._all

    def _reached(self, files: set[Path]) -> set[Path]:
        """Return files with all that they import, directly or through others."""
        reached: set[Path] = set()
        waiting = list(files)
        while waiting:
            file = waiting.pop()
            if file not in reached:
                reached.add(file)
                if file not in self._imports:
                    self._imports[file] = frozenset(self._imported(file))
                waiting += self._imports[file]
        return reached

    def _imported(self, file: Path) -> Iterator[Path]:
        try:
            tree = ast.parse(_text(file))
        except (SyntaxError, ValueError):  # pytest shows it, if the file is collected
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._named(alias.name)
            elif isinstance(node, ast.ImportFrom):
                names = [alias.name for alias in node.names]
                if node.level == 0:
                    for name in names:
                        yield from self._named(f"{node.module}.{name}")
                elif node.level <= len(file.parents):
                    start = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                    yield from self._beside(start, names)

    def _named(self, name: str) -> Iterator[Path]:
        """Yield the files of a dotted name and of the packages that it lies in."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            yield from self._modules.get(".".join(parts[:length]), ())

    def _beside(self, start: Path, names: list[str]) -> Iterator[Path]:
        """Yield the files of a relative import: the module at a path, and what it holds."""
        places = [start, *(start / name for name in names)]
        for place in places:
            for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
                if file in self._all:
                    yield file

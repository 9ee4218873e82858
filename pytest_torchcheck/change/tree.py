"""The files of a git reference in a temporary folder, without touching the repository or the user's checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENV: Final = "TORCHCHECK_REFERENCE"
"""Set in the process that runs a reference's code."""
_GIT_SECONDS: Final = 300.0
_OF_HOOKS: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""What git sets for a hook, which would point to the user's index."""
_INSTALLED: Final = ("site-packages", "dist-packages")


class UnreadableReferenceError(ValueError):
    """A reference cannot be read; the message says why and what to give instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A commit of the repository that holds a folder.

    Attributes:
        text: As the user wrote it, such as ``origin/main``.
        commit: Its full hash.
        top: Top folder of the user's checkout, with symbolic links resolved.
    """

    text: str
    commit: str
    top: Path

    @property
    def shown(self) -> str:
        """The reference with its short hash."""
        short = self.commit[:9]
        return short if self.commit.startswith(self.text) else f"{self.text} ({short})"


def find_reference(text: str, folder: Path) -> Reference:
    """Return the commit that a name stands for in the repository around a folder.

    Raises:
        UnreadableReferenceError: There is no git, no repository or no such commit.
    """
    if shutil.which("git") is None:
        raise UnreadableReferenceError(
            "the command git was not found; install git, or put it on the PATH"
        )
    try:
        top = _git(folder, "rev-parse", "--show-toplevel").strip()
    except UnreadableReferenceError:
        raise UnreadableReferenceError(f"{folder} is not in a git repository") from None
    try:
        wanted = f"{text}^{{commit}}"
        commit = _git(
            folder, "rev-parse", "--verify", "--quiet", "--end-of-options", wanted
        ).strip()
    except UnreadableReferenceError:
        raise UnreadableReferenceError(
            f"git finds no commit {text!r} here; give a branch, a tag or a hash that has been fetched"
        ) from None
    return Reference(text=text, commit=commit, top=Path(os.path.realpath(top)))


def _git(folder: Path, *arguments: str, index: Path | None = None) -> str:
    """Run git, with an index of our own where one is given; the user's index is never read or written.

    Raises:
        UnreadableReferenceError: It failed; the message is git's own.
    """
    environment = {k: v for k, v in os.environ.items() if k not in _OF_HOOKS}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        errors="replace", timeout=_GIT_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        told = done.stderr.strip().splitlines()
        raise UnreadableReferenceError(told[-1] if told else f"git {arguments[0]} failed")
    return done.stdout


@dataclass(slots=True)
class Tree:
    """The files of a reference in a folder of their own, which :meth:`remove` deletes.

    Attributes:
        reference: Whose files.
        folder: The temporary folder; the files are in ``folder/tree``, and there is room beside them.
    """

    reference: Reference
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="torchcheck-")))

    @property
    def root(self) -> Path:
        """Where the repository's top is, with symbolic links resolved."""
        return Path(os.path.realpath(self.folder)) / "tree"

    def write(self) -> None:
        """Write the tracked files of the reference.

        A temporary index is used. ``git archive`` would leave out what ``.gitattributes`` marks
        ``export-ignore``, which many projects do with their tests; ``git worktree`` would register
        the folder in the repository.

        Raises:
            UnreadableReferenceError: Git failed.
        """
        index = self.folder / "index"
        self.root.mkdir(exist_ok=True)
        _git(self.reference.top, "read-tree", self.reference.commit, index=index)
        prefix = f"--prefix={self.root}{os.sep}"
        _git(self.reference.top, "checkout-index", "--all", "--quiet", prefix, index=index)

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def of(self, path: str | Path) -> Path | None:
        """Return where a path of the checkout is in this tree; None for one outside of the repository."""
        relative = self.relative(path)
        return None if relative is None else self.root / relative

    def relative(self, path: str | Path) -> Path | None:
        """Return a path of the checkout, or of this tree, below the repository's top; None for any other."""
        real = Path(os.path.realpath(path))
        for top in (self.root, self.reference.top):
            if real == top or top in real.parents:
                return real.relative_to(top)
        return None

    def mapped(self, entries: Iterable[str]) -> list[str]:
        """Return entries of ``sys.path`` for a process that imports the project from this tree.

        Folders of the checkout become those of the tree. A folder that the reference does not have
        is left out, unless packages are installed in it.
        """
        found = []
        for entry in entries:
            place = self.of(entry or os.getcwd())
            if place is None or is_installed(entry):
                found.append(entry)
            elif place.exists():
                found.append(str(place))
        return found

    def deleted_files(self) -> list[Path]:
        """Return the files below the top that the reference has and the checkout does not, relative to it."""
        listed = _git(
            self.reference.top, "ls-tree", "-r", "-z", "--name-only", self.reference.commit
        )
        names = [name for name in listed.split("\0") if name.endswith(".py")]
        return [Path(name) for name in names if not (self.reference.top / name).exists()]


def is_installed(path: str) -> bool:
    """Say whether a path belongs to an environment, such as one that lies within the checkout."""
    real = os.path.realpath(path)
    prefix = os.path.realpath(sys.prefix)
    own = sys.prefix != sys.base_prefix and (real == prefix or real.startswith(prefix + os.sep))
    return own or any(name in Path(real).parts for name in _INSTALLED)


def environment_for(tree: Tree, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process of the tree: the same, with ``PYTHONPATH`` mapped."""
    made = dict(variables)
    if paths := made.get("PYTHONPATH"):
        made["PYTHONPATH"] = os.pathsep.join(tree.mapped(paths.split(os.pathsep)))
    made["PYTHONDONTWRITEBYTECODE"] = "1"
    return made

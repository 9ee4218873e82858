"""Run the code blocks of a page of the docs in their order, as a reader who pastes them would.

``python -m tests.pages docs/adopt.md FOLDER`` runs a page in an empty folder, in this one process.

====================================  ========================================================================
a block ``python title="shop/a.py"``  is written to this file; so are toml, ini and yaml with a title
``diff title="shop/a.py"``            is applied to that file: the line with ``-`` becomes the one with ``+``
``python``                            runs, in one namespace for the whole page
``sh``                                runs: ``pytest``, ``python -m pytest_torchcheck``, ``git`` and ``mkdir``
``text``, or no language              must stand in what the page has printed; a line ``...`` stands for any lines
``toml``                              must be readable
====================================  ========================================================================

Comments in front of a block: ``<!-- exit 1 -->`` is the status that a command must end with, 0 otherwise;
``<!-- not run: REASON -->`` leaves the block out, and ``<!-- needs NAME -->`` does where
that package is not installed, which the test shows as skipped; ``<!-- setup`` holds Python that
runs and is not shown.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->$"
    r"|^(?:<!-- (?P<note>exit \d+|needs \w+|not run: [^\n]+) -->\n)?```(?P<kind>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n"
    r"(?P<code>.*?)^```$",
    re.S | re.M,
)


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        kind: Its language; ``setup`` for Python that is not shown.
        code: What it holds.
        line: Number of its first line in the page.
        title: The file that it is, or an empty string.
        note: What the comment in front of it says, or an empty string.
    """

    kind: str
    code: str
    line: int
    title: str = ""
    note: str = ""

    @property
    def reason(self) -> str:
        """Why the block is not run, or an empty string."""
        if self.note.startswith("needs "):
            name = self.note.removeprefix("needs ")
            return "" if find_spec(name) else f"needs {name}, which is not installed"
        return self.note.removeprefix("not run: ") if self.note.startswith("not run") else ""

    @property
    def status(self) -> int:
        """The exit status that its last command must have."""
        return int(self.note.removeprefix("exit ")) if self.note.startswith("exit") else 0


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        kind = "setup" if match["setup"] is not None else match["kind"]
        code = match["setup"] if kind == "setup" else match["code"]
        start = match.start("setup" if kind == "setup" else "code")
        line = text.count("\n", 0, start) + 1
        found.append(Block(kind, code, line, match["title"] or "", match["note"] or ""))
    return found


class Page:
    """A page that is being run, in the current folder."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.printed = ""
        self.names: dict[str, Any] = {"__name__": "page"}

    def run(self) -> None:
        """Run all blocks; the first that does not do what the page says ends it."""
        for block in blocks_of(self.page):
            if block.reason:
                continue
            place = f"{self.page.name}:{block.line}"
            if block.kind == "diff" and block.title:
                apply(block, place)
            elif block.title:
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(block.code, encoding="utf-8")
            elif block.kind in ("python", "setup"):
                self._python(block)
            elif block.kind == "sh":
                self._shell(block, place)
            elif block.kind in ("", "text"):
                assert shown(block.code, self.printed), (
                    f"{place} is not what is printed:\n{self.printed}"
                )
            elif block.kind == "toml":
                tomllib.loads(block.code)
            else:
                raise AssertionError(f"{place}: nothing runs a block of {block.kind!r}")

    def _python(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.code
        file = f"{self.page.stem}_{block.line}.py"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(source, file, "exec"), self.names)  # the page's own code
        self.printed += out.getvalue()

    def _shell(self, block: Block, place: str) -> None:
        status = 0
        for line in block.code.replace("\\\n", " ").splitlines():
            command = shlex.split(line, comments=True)
            if not command:
                continue
            status, out = call(command)
            self.printed += out
            sys.stdout.write(f"$ {line}\n{out}")
        assert status == block.status, f"{place} ends with {status}:\n{self.printed}"


def call(command: list[str]) -> tuple[int, str]:
    """Run one command in this process, and return its exit status and what it printed."""
    program, *arguments = command
    if program not in ("pytest", "python"):
        assert program in ("git", "mkdir"), f"{program} is no command that a page may run"
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
    forget()
    out = io.StringIO()
    here = (str(Path.cwd()), "")
    found_in = [folder for folder in sys.path if folder not in here]
    if program == "python":  # which looks into the current folder, as the command pytest does not
        found_in.insert(0, here[0])
    with paths(found_in), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = pytest(arguments) if program == "pytest" else torchcheck(arguments)
        except SystemExit as end:
            status = int(end.code or 0)
    return status, out.getvalue()


@contextlib.contextmanager
def paths(folders: list[str]) -> Iterator[None]:
    """Look for modules in these folders, until the command has ended."""
    before = sys.path[:]
    sys.path[:] = folders
    try:
        yield
    finally:
        sys.path[:] = before


def pytest(arguments: list[str]) -> int:
    """Run pytest as a new process would: without what an earlier run has imported from the page's folder."""
    import pytest

    return int(pytest.main(["-p", "no:cacheprovider", "--rootdir=.", *arguments]))


def torchcheck(arguments: list[str]) -> int:
    """Run ``python -m pytest_torchcheck``."""
    from pytest_torchcheck.cli import main

    assert arguments[:2] == ["-m", "pytest_torchcheck"], f"python {arguments} is not run"
    return int(main(arguments[2:]) or 0)


def forget() -> None:
    """Drop the modules that were imported from the current folder: their files may be others now."""
    here = str(Path.cwd())
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(here):
            del sys.modules[name]
    linecache.checkcache()
    invalidate_caches()


def apply(block: Block, place: str) -> None:
    """Change a file as a diff says."""
    path = Path(block.title)
    text = path.read_text(encoding="utf-8")
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", block.code, re.M):
        before, after = (re.sub(r"^[-+]", "", part, flags=re.M) for part in (old, new))
        assert text.count(before) == 1, f"{place}: {before!r} is not once in {path}"
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


def shown(expected: str, printed: str) -> bool:
    """Say whether lines stand in what was printed, whatever the times and the widths of rules."""
    parts = re.split(r"^ *\.\.\.\n", plain(expected), flags=re.M)
    at, text = 0, plain(printed)
    for part in parts:
        at = text.find(part.strip("\n"), at)
        if at < 0:
            return False
    return True


def plain(text: str) -> str:
    """Return lines without times, rules and the blanks at their ends."""
    text = re.sub(r"\b\d+\.\d+ ?s\b", "N s", text)
    text = re.sub(r"([=_-])\1{3,}", r"\1\1\1", text)
    return re.sub(r"[ \t]+$", "", text, flags=re.M)


def run(page: Path) -> None:
    """Run a page in the current folder."""
    Page(page).run()


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve())

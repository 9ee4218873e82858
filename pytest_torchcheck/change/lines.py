"""What an edit changed: the lines of a file now beside the lines that they replace."""

from __future__ import annotations

import functools
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from .. import sources
from ..lean import dataclass
from ..sources.syntax import source_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..findings import Location
    from .tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One changed line.

    Attributes:
        new: The line as it is; of deleted lines, the line that follows them.
        was: Its old text, stripped; empty where the line was added.
        text: Its new text, stripped; empty where lines were deleted.
        old_line: The number of the old line, or of the line before which it was added.
    """

    new: Location
    was: str
    text: str
    old_line: int

    @property
    def shown(self) -> str:
        """Old and new text, one below the other."""
        return f"was  {self.was or '(no such line)'}\nnow  {self.text or '(removed)'}"


@dataclass(frozen=True, slots=True)
class Block:
    """Lines ``[start, stop)`` of a file that replace lines ``[was_start, was_stop)``, all from 0."""

    start: int
    stop: int
    was_start: int
    was_stop: int


class Edits:
    """The changed lines between the checkout and a tree of a reference.

    Args:
        tree: The tree of the reference; None where the old lines are not known, so that none changed.
    """

    def __init__(self, tree: Tree | None) -> None:
        self.tree = tree
        self._blocks = functools.cache(self._compare)

    def _texts(self, file: str) -> tuple[list[str], list[str]] | None:
        """Return the lines of a file of the checkout and those of the reference; None where either is missing."""
        there = None if self.tree is None else self.tree.of(file)
        try:
            now = Path(file).read_text(encoding="utf-8").splitlines()
            was = [] if there is None else there.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return None
        return None if there is None else (now, was)

    def _compare(self, file: str) -> tuple[Block, ...]:
        texts = self._texts(file)
        if texts is None:
            return ()
        now, was = texts
        matcher = SequenceMatcher(
            a=[one.strip() for one in was], b=[one.strip() for one in now], autojunk=False
        )
        return tuple(
            Block(b0, b1, a0, a1)
            for tag, a0, a1, b0, b1 in matcher.get_opcodes()
            if tag != "equal" and not _silent(was[a0:a1], now[b0:b1])
        )

    def blocks(self, file: str) -> tuple[Block, ...]:
        """Return the changed blocks of a file of the checkout; blank lines and comments do not count."""
        return self._blocks(file)

    def at(self, place: Location | None) -> Edit | None:
        """Return the edit of a line, or of another line of its statement; None where that is unchanged."""
        if place is None or not place.line:
            return None
        start, stop = place.line, place.line
        if (found := sources.statement(place.file, place.line)) is not None and not hasattr(
            found, "body"
        ):
            start, stop = found.lineno, found.end_lineno or found.lineno
        return self._within(place.file, start, stop, near=place)

    def before(self, file: str, line: int) -> Edit | None:
        """Return the edit that replaced a line of the reference.

        Args:
            file: The file in the tree of the reference.
            line: The line in it.
        """
        relative = None if self.tree is None else self.tree.relative(file)
        if relative is None or self.tree is None:
            return None
        here = str(self.tree.reference.top / relative)
        for block in self.blocks(here):
            if block.was_start < line <= block.was_stop:
                return self._edit(here, block, was=line - 1)
        return None

    def inside(self, file: str, start: int, stop: int) -> list[Edit]:
        """Return an edit for every changed block within lines ``start`` to ``stop`` of a file."""
        texts = self._texts(file)
        if texts is None:
            return []
        return [
            self._edit(file, block)
            for block in self.blocks(file)
            if block.start < stop
            and block.stop >= start
            and (block.stop > block.start or block.start >= start - 1)
        ]

    def of_class(self, cls: type) -> list[Edit]:
        """Return the edits within the source of a class and of its bases."""
        found = []
        for base in cls.__mro__:
            lines, start, file = source_of(base) if sources.is_no_tools_class(base) else ([], 0, "")
            if lines:
                found += self.inside(file, start, start + len(lines) - 1)
        return found

    def of_function(self, place: Location) -> list[Edit]:
        """Return the edits within the function around a line; none where that is a method."""
        found = sources.function_around(place.file, place.line)
        if found is None or "." in place.function:
            return []
        return self.inside(place.file, found.lineno, found.end_lineno or found.lineno)

    def of_files(self, files: Iterable[str]) -> list[Edit]:
        """Return the edits of some files."""
        return [self._edit(file, block) for file in files for block in self.blocks(file)]

    def _within(self, file: str, start: int, stop: int, near: Location) -> Edit | None:
        for block in self.blocks(file):
            if block.start < stop and block.stop >= start and block.stop > block.start:
                line = near.line - 1 if block.start < near.line <= block.stop else None
                if line is None:
                    line = max(block.start, start - 1)
                return self._edit(file, block, now=line)
        return None

    def _edit(
        self, file: str, block: Block, *, now: int | None = None, was: int | None = None
    ) -> Edit:
        """Return the edit of a block, at one of its lines where that is given: its counterpart is the most alike."""
        texts = self._texts(file)
        assert texts is not None
        new, old = texts
        news, olds = range(block.start, block.stop), range(block.was_start, block.was_stop)
        pairs = [
            (SequenceMatcher(a=old[j], b=new[i]).ratio(), -i, -j)
            for i in (news if now is None else [now])
            for j in (olds if was is None else [was])
            if i in news and j in olds and _is_code(new[i]) and _is_code(old[j])
        ]
        if pairs:
            _, i, j = max(pairs)
            now, was = -i, -j
        elif now is None and was is None:
            now = _first(news, new)
            was = _first(olds, old) if now is None else None
        line = now if now is not None else block.start
        shown = min(line, max(len(new) - 1, 0))
        return Edit(
            new=sources.of_line(file, shown + 1),
            was="" if was is None else old[was].strip(),
            text="" if now is None else new[now].strip(),
            old_line=(block.was_start if was is None else was) + 1,
        )


def _first(places: range, lines: list[str]) -> int | None:
    return next((i for i in places if _is_code(lines[i])), None)


def _is_code(line: str) -> bool:
    text = line.strip()
    return bool(text) and not text.startswith("#")


def _silent(was: list[str], now: list[str]) -> bool:
    """Say whether lines differ in blank lines and comments alone."""

    def code(lines: list[str]) -> list[str]:
        return [line.strip() for line in lines if _is_code(line)]

    return code(was) == code(now)

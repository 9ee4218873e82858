"""What mkdocs needs to build these pages as they are: links that leave ``docs`` lead to copies of their files.

The pages link to programs, tests and CONTRIBUTING by relative paths, which work in the repository. In the site those
files stand under ``source/``.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)")
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(?=<code>)")
_COPIES = "source"


def on_config(config: Any) -> Any:
    """List the page of every check in the navigation."""
    pages = sorted(path.name for path in (ROOT / "docs" / "checks").glob("*.md"))
    for section in config.nav:
        section.get("Checks", []).extend(f"checks/{name}" for name in pages if name != "index.md")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside ``docs`` that pages link to, and those that such pages link to in turn."""
    from mkdocs.structure.files import File

    waiting = [
        (f"docs/{file.src_uri}", file.content_string)
        for file in files
        if file.is_documentation_page()
    ]
    known = {f"docs/{file.src_uri}" for file in files}
    while waiting:
        page, text = waiting.pop()
        for target in _outside(page, text):
            if target in known:
                continue
            known.add(target)
            path = ROOT / target
            uri = f"{_COPIES}/{target}"
            files.append(File.generated(config, uri, abs_src_path=str(path)))
            if path.suffix == ".md":
                waiting.append((target, path.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Point links at the copies, and out of the copies back at the pages."""
    uri = page.file.src_uri
    copied = uri.startswith(f"{_COPIES}/")
    origin = uri.removeprefix(f"{_COPIES}/") if copied else f"docs/{uri}"

    def replaced(match: re.Match[str]) -> str:
        target = _resolve(origin, match[1])
        if not (ROOT / target).is_file():
            return match[1]
        inside = target.startswith("docs/")
        there = target.removeprefix("docs/") if inside else f"{_COPIES}/{target}"
        return posixpath.relpath(there, posixpath.dirname(uri) or ".")

    return _LINK.sub(replaced, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Drop the roles of docstrings, such as ``:class:``, which this builder shows as text."""
    return _ROLE.sub("", html)


def _outside(page: str, text: str) -> Iterator[str]:
    for link in _LINK.findall(text):
        target = _resolve(page, link)
        if not target.startswith("docs/") and (ROOT / target).is_file():
            yield target


def _resolve(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))

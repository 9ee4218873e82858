"""``--torchcheck-record``: a case for each contract that holds its model beside a file, or writes the file."""

from __future__ import annotations

import os
import re
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...catalogue import Check
from ...change.tree import ENV
from ...late import resolve
from .. import markers, options
from ..collection.items import EXTRA, ContractNode
from .against import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from ...findings import Finding
    from ...runner import Case
    from ...subject import Subject
    from ..options import Options

NAME: Final = "record"
SUMMARY: Final = "The model, its state dict and its costs match its record"


def file_of(folder: Path, name: str) -> Path:
    """Return the file of a contract's record: folders and file of its test, and its own name."""
    path, _, rest = name.partition("::")
    plain = re.sub(r"[^\w.-]+", "-", rest.replace("::", ".")).strip("-.")
    if plain != rest:  # two names may come to the same
        plain += f"-{zlib.crc32(rest.encode()):08x}"
    parts = [part for part in re.split(r"[/\\]", path) if part not in ("", ".", "..")]
    return folder.joinpath(*parts[:-1], parts[-1].removesuffix(".py"), f"{plain}.json")


class _Records:
    """Adds a case to each contract."""

    name = NAME

    def __init__(self, config: pytest.Config, settings: Options, folder: Path) -> None:
        self.config, self.settings, self.folder = config, settings, folder

    def cases(self, node: ContractNode) -> tuple[Case, ...]:
        """Return the case of a contract that has a model and batches."""
        contract = node.contract
        if contract.model is None or contract.source is None:
            return ()
        device, dtype = place_of(contract)
        check = Check(
            name=NAME, run=partial(self.run, node), summary=SUMMARY, axes="once", family="change"
        )
        case: Any = resolve("runner.selection:Case")
        return (case(check=check, device=device, dtype=dtype, id=NAME),)

    def run(self, node: ContractNode, subject: Subject) -> Iterator[Finding]:
        """Compare a contract with its record."""
        compare = resolve("change.recorded:against_record")
        path = file_of(self.folder, node.nodeid)
        yield from compare(subject, path, node.nodeid, writes=self.settings.write_record)


def register(config: pytest.Config) -> None:
    """Add the cases, where a folder is given."""
    settings = config.stash[options.KEY]
    if settings.record is None or ENV in os.environ:
        return
    if not settings.enabled and not settings.models and settings.sources["record"].startswith("--"):
        markers.usage_error(config, "--torchcheck-record: give --torchcheck as well")
    if settings.record.exists() and not settings.record.is_dir():
        markers.usage_error(
            config, f"--torchcheck-record: {settings.record} is a file; give a folder"
        )
    config.stash.setdefault(EXTRA, []).append(_Records(config, settings, settings.record))

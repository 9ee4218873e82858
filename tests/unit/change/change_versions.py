"""Two versions of a file in one process: as in a checkout and in the tree of a reference, without git."""

from __future__ import annotations

import copy
import importlib.util
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_torchcheck.change.check import against
from pytest_torchcheck.change.running import Outcome, Way
from pytest_torchcheck.change.serving import Served
from pytest_torchcheck.change.traces import trace_of_plain
from pytest_torchcheck.change.tree import Reference, Tree
from pytest_torchcheck.change.version import UnavailableError
from pytest_torchcheck.subject import Subject

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchcheck.contracts import Contract
    from pytest_torchcheck.findings import Finding
    from pytest_torchcheck.probes.recorded.operations import Trace

HEAD = """
import math
import torch
import torch.nn.functional as F
from torch import nn
from pytest_torchcheck import Contract, Labels, Tokens

"""


class Here:
    """The other version, in this process."""

    def __init__(self, tree: Tree, contract: Contract | None) -> None:
        self.tree = tree
        self._described: Any = None
        self._served = None
        if contract is not None:
            self._served = Served(contract, {"device": "cpu", "dtype": None, "seed": 0})

    def description(self) -> Any:
        if self._served is None:
            raise UnavailableError("there is no such contract at main", code="contract-new")
        if self._described is None:
            self._described = self._ask("description")
        return copy.deepcopy(self._described)

    def outcome(self, way: Way) -> Outcome:
        return Outcome.of_plain(self._ask("outcome", way=way))

    def trace(self, way: Way) -> Trace:
        return trace_of_plain(self._ask("trace", way=way))

    def noise(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = self._ask("noise")
        return found

    def _ask(self, what: str, way: Way | None = None, **given: Any) -> Any:
        assert self._served is not None
        if way is not None:
            given["way"] = {"batch": way.batch, "train": way.train, "double": way.double}
        return self._served.answer({"ask": what, **given})


def load(folder: Path, name: str, text: str) -> Any:
    """Write and import a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "net.py"
    path.write_text(HEAD + text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def before(folder: Path, was: str) -> Here:
    """Return the old version of a contract ``net``, which several new ones may be compared with."""
    tree = Tree(
        reference=Reference(text="main", commit="0" * 40, top=folder / "now"), folder=folder
    )
    old = load(folder / "tree", f"was_{abs(hash((str(folder), was)))}", was)
    return Here(tree, getattr(old, "net", None))


def compare(
    folder: Path, was: str | Here, now: str, *, allowed: tuple[str, ...] = ()
) -> dict[str, Finding]:
    """Return what is found between two texts that declare a contract ``net``, by code."""
    old = before(folder, was) if isinstance(was, str) else was
    top = folder / "now"
    old.tree = replace(old.tree, reference=replace(old.tree.reference, top=top))
    new = load(top, f"now_{abs(hash((str(folder), now)))}", now)
    subject = Subject(new.net)
    try:
        made = list(against(subject, old, allowed=allowed))
    finally:
        subject.close()
    return {finding.code: finding for finding in made}

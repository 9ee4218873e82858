"""``--torchcheck-against``: a case for each contract that holds its model beside what it was at a git reference."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from ...catalogue import Check
from ...change.tree import ENV, Tree, UnreadableReferenceError, find_reference
from ...change.version import UnavailableError
from ...late import resolve
from .. import markers, options
from ..collection.items import EXTRA, CheckItem, ContractNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ...change.process import Process
    from ...change.tree import Reference
    from ...contracts import Contract
    from ...findings import Finding
    from ...runner import Case
    from ...subject import Subject
    from ..options import Options

NAME: Final = "against"
SUMMARY: Final = "The model, its state dict and its costs match those at the git reference"
_GONE: Final = "torchcheck_gone"


def place_of(contract: Contract) -> tuple[str, str]:
    """Return where versions of a contract are compared: device, the CPU where it may be, and dtype."""
    wanted = contract.devices or ("cpu",)
    device = "cpu" if "cpu" in wanted else next((d for d in wanted if d != "meta"), "cpu")
    return device, next(iter(contract.dtypes or ("float32",)))


class _Against:
    """Adds a case to each contract, and keeps the reference's files and process while the session lasts."""

    name = NAME

    def __init__(self, config: pytest.Config, settings: Options, reference: Reference) -> None:
        self.config, self.settings, self.reference = config, settings, reference
        self.files: dict[Path, None] = {}
        self.known: set[str] = set()
        self.gone: list[str] = []
        self._process: Process | None = None
        self._tree: Tree | None = None

    def cases(self, node: ContractNode) -> tuple[Case, ...]:
        """Return the case of a contract that has a model and batches."""
        contract = node.contract
        if contract.model is None or contract.source is None:
            return ()
        name = self._name(node)
        if node.path.is_file():  # a model that is named on the command line has none
            self.files.setdefault(node.path)
        self.known.add(name)
        device, dtype = place_of(contract)
        check = Check(
            name=NAME, run=partial(self.run, node), summary=SUMMARY, axes="once", family="change"
        )
        made: Case = resolve("runner.selection:Case")(
            check=check, device=device, dtype=dtype, id=NAME
        )
        return (made,)

    def _name(self, node: ContractNode) -> str:
        top = self.reference.top
        file = os.path.relpath(os.path.realpath(node.path), top).replace(os.sep, "/")
        return "::".join((file, *node.nodeid.split("::")[1:]))

    def run(self, node: ContractNode, subject: Subject) -> Iterator[Finding]:
        """Compare a contract with what it was."""
        name = self._name(node)
        where = {
            "device": str(subject.device), "seed": subject.seed,
            "dtype": None if subject.dtype is None else str(subject.dtype).removeprefix("torch."),
        }  # fmt: skip
        file = name.partition("::")[0]
        old = resolve("change.process:OldContract")(self.process(), name, file, where)
        yield from resolve("change.check:against")(subject, old, allowed=self.settings.allow)

    def process(self) -> Process:
        """Return the reference's process, started where it does not run."""
        if self._process is None:
            self._tree = Tree(self.reference)
            self._tree.write()
            task = resolve("change.process:Task")(
                arguments=self._arguments(self._tree),
                path=self._tree.mapped(sys.path),
                folder=str(self._folder(self._tree)),
                top=str(self.reference.top),
                root=str(self._tree.root),
            )
            limit_s = self.settings.isolated_timeout
            self._process = resolve("change.process:Process")(self._tree, task, limit_s)
        assert self._process is not None
        return self._process

    def _folder(self, tree: Tree) -> Path:
        there = tree.of(self.config.invocation_params.dir)
        return there if there is not None and there.is_dir() else tree.root

    def _arguments(self, tree: Tree) -> list[str]:
        """Return pytest's arguments: the files of this run's contracts, and those that are deleted since."""
        config = self.config
        files = [there for file in self.files if (there := tree.of(file)) and there.is_file()]
        files += [there for name in tree.deleted_files() if _declares(there := tree.root / name)]
        given = ["--torchcheck", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        root = tree.of(config.rootpath)
        if root is not None and root.is_dir():
            given += ["--rootdir", str(root)]
        inifile = tree.of(config.inipath) if config.inipath else None
        if inifile is not None and inifile.is_file():
            given += ["-c", str(inifile)]
        given += [f"--import-mode={config.getoption('importmode')}"]
        for plugin in config.getoption("plugins") or ():
            given += ["-p", plugin]
        for override in config.getoption("override_ini") or ():
            given += ["-o", override]
        if config.pluginmanager.hasplugin("pytest_cov"):
            given.append("--no-cov")
        settings = self.settings
        given += [f"--torchcheck-model={text}" for text in settings.models]
        given += [f"--torchcheck-inputs={specs}" for specs in settings.inputs]
        given += [f"--torchcheck-loss={settings.loss}"] if settings.loss is not None else []
        if not files and not settings.models:  # without an argument pytest would collect everything
            nothing = tree.folder / "nothing"
            nothing.mkdir(exist_ok=True)
            files.append(nothing)
        return [*given, *(str(file) for file in files)]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start the process while other checks run; a worker of xdist waits for a case of its own."""
        if session.config.getoption("collectonly") or hasattr(session.config, "workerinput"):
            return
        if any(
            isinstance(item, CheckItem) and item.case.check.name == NAME for item in session.items
        ):
            self.process().start()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Note the contracts that are gone, unless single ones were selected; a worker of xdist sends them."""
        selected = any("::" in argument for argument in self.config.args)
        if self._process is not None and not selected:
            try:
                there = self._process.hello()["nodes"]
                self.gone = sorted(set(there) - self.known)
            except UnavailableError:
                self.gone = []  # each contract's item has said why
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_GONE] = self.gone
            self.close()  # before the worker says that it has finished, which may end it

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker noted: every one that had a case has noted the same."""
        self.gone = self.gone or getattr(node, "workeroutput", {}).get(_GONE, [])

    def close(self) -> None:
        """End the process and delete the files."""
        if self._process is not None:
            self._process.end()
        if self._tree is not None:
            self._tree.remove()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Name the contracts that are gone."""
        for name in self.gone:
            told = f"torchcheck: {name} was declared at {self.reference.shown} and is gone"
            terminalreporter.write_line(told, yellow=True)


def _declares(file: Path) -> bool:
    """Say whether a file may declare contracts."""
    try:
        return "pytest_torchcheck" in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def register(config: pytest.Config) -> None:
    """Add the cases, where a reference is given; refuse what git does not know."""
    settings = config.stash[options.KEY]
    if settings.against is None or ENV in os.environ:
        return
    if not settings.enabled:
        markers.usage_error(config, "--torchcheck-against: give --torchcheck as well")
    try:
        reference = find_reference(settings.against, config.rootpath)
    except UnreadableReferenceError as error:
        markers.usage_error(config, f"--torchcheck-against: {error}")
    made = _Against(config, settings, reference)
    config.stash.setdefault(EXTRA, []).append(made)
    config.pluginmanager.register(made, "torchcheck-against")
    config.add_cleanup(made.close)

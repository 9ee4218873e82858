"""A contract becomes a collector, each of its cases an item; findings decide the item's outcome."""

from __future__ import annotations

import difflib
import os
import sys
from typing import TYPE_CHECKING

import pytest

from ... import sources
from ...catalogue import catalogue
from ...declared.kept_count import LOG
from ...late import Late
from .. import declared, markers, options
from .items import EXTRA, CheckItem, ContractNode
from .records import Records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...contracts import Contract
    from ...storage.artifacts import Artifact
    from ..options import Options

_load = Late("storage.artifacts:load")
_with_batch = Late("storage.artifacts:with_batch")


class _Contracts:
    """Finds contracts in test modules; registered only under ``--torchcheck``."""

    def __init__(self, settings: Options) -> None:
        self.settings = settings
        self._artifact: Artifact | None = None
        self._placed: dict[int, tuple[str, str]] = {}  # where a container's contract is collected

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(
        self, collector: pytest.Module | pytest.Class, name: str, obj: object
    ) -> ContractNode | list[ContractNode] | None:
        """Make a collector of a contract, or of each contract in a list or dict."""
        contracts = sys.modules.get("pytest_torchcheck.contracts")
        if contracts is None or not self.settings.enabled:
            return None  # nobody has declared one yet, and asking must not import torch
        if isinstance(obj, pytest.MarkDecorator):
            _refuse_outer_mark(collector, name, obj, contracts.Contract)
        if not isinstance(obj, contracts.Contract):
            found = declared.held(name, obj, contracts.Contract)
            nodes = [self._node(collector, *pair, anywhere=True) for pair in found]
            return [node for node in nodes if node is not None] or None
        return self._node(collector, name, obj)

    def _node(
        self,
        collector: pytest.Module | pytest.Class,
        name: str,
        obj: Contract,
        *,
        anywhere: bool = False,
    ) -> ContractNode | None:
        """Make a collector of a contract once, whatever else refers to it.

        Args:
            collector: Of its module or class.
            name: What it is called there.
            obj: The contract.
            anywhere: Whether it stands in a container, and a name of its own comes first.
        """
        LOG.use(obj)
        if self._seen_elsewhere(collector, obj):
            return None
        bound = next((key for key, value in vars(collector.obj).items() if value is obj), None)
        if bound not in (None, name):  # a second name for the same contract
            return None
        here = (collector.nodeid, name)
        if anywhere and self._placed.setdefault(id(obj), here) != here:
            return None
        if not obj.is_named:
            obj.name = name
        replayed = self._replayed(collector.config)
        if replayed is not None:
            if obj.name != replayed.contract:
                return None
            obj = _with_batch(obj, replayed.batch)
        return ContractNode.from_parent(collector, name=name, contract=obj, replayed=replayed)

    def _replayed(self, config: pytest.Config) -> Artifact | None:
        """Return the failure to repeat, read once."""
        if self.settings.replay is None:
            return None
        if self._artifact is None:
            try:
                self._artifact = _load(self.settings.replay)
            except ValueError as error:
                markers.usage_error(config, f"--torchcheck-replay: {error}")
        return self._artifact

    @staticmethod
    def _seen_elsewhere(collector: pytest.Module | pytest.Class, contract: Contract) -> bool:
        """Say whether the contract is only imported here and the project does not want such."""
        try:
            wanted = collector.config.getini("collect_imported_tests")
        except ValueError:  # pytest before 8.4 knows no such setting
            wanted = True
        if wanted or contract.location is None:
            return False
        return os.path.realpath(contract.location.file) != os.path.realpath(collector.path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out the checks that were not asked for; find what is to be repeated."""
        if self.settings.replay is not None and not any(isinstance(i, CheckItem) for i in items):
            which = self._replayed(config)
            told = (
                f"no contract named {which.contract!r} with the check {which.check!r} on {which.device}"
                if which is not None
                else "no contract"
            )
            markers.usage_error(config, f"--torchcheck-replay: {told} was collected")
        if not self.settings.checks or not any(isinstance(item, CheckItem) for item in items):
            return
        try:
            more = (each.name for each in config.stash.get(EXTRA, []))
            chosen = select(self.settings.checks, (*catalogue(), *more))
        except ValueError as error:
            markers.usage_error(config, f"{self.settings.sources['checks']}: {error}")
        kept = [
            item
            for item in items
            if not isinstance(item, CheckItem) or item.case.check.name in chosen
        ]
        left_out = [
            item
            for item in items
            if isinstance(item, CheckItem) and item.case.check.name not in chosen
        ]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = kept


def select(names: Sequence[str], known: Sequence[str] | None = None) -> frozenset[str]:
    """Return the checks that ``a,b`` or ``!c`` leave.

    Raises:
        ValueError: No check has such a name.
    """
    if known is None:
        known = tuple(catalogue())
    for name in names:
        bare = name.removeprefix("!")
        if bare not in known:
            near = difflib.get_close_matches(bare, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"no check is named {bare!r}{hint}; there are: {', '.join(known)}")
    wanted = [name for name in names if not name.startswith("!")]
    unwanted = {name[1:] for name in names if name.startswith("!")}
    return frozenset(wanted or known) - unwanted


def _refuse_outer_mark(
    collector: pytest.Collector, name: str, mark: pytest.MarkDecorator, contract: type[Contract]
) -> None:
    """Explain a mark above ``@contract``, which would hide the contract."""
    while mark.args:
        inner = mark.args[0]
        if isinstance(inner, contract):
            place = f"{inner.location.file}:{inner.location.line}: " if inner.location else ""
            raise collector.CollectError(
                f"{place}{name}: put @contract(...) above @pytest.mark.{mark.name}, not below it"
            )
        if not isinstance(inner, pytest.MarkDecorator):
            return
        mark = inner


def register(config: pytest.Config) -> None:
    """Collect contracts where asked to; findings of assertions are recorded in any case."""
    settings = config.stash[options.KEY]
    if settings.packages:
        sources.count_as_own(settings.packages)
        config.add_cleanup(lambda: sources.count_as_own(()))
    config.pluginmanager.register(Records(), "torchcheck-records")
    if settings.enabled or settings.models:
        config.pluginmanager.register(_Contracts(settings), "torchcheck-contracts")

"""Contracts that no name refers to: those in lists and dicts are collected, those in nothing are named."""

from __future__ import annotations

import os
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import pytest

from ..declared.kept_count import LOG
from ..text.printable import printable
from . import markers, options
from .parts import TorchcheckWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..contracts import Contract
    from ..findings import Location

_DEPTH: Final = 3  # a dict of lists of contracts is looked into; deeper is not meant for this
_MOST: Final = 1000  # a longer container is data


def held(name: str, container: object, kind: type[Contract]) -> list[tuple[str, Contract]]:
    """Return the contracts in a list, tuple or dict, each with the name that its items get.

    The name is that of the container, a dot, and the key; in a list the contract's own name where
    all of them have one of their own, so that an insertion moves no other one's, else its position.

    Args:
        name: What the container is called in its module.
        container: Anything.
        kind: The class of contracts.
    """
    return [] if isinstance(container, kind) else list(_walk(name, container, kind, _DEPTH))


def _walk(
    name: str, thing: object, kind: type[Contract], depth: int
) -> Iterator[tuple[str, Contract]]:
    if isinstance(thing, kind):
        yield name, thing
        return
    if type(thing) not in (list, tuple, dict) or not depth or len(thing) > _MOST:  # type: ignore[arg-type]
        return
    pairs: list[tuple[str, Any]]
    if isinstance(thing, dict):
        pairs = [(_word(key), value) for key, value in thing.items()]
    else:
        values = list(thing)  # type: ignore[call-overload]
        own = [
            printable(value.name) for value in values if isinstance(value, kind) and value.is_named
        ]
        named = len(own) == len(set(own)) == len(values)
        pairs = [(own[i] if named else str(i), value) for i, value in enumerate(values)]
    for key, value in pairs:
        yield from _walk(f"{name}.{key}", value, kind, depth - 1)


def _word(key: object) -> str:
    """Return a key as a part of a node id: brackets and colons mean something there."""
    return re.sub(r"[\[\]:\s]+", "-", printable(str(key))).strip("-") or "key"


class _Watch:
    """Notes the contracts that test modules declare, and which tests have them as parameters."""

    def __init__(self) -> None:
        LOG.declarations.clear()
        LOG.kept = True
        self._modules: list[os.PathLike[str]] = []

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Note a test module that is about to be imported."""
        if isinstance(collector, pytest.Module):
            self._modules.append(collector.path)

    def settle(self, items: list[pytest.Item]) -> None:
        """End the log, before a selection takes out the tests that have contracts as parameters."""
        LOG.kept = False
        if LOG.declarations:
            for item in items:
                params = getattr(getattr(item, "callspec", None), "params", {})
                for value in params.values():
                    LOG.use(value)

    def unused(self) -> list[Location]:
        """Return where the contracts of test modules stand that nothing has run or collected."""
        left = [one.location for one in LOG.declarations if not one.used]
        modules = {os.path.realpath(path) for path in self._modules} if left else set()
        return [place for place in left if os.path.realpath(place.file) in modules]


class Unbound(_Watch):
    """Names the contracts of test modules that nothing collects."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Warn of each of them once."""
        self.settle(items)
        lost = self.unused()
        LOG.declarations.clear()
        if getattr(config, "workerinput", {}).get("workerid", "gw0") != "gw0":
            return  # one of several processes says it
        if session.testsfailed:
            return  # an error while collecting has hidden what comes after it
        for place in lost:
            said = TorchcheckWarning(
                f"the contract on line {place.line} is not collected: no name of the module refers to it; "
                "write NAME = Contract(...), or put it into a list or dict of the module"
            )
            try:
                warnings.warn_explicit(said, None, place.file, place.line)
            except TorchcheckWarning as error:  # -W error
                markers.usage_error(config, f"{place.file}:{place.line}: {error}")


_SENT: Final = "torchcheck_not_run"


class Forgotten(_Watch):
    """Says in one line that there are contracts which a run without ``--torchcheck`` leaves out."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__()
        self._config = config
        self._elsewhere: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note which contracts are parameters of tests."""
        self.settle(items)

    def pytest_sessionfinish(self) -> None:
        """Send what a worker of xdist knows to the process that the user looks at."""
        if getattr(self._config, "workerinput", {}).get("workerid") == "gw0":
            self._config.workeroutput[_SENT] = [place.file for place in self.unused()]  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker knows."""
        self._elsewhere += getattr(node, "workeroutput", {}).get(_SENT, [])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the line."""
        files = self._elsewhere or [place.file for place in self.unused()]
        if not files or self._config.get_verbosity() < -1:
            return
        names = list(dict.fromkeys(os.path.relpath(file) for file in files))
        where = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        count = f"{len(files)} contract{'s were' if len(files) > 1 else ' was'}"
        terminalreporter.write_line(
            f"torchcheck: {count} not run ({printable(where)}); run pytest --torchcheck to check them",
            yellow=True,
        )


def register(config: pytest.Config) -> None:
    """Watch what is declared while the test modules are imported."""
    settings = config.stash[options.KEY]
    asked = settings.enabled or settings.models
    config.pluginmanager.register(Unbound() if asked else Forgotten(config), "torchcheck-declared")

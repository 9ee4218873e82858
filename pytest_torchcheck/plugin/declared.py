"""Contracts that no name refers to: those in lists and dicts are collected, those in nothing are named."""

from __future__ import annotations

import os
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import pytest

from ..declarations import LOG
from ..printable import printable
from . import markers
from .parts import TorchcheckWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..contracts import Contract

_DEPTH: Final = 3  # a dict of lists of contracts is looked into; deeper is not meant for this
_MOST: Final = 1000  # a longer container is data


def held(name: str, container: object, kind: type[Contract]) -> list[tuple[str, Contract]]:
    """Return the contracts in a list, tuple or dict, each with the name that its items get.

    The name is that of the container, a dot, and the key; in a list the contract's own name where all of them
    have one of their own, so that an insertion moves no other one's, else its position.

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


class Unbound:
    """Names the contracts of test modules that nothing collects."""

    def __init__(self) -> None:
        LOG.declarations.clear()
        LOG.kept = True
        self._modules: list[str] = []

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Note a test module that is about to be imported."""
        if isinstance(collector, pytest.Module):
            self._modules.append(os.path.realpath(collector.path))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Warn of each of them once, before a selection takes out the tests that have them as parameters."""
        LOG.kept = False
        for item in items:
            params = getattr(getattr(item, "callspec", None), "params", {})
            for value in params.values():
                LOG.use(value)
        lost = [
            one.location
            for one in LOG.declarations
            if not one.used and os.path.realpath(one.location.file) in self._modules
        ]
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

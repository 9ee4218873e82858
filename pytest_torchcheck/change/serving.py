"""The answers of a reference's process: one contract's description, runs and traces, as plain data."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ..state import isolated, repeatable
from ..subject import Subject
from . import snapshot
from .running import Way, noise, run
from .traces import plain_trace, trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..batches import Batch
    from ..contracts import Contract
    from .running import Load


class Served:
    """One contract with its subject, weights and batches.

    Args:
        contract: The contract.
        where: Device, dtype and seed.
    """

    def __init__(self, contract: Contract, where: Mapping[str, Any]) -> None:
        self.subject = Subject(contract, **where)
        self._load: Load | None = None
        self._batches: list[Batch] = []

    def answer(self, request: Mapping[str, Any]) -> Any:
        """Return what is asked for; the user's code may raise.

        Raises:
            ValueError: Nothing of that name can be asked for.
        """
        with isolated(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            repeatable()
            return self._answer(request)

    def _answer(self, request: Mapping[str, Any]) -> Any:
        if request["ask"] == "description":
            return snapshot.describe(self.subject)
        if self._load is None:
            self._load = snapshot.loading(snapshot.weights(self.subject))
            self._batches = snapshot.batches(self.subject)
        if request["ask"] == "noise":
            return noise(self.subject, self._batches[0], self._load)
        way = Way(**request["way"])
        batch, seed = self._batches[way.batch], self.subject.seed
        if request["ask"] == "outcome":
            return run(self.subject, batch, self._load, way, seed=seed).plain()
        if request["ask"] == "trace":
            return plain_trace(trace(self.subject, batch, self._load, way, seed=seed))
        raise ValueError(f"nothing is called {request['ask']!r}")

    def close(self) -> None:
        """Put the model back."""
        self.subject.close()

"""The catalogue: a check is a function from a Subject to findings, with its name, needs and cost."""

from __future__ import annotations

import functools
import os
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from ..findings import Finding

# promises of users' own may import them from here
from ..verdicts import inconclusive as inconclusive
from ..verdicts import passed as passed
from ..verdicts import violated as violated

if TYPE_CHECKING:
    from ..contracts import Contract
    from ..subject import Subject

CheckFunction = Callable[["Subject"], Iterable[Finding]]
Axes = Literal["device-dtype", "low-precision", "device", "once"]
Need = Literal[
    "model",
    "model-or-functions",
    "step-or-accumulates",
    "loss",
    "targets",
    "train_step",
    "step-or-trainer",
    "trainer",
    "optimizer",
    "dataset",
    "memory",
    "growth",
    "flops",
    "functions",
    "output",
    "specs",
    "ranks",
    "factory",
    "overfit",
    "low-precision",
    "own-promises",
    "ignore-index",
]

FAMILIES = (
    "autograd",
    "updates",
    "functions",
    "loss",
    "labels",
    "pairing",
    "targets",
    "arguments",
    "influence",
    "behaviour",
    "promised",
    "reference",
    "state",
    "structure",
    "devices",
    "numerics",
    "amp",
    "determinism",
    "initialisation",
    "memory",
    "overfitting",
    "loop",
    "trainer",
    "training",
    "averages",
    "equivalence",
    "data",
    "loading",
    "cuda",
    "ranks",
    "rank_data",
    "rank_sharding",
)
"""The order in which the families (modules of this package) run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One entry of the catalogue.

    Attributes:
        name: Noun phrase of what is promised, such as ``gradients-exist``.
        run: The function that checks.
        summary: One sentence: what is promised.
        needs: What the contract must declare for the check to apply.
        promise: Class name in :mod:`pytest_torchcheck.promises` without which it does not apply.
        cost: In words of the subject's own step: F forward, B backward, S optimizer step.
        axes: ``device-dtype``: once per declared device and full-precision dtype; ``low-precision``: once per
            device and declared half-precision dtype; ``device``: once per device; ``once``: once per contract.
        devices: Device types it runs on; empty for every real device.
        family: Module that holds it.
        tries_skip: Whether a contract that skips it still runs it, to see whether the skip is still needed;
            False for what costs too much.
    """

    name: str
    run: CheckFunction
    summary: str
    needs: tuple[Need, ...] = ("model",)
    promise: str | None = None
    cost: str = ""
    axes: Axes = "device-dtype"
    devices: tuple[str, ...] = ()
    family: str = ""
    tries_skip: bool = True

    def missing(self, contract: Contract) -> str | None:
        """Return why the check does not apply to this declaration, or None if it does."""
        for need in self.needs:
            if not contract.declares(need):
                return f"the contract declares no {need}"
        if contract.adapted is not None and self.name in contract.adapted.without:
            return contract.adapted.without[self.name]
        if self.promise is not None and not contract.promised(self.promise):
            return f"the contract promises no {self.promise}"
        return None


_CATALOGUE: dict[str, Check] = {}


def check(
    name: str,
    summary: str,
    *,
    needs: tuple[Need, ...] = ("model",),
    promise: str | None = None,
    cost: str,
    axes: Axes = "device-dtype",
    devices: tuple[str, ...] = (),
    tries_skip: bool = True,
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check; the arguments are the fields of :class:`Check`."""

    def register(function: CheckFunction) -> CheckFunction:
        if name in _CATALOGUE and _CATALOGUE[name].run.__module__ != function.__module__:
            raise ValueError(f"two checks are named {name!r}")
        _CATALOGUE[name] = Check(
            name=name,
            run=function,
            summary=summary,
            needs=needs,
            promise=promise,
            cost=cost,
            axes=axes,
            devices=devices,
            family=function.__module__.rpartition(".")[2],
            tries_skip=tries_skip,
        )
        return function

    return register


@functools.cache
def _import_families() -> None:
    for module in pkgutil.iter_modules([os.path.dirname(__file__)]):
        import_module(f"{__package__}.{module.name}")


def catalogue() -> Mapping[str, Check]:
    """Return every check by name, in the order in which they run."""
    _import_families()
    order = {family: place for place, family in enumerate(FAMILIES)}
    return dict(sorted(_CATALOGUE.items(), key=lambda item: order.get(item[1].family, len(order))))

"""What is known of a check without importing the function that checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol, TypedDict, Unpack

from ..findings import Finding
from ..late import Late
from ..lean import dataclass

CheckFunction = Callable[[Any], Iterable[Finding]]
"""Function that takes a :class:`~pytest_torchcheck.subject.Subject`."""
Axes = Literal["device-dtype", "low-precision", "device", "once"]
About = Literal["model", "declaration"]
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
    "speed",
    "functions",
    "output",
    "specs",
    "ranks",
    "factory",
    "overfit",
    "low-precision",
    "own-promises",
    "set",
    "ignore-index",
    "padding",
]


NAMED: Final[Mapping[str, str]] = {
    "model-or-functions": "model or functions",
    "step-or-trainer": "train_step or trainer",
    "step-or-accumulates": "train_step or promises.Accumulates",
    "specs": "specs of its inputs",
    "factory": "function that builds its model",
    "low-precision": "dtype below float32",
    "own-promises": "promise of the project's own",
    "set": "`promises.PermutationInvariant` or an input `edge_index`",
    "ignore-index": "targets with ignore_index",
    "padding": "`promises.PaddingInvariant` or a batch of its own",
}
"""What a need asks for, where its name is no argument's."""


class _Adapted(Protocol):
    @property
    def without(self) -> Any:
        """Why checks do not apply to what an adapter made, by name."""


class Declaration(Protocol):
    """What a check asks of a contract before it runs."""

    @property
    def adapted(self) -> _Adapted | None:
        """What an adapter made of the model."""

    def declares(self, need: str) -> bool:
        """Say whether the declaration holds what a check needs."""

    def promised(self, kind: str) -> Any:
        """Return the promises of a class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One entry of the catalogue.

    Attributes:
        name: Noun phrase of what is promised, such as ``gradients-exist``.
        run: The function that checks; that of the catalogue is imported when it is first called.
        summary: One sentence: what is promised.
        needs: What the contract must declare for the check to apply.
        promise: Class name in :mod:`pytest_torchcheck.promises` without which it does not apply.
        cost: In words of the subject's own step: F forward, B backward, S optimizer step.
        axes: ``device-dtype``: once per declared device and full-precision dtype;
            ``low-precision``: once per device and declared half-precision dtype; ``device``: once
            per device; ``once``: once per contract.
        devices: Device types it runs on; empty for every real device.
        family: Module of ``checks`` that holds it.
        about: ``model``, or ``declaration``: what the contract declares beside the model.
        leads: Whether it runs before all others: a model that crashes is reported by the check that
            a reader would ask for it, not by whichever comes first.
        starts: ``"module:function"`` that is given the contract before any check runs, to begin in
            the background what this one will wait for.
        tries_skip: Whether a contract that skips it still runs it, to see whether the skip is still
            needed; False for what costs too much.
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
    about: About = "model"
    leads: bool = False
    starts: str = ""
    tries_skip: bool = True

    @property
    def function(self) -> CheckFunction:
        """The function that checks, imported now where it was not."""
        found: CheckFunction = self.run.function if isinstance(self.run, Late) else self.run
        return found

    def missing(self, contract: Declaration) -> str | None:
        """Return why the check does not apply to this declaration, or None if it does."""
        for need in self.needs:
            if not contract.declares(need):
                return f"the contract declares no {NAMED.get(need, need)}"
        if contract.adapted is not None and self.name in contract.adapted.without:
            reason: str = contract.adapted.without[self.name]
            return reason
        if self.promise is not None and not contract.promised(self.promise):
            return f"the contract promises no {self.promise}"
        return None


class Fields(TypedDict, total=False):
    """Fields of :class:`Check` that an entry, or a family for all of its entries, may give."""

    needs: tuple[Need, ...]
    promise: str
    cost: str
    axes: Axes
    devices: tuple[str, ...]
    about: About
    leads: bool
    starts: str
    tries_skip: bool


Entry = Callable[[str, Fields], Check]
"""Makes a check of the module of ``checks`` that holds its function, and of what its family gives."""


def check(name: str, summary: str, *, function: str = "", **fields: Unpack[Fields]) -> Entry:
    """Declare a check; the arguments are the fields of :class:`Check`.

    Args:
        function: The function that checks, where it is not called as the check is.
    """
    target = function or name.replace("-", "_")

    def made(module: str, shared: Fields) -> Check:
        given: Fields = {**shared, **fields}
        run = Late(f"checks.{module}:{target}")
        return Check(name=name, run=run, summary=summary, family=module, **given)

    return made


def family(name: str, *checks: Entry, **shared: Unpack[Fields]) -> tuple[Check, ...]:
    """Put checks into the module of ``checks`` that holds their functions, in the order in which they run.

    What is shared holds for each that does not say otherwise.
    """
    return tuple(each(name, shared) for each in checks)
